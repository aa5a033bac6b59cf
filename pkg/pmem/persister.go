package pmem

import (
	"fmt"
	"unsafe"
)

const (
	// maxLeaf bounds what one assembly leaf is given: it cannot be preempted.
	maxLeaf = 64 << 10
	// flushChunk is how much is stored before it is flushed, so that the lines
	// are still in the nearest cache.
	flushChunk = 4 << 10
)

type (
	copyLeaf  = func(dst, src unsafe.Pointer, n uintptr)
	rangeLeaf = func(p unsafe.Pointer, n uintptr)
)

// method is how one mode stores and flushes.
type method struct {
	// copyLines and zeroLines store whole lines around the caches; nil in a
	// mode that stores through the caches.
	copyLines copyLeaf
	zeroLines rangeLeaf
	// flush writes back the lines that were stored through the caches; nil
	// when the caches need not be flushed.
	flush rangeLeaf
}

// cpuPersister makes stores durable by instructions of the CPU.
type cpuPersister struct {
	base      unsafe.Pointer
	limit     uint64
	small     method
	bulk      method
	threshold uint64
	gate      chan struct{} // bulk copies under way, nil when they are not limited
}

func newCPUPersister(base unsafe.Pointer, limit uint64, s Strategy, gate chan struct{}) *cpuPersister {
	flush := s.Small
	if flush.streams() {
		flush = bestFlush()
	}
	return &cpuPersister{
		base:      base,
		limit:     limit,
		small:     methodOf(s.Small, flush),
		bulk:      methodOf(s.Bulk, flush),
		threshold: s.Threshold,
		gate:      gate,
	}
}

// at returns the address of off after checking that [off, off+n) is inside.
func at(base unsafe.Pointer, limit, off, n uint64) unsafe.Pointer {
	if n > limit || off > limit-n {
		panic(outOfRange(limit, off, n))
	}
	return unsafe.Add(base, off)
}

//go:noinline
func outOfRange(limit, off, n uint64) string {
	return fmt.Sprintf("pmem: store of %d bytes at offset %d exceeds the mapping of %d bytes", n, off, limit)
}

//go:noinline
func unaligned(off uint64) string {
	return fmt.Sprintf("pmem: word store at offset %d, which is not a multiple of 8", off)
}

func (p *cpuPersister) Store64(off uint64, v uint64) {
	if off%8 != 0 {
		panic(unaligned(off))
	}
	storeWord(at(p.base, p.limit, off, 8), v)
}

func (p *cpuPersister) Copy(off uint64, src []byte) {
	n := uint64(len(src))
	if n == 0 {
		return
	}
	dst := at(p.base, p.limit, off, n)
	if n >= writerCapBytes && p.gate != nil {
		p.gate <- struct{}{}
		defer p.leaveGate() // deferred: the copy may fault
	}
	p.store(dst, unsafe.Pointer(unsafe.SliceData(src)), uintptr(n))
}

func (p *cpuPersister) Zero(off, n uint64) {
	if n == 0 {
		return
	}
	dst := at(p.base, p.limit, off, n)
	if n >= writerCapBytes && p.gate != nil {
		p.gate <- struct{}{}
		defer p.leaveGate()
	}
	p.store(dst, nil, uintptr(n))
}

func (p *cpuPersister) leaveGate() { <-p.gate }

func (p *cpuPersister) Flush(off, n uint64) {
	if n == 0 {
		return
	}
	start := at(p.base, p.limit, off, n)
	if p.small.flush == nil {
		return
	}
	for done := uintptr(0); done < uintptr(n); {
		at := unsafe.Add(start, done)
		step := chunk(at, uintptr(n)-done, maxLeaf)
		p.small.flush(at, step)
		done += step
	}
}

func (p *cpuPersister) Fence() error {
	storeFence()
	return nil
}

// store copies src, or zeroes where src is nil.
func (p *cpuPersister) store(dst, src unsafe.Pointer, n uintptr) {
	how := &p.small
	if uint64(n) >= p.threshold {
		how = &p.bulk
	}
	if how.copyLines != nil {
		how.stream(dst, src, n)
		return
	}
	how.storeCached(dst, src, n)
}

// stream stores whole lines around the caches. The head and the tail that
// share a line with other bytes are stored cached and flushed.
func (how *method) stream(dst, src unsafe.Pointer, n uintptr) {
	head := -uintptr(dst) % lineSize
	if n < head+lineSize {
		how.storeCached(dst, src, n)
		return
	}
	if head > 0 {
		how.storeCached(dst, src, head)
	}
	tail := head + (n-head)&^(lineSize-1)
	for done := head; done < tail; {
		step := min(tail-done, maxLeaf)
		if src == nil {
			how.zeroLines(unsafe.Add(dst, done), step)
		} else {
			how.copyLines(unsafe.Add(dst, done), unsafe.Add(src, done), step)
		}
		done += step
	}
	if tail < n {
		how.storeCached(unsafe.Add(dst, tail), add(src, tail), n-tail)
	}
}

// storeCached stores through the caches and flushes.
func (how *method) storeCached(dst, src unsafe.Pointer, n uintptr) {
	for done := uintptr(0); done < n; {
		to := unsafe.Add(dst, done)
		step := chunk(to, n-done, flushChunk)
		if src == nil {
			zeroPlain(to, step)
		} else {
			copyPlain(to, unsafe.Add(src, done), step)
		}
		if how.flush != nil {
			how.flush(to, step)
		}
		done += step
	}
}

// chunk is how much of rest to do next, such that all but the last chunk end at
// a line: no line is flushed twice.
func chunk(start unsafe.Pointer, rest, limit uintptr) uintptr {
	return min(rest, limit-uintptr(start)%lineSize)
}

// add is unsafe.Add that leaves nil as it is. The result must lie inside the
// source: a pointer to its end may be one to something else, or to nothing that
// the garbage collector knows.
func add(src unsafe.Pointer, n uintptr) unsafe.Pointer {
	if src == nil {
		return nil
	}
	return unsafe.Add(src, n)
}

// readOnlyPersister is what a read-only mapping hands out. A store is a bug of
// the caller.
type readOnlyPersister struct{}

func (readOnlyPersister) Store64(uint64, uint64) { panicReadOnly() }
func (readOnlyPersister) Copy(uint64, []byte)    { panicReadOnly() }
func (readOnlyPersister) Zero(uint64, uint64)    { panicReadOnly() }
func (readOnlyPersister) Flush(uint64, uint64)   {}
func (readOnlyPersister) Fence() error           { return nil }

func panicReadOnly() { panic("pmem: store to a read-only mapping") }
