package nvfs

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// span is a run of blocks.
type span struct{ start, n uint64 }

func (s span) end() uint64 { return s.start + s.n }

// group is what is kept in memory of a group: its free counts and what
// running transactions have taken but not committed. The bitmaps are read in
// place.
type group struct {
	num    uint64
	start  uint64        // first block
	blocks atomic.Uint32 // grows with the volume
	inodes uint32
	meta   uint32 // blocks of metadata at the start

	mu          sync.Mutex
	ready       bool // counted and verified
	bad         bool // damaged: nothing is allocated in it
	freeBlocks  int64
	freeInodes  int64
	orphans     int64
	busy        []span   // taken, not committed; absolute block numbers
	busyInodes  []uint32 // the same for inode indexes
	blockCursor uint32   // where the next search starts
	inodeCursor uint32
}

func newGroup(num, deviceBlocks uint64, onDevice, inodesPerGroup uint32) *group {
	g := &group{num: num, start: layout.GroupStart(num), inodes: inodesPerGroup,
		meta: groupMeta(inodesPerGroup)}
	g.blocks.Store(uint32(layout.GroupLen(deviceBlocks, onDevice)))
	return g
}

// groupMeta is how many blocks of metadata a group starts with.
func groupMeta(inodesPerGroup uint32) uint32 {
	return layout.GroupInodeTable + uint32(layout.InodeTableBlocks(inodesPerGroup))
}

// bitmap names one of a group's three bitmaps by its block in the group.
type bitmap uint64

const (
	blockBitmap  bitmap = layout.GroupBlockBitmap
	inodeBitmap  bitmap = layout.GroupInodeBitmap
	orphanBitmap bitmap = layout.GroupOrphans
)

// chunkOffset is the byte offset of the chunk that holds bit of bitmap b.
func (g *group) chunkOffset(b bitmap, bit uint32) uint64 {
	return layout.ChunkOffset(g.start+uint64(b), bit)
}

// word is the i-th 64-bit word of a bitmap.
func (fs *FS) word(g *group, b bitmap, i uint32) uint64 {
	off := g.chunkOffset(b, i*64)
	return layout.Chunk(fs.mem[off : off+layout.ChunkSize]).Word(int(i % layout.ChunkWords))
}

// loadGroup verifies the descriptor and the bitmaps of g and counts what is
// free, once. It reports whether the group is usable. g.mu is held.
func (fs *FS) loadGroup(g *group) bool {
	if g.ready {
		return !g.bad
	}
	g.ready, g.bad = true, true // and so it stays if this panics
	off := g.start << layout.BlockShift
	d := layout.GroupDesc(fs.mem[off : off+layout.GroupDescSize])
	ok := d.Magic() == layout.GroupMagic && uint64(d.Group()) == g.num && d.Blocks() == g.blocks.Load() &&
		d.Inodes() == g.inodes && layout.Verify(fs.seed, g.start, d)
	var counts [4]int64
	for _, b := range [...]bitmap{blockBitmap, inodeBitmap, orphanBitmap} {
		for bit := uint32(0); ok && bit < layout.BitmapBits; bit += layout.ChunkBits {
			co := g.chunkOffset(b, bit)
			c := layout.Chunk(fs.mem[co : co+layout.ChunkSize])
			ok = layout.Verify(fs.seed, layout.ChunkLocation(co), c)
			counts[b] += int64(c.Count())
		}
	}
	if !ok {
		_ = fs.damaged(true, "group %d: descriptor or bitmap is damaged", g.num)
		return false
	}
	g.freeBlocks, g.freeInodes, g.orphans = counts[blockBitmap], counts[inodeBitmap], counts[orphanBitmap]
	fs.freeBlocks.Add(g.freeBlocks)
	fs.freeInodes.Add(g.freeInodes)
	g.bad = false
	return true
}

// appendOrphans appends the inode numbers of g's orphans. g.mu is held.
func (fs *FS) appendOrphans(list []uint64, g *group) []uint64 {
	for i := uint32(0); i*64 < g.inodes; i++ {
		for w := fs.word(g, orphanBitmap, i); w != 0; w &= w - 1 {
			bit := i*64 + uint32(bits.TrailingZeros64(w))
			list = append(list, fs.inoOf(g, bit))
		}
	}
	return list
}

func (fs *FS) inoOf(g *group, index uint32) uint64 {
	return g.num*uint64(fs.sb.InodesPerGroup) + uint64(index) + 1
}

// freeWord is the i-th word of the block bitmap with what running
// transactions hold marked used. g.mu is held.
func (fs *FS) freeWord(g *group, i uint32) uint64 {
	w := fs.word(g, blockBitmap, i)
	first := g.start + uint64(i)*64
	for _, s := range g.busy {
		lo, hi := max(s.start, first), min(s.end(), first+64)
		if lo < hi {
			w |= (^uint64(0) >> (64 - (hi - lo))) << (lo - first)
		}
	}
	return w
}

// runAt is the length, up to want, of the free run that starts at bit.
func (fs *FS) runAt(g *group, bit, want uint32) uint32 {
	n := uint32(0)
	for n < want && bit+n < layout.BitmapBits {
		i, sh := (bit+n)/64, (bit+n)%64
		free := uint32(bits.TrailingZeros64(fs.freeWord(g, i) >> sh))
		free = min(free, 64-sh)
		n += free
		if free < 64-sh {
			break
		}
	}
	return min(n, want)
}

// findRun finds a free run of up to want blocks in g: at goal when that is
// free, else the first that is long enough from the cursor on, else the
// longest seen. aligned asks for a start on a 2 MiB boundary first. g.mu is
// held. n is 0 when the group is full.
func (fs *FS) findRun(g *group, goal uint64, want uint32, aligned bool) (bit, n uint32) {
	if goal >= g.start && goal < g.start+layout.GroupBlocks {
		if n := fs.runAt(g, uint32(goal-g.start), want); n > 0 {
			return uint32(goal - g.start), n
		}
	}
	if aligned {
		for bit := (layout.HugeBlocks - uint32(g.start%layout.HugeBlocks)) % layout.HugeBlocks; bit < layout.BitmapBits; bit += layout.HugeBlocks {
			if fs.runAt(g, bit, layout.HugeBlocks) == layout.HugeBlocks {
				return bit, min(want, layout.HugeBlocks)
			}
		}
	}
	var best, bestLen uint32
	words := uint32(layout.BitmapBits / 64)
	start := g.blockCursor / 64
	for k := uint32(0); k < words; {
		i := (start + k) % words
		w, next := fs.freeWord(g, i), k+1
		for w != ^uint64(0) {
			sh := uint32(bits.TrailingZeros64(^w))
			bit := i*64 + sh
			n := fs.runAt(g, bit, want)
			if n >= want {
				return bit, n
			}
			if n > bestLen {
				best, bestLen = bit, n
			}
			if sh+n >= 64 {
				next = k + (sh+n)/64 // where the run ends
				break
			}
			w |= (uint64(1)<<n - 1) << sh
		}
		k = next
	}
	return best, bestLen
}

// takeBlocks takes a run of up to want blocks for a transaction, from the
// group of goal or w's own group, else another with space.
func (w *Worker) takeBlocks(goal uint64, want uint32, aligned bool) (span, error) {
	fs := w.fs
	groups := fs.groups.Load()
	try := func(g *group) (span, bool) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !fs.loadGroup(g) || g.freeBlocks <= 0 {
			return span{}, false
		}
		bit, n := fs.findRun(g, goal, want, aligned)
		if n == 0 {
			return span{}, false
		}
		s := span{g.start + uint64(bit), uint64(n)}
		g.busy = append(g.busy, s)
		g.freeBlocks -= int64(n)
		g.blockCursor = (bit + n) % layout.BitmapBits
		return s, true
	}
	if goal != 0 {
		if g := fs.group(layout.GroupOf(goal)); g != nil && goal < g.start+uint64(g.blocks.Load()) {
			if s, ok := try(g); ok {
				return s, nil
			}
		}
	}
	if g := groups.at(w.blockGroup % groups.size()); g != nil {
		if s, ok := try(g); ok {
			return s, nil
		}
	}
	for range 4 { // a random group with more than its share of free blocks
		n := rand.Uint64N(groups.size())
		g := groups.at(n)
		if g == nil || !fs.aboveAverage(g, groups.size()) {
			continue
		}
		if s, ok := try(g); ok {
			w.blockGroup = n
			return s, nil
		}
	}
	for range 3 { // what is reserved exists, but may be given back behind us
		for n := range groups.size() {
			g := groups.at(n)
			if g == nil {
				continue
			}
			if s, ok := try(g); ok {
				w.blockGroup = n
				return s, nil
			}
		}
	}
	return span{}, errNoSpace
}

func (fs *FS) aboveAverage(g *group, groups uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return fs.loadGroup(g) && g.freeBlocks >= fs.freeBlocks.Load()/int64(groups)
}

// giveBack returns a run that was taken and not committed. g.mu is held.
func (g *group) giveBack(s span) {
	if i := slices.Index(g.busy, s); i >= 0 {
		g.busy = slices.Delete(g.busy, i, i+1)
		g.freeBlocks += int64(s.n)
	}
}

// takeInode takes a free inode for a transaction. Directories are spread
// over the groups, files go where the worker allocates.
func (w *Worker) takeInode(dir bool) (uint64, error) {
	fs := w.fs
	if !fs.takeCount(&fs.freeInodes, 1, 0) {
		return 0, errNoSpace
	}
	groups := fs.groups.Load()
	first := w.inodeGroup
	if dir {
		first = rand.Uint64N(groups.size())
	}
	for k := range groups.size() {
		n := (first + k) % groups.size()
		g := groups.at(n)
		if g == nil {
			continue
		}
		if ino := fs.takeInodeIn(g); ino != 0 {
			if !dir {
				w.inodeGroup = n
			}
			return ino, nil
		}
	}
	fs.freeInodes.Add(1)
	return 0, errNoSpace
}

// takeInodeIn takes a free inode in g, or returns 0.
func (fs *FS) takeInodeIn(g *group) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !fs.loadGroup(g) || g.freeInodes <= 0 {
		return 0
	}
	words := (g.inodes + 63) / 64
	start := g.inodeCursor / 64
	for k := range words {
		i := (start + k) % words
		w := fs.word(g, inodeBitmap, i)
		for _, b := range g.busyInodes {
			if b/64 == i {
				w |= 1 << (b % 64)
			}
		}
		if w == ^uint64(0) {
			continue
		}
		bit := i*64 + uint32(bits.TrailingZeros64(^w))
		if bit >= g.inodes {
			continue
		}
		g.busyInodes = append(g.busyInodes, bit)
		g.freeInodes--
		g.inodeCursor = bit
		return fs.inoOf(g, bit)
	}
	return 0
}

// giveBackInode returns an inode that was taken and not committed.
func (fs *FS) giveBackInode(ino uint64) {
	g := fs.group(layout.InodeGroup(ino, fs.sb.InodesPerGroup))
	g.mu.Lock()
	if i := slices.Index(g.busyInodes, layout.InodeIndex(ino, fs.sb.InodesPerGroup)); i >= 0 {
		g.busyInodes = slices.Delete(g.busyInodes, i, i+1)
		g.freeInodes++
	}
	g.mu.Unlock()
	fs.freeInodes.Add(1)
}

// waitTotals waits until every group is loaded.
func (fs *FS) waitTotals() {
	fs.loadOnce.Do(func() { close(fs.load) })
	<-fs.loaded
}

// reserveBlocks sets n free blocks aside; what takeBlocks gives to a
// transaction comes out of such a reserve, so an operation that has reserved
// what it needs does not fail half-way. privileged operations, those that
// free space, may use the volume's last blocks.
func (fs *FS) reserveBlocks(n uint64, privileged bool) error {
	floor := int64(fs.sb.Reserved)
	if privileged {
		floor = 0
	}
	if !fs.takeCount(&fs.freeBlocks, int64(n), floor) {
		return errNoSpace
	}
	return nil
}

// takeCount lowers a count of what is free by n, but not below floor. What
// does not fit is never taken, not even for a moment: others would see it
// missing.
func (fs *FS) takeCount(count *atomic.Int64, n, floor int64) bool {
	for complete := false; ; {
		free := count.Load()
		switch {
		case free-n >= floor:
			if count.CompareAndSwap(free, free-n) {
				return true
			}
		case complete:
			return false
		default:
			fs.waitTotals()
			complete = true
		}
	}
}

func (fs *FS) unreserveBlocks(n uint64) { fs.freeBlocks.Add(int64(n)) }
