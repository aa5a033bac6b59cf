package fsck_test

import (
	"fmt"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// watchedSpace calls watch ahead of what is done through its persisters.
type watchedSpace struct {
	*pmem.Mapping
	size  uint64 // of the device; 0: as it is
	watch func()
}

func (s *watchedSpace) Size() uint64 {
	if s.size != 0 {
		return s.size
	}
	return s.Mapping.Size()
}

func (s *watchedSpace) NewPersister() pmem.Persister {
	return &watchedPersister{s.Mapping.NewPersister(), s}
}

type watchedPersister struct {
	pmem.Persister
	s *watchedSpace
}

func (p *watchedPersister) Store64(off, v uint64)       { p.s.watch(); p.Persister.Store64(off, v) }
func (p *watchedPersister) Copy(off uint64, src []byte) { p.s.watch(); p.Persister.Copy(off, src) }
func (p *watchedPersister) Zero(off, n uint64)          { p.s.watch(); p.Persister.Zero(off, n) }
func (p *watchedPersister) Fence() error                { p.s.watch(); return p.Persister.Fence() }

// The volume is right, once the journal is replayed, ahead of every store of
// every operation, of mount and of unmount.
func TestCleanAtEveryMoment(t *testing.T) {
	m := newVolume(t, 16<<20, mkfs.Options{BytesPerInode: 64 << 10})
	stores, checks, every := 0, 0, 1
	s := &watchedSpace{Mapping: m}
	s.watch = func() {
		if stores++; stores%every == 0 {
			checks++
			mustBeClean(t, m, fmt.Sprintf("ahead of store %d", stores))
		}
	}
	for round := range 3 {
		every = 1 // all stores of the mount
		fs, err := nvfs.Mount(s, nvfs.Options{})
		if err != nil {
			t.Fatal(err)
		}
		a := newActor(t, fs, uint64(round)+500)
		every = 5
		for range 700 {
			a.step()
		}
		a.w.Close()
		every = 1
		if err := fs.Unmount(); err != nil {
			t.Fatal(err)
		}
	}
	if checks < 3000 {
		t.Errorf("%d checks only", checks)
	}
}

// The same while it grows: within its last group, by groups, and to a new
// group over the superblock's old copy.
func TestCleanWhileGrowing(t *testing.T) {
	m, err := pmem.NewMemory(300 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s := &watchedSpace{Mapping: m, size: 16 << 20, watch: func() {}}
	if _, err := mkfs.Format(s, mkfs.Options{BytesPerInode: 64 << 10}); err != nil {
		t.Fatal(err)
	}
	fs, err := nvfs.Mount(s, nvfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := newActor(t, fs, 1)
	s.watch = func() { mustBeClean(t, s, fmt.Sprintf("growing to %d bytes", s.size)) }
	const full = (layout.HeaderBlocks + 1 + layout.GroupBlocks) * layout.BlockSize
	for _, size := range []uint64{17 << 20, 40<<20 + 8192, full, full + 20<<20, 300 << 20} {
		s.size = size
		got, err := fs.Grow()
		if err != nil || got != size {
			t.Fatalf("%d bytes, %v; want %d", got, err, size)
		}
		mustBeClean(t, s, "grown")
		for range 10 {
			a.step()
		}
	}
	a.w.Close()
	if err := fs.Unmount(); err != nil {
		t.Fatal(err)
	}
	mustBeClean(t, s, "unmounted")
}
