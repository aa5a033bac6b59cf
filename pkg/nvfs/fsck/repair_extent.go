package fsck

import (
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// treePart is the inode or an extent node, whose entries are being repaired.
type treePart struct {
	array []byte
	count int
	node  bool // an extent node: when nothing is left its parent drops it
	// stage returns the private copy to change and its setter of the count.
	stage func() (array []byte, setCount func(int))
}

func (r *repairer) rootPart(g *group, index uint32, n layout.Inode) treePart {
	return treePart{array: n.Body(), count: int(n.ExtentCount()), stage: func() ([]byte, func(int)) {
		c := r.stageInode(g, index)
		return c.Body(), func(k int) {
			c.SetExtentCount(uint16(k))
			clear(c.Body()[k*layout.ExtentSize:])
			if k == 0 {
				c.SetExtentDepth(0)
			}
		}
	}}
}

func (r *repairer) nodePart(block uint64) treePart {
	n := layout.Node(r.block(block))
	return treePart{array: n.Payload(), count: int(n.Count()), node: true, stage: func() ([]byte, func(int)) {
		c := r.ch.stageNode(block)
		return c.Payload(), func(k int) { c.SetCount(uint16(k)) }
	}}
}

// keep rewrites the entries of a part. It returns how many are left.
func (r *repairer) keep(part treePart, choose func(i int, e layout.Extent) (layout.Extent, bool)) int {
	var kept [layout.NodeExtents]layout.Extent
	n, same := 0, true
	for i := range part.count {
		e := layout.GetExtent(part.array, i)
		f, ok := choose(i, e)
		same = same && ok && e == f
		if ok {
			kept[n] = f
			n++
		}
	}
	if same || n == 0 && part.node {
		return n
	}
	array, setCount := part.stage()
	for i := range n {
		layout.PutExtent(array, i, kept[i])
	}
	setCount(n)
	r.ch.commit()
	return n
}

// repairTree claims the nodes of an extent tree and drops entries of damaged
// ones: what these mapped becomes a hole.
func (r *repairer) repairTree(g *group, index uint32, n layout.Inode) {
	r.repairNodes(r.ino(g, index), r.rootPart(g, index, n), int(n.ExtentDepth()), extentBounds{0, maxLogical})
}

// repairNodes repairs the index entries of part, height levels above the
// extents, and all below. It returns how many entries are left.
func (r *repairer) repairNodes(ino uint64, part treePart, height int, in extentBounds) int {
	next := in.lo
	return r.keep(part, func(i int, e layout.Extent) (layout.Extent, bool) {
		hi := in.hi
		if i+1 < part.count {
			if k := layout.GetExtent(part.array, i+1).Logical; k > e.Logical && k < hi {
				hi = k
			}
		}
		fixed := layout.Extent{Logical: e.Logical, Physical: e.Physical}
		if e.Logical < next || e.Logical >= hi || !r.soundNode(ino, e.Physical, height) || !r.take(e.Physical, 1) {
			r.did(Problem{Code: ExtentNode, Ino: ino, Block: e.Physical}, "extent node %d was dropped: blocks %d on of the file became a hole", e.Physical, e.Logical)
			return e, false
		}
		next = e.Logical + 1
		if height > 1 && r.repairNodes(ino, r.nodePart(e.Physical), height-1, extentBounds{e.Logical, hi}) == 0 {
			r.release(e.Physical)
			return e, false
		}
		return fixed, true
	})
}

// soundNode reports whether block is an extent node of that inode and height.
func (r *repairer) soundNode(ino, block uint64, height int) bool {
	if r.groupOf(block) == nil {
		return false
	}
	n := layout.Node(r.block(block))
	return n.Magic() == layout.ExtentMagic && n.Owner() == ino && int(n.Depth()) == height &&
		n.Count() > 0 && n.Count() <= layout.NodeExtents && layout.Verify(r.seed, block, n.Covered())
}

// repairExtents claims the extents of a file and drops what may not be. It
// returns the number of blocks of extents and nodes, those that others keep
// included.
func (r *repairer) repairExtents(g *group, index uint32, n layout.Inode) uint64 {
	x := extentRepair{r: r, ino: r.ino(g, index), last: (n.Size() + blockSize - 1) / blockSize}
	endless := n.Size() > 1<<63-1
	if endless || r.truncating[x.ino] {
		x.last = maxLogical
	}
	x.walk(r.rootPart(g, index, n), int(n.ExtentDepth()), extentBounds{0, maxLogical})
	if endless {
		r.stageInode(g, index).SetSize(x.end * blockSize)
		r.did(Problem{Code: InodeSize, Group: g.num, Ino: x.ino}, "its size was set to the end of its last block: %d", x.end*blockSize)
		r.ch.commit()
	}
	return x.owned
}

type extentRepair struct {
	r     *repairer
	ino   uint64
	last  uint64 // blocks up to the end of the file
	end   uint64 // of the last written extent
	owned uint64
}

func (x *extentRepair) walk(part treePart, height int, in extentBounds) int {
	if height == 0 {
		return x.leaf(part, in)
	}
	return x.r.keep(part, func(i int, e layout.Extent) (layout.Extent, bool) {
		hi := in.hi
		if i+1 < part.count {
			hi = layout.GetExtent(part.array, i+1).Logical
		}
		if x.walk(x.r.nodePart(e.Physical), height-1, extentBounds{e.Logical, hi}) == 0 {
			x.r.release(e.Physical)
			return e, false
		}
		x.owned++
		return e, true
	})
}

func (x *extentRepair) leaf(part treePart, in extentBounds) int {
	next := in.lo
	return x.r.keep(part, func(_ int, e layout.Extent) (layout.Extent, bool) {
		fixed, code := x.fix(e, extentBounds{next, in.hi})
		if code != "" {
			x.r.did(Problem{Code: code, Ino: x.ino, Block: e.Physical}, "the extent of blocks %d+%d of the file, at %d, was cut to %d blocks",
				e.Logical, e.Len, e.Physical, fixed.Len)
		}
		if fixed.Len == 0 {
			return e, false
		}
		next = fixed.End()
		if !fixed.Unwritten() {
			x.end = next
		}
		x.owned += uint64(fixed.Len)
		return fixed, true
	})
}

// fix returns what is to be left of an extent; Len 0 for nothing. The first
// to claim a block keeps it: the owner of a tree block, else the file with
// the lowest number. Blocks of the extent that others keep are noted, to be
// replaced with copies by cloneShared.
func (x *extentRepair) fix(e layout.Extent, in extentBounds) (layout.Extent, Code) {
	var code Code
	none := layout.Extent{}
	if e.Len == 0 || e.Logical < in.lo || e.Logical >= in.hi || e.End() > in.hi {
		return none, ExtentOrder
	}
	if e.Flags&^layout.ExtentUnwritten != 0 {
		e.Flags &= layout.ExtentUnwritten
		code = ExtentFlags
	}
	if !e.Unwritten() && e.End() > x.last {
		if e.Logical >= x.last {
			return none, ExtentEOF
		}
		e.Len, code = uint32(x.last-e.Logical), ExtentEOF
	}
	if !x.r.takeUnclaimed(e.Physical, uint64(e.Len), func(start, n uint64) {
		x.r.shared = append(x.r.shared, sharedRun{ino: x.ino, logical: e.Logical + (start - e.Physical), physical: start, len: n, flags: e.Flags})
	}) {
		return none, BlockRange
	}
	return e, code
}
