package nvfs_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
)

// TestCrashWithConcurrentWorkers takes crash images while several workers are
// in the middle of their records. Whatever survives must be a sound volume.
func TestCrashWithConcurrentWorkers(t *testing.T) {
	t.Parallel()
	rec := newRecorder(48 << 20)
	format(t, rec, mkfs.Options{BytesPerInode: 16384})
	m := mount(t, rec, nil)
	empty := m.totals()
	rec.checkpoint()
	m = mount(t, rec, nil) // as if the first had crashed
	steps, every := 1500*scale(t), 97
	if brief() {
		steps = 500
	}
	var images []taken
	variants := []survivors{callsSurvive, wordsSurvive, noneSurvive, allButOne, allSurvive}
	rec.atFence = func(n int) {
		if n%every == 0 {
			v := variants[len(images)%len(variants)]
			images = append(images, taken{rec.crash(v, rand.New(rand.NewPCG(uint64(n), 3))), fmt.Sprintf("at fence %d, %s stores survive", n, v)})
		}
	}
	runCrowd(t, m, 4, steps, func() error { return nil })
	rec.mu.Lock()
	rec.atFence = nil
	rec.mu.Unlock()
	if f := rec.settled(); len(f) > 0 {
		t.Fatal(f)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d crash images", len(images))
	scratch := rec.sibling(true)
	for _, img := range images {
		if err := verifySound(scratch, img, empty); err != nil {
			t.Errorf("crash %s: %v", img.how, err)
		}
	}
}

func verifySound(space *recorder, img taken, empty nvfs.StatFS) error {
	space.load(img.image)
	m, err := tryMount(space, nil)
	if err != nil {
		return err
	}
	first, err := m.dump()
	if err != nil {
		return err
	}
	if err := m.unmount(); err != nil {
		return err
	}
	if m, err = tryMount(space, nil); err != nil {
		return err
	}
	if again, err := m.dump(); err != nil || again != first {
		return errors.Join(err, errors.New("tree differs after a second mount:\n"+diffLines(again, first)))
	}
	if err := m.removeAll(nvfs.RootID); err != nil {
		return err
	}
	if s := m.totals(); s != empty {
		return fmt.Errorf("space is lost:\n have %+v\n want %+v", s, empty)
	}
	return m.unmount()
}
