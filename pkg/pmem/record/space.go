package record

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

const (
	wordSize = 8
	lineSize = 64
	pageSize = 4096
)

// Base is a content that does not change any more.
type Base struct {
	mem     []byte
	size    uint64
	further []pmem.Part // devices behind the first
	used    []uint64    // pages that are not zero
}

var zeroPage [pageSize]byte

// newBase copies mem, the pages that are not zero, so that the others take no
// memory.
func newBase(mem []byte, size uint64) *Base {
	b := &Base{mem: make([]byte, len(mem)), size: size}
	for page := range uint64(len(mem) / pageSize) {
		if p := mem[page*pageSize : (page+1)*pageSize]; !bytes.Equal(p, zeroPage[:]) {
			copy(b.mem[page*pageSize:], p)
			b.used = append(b.used, page)
		}
	}
	return b
}

// NewSpace returns a Space with that content.
func (b *Base) NewSpace() *Space {
	s := &Space{mem: make([]byte, len(b.mem)), base: b, further: b.further}
	for _, page := range b.used {
		copy(s.mem[page*pageSize:(page+1)*pageSize], b.mem[page*pageSize:])
	}
	s.size.Store(b.size)
	return s
}

// word is the content of the word at off.
func (b *Base) word(off uint64) uint64 { return binary.LittleEndian.Uint64(b.mem[off:]) }

// Space is a pmem.Space of this process's memory. While it does not record,
// its Persisters share nothing, so that the race detector sees each store as
// one of the engine.
type Space struct {
	mem     []byte
	size    atomic.Uint64
	further []pmem.Part // devices behind the first
	base    *Base       // nil: zeros
	quiet   bool

	mu         sync.Mutex
	persisters []*persister
	trace      atomic.Pointer[Trace] // being recorded
	loaded     []uint64              // pages that Load stored to
	fence      func()
	store      func()
}

var _ pmem.Space = (*Space)(nil)

// New returns a Space of size bytes of zeros that can be resized up to
// reserve bytes. Both are multiples of 4096.
func New(size, reserve uint64) *Space {
	s := Over(make([]byte, max(size, reserve)))
	s.Resize(size)
	return s
}

// Over returns a Space of the given memory, whose length is a multiple of
// 4096. The caller keeps it, and may change it while no Persister is in use.
func Over(mem []byte) *Space {
	s := &Space{mem: mem}
	s.Resize(uint64(len(mem)))
	return s
}

// Bytes is the content; see pmem.Space.
func (s *Space) Bytes() []byte { return s.mem }

// Size is the length of the device.
func (s *Space) Size() uint64 { return s.size.Load() }

// Resize changes the length of the device.
func (s *Space) Resize(size uint64) { s.size.Store(size) }

// Attach lets the Space show a further device at off, of n bytes, within what
// is reserved. No Persister may be in use.
func (s *Space) Attach(off, n uint64) {
	if off < s.Size() || off+n > uint64(len(s.mem)) {
		panic(fmt.Sprintf("record: no room for %d bytes at %d", n, off))
	}
	s.further = append(slices.Clone(s.further), pmem.Part{Off: off, Len: n})
}

// Parts lists the devices.
func (s *Space) Parts() []pmem.Part {
	return append([]pmem.Part{{Off: 0, Len: s.Size()}}, s.further...)
}

// ReadOnly is false.
func (s *Space) ReadOnly() bool { return false }

// Quiet turns the checks of Lint off, which cost time, and makes Persisters
// wait for each other, so that Snapshot sees what a crash could leave. It is
// called before the first NewPersister.
func (s *Space) Quiet() { s.quiet = true }

// AtFence has f called ahead of each fence of later Persisters, on their
// goroutines; it may panic.
func (s *Space) AtFence(f func()) { s.fence = f }

// AtStore does the same ahead of each store.
func (s *Space) AtStore(f func()) { s.store = f }

// NewPersister returns a Persister; they are numbered from 0.
func (s *Space) NewPersister() pmem.Persister {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &persister{s: s, num: int32(len(s.persisters)), fence: s.fence, store: s.store, touched: newPageSet(len(s.mem))}
	if !s.quiet {
		p.lint = newLinter()
	}
	s.persisters = append(s.persisters, p)
	return p
}

// pageSet has a bit for each page.
type pageSet []uint64

func newPageSet(bytes int) pageSet { return make(pageSet, bytes/pageSize/64+1) }

func (p pageSet) add(off, n uint64) {
	for page := off / pageSize; page <= (off+n-1)/pageSize; page++ {
		p[page/64] |= 1 << (page % 64)
	}
}

func (p pageSet) list(to []uint64) []uint64 {
	for i, w := range p {
		for bit := range uint64(64) {
			if w>>bit&1 == 1 {
				to = append(to, uint64(i)*64+bit)
			}
		}
	}
	return to
}

// touched lists the pages that may differ from the base. s.mu is held.
func (s *Space) touched() []uint64 {
	pages := slices.Clone(s.loaded)
	for _, p := range s.persisters {
		pages = p.touched.list(pages)
	}
	slices.Sort(pages)
	return slices.Compact(pages)
}

// Freeze returns the present content as a Base, and makes it the one of s.
// No Persister of s may be in use, nor be used again.
func (s *Space) Freeze() *Base {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base = newBase(s.mem, s.Size())
	s.base.further = s.further
	s.persisters, s.loaded = nil, nil
	return s.base
}

// Reset restores the content and the size of the base. No Persister of s may
// be in use, nor be used again.
func (s *Space) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset()
}

func (s *Space) reset() {
	for _, page := range s.touched() {
		copy(s.mem[page*pageSize:(page+1)*pageSize], s.base.mem[page*pageSize:])
	}
	s.persisters, s.loaded = nil, nil
	s.trace.Store(nil)
	s.size.Store(s.base.size)
}

// Load makes the content that of an image of the same base. No Persister of s
// may be in use, nor be used again.
func (s *Space) Load(img *Image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reset()
	s.size.Store(img.size)
	pages := newPageSet(len(s.mem))
	for _, list := range [...][]unit{img.durable, img.picked} {
		for _, u := range list {
			pages.add(u.off, wordSize)
			u.store(s.mem)
		}
	}
	s.loaded = pages.list(nil)
}

// Touch notes that the test has changed the page at off itself, so that Reset
// restores it.
func (s *Space) Touch(off uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded = append(s.loaded, off/pageSize)
}

// Snapshot is the present content as an image: what a crash leaves that spares
// every store so far. While Persisters are in use the Space must be quiet or
// recording.
func (s *Space) Snapshot() *Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	img := &Image{size: s.Size(), durable: s.difference()}
	img.Hash = hashUnits(s.base, img.durable)
	return img
}

// difference is what the content differs from the base by.
func (s *Space) difference() []unit {
	var list []unit
	for _, page := range s.touched() {
		for off := page * pageSize; off < (page+1)*pageSize; off += wordSize {
			if v := binary.LittleEndian.Uint64(s.mem[off:]); v != s.base.word(off) {
				list = append(list, unit{off: off, val: v, mask: wholeWord})
			}
		}
	}
	return list
}

// Record begins a trace. What was stored before counts as durable.
func (s *Space) Record() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace.Store(&Trace{base: s.base, size: s.Size(), before: s.difference()})
}

// Stop ends the trace and returns it.
func (s *Space) Stop() *Trace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trace.Swap(nil)
}

// Begin marks the beginning of an operation of a worker; workers are numbered
// from 0 by the test.
func (s *Space) Begin(worker int) { s.mark(OpBegin, worker) }

// End marks the end of an operation: what it did must survive from here on.
func (s *Space) End(worker int) { s.mark(OpEnd, worker) }

func (s *Space) mark(k Kind, worker int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.trace.Load(); t != nil {
		t.events = append(t.events, Event{Kind: k, Persister: int32(worker)})
	}
}

// Lint returns which rules of stores, flushes and fences were broken since it
// was last called, and those that are broken if an operation ends here. No
// Persister may be in use.
func (s *Space) Lint() []Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Finding
	for _, p := range s.persisters {
		if p.lint != nil {
			list = append(list, p.lint.settle()...)
		}
	}
	return list
}

// persister is one goroutine's way to the Space.
type persister struct {
	s       *Space
	num     int32
	fence   func()
	store   func()
	touched pageSet
	lint    *linter
}

// caller is the code that called the Persister, where that is of interest.
func (p *persister) caller() uintptr {
	if p.lint == nil && p.s.trace.Load() == nil {
		return 0
	}
	var pc [1]uintptr
	runtime.Callers(3, pc[:])
	return pc[0]
}

func (p *persister) check(off, n uint64) {
	if n == 0 || off+n < off || off+n > uint64(len(p.s.mem)) {
		panic(fmt.Sprintf("record: %d bytes at offset %d of a Space of %d", n, off, len(p.s.mem)))
	}
}

func (p *persister) Store64(off uint64, v uint64) {
	if off%wordSize != 0 {
		panic(fmt.Sprintf("record: word store at offset %d, which is not a multiple of 8", off))
	}
	p.check(off, wordSize)
	pc := p.caller()
	if p.store != nil {
		p.store()
	}
	if p.lint != nil {
		p.lint.store(off, pc)
	}
	if p.alone() {
		p.touched.add(off, wordSize)
		binary.LittleEndian.PutUint64(p.s.mem[off:], v)
		return
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.touched.add(off, wordSize)
	binary.LittleEndian.PutUint64(p.s.mem[off:], v)
	if t := p.s.trace.Load(); t != nil {
		t.calls++
		t.events = append(t.events, Event{Kind: Store, Persister: p.num, PC: pc, Call: t.calls, Off: off, Val: v, Mask: wholeWord})
	}
}

func (p *persister) Copy(off uint64, src []byte) {
	n := uint64(len(src))
	pc := p.caller()
	if n == 0 {
		p.empty(off, pc)
		return
	}
	p.checkBulk(off, n, pc)
	if p.alone() {
		p.touched.add(off, n)
		copy(p.s.mem[off:off+n], src)
		return
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.touched.add(off, n)
	copy(p.s.mem[off:off+n], src)
	p.logBulk(off, n, pc)
}

func (p *persister) Zero(off, n uint64) {
	pc := p.caller()
	if n == 0 {
		p.empty(off, pc)
		return
	}
	p.checkBulk(off, n, pc)
	if p.alone() {
		p.touched.add(off, n)
		clear(p.s.mem[off : off+n])
		return
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.touched.add(off, n)
	clear(p.s.mem[off : off+n])
	p.logBulk(off, n, pc)
}

// alone reports whether the Persister need not care for others: nothing is
// recorded, and no snapshot may be taken.
func (p *persister) alone() bool { return !p.s.quiet && p.s.trace.Load() == nil }

func (p *persister) empty(off uint64, pc uintptr) {
	if p.lint != nil {
		p.lint.add(EmptyStore, off, pc)
	}
}

// checkBulk checks a Copy or Zero.
func (p *persister) checkBulk(off, n uint64, pc uintptr) {
	p.check(off, n)
	if p.store != nil {
		p.store()
	}
	if p.lint != nil {
		p.lint.bulk(off, n, pc)
	}
}

// logBulk records what memory now holds as a call's stores. s.mu is held.
func (p *persister) logBulk(off, n uint64, pc uintptr) {
	t := p.s.trace.Load()
	if t == nil {
		return
	}
	t.calls++
	for word := off &^ (wordSize - 1); word < off+n; word += wordSize {
		e := Event{Kind: Store, Persister: p.num, PC: pc, Call: t.calls, Off: word, Mask: wholeWord, Flushed: true}
		e.Val = binary.LittleEndian.Uint64(p.s.mem[word:])
		for i := range uint64(wordSize) {
			if word+i < off || word+i >= off+n {
				e.Mask &^= 1 << i
			}
		}
		t.events = append(t.events, e)
	}
}

func (p *persister) Flush(off, n uint64) {
	if n == 0 {
		return
	}
	p.check(off, n)
	pc := p.caller()
	if p.lint != nil {
		p.lint.flush(off, n, pc)
	}
	if p.s.trace.Load() == nil {
		return
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if t := p.s.trace.Load(); t != nil {
		t.events = append(t.events, Event{Kind: Flush, Persister: p.num, PC: pc, Off: off, Len: n})
	}
}

func (p *persister) Fence() error {
	if p.fence != nil {
		p.fence()
	}
	pc := p.caller()
	if p.lint != nil {
		p.lint.fence(pc)
	}
	if p.s.trace.Load() == nil {
		return nil
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if t := p.s.trace.Load(); t != nil {
		t.events = append(t.events, Event{Kind: Fence, Persister: p.num, PC: pc})
	}
	return nil
}
