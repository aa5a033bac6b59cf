package nvfs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/internal/model"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// choices turns bytes into decisions.
type choices struct {
	data []byte
	pos  int
}

func (c *choices) done() bool { return c.pos >= len(c.data) }

func (c *choices) byte() byte {
	if c.done() {
		return 0
	}
	c.pos++
	return c.data[c.pos-1]
}

func (c *choices) upTo(n int) int { return int(uint32(c.byte())|uint32(c.byte())<<8) % n }

func pick[T any](c *choices, from ...T) T { return from[int(c.byte())%len(from)] }

var (
	longName = strings.Repeat("n", 255)
	names    = []string{"a", "b", "c", "d", "e", "f", "g", "h", longName, "longer-name.txt", "x", "y"}
	attrs    = []string{"user.a", "user.b", "user.c", "trusted.overlay.opaque", capability, "user." + strings.Repeat("k", 200)}
)

// offset is a position or size near one of the engine's limits.
func (c *choices) offset() uint64 {
	base := pick[uint64](c, 0, 0, 0, 352, 352, 4096, 4096, 8192, 8192, 12288, 40960, 65536, 131072, 262144,
		512<<10, 512<<10, 1<<20, 2<<20, 2<<20, 1<<33, 1<<40)
	return base + pick[uint64](c, 0, 0, 0, 0, 1, 7, 8, 64, 100, 4095) - min(base, pick[uint64](c, 0, 0, 0, 1, 8, 100, 4096))
}

func (c *choices) length() int {
	return pick(c, 1, 1, 7, 8, 63, 64, 65, 100, 300, 352, 353, 1000, 4000, 4096, 4096, 4097, 8192, 10000, 20000, 100_000, 512<<10, 600_000, 1_200_000)
}

// session runs operations on the engine and on the model and compares.
type session struct {
	clock  testClock
	m      *mounted
	model  *model.Model
	known  []*model.Node // inodes with an id, freed ones for a while too
	ids    map[nvfs.NodeID]*model.Node
	empty  nvfs.StatFS // of the fresh volume
	c      choices
	log    []string
	tight  bool // the volume may run full
	filler []byte
}

func newSession(m *mounted, s *session) *session {
	s.m = m
	s.model = model.New(s.clock.now())
	var a nvfs.Attr
	if err := m.GetAttr(nvfs.RootID, &a); err != nil {
		panic(err)
	}
	r := s.model.Root
	r.Atime, r.Mtime, r.Ctime, r.Btime = a.Atime, a.Mtime, a.Ctime, a.Btime
	s.known = []*model.Node{r}
	s.ids = map[nvfs.NodeID]*model.Node{r.ID: r}
	s.empty = m.totals()
	s.filler = make([]byte, 2<<20)
	return s
}

func (s *session) logf(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *session) tail() string {
	return strings.Join(s.log[max(0, len(s.log)-40):], "\n")
}

// pattern is data that differs from call to call.
func (s *session) pattern(n int) []byte {
	p := s.filler[:n]
	seed := byte(len(s.log)*31 + 1)
	for i := range p {
		p[i] = seed + byte(i*7) + byte(i>>8)
	}
	return p
}

func (s *session) anyNode() *model.Node { return s.known[s.c.upTo(len(s.known))] }

// node chooses one that satisfies want, if one is met soon.
func (s *session) node(want func(*model.Node) bool) *model.Node {
	start := s.c.upTo(len(s.known))
	for i := range s.known {
		if n := s.known[(start+i)%len(s.known)]; want(n) && !n.Freed {
			return n
		}
	}
	return s.known[start]
}

func (s *session) dir() *model.Node {
	if s.c.byte() < 4 {
		return s.anyNode()
	}
	return s.node((*model.Node).IsDir)
}

func (s *session) file() *model.Node {
	if s.c.byte() < 4 {
		return s.anyNode()
	}
	return s.node((*model.Node).Regular)
}

func (s *session) name() string {
	if s.c.byte() < 3 {
		return pick(&s.c, "", ".", "..", "a/b", "a\x00", longName+"n")
	}
	return pick(&s.c, names...)
}

// learn notes an inode that a reply named.
func (s *session) learn(n *model.Node, a *nvfs.Attr) error {
	if n.ID == 0 {
		if o := s.ids[a.ID]; o != nil {
			return fmt.Errorf("id %#x of a new inode was used before", a.ID)
		}
		n.ID = a.ID
		s.ids[n.ID] = n
		s.known = append(s.known, n)
	}
	return s.compare(n, a)
}

// compare checks attributes.
func (s *session) compare(n *model.Node, a *nvfs.Attr) error {
	w := nvfs.Attr{ID: n.ID, Mode: n.Mode, Nlink: n.Nlink, UID: n.UID, GID: n.GID, Rdev: n.Rdev, Size: n.Size,
		Blocks: a.Blocks, Atime: n.Atime, Mtime: n.Mtime, Ctime: n.Ctime, Btime: n.Btime, Changes: a.Changes}
	if n.IsDir() {
		w.Size = max(a.Blocks/8, 1) * pageSize
	}
	if *a != w {
		return fmt.Errorf("attributes differ\n have %+v\n want %+v", *a, w)
	}
	return nil
}

// result compares error numbers; ok says whether to compare what else came.
func (s *session) result(err error, want syscall.Errno) (ok bool, bad error) {
	if got := nvfs.Errno(err); err != nil && got != want || err == nil && want != 0 {
		return false, fmt.Errorf("result %v, want %v", err, want)
	}
	return err == nil, nil
}

var errSkip = errors.New("the volume is full")

// full reports an ENOSPC that the model does not know of.
func (s *session) full(err error) bool { return s.tight && errors.Is(err, syscall.ENOSPC) }

// step does one operation.
func (s *session) step() error {
	s.model.Now = s.clock.tick()
	s.model.UID = pick[uint32](&s.c, 0, 0, 0, 1000)
	s.model.GID = s.model.UID / 10
	s.m.Begin(&nvfs.Request{UID: s.model.UID, GID: s.model.GID})
	defer s.m.End()
	ops := [...]func() error{
		s.opCreate, s.opCreate, s.opCreate, s.opMkdir, s.opMkdir, s.opSymlink, s.opSpecial, s.opTmpfile, s.opLink, s.opLink,
		s.opUnlink, s.opUnlink, s.opUnlink, s.opRmdir, s.opRename, s.opRename, s.opRename, s.opWrite, s.opWrite, s.opWrite,
		s.opWrite, s.opTruncate, s.opTruncate, s.opSetAttr, s.opFallocate, s.opFallocate, s.opFallocate, s.opCopy, s.opSetXattr, s.opSetXattr,
		s.opRemoveXattr, s.opLookup, s.opLookup, s.opForget, s.opForget, s.opRead, s.opRead, s.opLseek, s.opReadDir, s.opGetAttr, s.opGetXattr, s.opReadlink,
	}
	err := ops[int(s.c.byte())%len(ops)]()
	if err == errSkip {
		s.logf("  full")
		err = nil
	}
	if len(s.known) > 120 {
		s.prune()
	}
	return err
}

// prune forgets about inodes that are gone, but for a few.
func (s *session) prune() {
	gone := 0
	s.known = slices.DeleteFunc(s.known, func(n *model.Node) bool {
		if n.Freed {
			gone++
		}
		return n.Freed && gone > 4
	})
}

func (s *session) opCreate() error {
	return s.create(unix.S_IFREG|pick[uint32](&s.c, 0644, 06755, 02600), 0)
}
func (s *session) opMkdir() error { return s.create(unix.S_IFDIR|pick[uint32](&s.c, 0755, 02775), 0) }
func (s *session) opSpecial() error {
	return s.create(pick[uint32](&s.c, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK)|0600, 0x1234)
}

func (s *session) create(mode, rdev uint32) error {
	d, name, umask := s.dir(), s.name(), pick[uint32](&s.c, 0, 022)
	s.logf("create %#x %.20q mode %o umask %o", d.ID, name, mode, umask)
	var a nvfs.Attr
	var err error
	args := nvfs.CreateArgs{Mode: mode, Umask: umask, Rdev: rdev}
	if mode&unix.S_IFMT == unix.S_IFDIR {
		err = s.m.Mkdir(d.ID, []byte(name), &args, &a)
	} else {
		err = s.m.Mknod(d.ID, []byte(name), &args, &a)
	}
	if s.full(err) {
		return errSkip
	}
	n, want := s.model.Create(d, name, mode, umask, rdev, "")
	if ok, bad := s.result(err, want); !ok {
		return bad
	}
	return s.learn(n, &a)
}

func (s *session) opSymlink() error {
	d, name := s.dir(), s.name()
	target := strings.Repeat("t", pick(&s.c, 1, 10, 351, 352, 353, 400, 1000, 4095))
	s.logf("symlink %#x %.20q to %d bytes", d.ID, name, len(target))
	var a nvfs.Attr
	err := s.m.Symlink(d.ID, []byte(name), []byte(target), &nvfs.CreateArgs{}, &a)
	if s.full(err) {
		return errSkip
	}
	n, want := s.model.Create(d, name, unix.S_IFLNK|0777, 0, 0, target)
	if ok, bad := s.result(err, want); !ok {
		return bad
	}
	return s.learn(n, &a)
}

func (s *session) opTmpfile() error {
	d := s.dir()
	s.logf("tmpfile %#x", d.ID)
	var a nvfs.Attr
	err := s.m.Tmpfile(d.ID, &nvfs.CreateArgs{Mode: unix.S_IFREG | 0640}, &a)
	if s.full(err) {
		return errSkip
	}
	n, want := s.model.Tmpfile(d, unix.S_IFREG|0640, 0)
	if ok, bad := s.result(err, want); !ok {
		return bad
	}
	return s.learn(n, &a)
}

func (s *session) opLink() error {
	n, d, name := s.file(), s.dir(), s.name()
	s.logf("link %#x to %#x %.20q", n.ID, d.ID, name)
	var a nvfs.Attr
	err := s.m.Link(n.ID, d.ID, []byte(name), &a)
	if s.full(err) {
		return errSkip
	}
	if ok, bad := s.result(err, s.model.Link(n, d, name)); !ok {
		return bad
	}
	return s.learn(n, &a)
}

func (s *session) opUnlink() error { return s.remove(false) }
func (s *session) opRmdir() error  { return s.remove(true) }

func (s *session) remove(dir bool) error {
	d, name := s.dir(), s.name()
	s.logf("remove %#x %.20q directory %v", d.ID, name, dir)
	var err error
	if dir {
		err = s.m.Rmdir(d.ID, []byte(name))
	} else {
		err = s.m.Unlink(d.ID, []byte(name))
	}
	_, bad := s.result(err, s.model.Remove(d, name, dir))
	return bad
}

func (s *session) opRename() error {
	from, fromName, to, toName := s.dir(), s.name(), s.dir(), s.name()
	if s.c.byte()&1 == 0 {
		to = from
	}
	flags := pick[uint32](&s.c, 0, 0, 0, nvfs.RenameNoReplace, nvfs.RenameExchange, nvfs.RenameWhiteout, 3, 5, 8)
	s.logf("rename %#x %.20q to %#x %.20q flags %d", from.ID, fromName, to.ID, toName, flags)
	err := s.m.Rename(from.ID, []byte(fromName), to.ID, []byte(toName), flags)
	if s.full(err) {
		return errSkip
	}
	_, bad := s.result(err, s.model.Rename(from, fromName, to, toName, flags))
	return bad
}

func (s *session) opWrite() error {
	n, off, data, kill := s.file(), s.c.offset(), s.pattern(s.c.length()), s.c.byte()&1 == 0
	s.logf("write %#x %d+%d kill %v", n.ID, off, len(data), kill)
	flags := nvfs.WriteFlags(0)
	if kill {
		flags = nvfs.WriteKillSuidgid
	}
	done, err := s.m.Write(n.ID, off, data, flags)
	if s.full(err) {
		// What was stored in place before the space ran out stays.
		return s.resync(n, off, data)
	}
	if err == nil && done < len(data) && s.tight {
		if e := s.model.Write(n, off, data[:done], kill); e != 0 {
			return e
		}
		return s.resync(n, off, data)
	}
	ok, bad := s.result(err, s.model.Write(n, off, data, kill))
	if ok && done != len(data) {
		return fmt.Errorf("wrote %d of %d", done, len(data))
	}
	return bad
}

// resync takes over what a failed write left: each byte old or new.
func (s *session) resync(n *model.Node, off uint64, data []byte) error {
	have := make([]byte, len(data))
	k, err := s.m.Read(n.ID, off, have)
	if err != nil {
		return err
	}
	old, _ := s.model.Read(n, off, uint64(len(data)))
	if k != len(old) {
		return fmt.Errorf("a failed write changed the size")
	}
	for i := range old {
		if have[i] != old[i] && have[i] != data[i] {
			return fmt.Errorf("a failed write left garbage at %d", off+uint64(i))
		}
	}
	if k > 0 {
		s.model.Store(n, off, have[:k])
	}
	return errSkip
}

func (s *session) opTruncate() error {
	n, size := s.file(), s.c.offset()
	if s.c.byte() < 5 {
		size = 1<<63 - 1
	}
	return s.setAttr(n, &nvfs.SetAttr{Valid: nvfs.SetSize, Size: size})
}

func (s *session) opSetAttr() error {
	valid := nvfs.SetAttrMask(s.c.byte()) | nvfs.SetAttrMask(s.c.byte()&3)<<8
	a := &nvfs.SetAttr{Valid: valid, Mode: pick[uint32](&s.c, 0777, 06711, 02644), UID: 7, GID: 8, Size: s.c.offset(),
		Atime: nvfs.Time{Sec: -5, Nsec: 1}, Mtime: nvfs.Time{Sec: 1 << 40, Nsec: 999_999_999}, Ctime: nvfs.Time{Sec: 77, Nsec: 7}}
	if valid&nvfs.SetSize != 0 && s.c.byte() < 128 {
		a.Valid &^= nvfs.SetSize
	}
	return s.setAttr(s.anyNode(), a)
}

func (s *session) setAttr(n *model.Node, c *nvfs.SetAttr) error {
	s.logf("setattr %#x %+v", n.ID, *c)
	var a nvfs.Attr
	err := s.m.SetAttr(n.ID, c, &a)
	if s.full(err) {
		return errSkip
	}
	if ok, bad := s.result(err, s.model.SetAttr(n, c)); !ok {
		return bad
	}
	return s.compare(n, &a)
}

func (s *session) opFallocate() error {
	n, off, length := s.file(), s.c.offset(), uint64(s.c.length())
	mode := pick[uint32](&s.c, 0, 1, 3, 3, 0x10, 0x11, 0x20)
	if s.c.byte() < 10 {
		length = pick[uint64](&s.c, 0, 4<<20, 1<<62, 1<<41)
	}
	s.logf("fallocate %#x mode %#x %d+%d", n.ID, mode, off, length)
	if mode != nvfs.FallocPunchHole|nvfs.FallocKeepSize && length >= 1<<41 && n.Regular() && !n.Freed && mode != 0x20 {
		err := s.m.Fallocate(n.ID, mode, off, length)
		if !errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("impossible allocation: %v", err)
		}
		return nil
	}
	err := s.m.Fallocate(n.ID, mode, off, length)
	if s.full(err) {
		return errSkip
	}
	ok, bad := s.result(err, s.model.Fallocate(n, mode, off, length))
	if ok && mode == 3 {
		return s.punched(n, off, length)
	}
	return bad
}

// punched checks that whole blocks of a punched range are holes.
func (s *session) punched(n *model.Node, off, length uint64) error {
	first := (off + pageSize - 1) &^ (pageSize - 1)
	if first+pageSize > off+length || first+pageSize > n.Size || n.Size <= 352 {
		return nil
	}
	pos, err := s.m.Lseek(n.ID, first, unix.SEEK_HOLE)
	if err != nil || pos != first {
		var a nvfs.Attr
		if s.m.GetAttr(n.ID, &a) == nil && a.Blocks == 0 {
			return nil // inline, or nothing but holes
		}
		return fmt.Errorf("no hole at %d after punching: %d %v", first, pos, err)
	}
	return nil
}

func (s *session) opCopy() error {
	src, dst, from, to, length := s.file(), s.file(), s.c.offset(), s.c.offset(), uint64(s.c.length())
	s.logf("copy %#x %d to %#x %d length %d", src.ID, from, dst.ID, to, length)
	if t := src.Type(); t != unix.S_IFREG && t != unix.S_IFDIR && t != unix.S_IFLNK {
		return nil
	}
	if s.tight {
		return nil
	}
	done, err := s.m.CopyFileRange(src.ID, from, dst.ID, to, length, nvfs.WriteKillSuidgid)
	want, e := s.model.CopyRange(src, from, dst, to, length)
	ok, bad := s.result(err, e)
	if ok && done != want {
		return fmt.Errorf("copied %d, want %d", done, want)
	}
	return bad
}

func (s *session) opSetXattr() error {
	n, name, flags := s.anyNode(), pick(&s.c, attrs...), pick[uint32](&s.c, 0, 0, 0, nvfs.XattrCreate, nvfs.XattrReplace)
	value := string(s.pattern(pick(&s.c, 0, 1, 10, 50, 100, 200, 250, 272, 280, 352, 1000, 4000, 4032, 5000, 20000, 65536, 65537)))
	s.logf("setxattr %#x %.20q %d bytes flags %d", n.ID, name, len(value), flags)
	err := s.m.SetXattr(n.ID, []byte(name), []byte(value), flags)
	want := s.model.SetXattr
	if s.full(err) {
		return errSkip
	}
	_, bad := s.result(err, want(n, name, value, flags))
	return bad
}

func (s *session) opRemoveXattr() error {
	n, name := s.anyNode(), pick(&s.c, attrs...)
	s.logf("removexattr %#x %.20q", n.ID, name)
	err := s.m.RemoveXattr(n.ID, []byte(name))
	if s.full(err) {
		return errSkip
	}
	_, bad := s.result(err, s.model.RemoveXattr(n, name))
	return bad
}

func (s *session) opGetXattr() error {
	n := s.anyNode()
	s.logf("getxattr %#x", n.ID)
	set, err := s.m.xattrs(n.ID)
	if n.Freed {
		_, bad := s.result(err, syscall.ESTALE)
		return bad
	}
	if err != nil {
		return err
	}
	if have, want := describeXattrs(set), describeXattrs(n.Xattrs); have != want {
		return fmt.Errorf("attributes %s, want %s", have, want)
	}
	return nil
}

func (s *session) opLookup() error {
	d, name := s.dir(), s.name()
	s.logf("lookup %#x %.20q", d.ID, name)
	var a nvfs.Attr
	err := s.m.Lookup(d.ID, []byte(name), &a)
	n, want := s.model.Lookup(d, name)
	if ok, bad := s.result(err, want); !ok {
		return bad
	}
	n.Refs++
	return s.learn(n, &a)
}

func (s *session) opForget() error {
	n := s.anyNode()
	count := n.Refs
	if s.c.byte()&1 == 0 {
		count = min(count, 1)
	}
	if n == s.model.Root || count == 0 {
		return nil
	}
	s.logf("forget %#x %d", n.ID, count)
	s.m.Forget(n.ID, count)
	s.model.Forget(n, count)
	return nil
}

func (s *session) opRead() error {
	n, off, length := s.file(), s.c.offset(), s.c.length()
	s.logf("read %#x %d+%d", n.ID, off, length)
	if t := n.Type(); t != unix.S_IFREG && t != unix.S_IFDIR && t != unix.S_IFLNK && !n.Freed {
		return nil
	}
	buf := bytes.Repeat([]byte{0xee}, length)
	k, err := s.m.Read(n.ID, off, buf)
	want, e := s.model.Read(n, off, uint64(length))
	ok, bad := s.result(err, e)
	if ok && !bytes.Equal(buf[:k], want) {
		return fmt.Errorf("read %d bytes, want %d; they differ from %d on", k, len(want), off+uint64(firstDifference(buf[:k], want)))
	}
	return bad
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func (s *session) opLseek() error {
	n, off, whence := s.file(), s.c.offset(), pick[uint32](&s.c, unix.SEEK_DATA, unix.SEEK_HOLE)
	s.logf("lseek %#x %d %d", n.ID, off, whence)
	pos, err := s.m.Lseek(n.ID, off, whence)
	switch {
	case n.Freed:
		_, bad := s.result(err, syscall.ESTALE)
		return bad
	case !n.Regular():
		_, bad := s.result(err, syscall.EINVAL)
		return bad
	case off >= n.Size:
		_, bad := s.result(err, syscall.ENXIO)
		return bad
	}
	end := pos // what was passed over holds no data
	if whence == unix.SEEK_DATA && errors.Is(err, syscall.ENXIO) {
		end, err = n.Size, nil
	}
	if err != nil || pos > n.Size {
		return fmt.Errorf("position %d: %v", pos, err)
	}
	if whence == unix.SEEK_HOLE {
		off, end = pos, min(n.Size, pos&^(pageSize-1)+pageSize)
	}
	for at, p := range n.Pages {
		for i, v := range p {
			if b := at*pageSize + uint64(i); v != 0 && b >= off && b < end {
				return fmt.Errorf("data at %d lies in what is said to be a hole: %d-%d", b, off, end)
			}
		}
	}
	return nil
}

func (s *session) opReadDir() error {
	d := s.dir()
	s.logf("readdir %#x", d.ID)
	list, err := s.m.names(d.ID)
	if ok, bad := s.result(err, d.AsDir()); !ok {
		return bad
	}
	if len(list) != len(d.Children) {
		return fmt.Errorf("%d names, want %d", len(list), len(d.Children))
	}
	for name, e := range list {
		n := d.Children[name]
		if n == nil || n.Type() != e.Type || n.ID != 0 && n.ID.Ino() != e.Ino {
			return fmt.Errorf("entry %q: %+v, want %+v", name, e, n)
		}
	}
	return nil
}

func (s *session) opReadlink() error {
	n := s.node(func(n *model.Node) bool { return n.Type() == unix.S_IFLNK })
	s.logf("readlink %#x", n.ID)
	buf := make([]byte, pageSize)
	k, err := s.m.Readlink(n.ID, buf)
	want := syscall.Errno(0)
	switch {
	case n.Freed:
		want = syscall.ESTALE
	case n.Type() != unix.S_IFLNK:
		want = syscall.EINVAL
	}
	ok, bad := s.result(err, want)
	if ok && string(buf[:k]) != n.Target {
		return fmt.Errorf("target %q", buf[:k])
	}
	return bad
}

func (s *session) opGetAttr() error {
	n := s.anyNode()
	s.logf("getattr %#x", n.ID)
	var a nvfs.Attr
	err := s.m.GetAttr(n.ID, &a)
	want := syscall.Errno(0)
	if n.Freed {
		want = syscall.ESTALE
	}
	if ok, bad := s.result(err, want); !ok {
		return bad
	}
	return s.compare(n, &a)
}

// verify compares everything.
func (s *session) verify() error {
	if h := s.m.fs.Health(); h != "" {
		return errors.New("damage: " + h)
	}
	have, err := s.m.dump()
	if err != nil {
		return err
	}
	if want := dumpModel(s.model); have != want {
		return fmt.Errorf("trees differ:\n%s", diffLines(have, want))
	}
	return s.account()
}

// account checks that the free space is what the inodes leave.
func (s *session) account() error {
	blocks, inodes := uint64(0), uint64(0)
	seen := map[*model.Node]bool{}
	var add func(n *model.Node, id nvfs.NodeID) error
	add = func(n *model.Node, id nvfs.NodeID) error {
		if seen[n] {
			return nil
		}
		seen[n] = true
		var a nvfs.Attr
		if err := s.m.GetAttr(id, &a); err != nil {
			return err
		}
		blocks += a.Blocks / 8
		inodes++
		for name, c := range n.Children {
			if err := s.m.Lookup(id, []byte(name), &a); err != nil {
				return err
			}
			err := add(c, a.ID)
			s.m.Forget(a.ID, 1)
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := add(s.model.Root, nvfs.RootID); err != nil {
		return err
	}
	for _, n := range s.known {
		if !n.Freed {
			if err := add(n, n.ID); err != nil {
				return err
			}
		}
	}
	t := s.m.totals()
	if t.BlocksFree != s.empty.BlocksFree-blocks || t.FilesFree != s.empty.FilesFree-(inodes-1) {
		return fmt.Errorf("free are %d blocks and %d inodes; used are %d and %d of %d and %d", t.BlocksFree, t.FilesFree,
			blocks, inodes-1, s.empty.BlocksFree, s.empty.FilesFree)
	}
	return nil
}

func (s *session) remount() error {
	s.logf("remount")
	if err := s.m.unmount(); err != nil {
		return err
	}
	s.model.Remount(s.known)
	m, err := tryMount(s.m.space, s.clock.now)
	if err != nil {
		return err
	}
	s.m = m
	return s.verify()
}

// finish removes everything and expects all space back.
func (s *session) finish() error {
	s.logf("finish")
	for _, n := range s.known {
		if n != s.model.Root {
			s.m.Forget(n.ID, n.Refs)
			s.model.Forget(n, n.Refs)
		}
	}
	if err := s.m.removeAll(nvfs.RootID); err != nil {
		return err
	}
	for name := range s.model.Root.Xattrs {
		if err := s.m.RemoveXattr(nvfs.RootID, []byte(name)); err != nil {
			return err
		}
	}
	if t := s.m.totals(); t != s.empty {
		return fmt.Errorf("space is lost:\n have %+v\n want %+v", t, s.empty)
	}
	return s.m.unmount()
}

// run does all that the choices say.
func (s *session) run(every int) error {
	for i := 1; !s.c.done(); i++ {
		if err := s.step(); err != nil {
			return err
		}
		if err := lint(s.m.space); err != nil {
			return err
		}
		if i%every == 0 {
			if err := s.verify(); err != nil {
				return err
			}
			if i/every%5 == 0 {
				if err := s.remount(); err != nil {
					return err
				}
			}
		}
	}
	if err := s.verify(); err != nil {
		return err
	}
	if err := s.remount(); err != nil {
		return err
	}
	return s.finish()
}

func runOperations(t *testing.T, space pmem.Space, data []byte, every int, tight bool) {
	t.Helper()
	format(t, space, mkfs.Options{BytesPerInode: 4096})
	s := &session{c: choices{data: data}, tight: tight}
	newSession(mount(t, space, s.clock.now), s)
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("the last of %d operations:\n%s", len(s.log), s.tail())
			panic(r)
		}
	}()
	if err := s.run(every); err != nil {
		t.Fatalf("%v\nthe last of %d operations:\n%s", err, len(s.log), s.tail())
	}
}

func randomBytes(seed uint64, n int) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}

// scale is how much longer than usual the random tests run.
func scale(t testing.TB) int {
	v := os.Getenv("NVFS_TEST_SCALE")
	if v == "" {
		return 1
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("NVFS_TEST_SCALE=%q", v)
	}
	return n
}

// seeds are those of the random tests; NVFS_TEST_SEED chooses one.
func seeds(t testing.TB, n int) []uint64 {
	if v := os.Getenv("NVFS_TEST_SEED"); v != "" {
		s, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("NVFS_TEST_SEED=%q", v)
		}
		return []uint64{s}
	}
	if brief() {
		n = (n + 3) / 4
	}
	list := make([]uint64, n*scale(t))
	for i := range list {
		list[i] = uint64(i + 1)
	}
	return list
}

func TestRandomOperations(t *testing.T) {
	for _, seed := range seeds(t, 5) {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			t.Parallel()
			runOperations(t, newSpace(512<<20), randomBytes(seed, 40_000), 400, false)
		})
	}
}

// TestRandomOperationsOnFullVolume lets most operations meet ENOSPC.
func TestRandomOperationsOnFullVolume(t *testing.T) {
	for _, seed := range seeds(t, 8) {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) {
			t.Parallel()
			runOperations(t, newSpace(16<<20), randomBytes(1000+seed, 40_000), 400, true)
		})
	}
}

func FuzzOperations(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(randomBytes(seed, 400))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		runOperations(t, newSpace(16<<20), data[:min(len(data), 1500)], 50, true)
	})
}
