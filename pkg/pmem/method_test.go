package pmem

import (
	"slices"
	"testing"
	"unsafe"
)

// leafTrace stands in for the leaves of a mode and counts, for each line, how
// often it was streamed to and how often flushed.
type leafTrace struct {
	t        *testing.T
	mem      []byte
	streamed []int
	flushed  []int
}

func (tr *leafTrace) offset(p unsafe.Pointer, n uintptr) int {
	if n == 0 || n > maxLeaf {
		tr.t.Errorf("a leaf was given %d bytes", n)
	}
	return int(uintptr(p) - uintptr(unsafe.Pointer(&tr.mem[0])))
}

func (tr *leafTrace) stream(dst unsafe.Pointer, n uintptr) {
	off := tr.offset(dst, n)
	if off%lineSize != 0 || n%lineSize != 0 {
		tr.t.Errorf("streamed to [%d, %d), which is not whole lines", off, off+int(n))
	}
	for line := off / lineSize; line < (off+int(n))/lineSize; line++ {
		tr.streamed[line]++
	}
}

func (tr *leafTrace) flush(p unsafe.Pointer, n uintptr) {
	off := tr.offset(p, n)
	for line := off / lineSize; line <= (off+int(n)-1)/lineSize; line++ {
		tr.flushed[line]++
	}
}

// check wants each line of [off, off+n) made durable once, in one of the two
// ways, no other line touched, and a partly covered line flushed.
func (tr *leafTrace) check(off, n int) {
	for line := range tr.flushed {
		start, end := line*lineSize, (line+1)*lineSize
		inside := start < off+n && off < end
		whole := start >= off && end <= off+n
		got := tr.streamed[line] + tr.flushed[line]
		switch {
		case inside && got != 1:
			tr.t.Fatalf("store to [%d, %d): line %d was streamed to %d and flushed %d times", off, off+n, line, tr.streamed[line], tr.flushed[line])
		case !inside && got != 0:
			tr.t.Fatalf("store to [%d, %d): line %d has no part in it", off, off+n, line)
		case inside && !whole && tr.flushed[line] != 1:
			tr.t.Fatalf("store to [%d, %d): line %d is covered in part and was not flushed", off, off+n, line)
		}
	}
	clear(tr.streamed)
	clear(tr.flushed)
}

// TestEveryLineIsFlushed follows what is given to the leaves. The bytes are
// checked by TestStoreAlignment, and the leaves by TestFlushLeaves.
func TestEveryLineIsFlushed(t *testing.T) {
	if !slices.Contains(cpuModes, EADR) {
		t.Skip("no CPU modes on this architecture: only msync, which has no leaves")
	}
	m := memoryIn(t, EADR, 4*maxLeaf)
	mem := m.Bytes()[:m.Size()]
	tr := &leafTrace{t: t, mem: mem, streamed: make([]int, len(mem)/lineSize), flushed: make([]int, len(mem)/lineSize)}
	cached := method{flush: tr.flush}
	streaming := method{
		flush:     tr.flush,
		copyLines: func(dst, _ unsafe.Pointer, n uintptr) { tr.stream(dst, n) },
		zeroLines: tr.stream,
	}
	strategies := map[string]*cpuPersister{
		"cached":    {small: cached, bulk: cached},
		"streaming": {small: streaming, bulk: streaming},
		"mixed":     {small: cached, bulk: streaming, threshold: 256},
	}
	lengths := []int{maxLeaf - 1, maxLeaf, maxLeaf + 1, 3*maxLeaf + 65}
	around := 70
	if testing.Short() {
		around = 2
	}
	for n := 1; n <= 3*lineSize+2*around; n++ {
		lengths = append(lengths, n)
	}
	for n := flushChunk - around; n <= flushChunk+around; n++ {
		lengths = append(lengths, n)
	}
	src := make([]byte, 4*maxLeaf)
	for name, p := range strategies {
		t.Run(name, func(t *testing.T) {
			tr.t = t
			p.base, p.limit = unsafe.Pointer(&mem[0]), uint64(len(mem))
			for _, n := range lengths {
				for align := range lineSize {
					p.Copy(uint64(lineSize+align), src[:n])
					tr.check(lineSize+align, n)
					p.Zero(uint64(lineSize+align), uint64(n))
					tr.check(lineSize+align, n)
					p.Flush(uint64(lineSize+align), uint64(n))
					tr.checkFlush(lineSize+align, n)
				}
			}
		})
	}
}

func (tr *leafTrace) checkFlush(off, n int) {
	if slices.Contains(tr.streamed, 1) {
		tr.t.Fatal("Flush stored something")
	}
	tr.check(off, n)
}

func TestStoreArguments(t *testing.T) {
	for _, mode := range CPUModes() {
		m := memoryIn(t, mode, 4096)
		p := m.NewPersister()
		end := uint64(len(m.Bytes()))
		for name, store := range map[string]func(){
			"unaligned word":     func() { p.Store64(4, 1) },
			"word outside":       func() { p.Store64(end, 1) },
			"copy across end":    func() { p.Copy(end-1, []byte{1, 2}) },
			"zero across end":    func() { p.Zero(end-8, 16) },
			"zero overflows":     func() { p.Zero(8, ^uint64(0)) },
			"flush outside":      func() { p.Flush(end, 1) },
			"offset overflows":   func() { p.Copy(^uint64(0), []byte{1}) },
			"nothing far beyond": func() { p.Copy(^uint64(0), nil); p.Zero(end+1, 0); p.Flush(end+9, 0); panic("fine") },
		} {
			if !panics(store) {
				t.Errorf("%s: %s did not panic", mode, name)
			}
		}
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// TestPersisterDoesNotAllocate also covers what a benchmark would only show.
func TestPersisterDoesNotAllocate(t *testing.T) {
	for _, mode := range CPUModes() {
		m := memoryIn(t, mode, 1<<20)
		p, src := m.NewPersister(), make([]byte, 10000)
		allocs := testing.AllocsPerRun(100, func() {
			p.Copy(3, src)
			p.Zero(20000, 5000)
			p.Store64(40000, 1)
			p.Flush(40000, 8)
			if err := p.Fence(); err != nil {
				t.Fatal(err)
			}
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations", mode, allocs)
		}
	}
}
