package nvfs

import (
	"sync"
	"sync/atomic"
)

// lockStripes bounds the memory of inode locks; two inodes that share a
// stripe merely wait for each other.
const lockStripes = 4096

type lockTable [lockStripes]sync.RWMutex

func stripeOf(ino uint64) uint32 {
	return uint32(ino*0x9e3779b97f4a7c15>>32) % lockStripes
}

// maxHeld is the most inodes that one operation locks: in a rename the two
// directories, what is moved, what is replaced, and a new whiteout.
const maxHeld = 5

type heldLocks struct {
	stripes [maxHeld]uint32
	n       int
	shared  bool
}

// rlock locks one inode for reading.
func (w *Worker) rlock(ino uint64) {
	s := stripeOf(ino)
	w.fs.locks[s].RLock()
	w.held = heldLocks{n: 1, shared: true}
	w.held.stripes[0] = s
}

// lock locks up to maxHeld inodes for writing; 0 stands for none. It must be
// called with no inode lock held.
func (w *Worker) lock(inos ...uint64) {
	h := heldLocks{}
	for _, ino := range inos {
		if ino == 0 {
			continue
		}
		s, i := stripeOf(ino), h.n
		for i > 0 && h.stripes[i-1] > s {
			i--
		}
		if i > 0 && h.stripes[i-1] == s {
			continue
		}
		copy(h.stripes[i+1:], h.stripes[i:h.n])
		h.stripes[i] = s
		h.n++
	}
	for i := range h.n {
		w.fs.locks[h.stripes[i]].Lock()
		w.held = h
		w.held.n = i + 1
	}
}

// unlock releases what rlock or lock took; without locks it does nothing.
func (w *Worker) unlock() {
	for i := w.held.n - 1; i >= 0; i-- {
		if w.held.shared {
			w.fs.locks[w.held.stripes[i]].RUnlock()
		} else {
			w.fs.locks[w.held.stripes[i]].Unlock()
		}
	}
	w.held = heldLocks{}
}

// lookupTable counts how often the kernel has looked an inode up and not
// forgotten it. Four bytes an inode, in pages that exist while one of their
// counts is not zero.
type lookupTable struct {
	shards [64]lookupShard
	pages  atomic.Pointer[[]*lookupPage]
}

// lookupShard guards a part of the pages. It keeps one page that is not in
// use, so that a lookup that is soon forgotten does not allocate.
type lookupShard struct {
	sync.Mutex
	spare *lookupPage
}

const lookupPageLen = 1024

type lookupPage struct {
	live   int
	counts [lookupPageLen]uint32
}

// lookupExact is a bit of a count that says that all lookups of the inode were
// counted, since it was made after the mount. On a resumed connection others
// may have been looked up before. A count that falls to zero loses the bit.
const lookupExact = 1 << 31

// init makes room for inode numbers up to max. While it is called again, to
// grow, no count may change (growth holds all shards).
func (t *lookupTable) init(max uint64) {
	for i := range t.shards {
		t.shards[i].Lock()
		defer t.shards[i].Unlock()
	}
	list := make([]*lookupPage, max/lookupPageLen+1)
	if old := t.pages.Load(); old != nil {
		copy(list, *old)
	}
	t.pages.Store(&list)
}

// add adds n, to which lookupExact can be added for a new inode.
func (t *lookupTable) add(ino uint64, n uint32) {
	page := ino / lookupPageLen
	mu := &t.shards[page%uint64(len(t.shards))]
	mu.Lock()
	defer mu.Unlock()
	list := *t.pages.Load()
	p := list[page]
	if p == nil {
		if p = mu.spare; p == nil {
			p = new(lookupPage)
		}
		mu.spare, list[page] = nil, p
	}
	c := &p.counts[ino%lookupPageLen]
	if *c == 0 {
		p.live++
	}
	*c = *c + n&^lookupExact | n&lookupExact
}

// sub takes n off the count, never below zero (a successor daemon may not
// know of lookups that its predecessor answered), and returns what is left and
// whether that is exact.
func (t *lookupTable) sub(ino, n uint64) (left uint32, exact bool) {
	page := ino / lookupPageLen
	mu := &t.shards[page%uint64(len(t.shards))]
	mu.Lock()
	defer mu.Unlock()
	list := *t.pages.Load()
	if page >= uint64(len(list)) || list[page] == nil {
		return 0, false
	}
	p := list[page]
	c := &p.counts[ino%lookupPageLen]
	if *c == 0 {
		return 0, false
	}
	left, exact = *c&^lookupExact, *c&lookupExact != 0
	left -= uint32(min(uint64(left), n))
	*c = left | *c&lookupExact
	if left == 0 {
		*c = 0
		if p.live--; p.live == 0 {
			mu.spare, list[page] = p, nil
		}
	}
	return left, exact
}

func (t *lookupTable) count(ino uint64) uint32 {
	page := ino / lookupPageLen
	mu := &t.shards[page%uint64(len(t.shards))]
	mu.Lock()
	defer mu.Unlock()
	list := *t.pages.Load()
	if page >= uint64(len(list)) || list[page] == nil {
		return 0
	}
	return list[page].counts[ino%lookupPageLen] &^ lookupExact
}

func (t *lookupTable) clear() {
	for i := range t.shards {
		t.shards[i].Lock()
		defer t.shards[i].Unlock()
	}
	list := make([]*lookupPage, len(*t.pages.Load()))
	t.pages.Store(&list)
}

// verifiedBlocks remembers which metadata blocks were verified since the
// mount, one bit a block, in pages that are made on first use.
type verifiedBlocks struct {
	pages atomic.Pointer[[]atomic.Pointer[verifiedPage]]
}

const verifiedPageBlocks = 8192 // 32 MiB of volume

type verifiedPage [verifiedPageBlocks / 64]atomic.Uint64

// init makes room for block numbers below limit. When it is called again, to
// grow, a page that is made at the same time may be lost: its blocks are then
// verified once more.
func (v *verifiedBlocks) init(limit uint64) {
	list := make([]atomic.Pointer[verifiedPage], limit/verifiedPageBlocks+1)
	if old := v.pages.Load(); old != nil {
		for i := range *old {
			list[i].Store((*old)[i].Load())
		}
	}
	v.pages.Store(&list)
}

func (v *verifiedBlocks) word(block uint64, create bool) *atomic.Uint64 {
	list := *v.pages.Load()
	slot := &list[block/verifiedPageBlocks]
	p := slot.Load()
	if p == nil {
		if !create {
			return nil
		}
		slot.CompareAndSwap(nil, new(verifiedPage))
		p = slot.Load()
	}
	return &p[block%verifiedPageBlocks/64]
}

func (v *verifiedBlocks) has(block uint64) bool {
	w := v.word(block, false)
	return w != nil && w.Load()>>(block%64)&1 == 1
}

func (v *verifiedBlocks) set(block uint64) { v.word(block, true).Or(1 << (block % 64)) }

func (v *verifiedBlocks) drop(block uint64) {
	if w := v.word(block, false); w != nil {
		w.And(^uint64(1 << (block % 64)))
	}
}
