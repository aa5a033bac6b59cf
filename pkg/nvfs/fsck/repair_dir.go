package fsck

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// leafRef is a leaf of a directory. It tells itself which keys it holds, so
// that the index above it can be made from the leaves alone.
type leafRef struct {
	block  uint64
	prefix uint64
	depth  uint8
}

const maxLeafDepth = layout.DirFanoutBits * (layout.MaxDirLevel + 1)

// start is the first key of the leaf's range, end the first behind it.
func (l leafRef) start() uint64 { return l.prefix << (layout.KeyBits - l.depth) }
func (l leafRef) end() uint64   { return (l.prefix + 1) << (layout.KeyBits - l.depth) }

// dirTree is what is found of a directory's tree.
type dirTree struct {
	leaves  []leafRef
	index   []uint64
	damaged bool
}

// claimDirectory claims the blocks of a directory. If its tree is damaged it
// is remembered, to be rebuilt.
func (r *repairer) claimDirectory(ino uint64, n layout.Inode) {
	t := r.walkTree(ino, n.DirRoot(), true)
	if t.damaged || r.damaged[ino] != nil {
		r.damaged[ino] = t
		r.did(Problem{Code: DirTree, Ino: ino}, "its tree is damaged: it is rebuilt from %d leaves, and those found elsewhere", len(t.leaves))
		return
	}
	if owned := uint64(len(t.leaves)+len(t.index)) + r.xattrBlocks(n); owned != n.Blocks() {
		g, index := r.place(ino)
		r.stageInode(g, index).SetBlocks(owned)
		r.did(Problem{Code: InodeBlocks, Group: g.num, Ino: ino}, "its count of blocks was set from %d to %d", n.Blocks(), owned)
		r.ch.commit()
	}
}

// walkTree finds the leaves below root, and claims all blocks or, when they
// are claimed already, only looks.
func (r *repairer) walkTree(ino, root uint64, claim bool) *dirTree {
	t := &dirTree{}
	if root != 0 {
		r.walkBlock(ino, root, dirPlace{run: 1}, t, claim)
	}
	return t
}

func (r *repairer) walkBlock(ino, block uint64, at dirPlace, t *dirTree, claim bool) {
	if !r.soundDirBlock(ino, block) || at.level > layout.MaxDirLevel+1 || claim && !r.take(block, 1) {
		t.damaged = true
		return
	}
	n := layout.Node(r.block(block))
	if n.Magic() == layout.DirIndexMagic {
		t.index = append(t.index, block)
		r.walkSlots(ino, n, at, t, claim)
		return
	}
	if !soundLeaf(n) {
		t.damaged = true
		if claim {
			r.release(block)
		}
		return
	}
	t.damaged = t.damaged || !at.fits(int(n.Depth()), n.Prefix())
	t.leaves = append(t.leaves, leafRef{block, n.Prefix(), uint8(n.Depth())})
}

func (r *repairer) walkSlots(ino uint64, n layout.Node, at dirPlace, t *dirTree, claim bool) {
	if at.level > layout.MaxDirLevel || int(n.Depth()) != at.level || at.run != 1 || n.Prefix() != at.prefixOf(at.bitsAbove()) {
		t.damaged = true
	}
	used := 0
	for i := 0; i < layout.DirFanout; {
		child, run := n.Slot(i), slotRun(n, i)
		if child != 0 {
			used += run
			r.walkBlock(ino, child, dirPlace{level: at.level + 1, prefix: n.Prefix(), slot: i, run: run}, t, claim)
		}
		i += run
	}
	t.damaged = t.damaged || used == 0 || int(n.Count()) != used
}

// soundDirBlock reports whether block is a directory block of that inode.
func (r *repairer) soundDirBlock(ino, block uint64) bool {
	g := r.groupOf(block)
	if g == nil || block < g.start+uint64(g.meta) {
		return false
	}
	n := layout.Node(r.block(block))
	return (n.Magic() == layout.DirLeafMagic || n.Magic() == layout.DirIndexMagic) && n.Owner() == ino &&
		layout.Verify(r.seed, block, n.Covered())
}

// soundLeaf reports whether a leaf says possible things of its place.
func soundLeaf(n layout.Node) bool {
	return n.Depth() <= maxLeafDepth && n.Prefix()>>n.Depth() == 0
}

// salvageLeaves looks for the leaves that damaged index blocks led to: blocks
// marked as used that nothing refers to, with the owner's number and a right
// checksum.
func (r *repairer) salvageLeaves() {
	if len(r.damaged) == 0 {
		return
	}
	for k := range r.groups {
		g := &r.groups[k]
		claims := g.claims()
		for i := range bitmapWords {
			if !r.chunkSound(g, i) {
				continue
			}
			word := g.word(r.volume, layout.GroupBlockBitmap, i) &^ (claims[i] | wordMask(i, g.meta)) & wordMask(i, g.blocks)
			for ; word != 0; word &= word - 1 {
				r.salvageLeaf(g.start + uint64(i*64+bits.TrailingZeros64(word)))
			}
		}
	}
}

// chunkSound reports whether the chunk with word i of the block bitmap
// verifies.
func (r *repairer) chunkSound(g *group, i int) bool {
	off := layout.ChunkOffset(g.start+layout.GroupBlockBitmap, uint32(i)*64)
	return layout.Verify(r.seed, layout.ChunkLocation(off), r.mem[off:off+layout.ChunkSize])
}

func (r *repairer) salvageLeaf(block uint64) {
	n := layout.Node(r.block(block))
	t := r.damaged[n.Owner()]
	if n.Magic() != layout.DirLeafMagic || t == nil || !soundLeaf(n) || !r.soundDirBlock(n.Owner(), block) || !r.take(block, 1) {
		return
	}
	t.leaves = append(t.leaves, leafRef{block, n.Prefix(), uint8(n.Depth())})
	r.did(Problem{Code: DirTree, Ino: n.Owner(), Block: block}, "a leaf with %d names was found again", n.Count())
}

// rebuildTrees makes new index blocks for the directories with damaged trees.
func (r *repairer) rebuildTrees() {
	inos := make([]uint64, 0, len(r.damaged))
	for ino := range r.damaged {
		inos = append(inos, ino)
	}
	slices.Sort(inos)
	for _, ino := range inos {
		r.rebuildTree(ino, r.damaged[ino], nil)
	}
}

// rebuildTree makes a new index over the leaves of t, and lets the directory
// refer to it in one step, in which edit may take part. Empty leaves and
// those that overlap an earlier one are dropped.
func (r *repairer) rebuildTree(ino uint64, t *dirTree, edit func(n layout.Inode)) {
	leaves := r.disjoint(ino, t.leaves)
	b := indexBuilder{r: r, ino: ino}
	root := uint64(0)
	switch {
	case len(leaves) == 1 && leaves[0].depth == 0:
		root = leaves[0].block
	case len(leaves) > 0:
		root = b.build(0, 0, leaves)
	}
	if b.err != nil {
		for _, block := range b.blocks {
			r.release(block)
		}
		r.left(Problem{Code: DirTree, Ino: ino}, "it cannot be rebuilt: %v; delete or grow something and repair again", b.err)
		return
	}
	r.ch.settle()
	g, index := r.place(ino)
	n := r.stageInode(g, index)
	n.SetDirRoot(root)
	n.SetBlocks(uint64(len(leaves)+len(b.blocks)) + r.xattrBlocks(n))
	if edit != nil {
		edit(n)
	}
	r.ch.commit()
	for _, block := range t.index {
		r.release(block)
	}
}

// disjoint sorts leaves and drops what cannot be kept.
func (r *repairer) disjoint(ino uint64, list []leafRef) []leafRef {
	var kept []leafRef
	for _, l := range list {
		i, _ := slices.BinarySearchFunc(kept, l, byKey)
		overlaps := i > 0 && kept[i-1].end() > l.start() || i < len(kept) && kept[i].start() < l.end()
		if overlaps || layout.Node(r.block(l.block)).Count() == 0 {
			r.release(l.block)
			if overlaps {
				r.did(Problem{Code: DirTree, Ino: ino, Block: l.block}, "a leaf in the place of another was dropped")
			}
			continue
		}
		kept = slices.Insert(kept, i, l)
	}
	return kept
}

func byKey(a, b leafRef) int { return cmp.Compare(a.start(), b.start()) }

// indexBuilder writes index blocks.
type indexBuilder struct {
	r      *repairer
	ino    uint64
	blocks []uint64
	err    error
}

// build writes the index block of that level and prefix over leaves, which
// are sorted and lie below it.
func (b *indexBuilder) build(level int, prefix uint64, leaves []leafRef) uint64 {
	block, err := b.r.alloc()
	if err != nil {
		b.err = err
		return 0
	}
	b.blocks = append(b.blocks, block)
	n := make(layout.Node, blockSize)
	n.InitNode(layout.DirIndexMagic, b.ino, uint16(level))
	n.SetPrefix(prefix)
	used, reach := 0, layout.DirFanoutBits*(level+1)
	for i := 0; i < len(leaves) && b.err == nil; {
		l := leaves[i]
		slot := layout.KeySlot(l.start(), uint16(level))
		run, child := 1, l.block
		if int(l.depth) <= reach {
			run = 1 << (reach - int(l.depth))
			i++
		} else {
			first := i
			for i < len(leaves) && layout.KeySlot(leaves[i].start(), uint16(level)) == slot {
				i++
			}
			child = b.build(level+1, prefix<<layout.DirFanoutBits|uint64(slot), leaves[first:i])
		}
		for k := range run {
			n.SetSlot(slot+k, child)
		}
		used += run
	}
	n.SetCount(uint16(used))
	if b.err == nil {
		b.r.ch.fresh(block, n)
	}
	return block
}
