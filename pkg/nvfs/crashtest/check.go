package crashtest

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

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
	shape  string

	// To send the request again, and what is to be answered.
	call  func() error // nil: it is none
	errno syscall.Errno
	reply reply
	ticks int64 // the time of the operation
}

// inParts reports whether the operation took more records than one, and so
// may be there in part.
func (s *step) inParts() bool {
	switch verb, _, _ := strings.Cut(string(s.op), " "); verb {
	case "write", "writeheld", "copy", "truncate", "setattr", "fallocate":
		return strings.Count(s.shape, "r") > 1
	}
	return false
}

// history is a case that was run: steps[i] leads from states[i] to
// states[i+1].
type history struct {
	states  []state
	steps   []step
	session *session // whose w the steps' calls use
}

// expectation is what must be there after a crash.
type expectation interface {
	// look sees the memory before recovery.
	look(mem []byte)
	// legal judges the tree after recovery.
	legal(v *volume, lines []string) error
}

// between expects the state before or after the last operation begun; the
// state after it once it has ended.
type between struct {
	*history
	record.Progress
	result      uint64 // what the journal says of the last request begun
	found, last bool
}

func (b *between) look(mem []byte) {
	if b.Begun > 0 {
		b.result, b.found, b.last = executed(mem, b.steps[b.Begun-1].unique)
	}
}

func (b *between) legal(v *volume, lines []string) error {
	before := b.states[b.Ended].lines
	if b.Begun == b.Ended {
		if !slices.Equal(lines, before) {
			return fmt.Errorf("an operation that has returned is not there as it was:\n%s", difference(lines, before))
		}
		return b.checkRequest(true)
	}
	after, s := b.states[b.Ended+1].lines, &b.steps[b.Ended]
	switch {
	case slices.Equal(lines, after):
		if s.torn != nil && s.torn.hides(before, after) {
			return nil // the data is there, which does not say that the record is
		}
		return b.checkRequest(true)
	case slices.Equal(lines, before):
		return b.checkRequest(false)
	case s.torn == nil:
		return fmt.Errorf("the tree is neither as before nor as after %q:\nagainst before\n%sagainst after\n%s",
			s.op, difference(lines, before), difference(lines, after))
	}
	if err := s.torn.legal(v, lines, before, after); err != nil {
		return fmt.Errorf("%q: %w", s.op, err)
	}
	return b.checkRequest(false)
}

// checkRequest compares what the journal said of the last request begun with
// whether its effect is there.
func (b *between) checkRequest(applied bool) error {
	if b.Begun == 0 {
		return nil
	}
	s := &b.steps[b.Begun-1]
	if s.failed || slices.Equal(b.states[b.Begun-1].lines, b.states[b.Begun].lines) {
		return nil // it changes nothing, or nothing that shows
	}
	switch {
	case applied && !b.found:
		return fmt.Errorf("the effect of %q is there, but the journal does not say that its request was executed", s.op)
	case s.inParts():
		return nil
	case !applied && b.found:
		return fmt.Errorf("the journal says that the request of %q was executed, but its effect is not there", s.op)
	case b.found && b.last && b.result != s.result:
		return fmt.Errorf("the journal gives %d as the result of %q, which was %d", b.result, s.op, s.result)
	}
	return nil
}

// exactly expects one tree.
type exactly []string

func (exactly) look([]byte) {}

func (e exactly) legal(_ *volume, lines []string) error {
	if !slices.Equal(lines, e) {
		return fmt.Errorf("the tree differs from the one after an undisturbed recovery:\n%s", difference(lines, e))
	}
	return nil
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

// hides reports whether the trees before and after differ in nothing but what
// is stored in place.
func (t *torn) hides(before, after []string) bool {
	oldRest, oldLine := t.without(before)
	newRest, newLine := t.without(after)
	return slices.Equal(oldRest, newRest) && attributes(oldLine) == attributes(newLine)
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
			fmt.Fprintf(&b, "  have %.200s\n", l)
		}
	}
	for _, l := range want {
		if !slices.Contains(have, l) {
			fmt.Fprintf(&b, "  want %.200s\n", l)
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

// checker checks crash images of one base, one after another.
type checker struct {
	plan   *Plan
	space  *record.Space // recovered
	second *record.Space // recovered once more
	rec    []*record.Space
	clock  *clock
	buf    *buffers
	count  Count
}

func newChecker(p *Plan, b *record.Base, c *clock) *checker {
	k := &checker{plan: p, space: b.NewSpace(), second: b.NewSpace(), clock: c, buf: newBuffers()}
	k.space.Quiet()
	k.second.Quiet()
	for range p.Depth {
		k.rec = append(k.rec, b.NewSpace())
	}
	return k
}

// check does with one image all that the package comment says.
func (k *checker) check(img *record.Image, e expectation, depth int) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	k.count.Images++
	if depth > 0 {
		k.count.InRecovery++
	}
	k.space.Load(img)
	if _, err := check(k.space); err != nil {
		return fmt.Errorf("before recovery: %w", err)
	}
	e.look(k.space.Bytes())
	lines, again, err := k.recover(img, e)
	if err != nil {
		return err
	}
	if again != nil {
		if err := k.recoverAgain(again, lines); err != nil {
			return fmt.Errorf("recovered a second time: %w", err)
		}
	}
	if depth < k.plan.Depth && chosen(img, k.plan.Nested) {
		return k.crashInRecovery(img, lines, depth)
	}
	return nil
}

// chosen picks one of every n images.
func chosen(img *record.Image, n int) bool {
	return n > 0 && (img.Hash^uint64(img.Point))%uint64(n) == 0
}

// recover mounts the loaded image, judges the tree and uses the volume until
// it is empty. again is the content after recovery, for some of the images.
func (k *checker) recover(img *record.Image, e expectation) (lines []string, again *record.Image, err error) {
	if k.plan.Procs > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(k.plan.Procs))
	}
	v, err := mount(k.space, k.clock.now, 1, k.buf)
	if err != nil {
		return nil, nil, err
	}
	if lines, err = v.dump(); err == nil {
		err = e.legal(v, lines)
	}
	if err == nil {
		if chosen(img, k.plan.Twice) {
			again = k.space.Snapshot()
		}
		err = v.use()
	}
	if uerr := v.unmount(); err == nil {
		err = uerr
	}
	if err != nil {
		return nil, nil, err
	}
	return lines, again, checkEmpty(k.space)
}

func (k *checker) recoverAgain(img *record.Image, want []string) error {
	k.second.Load(img)
	v, err := mount(k.second, k.clock.now, 1, k.buf)
	if err != nil {
		return err
	}
	lines, err := v.dump()
	if uerr := v.unmount(); err == nil {
		err = uerr
	}
	if err != nil {
		return err
	}
	if err := exactly(want).legal(v, lines); err != nil {
		return err
	}
	_, err = check(k.second)
	return err
}

// crashInRecovery records the recovery of an image, and checks what a crash
// in the middle of it leaves.
func (k *checker) crashInRecovery(img *record.Image, want []string, depth int) error {
	space := k.rec[depth]
	space.Load(img)
	space.Record()
	v, err := mount(space, k.clock.now, 0, k.buf)
	if err == nil {
		err = v.unmount()
	}
	if err != nil {
		return err
	}
	trace := space.Stop()
	if found := space.Lint(); len(found) > 0 && !k.plan.WithoutLint {
		return fmt.Errorf("stores, flushes and fences of recovery: %v", found)
	}
	trace.Images(k.plan.Model, k.plan.InRecovery, func(img2 *record.Image) bool {
		if err = k.check(img2, exactly(want), depth+1); err != nil {
			err = fmt.Errorf("crash in recovery, %v: %w", img2, err)
		}
		return err == nil
	})
	return err
}

// fail ends the use of a volume that was found to be wrong.
func fail(v *volume, err error) error {
	_ = v.unmount() // the error at hand says more
	return err
}
