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

// take claims blocks [start, start+n) if they are data blocks of one group
// that nobody has claimed.
func (r *repairer) take(start, n uint64) bool {
	g := r.groupOf(start)
	if g == nil || start < g.start+uint64(g.meta) || n > uint64(g.blocks) || start+n > g.start+uint64(g.blocks) {
		return false
	}
	words := g.claims()
	from, to := uint32(start-g.start), uint32(start-g.start+n)
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

// runMask has the bits of [bit, to) set that lie in the word of bit.
func runMask(bit, to uint32) uint64 {
	return (^uint64(0) >> (64 - min(to-bit, 64-bit%64))) << (bit % 64)
}

// release takes the claim of a block back.
func (r *repairer) release(block uint64) {
	g := r.groupOf(block)
	bit := uint32(block - g.start)
	g.claims()[bit/64] &^= 1 << (bit % 64)
}

var errNoBlock = errors.New("no block is free")

// alloc takes a free block, for a tree of a directory, and marks it used at
// once: if the repair ends before something refers to it, it is leaked and no
// more. Blocks that nothing refers to are taken only when no other is left.
func (r *repairer) alloc() (uint64, error) {
	for _, leaked := range []bool{false, true} {
		for k := range r.groups {
			g := &r.groups[k]
			claims := g.claims()
			for i := range bitmapWords {
				used := claims[i] | wordMask(i, g.meta) | ^wordMask(i, g.blocks)
				if !leaked {
					used |= g.word(r.volume, layout.GroupBlockBitmap, i)
				}
				if used == ^uint64(0) {
					continue
				}
				bit := uint32(i*64 + bits.TrailingZeros64(^used))
				claims[i] |= 1 << (bit % 64)
				c := r.ch.stageChunk(g.start+layout.GroupBlockBitmap, bit)
				c.SetBit(bit%layout.ChunkBits, true)
				setCount(c, layout.GroupBlockBitmap)
				r.ch.commit()
				return g.start + uint64(bit), r.ch.err
			}
		}
	}
	return 0, errNoBlock
}
