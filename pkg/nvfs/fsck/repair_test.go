package fsck

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// errInterrupted is the panic of a store behind the last one that is let
// through.
var errInterrupted = errors.New("interrupted")

// storeSpace is memory that can be stored to, until fence number stopAt: then
// what was stored since the one before is kept, lost, or kept in part.
type storeSpace struct {
	memSpace
	fences  int
	stopAt  int // 0: never
	keep    func(off uint64) bool
	pending []word // since the last fence
	history []word // before that
}

// storing guards all of them: the engine notes damage on a goroutine of its
// own.
var storing sync.Mutex

// word is an aligned word and what it was before it was stored to.
type word struct{ off, old uint64 }

func (s *storeSpace) ReadOnly() bool               { return false }
func (s *storeSpace) NewPersister() pmem.Persister { return s }

// stopped reports whether the interruption has come. The engine catches the
// panic and goes on; what it stores then is lost as well.
func (s *storeSpace) stopped() bool { return s.stopAt != 0 && s.fences >= s.stopAt }

func (s *storeSpace) Store64(off, v uint64) {
	storing.Lock()
	defer storing.Unlock()
	if s.stopped() {
		return
	}
	s.pending = append(s.pending, word{off, binary.LittleEndian.Uint64(s.memSpace[off:])})
	binary.LittleEndian.PutUint64(s.memSpace[off:], v)
}

func (s *storeSpace) Copy(off uint64, src []byte) {
	for len(src) > 0 {
		at := off &^ 7
		var b [8]byte
		copy(b[:], s.memSpace[at:])
		n := copy(b[off-at:], src)
		s.Store64(at, binary.LittleEndian.Uint64(b[:]))
		off, src = off+uint64(n), src[n:]
	}
}

func (s *storeSpace) Zero(off, n uint64)  { s.Copy(off, make([]byte, n)) }
func (s *storeSpace) Flush(off, n uint64) {}

func (s *storeSpace) Fence() error {
	storing.Lock()
	defer storing.Unlock()
	if s.stopped() {
		return nil
	}
	if s.fences++; s.fences == s.stopAt {
		for i := len(s.pending) - 1; i >= 0; i-- {
			if !s.keep(s.pending[i].off) {
				binary.LittleEndian.PutUint64(s.memSpace[s.pending[i].off:], s.pending[i].old)
			}
		}
		panic(errInterrupted)
	}
	s.history = append(s.history, s.pending...)
	s.pending = s.pending[:0]
	return nil
}

// revert takes all stores back: an image is too large to be copied often.
func (s *storeSpace) revert() {
	s.history = append(s.history, s.pending...)
	for _, w := range slices.Backward(s.history) {
		binary.LittleEndian.PutUint64(s.memSpace[w.off:], w.old)
	}
	*s = storeSpace{memSpace: s.memSpace}
}

var repairTime = time.Unix(1_800_000_000, 5)

func repair(t testing.TB, mem []byte) *Report {
	t.Helper()
	r, err := Repair(context.Background(), &storeSpace{memSpace: mem}, Options{Threads: 2, Now: repairTime})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustBeRepaired(t testing.TB, r *Report, mem []byte) {
	t.Helper()
	if r.ExitCode() != ExitRepaired {
		t.Errorf("exit code %d: left %v\nnotes %q\ndone %v", r.ExitCode(), r.Problems, r.Notes, r.Repairs)
	}
	if again := check(t, mem, Options{}); again.Total() != 0 {
		t.Errorf("after the repair: %v", again.Problems)
	}
}

// Whatever single invariant is broken, the repair ends with a volume that
// breaks none, and a further one finds nothing to do.
func TestEveryDamageIsRepaired(t *testing.T) {
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			p := damagedImage(t, d)
			r := repair(t, p.mem)
			mustBeRepaired(t, r, p.mem)
			s := &storeSpace{memSpace: p.mem}
			if r, err := Repair(context.Background(), s, Options{}); err != nil || r.ExitCode() != ExitClean || s.fences != 0 {
				t.Errorf("again: %v, exit code %d, %d fences", err, r.ExitCode(), s.fences)
			}
		})
	}
}

func damagedImage(t testing.TB, d damage) *populated {
	p := populate(t, false)
	if d.before != nil {
		d.before(p)
	}
	p.write()
	if d.after != nil {
		d.after(p)
	}
	return p
}

// dangerous are broken rules that a mount would build further damage on. An
// interrupted repair must not add them.
var dangerous = []Code{Superblock, JournalRecord, JournalRetire, BitmapChecksum, BitmapCount, BlockFree, BlockShared,
	InodeChecksum, ExtentNode, DirBlock, DirEntries, XattrBlock}

// A repair that is interrupted at any fence, with any of the stores since the
// last one, leaves a volume that is no worse, and is completed by the next.
func TestInterruptedRepair(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	salt := uint64(0)
	models := []struct {
		name string
		keep func(off uint64) bool
	}{
		{"all", func(uint64) bool { return true }},
		{"none", func(uint64) bool { return false }},
		{"some words", func(uint64) bool { return r.IntN(2) == 0 }},
		{"some pages", func(off uint64) bool { return (off/4096*0x9e3779b97f4a7c15^salt)>>40&1 == 0 }},
	}
	tried := 0
	for _, d := range damages {
		s := &storeSpace{memSpace: damagedImage(t, d).mem}
		before, err := Check(context.Background(), s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Repair(context.Background(), s, Options{Now: repairTime}); err != nil {
			t.Fatal(err)
		}
		fences := s.fences
		for at := 1; at <= fences; at += 1 + fences/12 {
			model := models[tried%len(models)]
			tried++
			s.revert()
			s.stopAt, s.keep, salt = at, model.keep, r.Uint64()
			interrupt(t, s)
			s.stopAt = 0
			where := fmt.Sprintf("%s: interrupted at fence %d of %d, %s kept", d.name, at, fences, model.name)
			noWorse(t, where, before, s)
			if r, err := Repair(context.Background(), s, Options{Now: repairTime}); err != nil || r.Total() != 0 {
				t.Fatalf("%s: %v, %+v", where, err, r)
			}
		}
	}
	t.Logf("%d interruptions", tried)
}

func noWorse(t *testing.T, where string, before *Report, s *storeSpace) {
	t.Helper()
	after, err := Check(context.Background(), s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range dangerous {
		if after.Counts[code] > before.Counts[code] {
			t.Fatalf("%s: it is worse: %v", where, after.Problems)
		}
	}
}

// What becomes of the record of a slot with a damaged retire word.
func TestRetireWordIsDecided(t *testing.T) {
	v := newMediaVolume(t)
	slot, seq := v.lastSlot()
	word := v.mem[slot+layout.RecRetire:][:8]
	retired := layout.RetireWord(v.seed, seq)
	for _, c := range []struct {
		name   string
		word   uint64
		later  bool // another slot has a later record
		replay bool
	}{
		{"a byte away from retired", retired ^ 0x5a<<24, false, false},
		{"noise, the last record", 0x1234567890abcdef, false, true},
		{"noise, not the last record", 0x1234567890abcdef, true, false},
	} {
		s := &storeSpace{memSpace: v.mem}
		d := layout.Dynamic(v.mem[layout.DynamicOffset:][:layout.StaticSize])
		other := layout.SlotOffset(int((slot/layout.SlotSize)+1) % 4)
		if c.later {
			s.Store64(other+layout.RecRetire, layout.RetireWord(v.seed, seq+1))
		}
		s.Store64(slot+layout.RecRetire, c.word)
		r, err := Repair(context.Background(), s, Options{Now: repairTime})
		if err != nil || r.Total() != 0 {
			t.Fatalf("%s: %v, %+v", c.name, err, r)
		}
		told := false
		for _, p := range r.Repairs {
			told = told || p.Code == JournalRetire && strings.Contains(p.Text, "is replayed") == c.replay
		}
		if !told || d.State() != layout.StateClean {
			t.Errorf("%s: state %d, repairs %v", c.name, d.State(), r.Repairs)
		}
		s.revert()
	}
	if binary.LittleEndian.Uint64(word) != retired {
		t.Error("the damage was not taken back")
	}
}

func interrupt(t testing.TB, s *storeSpace) {
	t.Helper()
	_, err := Repair(context.Background(), s, Options{Now: repairTime})
	if err != nil && !isInternal(err) {
		t.Fatal(err)
	}
	if s.fences < s.stopAt {
		t.Fatalf("not interrupted: %d fences of %d", s.fences, s.stopAt)
	}
}

// Random damage, with right checksums for the most part, is repaired too.
func TestRandomDamageIsRepaired(t *testing.T) {
	v := newVandal(t)
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 1000 {
		for range 1 + r.IntN(4) {
			value := r.Uint64()
			if r.IntN(4) != 0 {
				value = v.words[r.IntN(len(v.words))]
			}
			v.damage(r.Uint32(), r.Uint32(), value, uint8(r.IntN(8)), r.IntN(8) != 0)
		}
		s := &storeSpace{memSpace: v.p.mem}
		rep, err := Repair(context.Background(), s, Options{Now: repairTime})
		switch {
		case err != nil && isInternal(err):
			t.Fatalf("round %d: %v", round, err)
		case err != nil, rep.Counts[Geometry] > 0: // superblock beyond repair
		case rep.Total() > 0:
			t.Fatalf("round %d: left %v\n%q\ndone %v", round, rep.Problems, rep.Notes, rep.Repairs)
		}
		s.revert()
		v.takeBack()
	}
}
