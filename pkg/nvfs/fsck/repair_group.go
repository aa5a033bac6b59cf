package fsck

import (
	"errors"
	"math/bits"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// repairDescriptors writes descriptors that are not what the geometry says.
func (r *repairer) repairDescriptors() {
	for i := range r.groups {
		g := &r.groups[i]
		var want [layout.GroupDescSize]byte
		d := layout.GroupDesc(want[:])
		d.Init(uint32(g.num), g.blocks, g.inodes)
		layout.Seal(r.seed, g.start, d)
		if string(r.block(g.start)[:layout.GroupDescSize]) == string(want[:]) {
			continue
		}
		copy(r.ch.stage(g.start*blockSize, layout.GroupDescSize, g.start, false), want[:])
		r.did(Problem{Code: GroupDescriptor, Group: g.num, Block: g.start}, "the descriptor of group %d was made anew", g.num)
		r.ch.commit()
	}
}

// repairBitmap makes each chunk of a bitmap valid. word says what word i is
// to be, from what it is; ok is false when its chunk is damaged. Of the bits
// behind the end, repairBitmap itself takes care.
func (r *repairer) repairBitmap(g *group, which int, word func(i int, have uint64, ok bool) uint64) {
	block := g.start + uint64(which)
	end, tail := g.inodes, ^uint64(0)
	switch which {
	case layout.GroupBlockBitmap:
		end = g.blocks
	case layout.GroupOrphans:
		tail = 0
	}
	for k := range uint32(layout.ChunksBlock) {
		off := layout.ChunkOffset(block, k*layout.ChunkBits)
		old := layout.Chunk(r.mem[off : off+layout.ChunkSize])
		ok := layout.Verify(r.seed, layout.ChunkLocation(off), old)
		c := r.ch.stageChunk(block, k*layout.ChunkBits)
		for i := range layout.ChunkWords {
			at := int(k)*layout.ChunkWords + i
			valid := wordMask(at, end)
			v := tail &^ valid
			if valid != 0 {
				v |= word(at, old.Word(i), ok) & valid
			}
			c.SetWord(i, v)
		}
		setCount(c, which)
		if !ok {
			r.did(Problem{Code: BitmapChecksum, Group: g.num, Block: block}, "group %d: chunk %d of the %s bitmap was made anew", g.num, k, bitmapNames[which])
		}
		r.ch.commit()
	}
}

// setCount counts the bits of a chunk.
func setCount(c layout.Chunk, which int) {
	n := c.Ones()
	if which != layout.GroupOrphans {
		n = layout.ChunkBits - n
	}
	c.SetCount(n)
}

// repairInodeBitmaps rebuilds damaged chunks from the inode tables: an inode
// that verifies and has a type is in use.
func (r *repairer) repairInodeBitmaps() {
	for k := range r.groups {
		g := &r.groups[k]
		r.repairBitmap(g, layout.GroupInodeBitmap, func(i int, have uint64, ok bool) uint64 {
			if ok {
				return have
			}
			return r.wordOf(g, i, func(_ uint64, n layout.Inode) bool { return true })
		})
		r.repairBitmap(g, layout.GroupOrphans, func(i int, have uint64, ok bool) uint64 {
			used := g.word(r.volume, layout.GroupInodeBitmap, i)
			if ok {
				return have & used
			}
			return used & r.wordOf(g, i, func(ino uint64, n layout.Inode) bool { return n.Nlink() == 0 && ino != rootIno })
		})
	}
}

// wordOf makes word i of a bitmap of the inodes of g that verify, have a type,
// and are wanted.
func (r *repairer) wordOf(g *group, i int, want func(ino uint64, n layout.Inode) bool) uint64 {
	v := uint64(0)
	for bit := uint32(i) * 64; bit < min(g.inodes, uint32(i+1)*64); bit++ {
		n, ino := r.inodeIn(g, bit), r.ino(g, bit)
		if layout.Verify(r.seed, ino, n) && knownType(n.Mode()) && want(ino, n) {
			v |= 1 << (bit % 64)
		}
	}
	return v
}

func knownType(mode uint32) bool {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFREG, unix.S_IFLNK, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK:
		return true
	}
	return false
}

// markBlocks marks the blocks that are in use. What nothing refers to stays
// marked for now, but in chunks that are made anew.
func (r *repairer) markBlocks() {
	r.repairBlockBitmaps(func(have, used uint64, ok bool) uint64 {
		if ok {
			return have | used
		}
		return used
	})
}

// freeLeaks frees the blocks that nothing refers to.
func (r *repairer) freeLeaks() {
	r.repairBlockBitmaps(func(_, used uint64, _ bool) uint64 { return used })
}

func (r *repairer) repairBlockBitmaps(choose func(have, used uint64, ok bool) uint64) {
	for k := range r.groups {
		g := &r.groups[k]
		claims := g.claims()
		r.repairBitmap(g, layout.GroupBlockBitmap, func(i int, have uint64, ok bool) uint64 {
			used := (claims[i] | wordMask(i, g.meta)) & wordMask(i, g.blocks)
			have &= wordMask(i, g.blocks)
			v := choose(have, used, ok)
			if n := bits.OnesCount64(v &^ have); ok && n > 0 {
				r.did(Problem{Code: BlockFree, Group: g.num, Block: g.start + uint64(i)*64}, "%d blocks from block %d on were marked as used", n, g.start+uint64(i)*64)
			}
			if n := bits.OnesCount64(have &^ v); ok && n > 0 {
				r.did(Problem{Code: BlockLeaked, Group: g.num, Block: g.start + uint64(i)*64}, "%d blocks from block %d on were freed", n, g.start+uint64(i)*64)
			}
			return v
		})
	}
}

// dataRange is where blocks [start, start+n) lie, if they are data blocks of
// one group; else g is nil.
func (r *repairer) dataRange(start, n uint64) (g *group, from, to uint32) {
	g = r.groupOf(start)
	if g == nil || start < g.start+uint64(g.meta) || n > uint64(g.blocks) || start+n > g.start+uint64(g.blocks) {
		return nil, 0, 0
	}
	return g, uint32(start - g.start), uint32(start - g.start + n)
}

// take claims blocks [start, start+n) if they are data blocks of one group
// that nobody has claimed.
func (r *repairer) take(start, n uint64) bool {
	g, from, to := r.dataRange(start, n)
	if g == nil {
		return false
	}
	words := g.claims()
	for bit := from; bit < to; bit = (bit | 63) + 1 {
		if words[bit/64]&runMask(bit, to) != 0 {
			return false
		}
	}
	for bit := from; bit < to; bit = (bit | 63) + 1 {
		words[bit/64] |= runMask(bit, to)
	}
	return true
}

// takeUnclaimed claims those of the blocks [start, start+n) that nobody has
// claimed, and calls shared for each run of the others. It returns false, and
// claims nothing, if they are not data blocks of one group.
func (r *repairer) takeUnclaimed(start, n uint64, shared func(start, n uint64)) bool {
	if r.take(start, n) {
		return true
	}
	g, from, to := r.dataRange(start, n)
	if g == nil {
		return false
	}
	words := g.claims()
	claimed := func(bit uint32) bool { return words[bit/64]>>(bit%64)&1 == 1 }
	for bit := from; bit < to; {
		first, others := bit, claimed(bit)
		for ; bit < to && claimed(bit) == others; bit++ {
			if others {
				setBit(&g.contested, bit, g.blocks)
			}
		}
		if others {
			shared(g.start+uint64(first), uint64(bit-first))
			continue
		}
		for b := first; b < bit; b = (b | 63) + 1 {
			words[b/64] |= runMask(b, bit)
		}
	}
	return true
}

// runMask has the bits of [bit, to) set that lie in the word of bit.
func runMask(bit, to uint32) uint64 {
	return (^uint64(0) >> (64 - min(to-bit, 64-bit%64))) << (bit % 64)
}

// release takes the claim of a block back. A block that a file is still to get
// a copy of stays claimed in this round, so that nothing is stored over it.
func (r *repairer) release(block uint64) {
	g := r.groupOf(block)
	bit := uint32(block - g.start)
	if hasBit(&g.contested, bit) {
		return
	}
	g.claims()[bit/64] &^= 1 << (bit % 64)
	r.spent[leakedBlocks] = 0
}

var errNoBlock = errors.New("no block is free")

// What alloc may take: blocks that are free, and when no other is left, blocks
// that are marked used but that nothing refers to.
const (
	freeBlocks = iota
	leakedBlocks
)

// alloc takes a free block, for a tree of a directory or a file, and marks it
// used at once: if the repair ends before something refers to it, it is leaked
// and no more.
func (r *repairer) alloc() (uint64, error) {
	block, _, err := r.allocRun(1)
	return block, err
}

// allocRun does so with the first run of want blocks in one group, else with
// the longest that there is.
func (r *repairer) allocRun(want uint64) (start, n uint64, err error) {
	for tier := freeBlocks; tier <= leakedBlocks; tier++ {
		g, bit, n := r.longestRun(uint32(min(want, layout.BitmapBits)), tier)
		if n == 0 {
			continue
		}
		words := g.claims()
		for b := bit; b < bit+n; {
			c := r.ch.stageChunk(g.start+layout.GroupBlockBitmap, b)
			for end := min(bit+n, b-b%layout.ChunkBits+layout.ChunkBits); b < end; b++ {
				c.SetBit(b%layout.ChunkBits, true)
				words[b/64] |= 1 << (b % 64)
			}
			setCount(c, layout.GroupBlockBitmap)
		}
		r.ch.commit()
		return g.start + uint64(bit), uint64(n), r.ch.err
	}
	return 0, 0, errNoBlock
}

// longestRun finds a run of want blocks, or the longest.
func (r *repairer) longestRun(want uint32, tier int) (best *group, at, n uint32) {
	some := false
	for k := r.spent[tier]; k < len(r.groups); k++ {
		g := &r.groups[k]
		run := uint32(0)
		for i := range bitmapWords {
			used := r.usedWord(g, i, tier)
			if used == ^uint64(0) {
				run = 0
				continue
			}
			for bit := range uint32(64) {
				if used>>bit&1 == 1 {
					run = 0
					continue
				}
				some = true
				if run++; run > n {
					best, at, n = g, uint32(i)*64+bit+1-run, run
				}
				if n == want {
					return best, at, n
				}
			}
		}
		if !some {
			r.spent[tier] = k + 1
		}
	}
	return best, at, n
}

// usedWord has the bits of word i set of blocks that are not to be had.
func (r *repairer) usedWord(g *group, i, tier int) uint64 {
	used := g.claims()[i] | wordMask(i, g.meta) | ^wordMask(i, g.blocks)
	if tier == freeBlocks {
		used |= g.word(r.volume, layout.GroupBlockBitmap, i)
	}
	return used
}

// countFree counts the blocks that can be had.
func (r *repairer) countFree() uint64 {
	n := uint64(0)
	for k := range r.groups {
		for i := range bitmapWords {
			n += uint64(bits.OnesCount64(^r.usedWord(&r.groups[k], i, leakedBlocks)))
		}
	}
	return n
}
