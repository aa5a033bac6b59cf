package nvfs_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fsck"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// testClock is a clock that stands still until it is told to go on.
type testClock struct{ sec atomic.Int64 }

func (c *testClock) now() nvfs.Time {
	s := c.sec.Load()
	return nvfs.Time{Sec: 1_000_000 + s, Nsec: uint32(s * 7919 % 1_000_000_000)}
}

func (c *testClock) tick() nvfs.Time { c.sec.Add(1); return c.now() }

const pageSize = 4096

// newSpace is the memory of a volume. It checks the discipline of stores,
// flushes and fences (see record.Space.Lint), and unmount fails if it was
// broken.
func newSpace(size uint64) *record.Space { return record.New(size, size) }

// lint returns what was found of the discipline of stores. No operation may
// run.
func lint(space pmem.Space) error {
	s, ok := space.(*record.Space)
	if !ok {
		return nil
	}
	found := s.Lint()
	if len(found) == 0 {
		return nil
	}
	text := make([]string, 0, 4)
	for _, f := range found[:min(4, len(found))] {
		text = append(text, f.String())
	}
	return fmt.Errorf("%d faults in stores, flushes and fences: %s", len(found), strings.Join(text, "; "))
}

// brief reports whether tests that repeat themselves with other random
// numbers shall do so less often: with -short, and under the race detector.
func brief() bool { return testing.Short() || raceEnabled }

// singleThreaded skips a test that has nothing to show to the race detector.
func singleThreaded(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine works at a time: slow and of no use under the race detector")
	}
}

func format(t testing.TB, space pmem.Space, opt mkfs.Options) {
	t.Helper()
	if _, err := mkfs.Format(space, opt); err != nil {
		t.Fatal(err)
	}
}

// mounted is a volume in use by one worker.
type mounted struct {
	*nvfs.Worker
	fs    *nvfs.FS
	space pmem.Space
	buf   []byte // for content
}

func tryMount(space pmem.Space, clock func() nvfs.Time) (*mounted, error) {
	fs, err := nvfs.Mount(space, nvfs.Options{Clock: clock})
	if err != nil {
		return nil, err
	}
	w, err := fs.NewWorker()
	if err != nil {
		return nil, errors.Join(err, fs.Unmount())
	}
	w.Begin(&nvfs.Request{Conn: 1, Unique: 2})
	return &mounted{Worker: w, fs: fs, space: space}, nil
}

func mount(t testing.TB, space pmem.Space, clock func() nvfs.Time) *mounted {
	t.Helper()
	m, err := tryMount(space, clock)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// unmount ends the use of the volume and says what is wrong with it.
func (m *mounted) unmount() error {
	m.End()
	m.Close()
	if err := m.fs.Unmount(); err != nil {
		return err
	}
	if h := m.fs.Health(); h != "" {
		return errors.New("damage: " + h)
	}
	return errors.Join(lint(m.space), check(m.space))
}

// check runs fsck.
func check(space pmem.Space) error {
	r, err := fsck.Check(context.Background(), space, fsck.Options{Threads: 1})
	if err != nil {
		return err
	}
	if r.Total() > 0 {
		text := make([]string, 0, 4)
		for _, p := range r.Problems[:min(4, len(r.Problems))] {
			text = append(text, p.String())
		}
		return fmt.Errorf("fsck found %d problems: %s", r.Total(), strings.Join(text, "; "))
	}
	return nil
}

// totals is the part of StatFS that is the same for the same use.
func (m *mounted) totals() nvfs.StatFS {
	var s nvfs.StatFS
	if err := m.StatFS(&s); err != nil {
		panic(err)
	}
	return s
}

// names lists a directory without "." and "..".
func (m *mounted) names(dir nvfs.NodeID) (map[string]nvfs.DirEntry, error) {
	list := map[string]nvfs.DirEntry{}
	var last uint64
	var bad error
	err := m.ReadDir(dir, 0, func(e *nvfs.DirEntry) bool {
		name := string(e.Name)
		if e.Cookie <= last {
			bad = fmt.Errorf("cookie %d of %q follows %d", e.Cookie, name, last)
		}
		last = e.Cookie
		if _, twice := list[name]; twice {
			bad = fmt.Errorf("%q is listed twice", name)
		}
		if name != "." && name != ".." {
			d := *e
			d.Name = nil
			list[name] = d
		}
		return true
	})
	return list, errors.Join(err, bad)
}

// content describes the data of a file by its pages that are not zero.
func (m *mounted) content(id nvfs.NodeID, size uint64) (string, error) {
	h := sha256.New()
	if m.buf == nil {
		m.buf = make([]byte, 256<<10)
	}
	for pos := uint64(0); pos < size; {
		data, err := m.Lseek(id, pos, unix.SEEK_DATA)
		if errors.Is(err, syscall.ENXIO) {
			break
		}
		if err != nil {
			return "", err
		}
		pos = max(pos, data&^(pageSize-1))
		n, err := m.Read(id, pos, m.buf)
		if err != nil {
			return "", err
		}
		if n == 0 {
			return "", fmt.Errorf("no data at %d of %d", pos, size)
		}
		hashPages(h, pos, m.buf[:n])
		pos += uint64(n)
	}
	return fmt.Sprintf("%d:%x", size, h.Sum(nil)[:8]), nil
}

// hashPages adds the pages of p that are not zero, with their positions.
func hashPages(h interface{ Write([]byte) (int, error) }, pos uint64, p []byte) {
	for len(p) > 0 {
		page := p[:min(pageSize, len(p))]
		if page = trimZeros(page); len(page) > 0 {
			var at [16]byte
			binary.LittleEndian.PutUint64(at[:], pos)
			binary.LittleEndian.PutUint64(at[8:], uint64(len(page)))
			h.Write(at[:])
			h.Write(page)
		}
		p, pos = p[min(pageSize, len(p)):], pos+pageSize
	}
}

func trimZeros(p []byte) []byte {
	for len(p) > 0 && p[len(p)-1] == 0 {
		p = p[:len(p)-1]
	}
	return p
}

func (m *mounted) xattrs(id nvfs.NodeID) (map[string]string, error) {
	n, err := m.ListXattr(id, nil)
	if err != nil || n == 0 {
		return nil, err
	}
	list := make([]byte, n)
	if _, err := m.ListXattr(id, list); err != nil {
		return nil, err
	}
	set := map[string]string{}
	var buf []byte
	for _, name := range strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		n, err := m.GetXattr(id, []byte(name), nil)
		if err != nil {
			return nil, err
		}
		buf = slices.Grow(buf[:0], n)[:n]
		if n > 0 {
			if n, err = m.GetXattr(id, []byte(name), buf); err != nil {
				return nil, err
			}
		}
		set[name] = string(buf[:n])
	}
	return set, nil
}

func describeXattrs(set map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(set)) {
		sum := sha256.Sum256([]byte(set[name]))
		fmt.Fprintf(&b, " %s=%d:%x", name, len(set[name]), sum[:4])
	}
	return b.String()
}

// describe is an inode as a line of a dump.
func (m *mounted) describe(a *nvfs.Attr) (string, error) {
	set, err := m.xattrs(a.ID)
	if err != nil {
		return "", err
	}
	s := fmt.Sprintf("%o n%d %d:%d r%x m%d c%d b%d%s", a.Mode, a.Nlink, a.UID, a.GID, a.Rdev,
		a.Mtime.Sec, a.Ctime.Sec, a.Btime.Sec, describeXattrs(set))
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		c, err := m.content(a.ID, a.Size)
		return s + " " + c, err
	case unix.S_IFLNK:
		buf := make([]byte, pageSize)
		n, err := m.Readlink(a.ID, buf)
		return s + " -> " + string(buf[:n]), err
	}
	return s, nil
}

// dump describes the whole tree: a line for each path. Names of one inode
// refer to the first of them.
func (m *mounted) dump() (string, error) {
	first := map[uint64]string{}
	var lines []string
	var walk func(dir nvfs.NodeID, path string) error
	visit := func(a *nvfs.Attr, path string) error {
		if p, seen := first[a.ID.Ino()]; seen {
			lines = append(lines, path+" = "+p)
			return nil
		}
		first[a.ID.Ino()] = path
		line, err := m.describe(a)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		lines = append(lines, path+" "+line)
		if a.Mode&unix.S_IFMT == unix.S_IFDIR {
			return walk(a.ID, path)
		}
		return nil
	}
	walk = func(dir nvfs.NodeID, path string) error {
		list, err := m.names(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		subdirs := 0
		for _, name := range slices.Sorted(maps.Keys(list)) {
			var a nvfs.Attr
			if err := m.Lookup(dir, []byte(name), &a); err != nil {
				return fmt.Errorf("%s/%s: %w", path, name, err)
			}
			if a.ID.Ino() != list[name].Ino || a.Mode&unix.S_IFMT != list[name].Type {
				return fmt.Errorf("%s/%s: entry and inode differ: %+v %+v", path, name, list[name], a)
			}
			if a.Mode&unix.S_IFMT == unix.S_IFDIR {
				subdirs++
			}
			err := visit(&a, path+"/"+name)
			m.Forget(a.ID, 1)
			if err != nil {
				return err
			}
		}
		var a nvfs.Attr
		if err := m.GetAttr(dir, &a); err != nil {
			return err
		}
		if int(a.Nlink) != 2+subdirs {
			return fmt.Errorf("%s: %d links, %d subdirectories", path, a.Nlink, subdirs)
		}
		return nil
	}
	var root nvfs.Attr
	if err := m.GetAttr(nvfs.RootID, &root); err != nil {
		return "", err
	}
	if err := visit(&root, "/"); err != nil {
		return "", err
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n"), nil
}

// removeAll empties a directory.
func (m *mounted) removeAll(dir nvfs.NodeID) error {
	list, err := m.names(dir)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if list[name].Type != unix.S_IFDIR {
			if err := m.Unlink(dir, []byte(name)); err != nil {
				return fmt.Errorf("unlink %q: %w", name, err)
			}
			continue
		}
		var a nvfs.Attr
		if err := m.Lookup(dir, []byte(name), &a); err != nil {
			return err
		}
		err := m.removeAll(a.ID)
		if err == nil {
			err = m.Rmdir(dir, []byte(name))
		}
		m.Forget(a.ID, 1)
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

// empties mounts a volume, removes everything, and expects the totals that it
// had when it was fresh.
func empties(space pmem.Space, clock func() nvfs.Time, fresh nvfs.StatFS) error {
	m, err := tryMount(space, clock)
	if err != nil {
		return err
	}
	if err := m.removeAll(nvfs.RootID); err != nil {
		return err
	}
	if t := m.totals(); t != fresh {
		return fmt.Errorf("space is lost:\n have %+v\n want %+v", t, fresh)
	}
	return m.unmount()
}

func mustEmpty(t *testing.T, space pmem.Space, fresh nvfs.StatFS) {
	t.Helper()
	if err := empties(space, nil, fresh); err != nil {
		t.Fatal(err)
	}
}

// diffLines shows where two dumps differ.
func diffLines(have, want string) string {
	h, w := strings.Split(have, "\n"), strings.Split(want, "\n")
	var b strings.Builder
	for _, l := range h {
		if !slices.Contains(w, l) {
			fmt.Fprintf(&b, "  have %.300s\n", l)
		}
	}
	for _, l := range w {
		if !slices.Contains(h, l) {
			fmt.Fprintf(&b, "  want %.300s\n", l)
		}
	}
	return b.String()
}
