package nvfs_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// growSteps are sizes at which something different grows: nothing but the
// place of the superblock's copy, the last group, a small new group, several
// groups.
var growSteps = []uint64{20 << 20, 20<<20 + 4096, 24 << 20, 130 << 20, 131 << 20, 133 << 20, 150 << 20, 400 << 20}

// TestGrow grows a volume in steps, with remounts in between, and fills it.
func TestGrow(t *testing.T) {
	singleThreaded(t)
	t.Parallel()
	space := record.New(growSteps[0], growSteps[len(growSteps)-1])
	format(t, space, mkfs.Options{BytesPerInode: 16384})
	m := mount(t, space, nil)
	if err := prepareTree(m); err != nil {
		t.Fatal(err)
	}
	before, err := m.dump()
	if err != nil {
		t.Fatal(err)
	}
	for i, size := range growSteps[1:] {
		old := m.totals()
		space.Resize(size)
		got, err := m.fs.Grow()
		if err != nil || got != size {
			t.Fatal(size, got, err)
		}
		if d := m.fs.Superblock().Devices[0]; d.Blocks*pageSize != size {
			t.Fatalf("the superblock says %d blocks", d.Blocks)
		}
		now := m.totals()
		if now.Blocks < old.Blocks || now.BlocksFree-old.BlocksFree != now.Blocks-old.Blocks || now.FilesFree-old.FilesFree != now.Files-old.Files {
			t.Fatalf("totals went from %+v to %+v", old, now)
		}
		if size >= old.Blocks*pageSize+64<<20 && now.Blocks == old.Blocks {
			t.Fatalf("nothing was gained at %d", size)
		}
		if i%2 == 0 {
			if err := m.unmount(); err != nil {
				t.Fatalf("at %d: %v", size, err)
			}
			m = mount(t, space, nil)
			if again := m.totals(); again != now {
				t.Fatalf("totals after a remount at %d:\n have %+v\n want %+v", size, again, now)
			}
		}
		if dump, err := m.dump(); err != nil || dump != before {
			t.Fatalf("at %d: %v\n%s", size, err, diffLines(dump, before))
		}
	}
	if got, err := m.fs.Grow(); err != nil || got != growSteps[len(growSteps)-1] {
		t.Fatal("growth without more space: ", got, err)
	}
	filler, err := m.create(nvfs.RootID, "filler", unix.S_IFDIR|0755)
	if err != nil {
		t.Fatal(err)
	}
	fillData(t, m, filler)
	if s := m.totals(); s.BlocksAvail > 0 {
		t.Errorf("%d blocks cannot be used", s.BlocksAvail)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
	m = mount(t, space, nil)
	if err := m.removeAll(nvfs.RootID); err != nil {
		t.Fatal(err)
	}
	if s := m.totals(); s.BlocksFree != s.Blocks || s.FilesFree != s.Files-1 {
		t.Errorf("space is lost: %+v", s)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}

// TestGrowUnderLoad grows while others work.
func TestGrowUnderLoad(t *testing.T) {
	t.Parallel()
	space := record.New(20<<20, 300<<20)
	format(t, space, mkfs.Options{BytesPerInode: 16384})
	m := mount(t, space, nil)
	steps := 6000 * scale(t)
	if brief() {
		steps = 1500
	}
	runCrowd(t, m, 4, steps, func() error {
		for size := uint64(21 << 20); size <= 300<<20; size += 29 << 20 {
			space.Resize(size)
			if _, err := m.fs.Grow(); err != nil {
				return fmt.Errorf("at %d: %w", size, err)
			}
			_ = m.fs.Superblock()
		}
		return nil
	})
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}

// TestCrashInGrow interrupts growth at each of its fences. Afterwards the
// volume has the old or the new size, and can grow (again).
func TestCrashInGrow(t *testing.T) {
	singleThreaded(t)
	t.Parallel()
	for _, step := range [][2]uint64{{20 << 20, 24 << 20}, {20 << 20, 150 << 20}, {130 << 20, 160 << 20}} {
		t.Run(fmt.Sprintf("%d to %d MiB", step[0]>>20, step[1]>>20), func(t *testing.T) {
			crashInGrow(t, step[0], step[1])
		})
	}
}

func crashInGrow(t *testing.T, from, to uint64) {
	space := record.New(from, to)
	format(t, space, mkfs.Options{BytesPerInode: 16384})
	var clock testClock
	m := mount(t, space, clock.now)
	if err := prepareTree(m); err != nil {
		t.Fatal(err)
	}
	before, err := m.dump()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
	base := space.Freeze()
	m = mount(t, space, clock.now)
	small := m.totals()
	space.Resize(to)
	space.Record()
	if _, err := m.fs.Grow(); err != nil {
		t.Fatal(err)
	}
	trace := space.Stop()
	if err := lint(space); err != nil {
		t.Fatal(err)
	}
	large := m.totals()
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
	scratch := base.NewSpace()
	verify := func(last bool) error {
		m, err := tryMount(scratch, clock.now)
		if err != nil {
			return err
		}
		have := m.totals()
		if have != small && have != large || last && have != large {
			return fmt.Errorf("totals %+v are neither %+v nor %+v", have, small, large)
		}
		if dump, err := m.dump(); err != nil || dump != before {
			return fmt.Errorf("%w: tree differs:\n%s", err, diffLines(dump, before))
		}
		if err := m.unmount(); err != nil {
			return err
		}
		if m, err = tryMount(scratch, clock.now); err != nil {
			return err
		}
		if _, err := m.fs.Grow(); err != nil {
			return err
		}
		if have := m.totals(); have != large {
			return fmt.Errorf("totals after growing again: %+v, want %+v", have, large)
		}
		return m.unmount()
	}
	trace.Images(record.ADR, record.Options{Subsets: 3, Partial: 1, Alone: 1}, func(img *record.Image) bool {
		scratch.Load(img)
		if err := verify(img.Point == len(trace.Events())); err != nil {
			t.Errorf("crash at %s: %v", img, err)
		}
		return true
	})
}
