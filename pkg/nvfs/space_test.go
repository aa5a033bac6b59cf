package nvfs_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// memSpace is a Space over the Go heap whose stores are ordinary Go stores,
// so that the race detector sees each one.
type memSpace struct {
	mem  []byte
	size atomic.Uint64
}

func newMemSpace(size uint64) *memSpace {
	s := &memSpace{mem: make([]byte, size)}
	s.size.Store(size)
	return s
}

func (s *memSpace) Bytes() []byte                { return s.mem }
func (s *memSpace) Size() uint64                 { return s.size.Load() }
func (s *memSpace) ReadOnly() bool               { return false }
func (s *memSpace) NewPersister() pmem.Persister { return memPersister{s.mem} }

type memPersister struct{ mem []byte }

func (p memPersister) Store64(off, v uint64) {
	if off%8 != 0 {
		panic(fmt.Sprintf("word store at offset %d", off))
	}
	binary.LittleEndian.PutUint64(p.mem[off:], v)
}
func (p memPersister) Copy(off uint64, src []byte) { copy(p.mem[off:off+uint64(len(src))], src) }
func (p memPersister) Zero(off, n uint64)          { clear(p.mem[off : off+n]) }
func (p memPersister) Flush(off, n uint64)         {}
func (p memPersister) Fence() error                { return nil }

const (
	lineSize = 64
	pageSize = 4096
)

// recorder is a Space that knows which stores are durable: those that their
// Persister flushed (Store64) or made (Copy, Zero) before its last fence. It
// checks the discipline of stores, flushes and fences, and can tell what a
// crash at any fence leaves behind.
type recorder struct {
	memSpace
	mu         sync.Mutex
	pristine   []byte          // what was there at the last checkpoint
	touched    map[uint64]bool // pages stored to since
	persisters []*recPersister
	faults     []string // broken rules
	fences     int      // since the last checkpoint
	atFence    func(n int)
	stores     int // calls that store, since the last checkpoint
	atStore    func(n int)
	quiet      bool // only what was touched is recorded
}

func newRecorder(size uint64) *recorder {
	r := &recorder{touched: map[uint64]bool{}}
	r.mem = make([]byte, size)
	r.size.Store(size)
	return r
}

func (r *recorder) NewPersister() pmem.Persister {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &recPersister{r: r, dirty: map[uint64]bool{}, flushed: map[uint64]bool{}}
	r.persisters = append(r.persisters, p)
	return p
}

// checkpoint makes the present content the base of images.
func (r *recorder) checkpoint() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pristine == nil {
		r.pristine = slices.Clone(r.mem)
	} else {
		for page := range r.touched {
			copy(r.pristine[page*pageSize:(page+1)*pageSize], r.mem[page*pageSize:])
		}
	}
	r.restarted()
}

// restore puts the content of the last checkpoint back.
func (r *recorder) restore() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for page := range r.touched {
		copy(r.mem[page*pageSize:(page+1)*pageSize], r.pristine[page*pageSize:])
	}
	r.restarted()
}

func (r *recorder) restarted() {
	r.touched = map[uint64]bool{}
	r.persisters = nil
	r.faults = nil
	r.fences, r.stores = 0, 0
}

// image is the content of a space as its difference to a checkpoint.
type image map[uint64][]byte

// survivors says which of the words whose durability is open a crash spares.
type survivors int

const (
	allSurvive   survivors = iota // every store reached the memory
	noneSurvive                   // nothing did since the Persister's last fence
	wordsSurvive                  // each word either way
	callsSurvive                  // what one call stored does or does not, as a whole
	allButOne                     // what one call stored does not
)

func (s survivors) String() string {
	return [...]string{"all", "no", "some words of", "some whole", "all but one"}[s]
}

// crash returns what a crash at this moment leaves. r.mu is held.
func (r *recorder) crash(s survivors, rnd *rand.Rand) image {
	img := image{}
	for page := range r.touched {
		img[page] = slices.Clone(r.mem[page*pageSize : (page+1)*pageSize])
	}
	if s == allSurvive {
		return img
	}
	for _, p := range r.persisters {
		if len(p.pending) == 0 {
			continue
		}
		lost := map[uint64]bool{}
		unit := func(u pendingWord) uint64 { return u.off }
		switch s {
		case callsSurvive:
			unit = func(u pendingWord) uint64 { return u.call }
		case allButOne:
			victim := p.pending[rnd.IntN(len(p.pending))].call
			unit = func(u pendingWord) uint64 {
				if u.call == victim {
					return 1
				}
				return 0
			}
			lost[0], lost[1] = false, true
		}
		for _, u := range p.pending {
			if _, seen := lost[unit(u)]; !seen {
				lost[unit(u)] = s == noneSurvive || rnd.Uint32()&1 == 0
			}
		}
		for _, u := range slices.Backward(p.pending) {
			if lost[unit(u)] {
				binary.LittleEndian.PutUint64(img[u.off/pageSize][u.off%pageSize:], u.old)
			}
		}
	}
	return img
}

// load makes the content the checkpoint's with img laid over it.
func (r *recorder) load(img image) {
	r.restore()
	r.mu.Lock()
	defer r.mu.Unlock()
	for page, b := range img {
		copy(r.mem[page*pageSize:], b)
		r.touched[page] = true
	}
}

// sibling is another recorder, that images of r can be loaded into.
func (r *recorder) sibling(quiet bool) *recorder {
	o := newRecorder(r.Size())
	copy(o.mem, r.pristine)
	o.pristine, o.quiet = r.pristine, quiet
	return o
}

// settled returns the rules that were broken, and those that are broken if
// an operation ends here.
func (r *recorder) settled() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.persisters {
		if len(p.dirty) > 0 {
			r.faults = append(r.faults, fmt.Sprintf("%d lines were never flushed", len(p.dirty)))
		}
		if len(p.pending) > 0 {
			r.faults = append(r.faults, fmt.Sprintf("%d words at %#x.. were never fenced", len(p.pending), p.pending[0].off))
		}
	}
	f := r.faults
	r.faults = nil
	return f
}

// recPersister records one goroutine's stores.
type recPersister struct {
	r       *recorder
	pending []pendingWord
	dirty   map[uint64]bool // lines with stores that await a flush
	flushed map[uint64]bool // lines flushed since the last fence
	calls   uint64
}

type pendingWord struct {
	off     uint64
	old     uint64
	call    uint64 // which of the Persister's calls stored it
	flushed bool
}

// touch notes the words of [off, off+n) before they change. r.mu is held.
func (p *recPersister) touch(off, n uint64, flushed bool) {
	if p.r.atStore != nil {
		p.r.atStore(p.r.stores)
	}
	p.r.stores++
	p.calls++
	for u := off &^ 7; u < off+n && !p.r.quiet; u += 8 {
		p.pending = append(p.pending, pendingWord{u, binary.LittleEndian.Uint64(p.r.mem[u:]), p.calls, flushed})
	}
	for page := off / pageSize; page <= (off+n-1)/pageSize; page++ {
		p.r.touched[page] = true
	}
}

func (p *recPersister) fault(format string, args ...any) {
	p.r.faults = append(p.r.faults, fmt.Sprintf(format, args...))
}

func (p *recPersister) Store64(off, v uint64) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.touch(off, 8, false)
	if !p.r.quiet {
		p.dirty[off/lineSize] = true
	}
	memPersister{p.r.mem}.Store64(off, v)
}

func (p *recPersister) Copy(off uint64, src []byte) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if len(src) == 0 {
		p.fault("empty copy to %#x", off)
		return
	}
	p.touch(off, uint64(len(src)), true)
	copy(p.r.mem[off:off+uint64(len(src))], src)
}

func (p *recPersister) Zero(off, n uint64) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if n == 0 {
		p.fault("empty zero at %#x", off)
		return
	}
	p.touch(off, n, true)
	clear(p.r.mem[off : off+n])
}

func (p *recPersister) Flush(off, n uint64) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if p.r.quiet {
		return
	}
	for line := off / lineSize; line <= (off+n-1)/lineSize; line++ {
		if p.flushed[line] {
			p.fault("line %#x flushed twice before a fence", line*lineSize)
		} else if !p.dirty[line] {
			p.fault("line %#x flushed without a store", line*lineSize)
		}
		p.flushed[line] = true
		delete(p.dirty, line)
	}
	for i := range p.pending {
		u := &p.pending[i]
		u.flushed = u.flushed || u.off >= off&^(lineSize-1) && u.off < (off+n+lineSize-1)&^(lineSize-1)
	}
}

func (p *recPersister) Fence() error {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if p.r.quiet {
		return nil
	}
	if len(p.pending) == 0 {
		p.fault("fence with nothing pending")
	}
	if p.r.atFence != nil {
		p.r.atFence(p.r.fences)
	}
	p.r.fences++
	p.pending = slices.DeleteFunc(p.pending, func(u pendingWord) bool { return u.flushed })
	clear(p.flushed)
	return nil
}
