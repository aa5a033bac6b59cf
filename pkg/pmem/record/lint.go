package record

import (
	"cmp"
	"fmt"
	"slices"
)

// Rule is a rule of stores, flushes and fences.
type Rule uint8

// The rules. Unflushed and Unfenced lose data; the others cost time.
const (
	Unflushed   Rule = iota // a line that was stored to was not flushed by the end of the operation
	Unfenced                // what was flushed was not fenced by the end of the operation
	CleanFlush              // a line was flushed that had no store since its last flush
	DoubleFlush             // a line was flushed twice between two fences
	EmptyFence              // a fence with nothing stored since the last
	EmptyStore              // a Copy or Zero of no bytes
)

func (r Rule) String() string {
	return [...]string{"never flushed", "never fenced", "flushed without a store", "flushed twice before a fence",
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
	flushed map[uint64]uintptr // lines flushed since the last fence
	found   []Finding
}

func newLinter() *linter {
	return &linter{dirty: map[uint64]uintptr{}, flushed: map[uint64]uintptr{}}
}

func (l *linter) add(r Rule, off uint64, pc uintptr) {
	l.found = append(l.found, Finding{r, off, pc})
}

func (l *linter) store(off uint64, pc uintptr) { l.dirty[off/lineSize] = pc }

// bulk is a Copy or Zero, which flushes what it stores.
func (l *linter) bulk(off, n uint64, pc uintptr) {
	for line := off / lineSize; line <= (off+n-1)/lineSize; line++ {
		if _, twice := l.flushed[line]; twice {
			l.add(DoubleFlush, line*lineSize, pc)
		}
		l.flushed[line] = pc
		delete(l.dirty, line)
	}
}

func (l *linter) flush(off, n uint64, pc uintptr) {
	for line := off / lineSize; line <= (off+n-1)/lineSize; line++ {
		if _, twice := l.flushed[line]; twice {
			l.add(DoubleFlush, line*lineSize, pc)
		} else if _, dirty := l.dirty[line]; !dirty {
			l.add(CleanFlush, line*lineSize, pc)
		}
		l.flushed[line] = pc
		delete(l.dirty, line)
	}
}

func (l *linter) fence(pc uintptr) {
	if len(l.flushed) == 0 && len(l.dirty) == 0 {
		l.add(EmptyFence, 0, pc)
	}
	clear(l.flushed)
}

// settle returns the findings at the end of an operation.
func (l *linter) settle() []Finding {
	for line, pc := range l.dirty {
		l.add(Unflushed, line*lineSize, pc)
	}
	for line, pc := range l.flushed {
		l.add(Unfenced, line*lineSize, pc)
	}
	list := l.found
	slices.SortStableFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Off, b.Off))
	})
	*l = *newLinter()
	return list
}
