package nvfs_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
)

// TestReserveOfSmallVolumes fills volumes to the last block that ordinary
// allocation gets, and then does what needs blocks of the reserve most: it
// writes every other block of what was preallocated, and punches every other
// block of what was written. Each of these makes extents, and extents make
// nodes. What frees must work all the time.
func TestReserveOfSmallVolumes(t *testing.T) {
	singleThreaded(t)
	t.Parallel()
	for _, size := range []uint64{16 << 20, 17 << 20, 20 << 20, 32 << 20, 64 << 20} {
		for _, preallocated := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d MiB, preallocated %v", size>>20, preallocated), func(t *testing.T) {
				t.Parallel()
				reserveOf(t, size, preallocated)
			})
		}
	}
}

func reserveOf(t *testing.T, size uint64, preallocated bool) {
	const punch = nvfs.FallocPunchHole | nvfs.FallocKeepSize
	space := newSpace(size)
	format(t, space, mkfs.Options{BytesPerInode: 1 << 20})
	m := mount(t, space, nil)
	if err := prepareTree(m); err != nil {
		t.Fatal(err)
	}
	id, err := m.create(nvfs.RootID, "filler", unix.S_IFREG|0644)
	if err != nil {
		t.Fatal(err)
	}
	blocks := fillPreallocated(t, m, id)
	fillFile(t, m, m.id("none"))
	var a nvfs.Attr
	write := func(block uint64) {
		if _, err := m.Write(id, block*pageSize, data('w', pageSize), 0); err != nil {
			t.Fatalf("write to preallocated block %d of %d: %v", block, blocks, err)
		}
	}
	if preallocated {
		for block := uint64(0); block < blocks; block += 2 {
			write(block)
		}
	} else {
		for block := range blocks {
			write(block)
		}
	}
	for block := uint64(1); block < blocks; block += 4 {
		if err := m.Fallocate(id, punch, block*pageSize, pageSize); err != nil {
			t.Fatalf("punch of block %d of %d: %v", block, blocks, err)
		}
		if block%400 == 1 { // refill what the punches gave
			fillFile(t, m, m.id("none"))
		}
	}
	fillFile(t, m, m.id("none"))
	atFullFrees(t, m)
	if err := m.SetAttr(id, &nvfs.SetAttr{Valid: nvfs.SetSize, Size: blocks / 2 * pageSize}, &a); err != nil {
		t.Fatal("truncate: ", err)
	}
	if err := m.Unlink(nvfs.RootID, []byte("filler")); err != nil {
		t.Fatal("unlink: ", err)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}

// fillPreallocated preallocates all there is to a file, and returns how many
// blocks it got.
func fillPreallocated(t *testing.T, m *mounted, id nvfs.NodeID) uint64 {
	t.Helper()
	pos := uint64(0)
	for step := uint64(4 << 20); step >= pageSize; step /= 2 {
		untilFull(t, func(int) error {
			err := m.Fallocate(id, 0, pos, step)
			if err == nil {
				pos += step
			}
			return err
		})
	}
	return pos / pageSize
}

// atFullFrees does what frees on the full volume of prepareTree, and moves.
func atFullFrees(t *testing.T, m *mounted) {
	t.Helper()
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"rename over", func() error { return m.rename("dir", "a", "dir", "b", 0) }},
		{"rename over a large file", func() error { return m.rename("", "small", "", "odd", 0) }},
		{"rename away", func() error { return m.rename("", "inline", "empty", "x", 0) }},
		{"rename into a full leaf", func() error { return m.rename("empty", "x", "many", longName, 0) }},
		{"rmdir", func() error { return m.Rmdir(m.id("other"), []byte("vacant")) }},
		{"unlink", func() error { return m.Unlink(nvfs.RootID, []byte("page")) }},
		{"unlink of many extents", func() error { return m.Unlink(nvfs.RootID, []byte("holes")) }},
		{"removexattr", func() error { return m.RemoveXattr(m.id("big"), []byte("user.x")) }},
	} {
		if err := step.run(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}
