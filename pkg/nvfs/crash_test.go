package nvfs_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
)

// crashCase is an operation on a prepared volume.
type crashCase struct {
	name string
	run  func(m *mounted) error
	// torn is a file whose content is changed in place or in several atomic
	// steps: each aligned 8-byte word may be old or new, the size too.
	torn string
}

// id finds an inode by its path, without a lookup being counted.
func (m *mounted) id(path string) nvfs.NodeID {
	at := nvfs.RootID
	for name := range strings.SplitSeq(path, "/") {
		if name == "" {
			continue
		}
		var a nvfs.Attr
		if err := m.Lookup(at, []byte(name), &a); err != nil {
			panic(fmt.Errorf("%s: %w", path, err))
		}
		m.Forget(a.ID, 1)
		at = a.ID
	}
	return at
}

// create makes a file and forgets it.
func (m *mounted) create(dir nvfs.NodeID, name string, mode uint32) (nvfs.NodeID, error) {
	var a nvfs.Attr
	var err error
	c := &nvfs.CreateArgs{Mode: mode}
	if mode&unix.S_IFMT == unix.S_IFDIR {
		err = m.Mkdir(dir, []byte(name), c, &a)
	} else {
		err = m.Mknod(dir, []byte(name), c, &a)
	}
	if err == nil {
		m.Forget(a.ID, 1)
	}
	return a.ID, err
}

func (m *mounted) write(path string, off uint64, p []byte) error {
	n, err := m.Write(m.id(path), off, p, 0)
	if err == nil && n != len(p) {
		err = fmt.Errorf("wrote %d of %d bytes", n, len(p))
	}
	return err
}

func (m *mounted) set(path string, s nvfs.SetAttr) error {
	var a nvfs.Attr
	return m.SetAttr(m.id(path), &s, &a)
}

func (m *mounted) rename(fromDir, from, toDir, to string, flags uint32) error {
	return m.Rename(m.id(fromDir), []byte(from), m.id(toDir), []byte(to), flags)
}

func (m *mounted) link(path, dir, name string) error {
	var a nvfs.Attr
	err := m.Link(m.id(path), m.id(dir), []byte(name), &a)
	if err == nil {
		m.Forget(a.ID, 1)
	}
	return err
}

// data is content that differs by kind.
func data(kind byte, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = kind ^ byte(i*13) ^ byte(i>>8)
	}
	return p
}

// prepareTree makes one of everything.
func prepareTree(m *mounted) error {
	root := nvfs.RootID
	for _, d := range []string{"dir", "other", "empty", "many"} {
		if _, err := m.create(root, d, unix.S_IFDIR|0755); err != nil {
			return err
		}
	}
	for name, size := range map[string]int{"none": 0, "small": 100, "inline": 350, "page": 4096, "odd": 10_000, "plain": 10_000, "big": 600_000, "dir/a": 20, "dir/b": 5000, "other/c": 30} {
		dir, base := root, name
		if i := strings.IndexByte(name, '/'); i >= 0 {
			dir, base = m.id(name[:i]), name[i+1:]
		}
		if _, err := m.create(dir, base, unix.S_IFREG|0644); err != nil {
			return err
		}
		if err := m.write(name, 0, data('o', size)); err != nil {
			return err
		}
	}
	for _, d := range []string{"dir/sub", "other/sub", "other/vacant"} {
		i := strings.IndexByte(d, '/')
		if _, err := m.create(m.id(d[:i]), d[i+1:], unix.S_IFDIR|0755); err != nil {
			return err
		}
	}
	if _, err := m.create(m.id("dir/sub"), "deep", unix.S_IFREG|0600); err != nil {
		return err
	}
	for i := range 40 { // the next long name splits the leaf
		if _, err := m.create(m.id("many"), fmt.Sprintf("%02d%s", i, strings.Repeat("x", 60)), unix.S_IFREG|0600); err != nil {
			return err
		}
	}
	if _, err := m.create(root, "holes", unix.S_IFREG|0644); err != nil {
		return err
	}
	for i := range uint64(40) {
		if err := m.write("holes", i*2*pageSize, data('h', pageSize)); err != nil {
			return err
		}
	}
	if _, err := m.create(root, "unwritten", unix.S_IFREG|0644); err != nil {
		return err
	}
	if err := m.Fallocate(m.id("unwritten"), 0, 0, 20*pageSize); err != nil {
		return err
	}
	if _, err := m.create(root, "suid", unix.S_IFREG|06755); err != nil {
		return err
	}
	for path, size := range map[string]int{"small": 50, "page": 5000, "big": 100} {
		if err := m.SetXattr(m.id(path), []byte("user.x"), data('x', size), 0); err != nil {
			return err
		}
	}
	if err := m.SetXattr(m.id("suid"), []byte(capability), data('c', 20), 0); err != nil {
		return err
	}
	var a nvfs.Attr
	for name, n := range map[string]int{"short": 9, "long": 1000} {
		if err := m.Symlink(root, []byte(name), bytes.Repeat([]byte("t"), n), &nvfs.CreateArgs{}, &a); err != nil {
			return err
		}
		m.Forget(a.ID, 1)
	}
	return m.link("odd", "dir", "hard")
}

func crashCases() []crashCase {
	root := nvfs.RootID
	made := func(_ nvfs.NodeID, err error) error { return err }
	return []crashCase{
		{name: "create", run: func(m *mounted) error { return made(m.create(root, "new", unix.S_IFREG|0644)) }},
		{name: "create first", run: func(m *mounted) error { return made(m.create(m.id("empty"), "new", unix.S_IFREG|0644)) }},
		{name: "create with split", run: func(m *mounted) error { return made(m.create(m.id("many"), longName, unix.S_IFREG|0644)) }},
		{name: "mkdir", run: func(m *mounted) error { return made(m.create(m.id("dir"), "new", unix.S_IFDIR|0755)) }},
		{name: "mknod", run: func(m *mounted) error { return made(m.create(root, "new", unix.S_IFIFO|0644)) }},
		{name: "symlink", run: func(m *mounted) error {
			return m.Symlink(root, []byte("new"), []byte("target"), &nvfs.CreateArgs{}, new(nvfs.Attr))
		}},
		{name: "symlink long", run: func(m *mounted) error {
			return m.Symlink(root, []byte("new"), bytes.Repeat([]byte("n"), 3000), &nvfs.CreateArgs{}, new(nvfs.Attr))
		}},
		{name: "link", run: func(m *mounted) error { return m.link("page", "dir", "new") }},
		{name: "tmpfile", run: func(m *mounted) error {
			return m.Tmpfile(root, &nvfs.CreateArgs{Mode: unix.S_IFREG | 0600}, new(nvfs.Attr))
		}},
		{name: "tmpfile and link", run: func(m *mounted) error {
			var a nvfs.Attr
			if err := m.Tmpfile(root, &nvfs.CreateArgs{Mode: unix.S_IFREG | 0600}, &a); err != nil {
				return err
			}
			return m.Link(a.ID, root, []byte("new"), &a)
		}},
		{name: "unlink inline", run: func(m *mounted) error { return m.Unlink(root, []byte("small")) }},
		{name: "unlink big", run: func(m *mounted) error { return m.Unlink(root, []byte("big")) }},
		{name: "unlink holes", run: func(m *mounted) error { return m.Unlink(root, []byte("holes")) }},
		{name: "unlink with attributes", run: func(m *mounted) error { return m.Unlink(root, []byte("page")) }},
		{name: "unlink one of two", run: func(m *mounted) error { return m.Unlink(root, []byte("odd")) }},
		{name: "unlink last of directory", run: func(m *mounted) error { return m.Unlink(m.id("dir/sub"), []byte("deep")) }},
		{name: "unlink held", run: func(m *mounted) error {
			var a nvfs.Attr
			if err := m.Lookup(root, []byte("big"), &a); err != nil {
				return err
			}
			if err := m.Unlink(root, []byte("big")); err != nil {
				return err
			}
			m.Forget(a.ID, 1)
			return nil
		}},
		{name: "rmdir", run: func(m *mounted) error { return m.Rmdir(m.id("other"), []byte("vacant")) }},
		{name: "rename", run: func(m *mounted) error { return m.rename("", "small", "", "new", 0) }},
		{name: "rename away", run: func(m *mounted) error { return m.rename("dir", "a", "other", "new", 0) }},
		{name: "rename over", run: func(m *mounted) error { return m.rename("", "small", "", "big", 0) }},
		{name: "rename over away", run: func(m *mounted) error { return m.rename("dir", "b", "other", "c", 0) }},
		{name: "rename over one of two", run: func(m *mounted) error { return m.rename("", "small", "dir", "hard", 0) }},
		{name: "rename directory", run: func(m *mounted) error { return m.rename("dir", "sub", "other", "new", 0) }},
		{name: "rename directory over", run: func(m *mounted) error { return m.rename("dir", "sub", "other", "vacant", 0) }},
		{name: "rename noreplace", run: func(m *mounted) error { return m.rename("", "none", "empty", "new", nvfs.RenameNoReplace) }},
		{name: "exchange", run: func(m *mounted) error { return m.rename("", "small", "", "big", nvfs.RenameExchange) }},
		{name: "exchange away", run: func(m *mounted) error { return m.rename("dir", "sub", "other", "c", nvfs.RenameExchange) }},
		{name: "exchange directories", run: func(m *mounted) error { return m.rename("dir", "sub", "other", "sub", nvfs.RenameExchange) }},
		{name: "whiteout", run: func(m *mounted) error { return m.rename("dir", "a", "other", "c", nvfs.RenameWhiteout) }},
		{name: "write inline", run: func(m *mounted) error { return m.write("small", 50, data('n', 200)) }},
		{name: "write first", run: func(m *mounted) error { return m.write("none", 0, data('n', 10_001)) }},
		{name: "write leaves inline", run: func(m *mounted) error { return m.write("inline", 340, data('n', 5000)) }},
		{name: "write leaves inline behind a hole", run: func(m *mounted) error { return m.write("inline", 9000, data('n', 100)) }},
		{name: "append", run: func(m *mounted) error { return m.write("page", 4096, data('n', 4096)) }},
		{name: "append unaligned", run: func(m *mounted) error { return m.write("odd", 10_000, data('n', 7001)) }},
		{name: "append within block", run: func(m *mounted) error { return m.write("odd", 10_001, data('n', 13)) }},
		{name: "write behind a hole", run: func(m *mounted) error { return m.write("odd", 100_003, data('n', 77)) }},
		{name: "write into hole", run: func(m *mounted) error { return m.write("holes", 3*pageSize+100, data('n', 50)) }},
		{name: "write into unwritten", run: func(m *mounted) error { return m.write("unwritten", 5*pageSize+17, data('n', 9000)) }},
		{name: "overwrite", torn: "plain", run: func(m *mounted) error { return m.write("plain", 3, data('n', 9000)) }},
		{name: "overwrite and append", torn: "plain", run: func(m *mounted) error { return m.write("plain", 5001, data('n', 9000)) }},
		{name: "overwrite across holes", torn: "holes", run: func(m *mounted) error { return m.write("holes", 5, data('n', 70_000)) }},
		{name: "write in steps", torn: "small", run: func(m *mounted) error { return m.write("small", 90, data('n', 1_200_000)) }},
		{name: "write strips", run: func(m *mounted) error {
			_, err := m.Write(m.id("suid"), 0, data('n', 5000), nvfs.WriteKillSuidgid)
			return err
		}},
		{name: "truncate inline", run: func(m *mounted) error { return m.set("small", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 40}) }},
		{name: "truncate inline up", run: func(m *mounted) error { return m.set("small", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 200}) }},
		{name: "truncate inline far up", run: func(m *mounted) error { return m.set("small", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 1 << 30}) }},
		{name: "truncate up", run: func(m *mounted) error { return m.set("odd", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 20_000}) }},
		{name: "truncate down", run: func(m *mounted) error { return m.set("big", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 5001}) }},
		{name: "truncate to nothing", run: func(m *mounted) error { return m.set("big", nvfs.SetAttr{Valid: nvfs.SetSize}) }},
		{name: "truncate down and up", torn: "plain", run: func(m *mounted) error {
			if err := m.set("plain", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 5001}); err != nil {
				return err
			}
			return m.set("plain", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 10_000})
		}},
		{name: "setattr of all", run: func(m *mounted) error {
			return m.set("suid", nvfs.SetAttr{Valid: nvfs.SetMode | nvfs.SetUID | nvfs.SetGID | nvfs.SetSize | nvfs.SetMtime, Mode: 0700, UID: 5, GID: 6, Size: 77})
		}},
		{name: "chown", run: func(m *mounted) error { return m.set("suid", nvfs.SetAttr{Valid: nvfs.SetUID, UID: 5}) }},
		{name: "fallocate", run: func(m *mounted) error { return m.Fallocate(m.id("odd"), 0, 0, 300_000) }},
		{name: "fallocate inline", run: func(m *mounted) error { return m.Fallocate(m.id("small"), 0, 0, 300_000) }},
		{name: "fallocate keep size", run: func(m *mounted) error { return m.Fallocate(m.id("holes"), nvfs.FallocKeepSize, 0, 1_000_000) }},
		{name: "punch", torn: "big", run: func(m *mounted) error {
			return m.Fallocate(m.id("big"), nvfs.FallocPunchHole|nvfs.FallocKeepSize, 5001, 200_000)
		}},
		{name: "punch all", run: func(m *mounted) error {
			return m.Fallocate(m.id("holes"), nvfs.FallocPunchHole|nvfs.FallocKeepSize, 0, 1<<40)
		}},
		{name: "zero range", torn: "plain", run: func(m *mounted) error { return m.Fallocate(m.id("plain"), nvfs.FallocZeroRange, 100, 20_001) }},
		{name: "copy range", run: func(m *mounted) error {
			_, err := m.CopyFileRange(m.id("odd"), 100, m.id("none"), 0, 1<<20, 0)
			return err
		}},
		{name: "setxattr inline", run: func(m *mounted) error { return m.SetXattr(m.id("none"), []byte("user.new"), data('n', 30), 0) }},
		{name: "setxattr leaves inline", run: func(m *mounted) error { return m.SetXattr(m.id("small"), []byte("user.new"), data('n', 9000), 0) }},
		{name: "setxattr replaces", run: func(m *mounted) error { return m.SetXattr(m.id("page"), []byte("user.x"), data('n', 7000), 0) }},
		{name: "setxattr becomes inline", run: func(m *mounted) error { return m.SetXattr(m.id("page"), []byte("user.x"), data('n', 7), 0) }},
		{name: "removexattr", run: func(m *mounted) error { return m.RemoveXattr(m.id("page"), []byte("user.x")) }},
	}
}

// crashBase is a prepared volume and what is known of it.
type crashBase struct {
	clock  testClock
	rec    *recorder
	empty  nvfs.StatFS
	before string
}

func newCrashBase(t *testing.T, size uint64, prepare func(m *mounted) error) *crashBase {
	t.Helper()
	b := &crashBase{rec: newRecorder(size)}
	format(t, b.rec, mkfs.Options{BytesPerInode: 8192})
	m := mount(t, b.rec, b.clock.now)
	b.empty = m.totals()
	if err := prepare(m); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.before, err = m.dump(); err != nil {
		t.Fatal(err)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
	b.rec.checkpoint()
	b.clock.tick()
	return b
}

func (m *mounted) readAll(path string) ([]byte, error) {
	var a nvfs.Attr
	id := m.id(path)
	if err := m.GetAttr(id, &a); err != nil {
		return nil, err
	}
	p := make([]byte, a.Size)
	_, err := m.Read(id, 0, p)
	return p, err
}

// taken is a crash image and how it came about.
type taken struct {
	image
	how string
}

// outcome is what a case does when nothing interrupts it.
type outcome struct {
	crashCase
	images   []taken
	dumps    []string // legal ones: before and after
	old, new []byte   // of the torn file
	after    string
	end      taken // image after the operation returned
}

// record runs a case and collects what crashes at its fences leave.
func (b *crashBase) record(c *crashCase, variants []survivors) (*outcome, error) {
	b.rec.restore()
	m, err := tryMount(b.rec, b.clock.now)
	if err != nil {
		return nil, err
	}
	m.totals()
	o := &outcome{crashCase: *c}
	if c.torn != "" {
		if o.old, err = m.readAll(c.torn); err != nil {
			return nil, err
		}
	}
	if f := b.rec.settled(); len(f) > 0 {
		return nil, fmt.Errorf("mount: %s", strings.Join(f, "; "))
	}
	b.rec.fences = 0
	collect := newCollector(b.rec, variants)
	err = c.run(m)
	b.rec.atFence = nil
	if err != nil {
		return nil, err
	}
	if f := b.rec.settled(); len(f) > 0 {
		return nil, fmt.Errorf("stores, flushes and fences: %s", strings.Join(f, "; "))
	}
	o.images = collect.images
	o.end = taken{b.rec.crash(allSurvive, nil), "at the end"}
	if o.after, err = m.dump(); err != nil {
		return nil, err
	}
	o.dumps = []string{b.before, o.after}
	if c.torn != "" {
		if o.new, err = m.readAll(c.torn); err != nil {
			return nil, err
		}
	}
	return o, m.unmount()
}

// collector takes crash images at each fence, each content once.
type collector struct {
	images []taken
	seen   map[[32]byte]bool
}

func newCollector(r *recorder, variants []survivors) *collector {
	c := &collector{seen: map[[32]byte]bool{}}
	r.atFence = func(n int) {
		for i, v := range variants {
			rnd := rand.New(rand.NewPCG(uint64(n), uint64(i)))
			c.add(r.crash(v, rnd), fmt.Sprintf("at fence %d, %s stores survive (%d)", n, v, i))
		}
	}
	return c
}

func (c *collector) add(img image, how string) {
	h := sha256.New()
	for _, page := range slices.Sorted(maps.Keys(img)) {
		var at [8]byte
		binary.LittleEndian.PutUint64(at[:], page)
		h.Write(at[:])
		h.Write(img[page])
	}
	var sum [32]byte
	h.Sum(sum[:0])
	if !c.seen[sum] {
		c.seen[sum] = true
		c.images = append(c.images, taken{img, how})
	}
}

// legal checks a dump after a crash.
func (o *outcome) legal(m *mounted, dump string) error {
	if slices.Contains(o.dumps, dump) {
		return nil
	}
	if o.torn == "" {
		return fmt.Errorf("tree is neither as before nor as after:\n%s\n%s", diffLines(dump, o.dumps[0]), diffLines(dump, o.after))
	}
	without := func(dump string) string {
		lines := strings.Split(dump, "\n")
		return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "//"+o.torn+" ") }), "\n")
	}
	if d := without(dump); d != without(o.dumps[0]) && d != without(o.after) {
		return fmt.Errorf("tree apart from %s:\n%s", o.torn, diffLines(d, without(o.after)))
	}
	have, err := m.readAll(o.torn)
	if err != nil {
		return err
	}
	if len(have) < min(len(o.old), len(o.new)) || len(have) > max(len(o.old), len(o.new)) {
		if o.name != "truncate down and up" || len(have) != 5001 {
			return fmt.Errorf("size %d is between neither %d nor %d", len(have), len(o.old), len(o.new))
		}
	}
	for i := 0; i < len(have); i += 8 {
		w := have[i:min(i+8, len(have))]
		if !prefixAt(o.old, i, w) && !prefixAt(o.new, i, w) {
			return fmt.Errorf("word at %d is %x: neither old nor new", i, w)
		}
	}
	return nil
}

// prefixAt reports whether p has w at i, as far as both reach; beyond its end
// it has zeros.
func prefixAt(p []byte, i int, w []byte) bool {
	for k, v := range w {
		if i+k < len(p) && p[i+k] != v || i+k >= len(p) && v != 0 {
			return false
		}
	}
	return true
}

// verify mounts a crash image and checks all that must hold.
func (b *crashBase) verify(space *recorder, img taken, o *outcome) error {
	space.load(img.image)
	m, err := tryMount(space, b.clock.now)
	if err != nil {
		return err
	}
	dump, err := m.dump()
	if err != nil {
		return err
	}
	if err := o.legal(m, dump); err != nil {
		return err
	}
	id, err := m.create(nvfs.RootID, "probe", unix.S_IFREG|0600)
	if err == nil {
		_, err = m.Write(id, 0, data('p', 5000), 0)
	}
	if err == nil {
		err = m.Unlink(nvfs.RootID, []byte("probe"))
	}
	if err != nil {
		return fmt.Errorf("first change after the crash: %w", err)
	}
	if err := m.unmount(); err != nil {
		return err
	}
	return b.empties(space)
}

// empties removes everything and expects the free space of the fresh volume.
func (b *crashBase) empties(space *recorder) error {
	m, err := tryMount(space, b.clock.now)
	if err != nil {
		return err
	}
	if err := m.removeAll(nvfs.RootID); err != nil {
		return err
	}
	if t := m.totals(); t != b.empty {
		return fmt.Errorf("space is lost:\n have %+v\n want %+v", t, b.empty)
	}
	return m.unmount()
}

// recoverTwice lets recovery itself crash at each fence. The tree must be the
// same as after a recovery that nothing interrupts.
func (b *crashBase) recoverTwice(space, second *recorder, img taken, o *outcome, variants []survivors) error {
	space.load(img.image)
	c := newCollector(space, variants)
	m, err := tryMount(space, b.clock.now)
	if err != nil {
		return err
	}
	dump, err := m.dump()
	if err == nil {
		err = m.unmount()
	}
	space.atFence = nil
	if err != nil {
		return err
	}
	if f := space.settled(); len(f) > 0 {
		return fmt.Errorf("stores, flushes and fences of recovery: %s", strings.Join(f, "; "))
	}
	once := *o
	once.dumps, once.torn = []string{dump}, ""
	for _, again := range c.images {
		if err := b.verify(second, again, &once); err != nil {
			return fmt.Errorf("recovery crashed %s: %w", again.how, err)
		}
	}
	return nil
}

func runCrashCases(t *testing.T, b *crashBase, cases []crashCase, variants []survivors, twice int) {
	scratch, recovering := b.rec.sibling(true), b.rec.sibling(false)
	images, fences := 0, 0
	for i := range cases {
		if raceEnabled && i%3 > 0 {
			continue // recovery works next to the background; some cases show it
		}
		c := &cases[i]
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			o, err := b.record(c, variants)
			if err != nil {
				t.Fatal(err)
			}
			for k, img := range o.images {
				if err := b.verify(scratch, img, o); err != nil {
					t.Errorf("crash %s: %v", img.how, err)
				}
				if twice > 0 && k%twice == 0 {
					if err := b.recoverTwice(recovering, scratch, img, o, []survivors{wordsSurvive, allButOne}); err != nil {
						t.Errorf("crash %s: %v", img.how, err)
					}
				}
			}
			o.dumps = []string{o.after}
			o.torn = ""
			if err := b.verify(scratch, o.end, o); err != nil {
				t.Errorf("crash %s: %v", o.end.how, err)
			}
			images += len(o.images)
			fences += b.rec.fences
		})
	}
	t.Logf("%d crash images", images)
}

// TestCrashAtEveryFence interrupts each operation at each of its fences.
func TestCrashAtEveryFence(t *testing.T) {
	singleThreaded(t)
	t.Parallel()
	b := newCrashBase(t, 16<<20, prepareTree)
	variants := []survivors{wordsSurvive, callsSurvive, noneSurvive, allButOne, allSurvive, callsSurvive}
	twice := 6
	if brief() {
		variants, twice = variants[:2], 0
	}
	runCrashCases(t, b, crashCases(), variants, twice)
}

// fragments is how many extents the files of TestCrashInLongOperations have.
const fragments = 1000

func prepareFragments(m *mounted) error {
	for _, name := range []string{"a", "b"} {
		if _, err := m.create(nvfs.RootID, name, unix.S_IFREG|0644); err != nil {
			return err
		}
	}
	for i := range uint64(fragments) {
		if err := m.write("a", 2*i*pageSize, data('a', 4096)); err != nil {
			return err
		}
	}
	return m.SetXattr(m.id("a"), []byte("user.x"), data('x', 20_000), 0)
}

// TestCrashInLongOperations does the same with operations that take many
// records.
func TestCrashInLongOperations(t *testing.T) {
	t.Parallel()
	b := newCrashBase(t, 48<<20, prepareFragments)
	all := uint64(2 * fragments * pageSize)
	const punch = nvfs.FallocPunchHole | nvfs.FallocKeepSize
	cases := []crashCase{
		{name: "truncate", run: func(m *mounted) error {
			return m.set("a", nvfs.SetAttr{Valid: nvfs.SetSize | nvfs.SetMode, Mode: 0600})
		}},
		{name: "truncate to the middle", run: func(m *mounted) error { return m.set("a", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 200*pageSize + 5}) }},
		{name: "unlink", run: func(m *mounted) error { return m.Unlink(nvfs.RootID, []byte("a")) }},
		{name: "rename over", run: func(m *mounted) error { return m.rename("", "b", "", "a", 0) }},
		{name: "punch", torn: "a", run: func(m *mounted) error { return m.Fallocate(m.id("a"), punch, 5, all) }},
		{name: "zero range", torn: "a", run: func(m *mounted) error { return m.Fallocate(m.id("a"), nvfs.FallocZeroRange, 5, all) }},
		{name: "fallocate", run: func(m *mounted) error { return m.Fallocate(m.id("a"), 0, 0, all+5000) }},
	}
	variants, twice := []survivors{callsSurvive, wordsSurvive, noneSurvive}, 9
	if brief() {
		variants, twice = variants[:1], 0
	}
	runCrashCases(t, b, cases, variants, twice)
}

// TestAbortAfterPanic lets an operation panic at each of its fences, and in
// some of its stores: the volume must stay usable, or be usable after a
// remount when the panic came in the middle of a commit.
func TestAbortAfterPanic(t *testing.T) {
	singleThreaded(t)
	t.Parallel()
	b := newCrashBase(t, 16<<20, prepareTree)
	for _, c := range crashCases() {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			for k, finished := 0, false; !finished; k++ {
				var err error
				if finished, err = b.panicAt(&c, k, -1); err != nil {
					t.Fatalf("panic at fence %d: %v", k, err)
				}
			}
			for k, finished := 0, false; !finished; k += 5 {
				var err error
				if finished, err = b.panicAt(&c, -1, k); err != nil {
					t.Fatalf("panic in store %d: %v", k, err)
				}
			}
		})
	}
}

var errPanic = errors.New("panic of the test")

// panicAt runs a case that panics at that fence or in that store. The same
// operation must then do as if the first attempt had not been.
func (b *crashBase) panicAt(c *crashCase, fence, store int) (finished bool, err error) {
	b.rec.restore()
	m, err := tryMount(b.rec, b.clock.now)
	if err != nil {
		return false, err
	}
	m.totals()
	b.rec.fences, b.rec.stores = 0, 0
	at := func(k int) func(n int) {
		return func(n int) {
			if n == k {
				panic(errPanic)
			}
		}
	}
	b.rec.atFence, b.rec.atStore = at(fence), at(store)
	finished = m.survive(func() error { return c.run(m) })
	b.rec.atFence, b.rec.atStore = nil, nil
	if finished {
		return true, m.unmount()
	}
	if _, err := m.dump(); err != nil && !m.fs.ReadOnly() {
		return false, err
	}
	if !m.fs.ReadOnly() {
		if err := c.run(m); !confined(err) || errors.Is(err, syscall.EIO) {
			return false, fmt.Errorf("the next operation: %w", err)
		}
	} else {
		m.End()
		m.Close()
		if err := m.fs.Unmount(); err != nil {
			return false, err
		}
		if m, err = tryMount(b.rec, b.clock.now); err != nil {
			return false, err
		}
	}
	if err := m.unmount(); err != nil {
		return false, err
	}
	return false, b.empties(b.rec)
}

// survive runs f like a server that outlives a panic; it reports whether f
// came to its end.
func (m *mounted) survive(f func() error) (finished bool) {
	defer func() {
		if v := recover(); v != nil {
			if v != errPanic {
				panic(v)
			}
			m.Abort()
		}
	}()
	if err := f(); err != nil {
		panic(err)
	}
	return true
}
