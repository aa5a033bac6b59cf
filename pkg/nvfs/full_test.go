package nvfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
)

// untilFull calls f until the volume is full.
func untilFull(t *testing.T, f func(i int) error) int {
	t.Helper()
	for i := 0; ; i++ {
		err := f(i)
		if errors.Is(err, syscall.ENOSPC) {
			return i
		}
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
}

// fillData writes files of 1 MiB and then, block by block, what is left.
func fillData(t *testing.T, m *mounted, dir nvfs.NodeID) {
	t.Helper()
	piece := data('f', 1<<20)
	full := false
	untilFull(t, func(i int) error {
		if full {
			return syscall.ENOSPC
		}
		id, err := m.create(dir, fmt.Sprintf("data%d", i), unix.S_IFREG|0644)
		if err != nil {
			return err
		}
		n, err := m.Write(id, 0, piece, 0)
		full = n < len(piece)
		if errors.Is(err, syscall.ENOSPC) {
			full, err = true, nil
		}
		return err
	})
	id, err := m.create(dir, "last", unix.S_IFREG|0644)
	if errors.Is(err, syscall.ENOSPC) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	fillFile(t, m, id)
}

// fillFile appends blocks to a file.
func fillFile(t *testing.T, m *mounted, id nvfs.NodeID) {
	t.Helper()
	piece := data('f', pageSize)
	untilFull(t, func(i int) error {
		_, err := m.Write(id, uint64(i)*pageSize, piece, 0)
		return err
	})
}

// TestFullVolume fills a volume in several ways. What was there stays, what
// frees or moves works, and what was allocated before can be written.
func TestFullVolume(t *testing.T) {
	singleThreaded(t)
	t.Parallel()
	dirArgs, fileMode := uint32(unix.S_IFDIR|0755), uint32(unix.S_IFREG|0644)
	ways := map[string]func(t *testing.T, m *mounted, dir nvfs.NodeID){
		"data": fillData,
		"small files": func(t *testing.T, m *mounted, dir nvfs.NodeID) {
			n := untilFull(t, func(i int) error {
				_, err := m.create(dir, fmt.Sprintf("f%d", i), fileMode)
				return err
			})
			if s := m.totals(); s.FilesFree != 0 || n < 1000 {
				t.Errorf("%d files made, %d inodes left", n, s.FilesFree)
			}
			fillFile(t, m, m.id("filler/f0"))
		},
		"one directory": func(t *testing.T, m *mounted, dir nvfs.NodeID) {
			id, err := m.create(dir, "x", fileMode)
			if err != nil {
				t.Fatal(err)
			}
			d, err := m.create(dir, "d", dirArgs)
			if err != nil {
				t.Fatal(err)
			}
			n := untilFull(t, func(i int) error {
				var a nvfs.Attr
				err := m.Link(id, d, fmt.Appendf(nil, "%s%d", longName[:240], i), &a)
				if err == nil {
					m.Forget(a.ID, 1)
				}
				return err
			})
			if n < 10_000 {
				t.Errorf("only %d names", n)
			}
			fillData(t, m, dir)
		},
		"fallocate": func(t *testing.T, m *mounted, dir nvfs.NodeID) {
			id, err := m.create(dir, "x", fileMode)
			if err != nil {
				t.Fatal(err)
			}
			fillPreallocated(t, m, id)
		},
		"attributes": func(t *testing.T, m *mounted, dir nvfs.NodeID) {
			untilFull(t, func(i int) error {
				id, err := m.create(dir, fmt.Sprintf("x%d", i), fileMode)
				if err != nil {
					return err
				}
				return m.SetXattr(id, []byte("user.x"), data('x', 60_000), 0)
			})
			fillData(t, m, dir)
		},
	}
	for name, fill := range ways {
		t.Run(name, func(t *testing.T) {
			size := uint64(24 << 20)
			space := newSpace(size)
			format(t, space, mkfs.Options{BytesPerInode: 16384})
			m := mount(t, space, nil)
			empty := m.totals()
			if err := prepareTree(m); err != nil {
				t.Fatal(err)
			}
			before, err := m.dump()
			if err != nil {
				t.Fatal(err)
			}
			filler, err := m.create(nvfs.RootID, "filler", dirArgs)
			if err != nil {
				t.Fatal(err)
			}
			fill(t, m, filler)
			if s := m.totals(); s.BlocksAvail > 4 {
				t.Errorf("not full: %d blocks are available", s.BlocksAvail)
			}
			after, err := m.dump()
			if err != nil {
				t.Fatal(err)
			}
			if b, a := withoutFiller(before), withoutFiller(after); b != a {
				t.Errorf("what was there has changed:\n%s", diffLines(a, b))
			}
			if _, err := m.create(nvfs.RootID, "another", fileMode); err == nil {
				if _, err := m.Write(m.id("another"), 0, data('a', 40_000), 0); !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("write to a full volume: %v", err)
				}
				if err := m.Unlink(nvfs.RootID, []byte("another")); err != nil {
					t.Error(err)
				}
			}
			atFull(t, m)
			if h := m.fs.Health(); h != "" {
				t.Fatal("damage: ", h)
			}
			if err := m.unmount(); err != nil {
				t.Fatal(err)
			}
			mustEmpty(t, space, empty)
		})
	}
}

// withoutFiller is a dump without the root and what filled the volume.
func withoutFiller(dump string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(dump, "\n"), func(l string) bool {
		return strings.HasPrefix(l, "/ ") || strings.HasPrefix(l, "//filler")
	}), "\n")
}

// atFull does what must work on the full volume of prepareTree.
func atFull(t *testing.T, m *mounted) {
	t.Helper()
	const punch = nvfs.FallocPunchHole | nvfs.FallocKeepSize
	content := func(path string, off int, want []byte) error {
		have, err := m.readAll(path)
		if err == nil && (len(have) < off+len(want) || !bytes.Equal(have[off:off+len(want)], want)) {
			err = errors.New("content is not what was written")
		}
		return err
	}
	steps := []struct {
		name string
		run  func() error
	}{
		{"read", func() error { return content("big", 0, data('o', 600_000)) }},
		{"overwrite", func() error {
			return errors.Join(m.write("big", 5, data('n', 9000)), content("big", 5, data('n', 9000)))
		}},
		{"write into preallocated space", func() error {
			return errors.Join(m.write("unwritten", 5*pageSize, data('n', 9*pageSize)), content("unwritten", 5*pageSize, data('n', 9*pageSize)))
		}},
		{"write inline", func() error {
			return errors.Join(m.write("small", 50, data('n', 200)), content("small", 50, data('n', 200)))
		}},
		{"chmod", func() error { return m.set("odd", nvfs.SetAttr{Valid: nvfs.SetMode, Mode: 0600}) }},
		{"setxattr inline", func() error { return m.SetXattr(m.id("none"), []byte("user.y"), data('y', 20), 0) }},
		{"rename", func() error { return m.rename("", "inline", "", "renamed", 0) }},
		{"rename into a full leaf", func() error { return m.rename("", "renamed", "many", longName, 0) }},
		{"rename into an empty directory", func() error { return m.rename("many", longName, "empty", "x", 0) }},
		{"rename over", func() error { return m.rename("dir", "a", "dir", "b", 0) }},
		{"exchange", func() error { return m.rename("", "odd", "other", "c", nvfs.RenameExchange) }},
		{"rename directory", func() error { return m.rename("dir", "sub", "other", "vacant", 0) }},
		{"rmdir", func() error {
			return errors.Join(m.Unlink(m.id("other/vacant"), []byte("deep")), m.Rmdir(m.id("other"), []byte("vacant")))
		}},
		{"punch in the middle", func() error { return m.Fallocate(m.id("big"), punch, 100_000, 8*pageSize) }},
		{"punch everywhere", func() error { return m.Fallocate(m.id("holes"), punch, pageSize+1, 30*pageSize) }},
		{"truncate", func() error { return m.set("big", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 50_001}) }},
		{"removexattr", func() error { return m.RemoveXattr(m.id("page"), []byte("user.x")) }},
		{"unlink", func() error { return m.Unlink(nvfs.RootID, []byte("page")) }},
		{"unlink with attributes", func() error { return m.Unlink(nvfs.RootID, []byte("suid")) }},
		{"write again", func() error { return m.write("none", 0, data('n', 2*pageSize)) }},
	}
	for _, s := range steps {
		if err := s.run(); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
	}
}

// TestRemoveXattrOnFullVolume shrinks sets of all sizes.
func TestRemoveXattrOnFullVolume(t *testing.T) {
	space := newSpace(16 << 20)
	format(t, space, mkfs.Options{})
	m := mount(t, space, nil)
	id, err := m.create(nvfs.RootID, "x", unix.S_IFREG|0644)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		if err := m.SetXattr(id, fmt.Appendf(nil, "user.%d", i), data('x', 5000), 0); err != nil {
			t.Fatal(err)
		}
	}
	fillData(t, m, nvfs.RootID)
	for i := range 8 {
		if err := m.RemoveXattr(id, fmt.Appendf(nil, "user.%d", i)); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}
