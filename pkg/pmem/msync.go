package pmem

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// syncer writes pages of a mapping back with msync(2). It is shared by the
// Persisters of the mapping.
//
// The kernel reports a write-back error once per open file, to whichever
// msync comes first, and not to the one whose pages were lost. Therefore one
// msync runs at a time, and after an error every later one fails too.
type syncer struct {
	mu     sync.Mutex
	failed error
	msync  func(mem []byte) error // the system call; tests replace it
}

func newSyncer() *syncer {
	return &syncer{msync: func(mem []byte) error { return unix.Msync(mem, unix.MS_SYNC) }}
}

// sync writes back the pages of mem that r covers.
func (s *syncer) sync(mem []byte, r pageRange) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil || r.end == 0 {
		return s.failed
	}
	if err := s.msync(mem[r.start:r.end]); err != nil {
		s.failed = fmt.Errorf("msync of [%d, %d): %w; stores since the last fence may be lost: unmount, and check the volume and its disk", r.start, r.end, err)
	}
	return s.failed
}

// pageRange is [start, end) in bytes, both multiples of the page size. The zero
// value is empty.
type pageRange struct{ start, end uint64 }

func (r *pageRange) add(start, end uint64) {
	if r.end == 0 {
		*r = pageRange{start, end}
		return
	}
	r.start, r.end = min(r.start, start), max(r.end, end)
}

// msyncPersister stores to a page cache mapping. Go's copy will do here: msync
// writes whole pages.
//
// It remembers one range for each device that covers all pages stored to since
// the last fence. More ranges would mean more msyncs, and each of them flushes
// the disk's cache; the pages in between cost nothing where they are clean.
type msyncPersister struct {
	mem   []byte
	page  uint64
	sync  *syncer
	parts *atomic.Pointer[[]Part] // nil: one device
	dirty []pageRange             // by the index of the device
}

func newMsyncPersister(mem []byte, page uint64, sync *syncer, parts *atomic.Pointer[[]Part]) *msyncPersister {
	return &msyncPersister{mem: mem, page: page, sync: sync, parts: parts, dirty: make([]pageRange, 1)}
}

func (p *msyncPersister) mark(off, n uint64) {
	i := p.device(off)
	for len(p.dirty) <= i {
		p.dirty = append(p.dirty, pageRange{})
	}
	p.dirty[i].add(off&^(p.page-1), (off+n+p.page-1)&^(p.page-1))
}

// device is the index of the last device that begins at or before off.
func (p *msyncPersister) device(off uint64) int {
	if p.parts == nil {
		return 0
	}
	parts := *p.parts.Load()
	for i := len(parts) - 1; i > 0; i-- {
		if parts[i].Off <= off {
			return i
		}
	}
	return 0
}

func (p *msyncPersister) at(off, n uint64) unsafe.Pointer {
	return at(unsafe.Pointer(unsafe.SliceData(p.mem)), uint64(len(p.mem)), off, n)
}

func (p *msyncPersister) Store64(off uint64, v uint64) {
	if off%8 != 0 {
		panic(unaligned(off))
	}
	addr := p.at(off, 8)
	p.mark(off, 8)
	atomic.StoreUint64((*uint64)(addr), v)
}

func (p *msyncPersister) Copy(off uint64, src []byte) {
	n := uint64(len(src))
	if n == 0 {
		return
	}
	p.at(off, n)
	p.mark(off, n)
	copy(p.mem[off:off+n], src)
}

func (p *msyncPersister) Zero(off, n uint64) {
	if n == 0 {
		return
	}
	p.at(off, n)
	p.mark(off, n)
	clear(p.mem[off : off+n])
}

func (p *msyncPersister) Flush(off, n uint64) {
	if n == 0 {
		return
	}
	p.at(off, n)
	p.mark(off, n)
}

// Fence fails when this or any earlier msync of the mapping failed.
func (p *msyncPersister) Fence() error {
	var first error
	for i := range p.dirty {
		err := p.sync.sync(p.mem, p.dirty[i])
		if first == nil {
			first = err
		}
		p.dirty[i] = pageRange{}
	}
	return first
}
