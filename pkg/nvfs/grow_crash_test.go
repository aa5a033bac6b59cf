package nvfs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// preparedVolume is a volume with a tree, frozen, and what is on it.
func preparedVolume(t *testing.T, space *record.Space, clock *testClock) (base *record.Base, tree string) {
	t.Helper()
	format(t, space, mkfs.Options{BytesPerInode: 16384})
	m := mount(t, space, clock.now)
	if err := prepareTree(m); err != nil {
		t.Fatal(err)
	}
	tree, err := m.dump()
	if err == nil {
		err = m.unmount()
	}
	if err != nil {
		t.Fatal(err)
	}
	return space.Freeze(), tree
}

// recordGrowth mounts and records a growth. The space is not unmounted.
func recordGrowth(space *record.Space, clock *testClock, grow func(*nvfs.FS) error) (before, after nvfs.StatFS, trace *record.Trace, err error) {
	m, err := tryMount(space, clock.now)
	if err != nil {
		return before, after, nil, err
	}
	before = m.totals()
	space.Record()
	err = grow(m.fs)
	trace = space.Stop()
	if err == nil {
		after, err = m.totals(), lint(space)
	}
	return before, after, trace, errors.Join(err, m.unmount())
}

func tornSuperblock(space pmem.Space) bool {
	_, err := layout.DecodeSuperblock(space.Bytes()[:layout.StaticSize])
	return err != nil
}

// TestGrowTwiceAfterCrash: a crash tears block 0 in the middle of a growth, and
// before the volume is mounted again its device has grown once more, so that
// the copy of the superblock is not in the last block. It must be mountable,
// and so after a crash anywhere in the second growth.
func TestGrowTwiceAfterCrash(t *testing.T) {
	singleThreaded(t)
	t.Parallel()
	const first, second, third = 20 << 20, 24 << 20, 140 << 20
	space := record.New(first, third)
	var clock testClock
	base, tree := preparedVolume(t, space, &clock)
	inPlace := func(fs *nvfs.FS) error { _, err := fs.Grow(); return err }
	space.Resize(second)
	small, medium, trace, err := recordGrowth(space, &clock, inPlace)
	if err != nil {
		t.Fatal(err)
	}
	scratch, nested := base.NewSpace(), base.NewSpace()
	torn, all, inner := 0, 0, 0
	trace.Images(record.ADR, record.Options{Subsets: 4, Partial: 2, Alone: 2}, func(img *record.Image) bool {
		all++
		scratch.Load(img)
		isTorn := tornSuperblock(scratch)
		if !isTorn && all%5 != 0 {
			return true
		}
		if isTorn {
			torn++
		}
		scratch.Resize(third)
		from, large, second, err := recordGrowth(scratch, &clock, inPlace)
		if err != nil || from != small && from != medium {
			t.Errorf("crash at %s, larger device: %+v, %v", img, from, err)
			return true
		}
		if torn > 6 && isTorn {
			return true
		}
		second.Images(record.ADR, record.Options{Subsets: 2, Alone: 1}, func(img2 *record.Image) bool {
			inner++
			nested.Load(img2)
			nested.Resize(third)
			if err := sameTree(nested, &clock, tree, from, large); err != nil {
				t.Errorf("crash at %s, then at %s: %v", img, img2, err)
			}
			return true
		})
		return true
	})
	if torn == 0 || inner == 0 {
		t.Errorf("%d images, %d of them with a torn superblock, %d in the second growth: the test shows nothing", all, torn, inner)
	}
	t.Logf("%d images, %d with a torn superblock, %d of a crash in the second growth", all, torn, inner)
}

// sameTree mounts a volume, which must have one of the sizes, and looks at it.
func sameTree(space *record.Space, clock *testClock, tree string, sizes ...nvfs.StatFS) error {
	m, err := tryMount(space, clock.now)
	if err != nil {
		return err
	}
	have, known := m.totals(), false
	for _, s := range sizes {
		known = known || s == have
	}
	dump, err := m.dump()
	switch {
	case !known:
		err = errors.Join(err, fmt.Errorf("totals %+v are none of %+v", have, sizes))
	case err == nil && dump != tree:
		err = fmt.Errorf("tree differs:\n%s", diffLines(dump, tree))
	}
	return errors.Join(err, m.unmount())
}

// growDevice is the second device of a space, as mkfs looks at it.
type growDevice struct {
	space *record.Space
	part  pmem.Part
}

func (m growDevice) Size() uint64 { return m.part.Len }

func (m growDevice) ReadAt(p []byte, off int64) (int, error) {
	return copy(p, m.space.Bytes()[m.part.Off+uint64(off):m.part.End()]), nil
}

func (m growDevice) NextData(off uint64) (start, end uint64, err error) { return off, m.part.Len, nil }

// TestCrashInGrowOnto interrupts the growth onto a further device at each of its
// stores. Afterwards the device is in the volume or not; if not, it can be
// given again, although it is not blank any more.
func TestCrashInGrowOnto(t *testing.T) {
	singleThreaded(t)
	t.Parallel()
	part := pmem.Part{Off: layout.GroupBlocks * layout.BlockSize, Len: 20 << 20}
	space := record.New(20<<20, part.End())
	space.Attach(part.Off, part.Len)
	var clock testClock
	base, tree := preparedVolume(t, space, &clock)
	onto := func(fs *nvfs.FS) error {
		uuid, err := mkfs.UsableMember(context.Background(), growDevice{space, part}, fs.Superblock())
		if err == nil {
			_, err = fs.GrowOnto(part, uuid)
		}
		return err
	}
	small, large, trace, err := recordGrowth(space, &clock, onto)
	if err != nil {
		t.Fatal(err)
	}
	scratch, nested := base.NewSpace(), base.NewSpace()
	in, out, inner := 0, 0, 0
	trace.Images(record.ADR, record.Options{Subsets: 3, Partial: 2, Alone: 3}, func(img *record.Image) bool {
		space = scratch
		scratch.Load(img)
		if err := sameTree(scratch, &clock, tree, small, large); err != nil {
			t.Errorf("crash at %s: %v", img, err)
			return true
		}
		scratch.Load(img)
		from, to, again, err := recordGrowth(scratch, &clock, onto)
		if from == large {
			in++
			if !errors.Is(err, mkfs.ErrMemberNow) {
				t.Errorf("crash at %s: given again when it is in: %v", img, err)
			}
			return true
		}
		out++
		if err != nil || to != large {
			t.Errorf("crash at %s: given again: %+v, %v", img, to, err)
			return true
		}
		if out%9 != 0 {
			return true
		}
		again.Images(record.ADR, record.Options{Subsets: 1, Alone: 1}, func(img2 *record.Image) bool {
			inner++
			space = nested
			nested.Load(img2)
			from, to, _, err := recordGrowth(nested, &clock, onto)
			if from != large && (err != nil || to != large) || from == large && !errors.Is(err, mkfs.ErrMemberNow) {
				t.Errorf("crash at %s, then at %s: %v", img, img2, err)
			}
			return true
		})
		return true
	})
	if in == 0 || out == 0 || inner == 0 {
		t.Errorf("%d images with the device, %d without, %d of the second attempt: the test shows nothing", in, out, inner)
	}
	t.Logf("%d images with the device, %d without, %d of a second attempt", in, out, inner)
}
