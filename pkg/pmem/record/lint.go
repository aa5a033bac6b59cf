package record

import (
	"cmp"
	"fmt"
	"slices"
)

// Rule is a rule of stores, flushes and fences.
type Rule uint8

// The rules. Unflushed, Unfenced and Uncovered lose data; the others cost
// time.
const (
	Unflushed   Rule = iota // a line that was stored to was not flushed by the end of the operation
	Unfenced                // what was flushed was not fenced by the end of the operation
	Uncovered               // a fence while a line that was stored to was not flushed
	CleanFlush              // a line was flushed that had no store since its last flush
	DoubleFlush             // a line was flushed twice between two fences
	EmptyFence              // a fence with nothing stored since the last
	EmptyStore              // a Copy or Zero of no bytes
)

func (r Rule) String() string {
	return [...]string{"never flushed", "never fenced", "not flushed ahead of a fence", "flushed without a store", "flushed twice before a fence",
		"fence with nothing pending", "empty store"}[r]
}

// Finding is a rule that was broken.
type Finding struct {
	Rule Rule
	Off  uint64 // of the line
	PC   uintptr
}

func (f Finding) String() string {
	return fmt.Sprintf("%s: %v (offset %#x)", where(f.PC), f.Rule, f.Off)
}

// linter checks the stores of one Persister.
type linter struct {
	dirty   map[uint64]uintptr // lines with stores that await a flush
	flushed []lineRange        // since the last fence
	found   []Finding
}

// lineRange is the lines from first to last, that one call flushed.
type lineRange struct {
	first, last uint64
	pc          uintptr
}

// maxFindings is how many findings are kept: a mistake in a loop tells no
// more the thousandth time.
const maxFindings = 1000

func newLinter() *linter { return &linter{dirty: map[uint64]uintptr{}} }

func (l *linter) add(r Rule, off uint64, pc uintptr) {
	if len(l.found) < maxFindings {
		l.found = append(l.found, Finding{r, off, pc})
	}
}

func (l *linter) store(off uint64, pc uintptr) { l.dirty[off/lineSize] = pc }

// bulk is a Copy or Zero, which flushes what it stores.
func (l *linter) bulk(off, n uint64, pc uintptr) {
	now := lineRange{off / lineSize, (off + n - 1) / lineSize, pc}
	l.twice(now)
	l.clean(now)
	l.flushed = append(l.flushed, now)
}

func (l *linter) flush(off, n uint64, pc uintptr) {
	now := lineRange{off / lineSize, (off + n - 1) / lineSize, pc}
	l.twice(now)
	for line := now.first; line <= now.last; line++ {
		if _, dirty := l.dirty[line]; !dirty && !l.isFlushed(line) {
			l.add(CleanFlush, line*lineSize, pc)
		}
	}
	l.clean(now)
	l.flushed = append(l.flushed, now)
}

// twice finds what was flushed before.
func (l *linter) twice(now lineRange) {
	for _, r := range l.flushed {
		for line := max(r.first, now.first); line <= min(r.last, now.last); line++ {
			l.add(DoubleFlush, line*lineSize, now.pc)
		}
	}
}

// clean notes that no store to the lines awaits a flush.
func (l *linter) clean(now lineRange) {
	if now.last-now.first < uint64(len(l.dirty)) {
		for line := now.first; line <= now.last; line++ {
			delete(l.dirty, line)
		}
		return
	}
	for line := range l.dirty {
		if line >= now.first && line <= now.last {
			delete(l.dirty, line)
		}
	}
}

func (l *linter) isFlushed(line uint64) bool {
	return slices.ContainsFunc(l.flushed, func(r lineRange) bool { return line >= r.first && line <= r.last })
}

func (l *linter) fence(pc uintptr) {
	if len(l.flushed) == 0 && len(l.dirty) == 0 {
		l.add(EmptyFence, 0, pc)
	}
	for line, at := range l.dirty {
		l.add(Uncovered, line*lineSize, at)
	}
	clear(l.dirty) // each is told of once
	l.flushed = l.flushed[:0]
}

// settle returns the findings at the end of an operation.
func (l *linter) settle() []Finding {
	for line, pc := range l.dirty {
		l.add(Unflushed, line*lineSize, pc)
	}
	for _, r := range l.flushed {
		l.add(Unfenced, r.first*lineSize, r.pc)
	}
	list := l.found
	slices.SortStableFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Off, b.Off))
	})
	*l = *newLinter()
	return list
}
