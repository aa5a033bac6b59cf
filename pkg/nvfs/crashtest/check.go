package crashtest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// state is the tree between two operations.
type state struct{ lines []string }

// step is an operation of a case that was run: what it did.
type step struct {
	op     Op
	torn   *torn
	result uint64
	failed bool
	unique uint64 // of its request
}

// history is a case that was run: steps[i] leads from states[i] to
// states[i+1].
type history struct {
	states []state
	steps  []step
}

// legal checks the tree after a crash in or after the last operation begun.
// committed says that only the state after an operation is possible; applied
// whether the tree has that operation's effect.
func (h *history) legal(v *volume, p record.Progress) (applied bool, err error) {
	lines, err := v.dump()
	if err != nil {
		return false, err
	}
	before := h.states[p.Ended]
	if p.Begun == p.Ended {
		if !slices.Equal(lines, before.lines) {
			return true, fmt.Errorf("an operation that has returned is not there as it was:\n%s", difference(lines, before.lines))
		}
		return true, nil
	}
	after, s := h.states[p.Ended+1], &h.steps[p.Ended]
	switch {
	case slices.Equal(lines, after.lines):
		return true, nil
	case slices.Equal(lines, before.lines):
		return false, nil
	case s.torn == nil:
		return false, fmt.Errorf("the tree is neither as before nor as after %q:\nagainst before\n%sagainst after\n%s",
			s.op, difference(lines, before.lines), difference(lines, after.lines))
	}
	if err := s.torn.legal(v, lines, before.lines, after.lines); err != nil {
		return false, fmt.Errorf("%q: %w", s.op, err)
	}
	return false, nil
}

// legal accepts a file that is overwritten in part: the rest of the tree and
// the file's attributes as before, and each word of it old or new.
func (t *torn) legal(v *volume, lines, before, after []string) error {
	rest, line := t.without(lines)
	oldRest, oldLine := t.without(before)
	newRest, _ := t.without(after)
	switch {
	case t.stepwise:
		if !slices.Equal(rest, oldRest) && !slices.Equal(rest, newRest) {
			return fmt.Errorf("the tree apart from %s:\n%s", t.path, difference(rest, oldRest))
		}
	case !slices.Equal(rest, oldRest) || attributes(line) != attributes(oldLine):
		return fmt.Errorf("the tree apart from the content of %s is neither as before nor as after:\nagainst before\n%sagainst after\n%s",
			t.path, difference(lines, before), difference(lines, after))
	}
	have, err := v.readFile(t.path, tornLimit)
	if err != nil {
		return err
	}
	if len(have) < min(len(t.old), len(t.new)) || len(have) > max(len(t.old), len(t.new)) {
		return fmt.Errorf("%s has %d bytes: not between %d and %d", t.path, len(have), len(t.old), len(t.new))
	}
	for i := 0; i < len(have); i += 8 {
		w := have[i:min(i+8, len(have))]
		if !wordOf(t.old, i, w) && !wordOf(t.new, i, w) {
			return fmt.Errorf("%s: the word at %d is %x, neither the old one nor the new one", t.path, i, w)
		}
	}
	return nil
}

// without splits the line of the file off a dump.
func (t *torn) without(lines []string) (rest []string, line string) {
	for _, l := range lines {
		if strings.HasPrefix(l, t.path+" ") {
			line = l
		} else {
			rest = append(rest, l)
		}
	}
	return rest, line
}

// attributes is a line without the hash of the content.
func attributes(line string) string {
	head, _, _ := strings.Cut(line, " content=")
	return head
}

// wordOf reports whether p has w at i; beyond its end it has zeros.
func wordOf(p []byte, i int, w []byte) bool {
	for k, v := range w {
		if i+k < len(p) && p[i+k] != v || i+k >= len(p) && v != 0 {
			return false
		}
	}
	return true
}

// difference shows where two dumps differ.
func difference(have, want []string) string {
	var b strings.Builder
	for _, l := range have {
		if !slices.Contains(want, l) {
			fmt.Fprintf(&b, "  have %.400s\n", l)
		}
	}
	for _, l := range want {
		if !slices.Contains(have, l) {
			fmt.Fprintf(&b, "  want %.400s\n", l)
		}
	}
	return b.String()
}

// executed looks in the journal of a crashed volume for the request with that
// number, as a daemon that takes clients over does: whether it was executed,
// with what result, and whether that was the last of its records.
func executed(mem []byte, unique uint64) (result uint64, found, last bool) {
	sb, err := layout.DecodeSuperblock(mem[:layout.StaticSize])
	if err != nil {
		return 0, false, false // in the middle of a growth, which is no request
	}
	seed := sb.Seed()
	seq := uint64(0)
	for slot := range int(sb.Slots) {
		off := layout.SlotOffset(slot)
		r := layout.Record(mem[off : off+layout.SlotSize])
		if r.Magic() != layout.RecordMagic {
			continue
		}
		if t := r.Request(); t.Conn == conn && t.Unique == unique && r.Seq() > seq && r.Valid(seed) {
			result, found, last, seq = t.Result, true, !t.More, r.Seq()
		}
	}
	return result, found, last
}

// checkRequest compares what the journal says of the last request begun with
// what is there of it.
func (h *history) checkRequest(mem []byte, p record.Progress, applied bool) error {
	if p.Begun == 0 {
		return nil
	}
	s, i := &h.steps[p.Begun-1], p.Begun-1
	if s.failed || slices.Equal(h.states[i].lines, h.states[i+1].lines) {
		return nil // it changes nothing, or nothing that shows
	}
	result, found, last := executed(mem, s.unique)
	switch stepwise := s.torn != nil && s.torn.stepwise; {
	case applied && !found:
		return fmt.Errorf("the effect of %q is there, but the journal does not say that its request was executed", s.op)
	case !applied && found && !stepwise:
		return fmt.Errorf("the journal says that the request of %q was executed, but its effect is not there", s.op)
	case found && last && result != s.result && !stepwise:
		return fmt.Errorf("the journal gives %d as the result of %q, which was %d", result, s.op, s.result)
	}
	return nil
}

// checker checks crash images of one base, one after another.
type checker struct {
	plan   *Plan
	space  *record.Space // recovered
	second *record.Space // recovered once more
	rec    []*record.Space
	clock  *clock
	count  *Count
	mem    []byte // journal of the image at hand
}

func newChecker(p *Plan, b *record.Base, c *clock) *checker {
	k := &checker{plan: p, space: b.NewSpace(), second: b.NewSpace(), clock: c, count: &Count{}}
	k.space.Quiet()
	k.second.Quiet()
	for range p.Depth {
		k.rec = append(k.rec, b.NewSpace())
	}
	return k
}

// check does all that the package comment says with one image.
func (k *checker) check(img *record.Image, h *history, depth int) error {
	k.count.Images++
	if depth > 0 {
		k.count.InRecovery++
	}
	k.space.Load(img)
	if _, err := check(k.space); err != nil {
		return fmt.Errorf("before recovery: %w", err)
	}
	p := img.Worker(0)
	if depth > 0 {
		p = h.progress
	}
	v, err := mount(k.space, k.clock.now, 1)
	if err != nil {
		return err
	}
	applied, err := h.legal(v, p)
	if err != nil {
		return fail(v, err)
	}
	_ = applied
	return nil
}

// fail ends the use of a volume that is found to be wrong.
func fail(v *volume, err error) error {
	_ = v.unmount() // the error at hand says more
	return err
}

var _ = binary.LittleEndian
var _ nvfs.NodeID
