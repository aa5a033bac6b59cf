package record_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// every asks for all images of a small trace.
var every = record.Options{Exhaustive: 8, Partial: 64, Between: 1}

// newBase returns a space of two pages whose words are 100 + their number.
func newBase(t *testing.T) *record.Space {
	t.Helper()
	s := record.New(8192, 8192)
	p := s.NewPersister()
	for i := range uint64(1024) {
		p.Store64(8*i, 100+i)
	}
	s.Freeze()
	return s
}

func fence(t *testing.T, p pmem.Persister) {
	t.Helper()
	if err := p.Fence(); err != nil {
		t.Fatal(err)
	}
}

// outcomes runs the operation and returns what the words at offs are in the
// images while it runs and after it.
func outcomes(t *testing.T, m record.Model, run func(p pmem.Persister), offs ...uint64) (during, after []string) {
	t.Helper()
	s := newBase(t)
	base := s.Freeze()
	s.Record()
	s.Begin(0)
	run(s.NewPersister())
	s.End(0)
	trace := s.Stop()
	load := base.NewSpace()
	sets := [2]map[string]bool{{}, {}}
	trace.Images(m, every, func(img *record.Image) bool {
		load.Load(img)
		var words []string
		for _, off := range offs {
			words = append(words, fmt.Sprint(binary.LittleEndian.Uint64(load.Bytes()[off:])))
		}
		sets[img.Worker(0).Ended][strings.Join(words, " ")] = true
		return true
	})
	return slices.Sorted(maps.Keys(sets[0])), slices.Sorted(maps.Keys(sets[1]))
}

func expect(t *testing.T, what string, have []string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("%s:\n have %q\n want %q", what, have, want)
	}
}

func TestLineKeepsOrder(t *testing.T) {
	during, after := outcomes(t, record.ADR, func(p pmem.Persister) {
		p.Store64(0, 1)
		p.Store64(8, 2)
		p.Store64(0, 3)
		p.Flush(0, 16)
		fence(t, p)
	}, 0, 8)
	expect(t, "during", during, "100 101", "1 101", "1 2", "3 2")
	expect(t, "after", after, "3 2")
}

func TestLinesHaveNoOrder(t *testing.T) {
	during, after := outcomes(t, record.ADR, func(p pmem.Persister) {
		p.Store64(0, 1)
		p.Store64(64, 2)
		p.Flush(0, 72)
		fence(t, p)
	}, 0, 64)
	expect(t, "during", during, "100 108", "1 108", "100 2", "1 2")
	expect(t, "after", after, "1 2")
}

func TestWhatIsNotFlushedMayBeLost(t *testing.T) {
	_, after := outcomes(t, record.ADR, func(p pmem.Persister) {
		p.Store64(0, 1)
		p.Store64(64, 2)
		p.Flush(0, 8)
		fence(t, p)
	}, 0, 64)
	expect(t, "second line not flushed", after, "1 108", "1 2")
	_, after = outcomes(t, record.ADR, func(p pmem.Persister) {
		p.Store64(0, 1)
		p.Flush(0, 8)
	}, 0)
	expect(t, "not fenced", after, "100", "1")
	_, after = outcomes(t, record.ADR, func(p pmem.Persister) {
		p.Store64(0, 1)
		p.Flush(0, 8)
		p.Store64(0, 2)
		fence(t, p)
	}, 0)
	expect(t, "stored after the flush", after, "1", "2")
}

func TestFenceIsThePersistersOwn(t *testing.T) {
	s := newBase(t)
	base := s.Freeze()
	a, b := s.NewPersister(), s.NewPersister()
	s.Record()
	a.Store64(0, 1)
	a.Flush(0, 8)
	b.Copy(64, make([]byte, 8))
	fence(t, b)
	found := map[string]bool{}
	load := base.NewSpace()
	s.Stop().Images(record.ADR, every, func(img *record.Image) bool {
		load.Load(img)
		m := load.Bytes()
		found[fmt.Sprint(binary.LittleEndian.Uint64(m), binary.LittleEndian.Uint64(m[64:]))] = true
		return true
	})
	expect(t, "images", slices.Sorted(maps.Keys(found)), "100 108", "100 0", "1 108", "1 0")
}

func TestCopyHasNoOrderWithin(t *testing.T) {
	words := make([]byte, 16)
	words[0], words[8] = 1, 2
	during, after := outcomes(t, record.ADR, func(p pmem.Persister) {
		p.Copy(0, words)
		fence(t, p)
	}, 0, 8)
	expect(t, "during", during, "100 101", "1 101", "100 2", "1 2")
	expect(t, "after", after, "1 2")
}

func TestPartOfAWordTearsByBytes(t *testing.T) {
	during, after := outcomes(t, record.ADR, func(p pmem.Persister) {
		p.Zero(7, 1)
		p.Copy(0, []byte{1, 2})
		fence(t, p)
	}, 0)
	expect(t, "during", during, "100", "1", fmt.Sprint(2<<8|100), fmt.Sprint(2<<8|1))
	expect(t, "after", after, fmt.Sprint(2<<8|1))
}

func TestEADRKeepsTheOrderOfAllStores(t *testing.T) {
	during, after := outcomes(t, record.EADR, func(p pmem.Persister) {
		p.Store64(64, 1)
		p.Store64(0, 2)
		p.Store64(128, 3)
		fence(t, p)
	}, 64, 0, 128)
	expect(t, "during", during, "108 100 116", "1 100 116", "1 2 116", "1 2 3")
	expect(t, "after", after, "1 2 3")
}

func TestMSyncTearsSectors(t *testing.T) {
	during, after := outcomes(t, record.MSync, func(p pmem.Persister) {
		p.Store64(0, 1)
		p.Store64(504, 2)
		p.Store64(512, 3)
		fence(t, p)
	}, 0, 504, 512)
	expect(t, "during", during, "100 163 164", "1 163 164", "1 2 164", "100 163 3", "1 163 3", "1 2 3")
	expect(t, "after", after, "1 2 3")
}

func TestMSyncOfAllPagesBetween(t *testing.T) {
	s := record.New(3*4096, 3*4096)
	base := s.Freeze()
	a, b := s.NewPersister(), s.NewPersister()
	s.Record()
	s.Begin(0)
	a.Store64(4096, 1)
	b.Store64(0, 2)
	b.Store64(8192, 3)
	fence(t, b)
	s.End(0)
	load := base.NewSpace()
	s.Stop().Images(record.MSync, every, func(img *record.Image) bool {
		if load.Load(img); img.Worker(0).Ended == 1 && load.Bytes()[4096] != 1 {
			t.Error("a page between two that were synced is lost")
		}
		return true
	})
}

func TestImagesAreDistinct(t *testing.T) {
	s := newBase(t)
	base := s.Freeze()
	p := s.NewPersister()
	s.Record()
	s.Begin(0)
	for i := range uint64(40) {
		p.Store64(64*(i%20), i/20)
	}
	p.Store64(0, 100) // as in the base
	p.Flush(0, 64*20)
	fence(t, p)
	s.End(0)
	seen := map[string]*record.Image{}
	load := base.NewSpace()
	n := 0
	s.Stop().Images(record.ADR, record.Options{Subsets: 50, Partial: 50, Between: 3}, func(img *record.Image) bool {
		load.Load(img)
		key := fmt.Sprint(img.Ops) + string(load.Bytes())
		if o := seen[key]; o != nil {
			t.Errorf("%v is the same as %v", img, o)
		}
		seen[key] = img
		if s := load.Snapshot(); s.Hash != img.Hash {
			t.Errorf("%v: hash %#x, of its content %#x", img, img.Hash, s.Hash)
		}
		n++
		return true
	})
	if n < 100 {
		t.Errorf("only %d images", n)
	}
}

func TestImagesOfARestart(t *testing.T) {
	s := newBase(t)
	base := s.Freeze()
	p := s.NewPersister()
	p.Store64(0, 1)
	s.Record()
	p.Copy(8, make([]byte, 8))
	fence(t, p)
	first := s.Stop()
	load, again := base.NewSpace(), base.NewSpace()
	count := 0
	first.Images(record.ADR, every, func(img *record.Image) bool {
		load.Load(img)
		load.Record()
		q := load.NewPersister()
		q.Store64(16, 5)
		q.Flush(16, 8)
		fence(t, q)
		load.Stop().Images(record.ADR, every, func(img2 *record.Image) bool {
			again.Load(img2)
			m := again.Bytes()
			if binary.LittleEndian.Uint64(m) != 1 {
				t.Errorf("%v, then %v: what was stored before the trace is lost", img, img2)
			}
			count++
			return true
		})
		return true
	})
	if count != 4 {
		t.Errorf("%d images, want 4", count)
	}
	again.Reset()
	if binary.LittleEndian.Uint64(again.Bytes()) != 100 {
		t.Error("Reset did not restore the base")
	}
}

func TestFromSkipsEarlierOperations(t *testing.T) {
	s := newBase(t)
	s.Freeze()
	p := s.NewPersister()
	s.Record()
	for i := range uint64(3) {
		s.Begin(0)
		p.Store64(64*i, 1)
		p.Flush(64*i, 8)
		fence(t, p)
		s.End(0)
	}
	s.Stop().Images(record.ADR, record.Options{From: 3}, func(img *record.Image) bool {
		if img.Worker(0).Begun < 3 {
			t.Errorf("image %v of operation %d", img, img.Worker(0).Begun)
		}
		return true
	})
}

func TestSizeGoesWithTheImage(t *testing.T) {
	s := record.New(8192, 16384)
	base := s.Freeze()
	s.Resize(16384)
	s.Record()
	img := s.Snapshot()
	o := base.NewSpace()
	o.Load(img)
	if o.Size() != 16384 {
		t.Errorf("size %d", o.Size())
	}
	o.Reset()
	if o.Size() != 8192 {
		t.Errorf("size %d after Reset", o.Size())
	}
}
