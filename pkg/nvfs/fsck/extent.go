package fsck

import (
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// extentBounds are the logical blocks that a part of a tree may map.
type extentBounds struct{ lo, hi uint64 }

// checkExtents walks the extent tree in the body of n.
func (w *worker) checkExtents(n layout.Inode) {
	depth, count := int(n.ExtentDepth()), int(n.ExtentCount())
	if depth > maxDepth || count > n.RootExtents() || depth > 0 && count == 0 {
		w.broken(InodeFormat, 0, "the root of its extent tree has depth %d and %d entries", depth, count)
		return
	}
	w.at.last = (n.Size() + blockSize - 1) / blockSize
	if w.truncating[w.at.ino] {
		w.at.last = maxLogical
	}
	w.walkExtents(n.Body(), count, depth, extentBounds{0, maxLogical})
}

// walkExtents walks the count entries in array, which are height levels
// above the extents.
func (w *worker) walkExtents(array []byte, count, height int, in extentBounds) {
	if height == 0 {
		w.checkLeafExtents(array, count, in)
		return
	}
	next := in.lo
	for i := range count {
		e := layout.GetExtent(array, i)
		hi := in.hi
		if i+1 < count {
			hi = layout.GetExtent(array, i+1).Logical
		}
		if e.Logical < next || e.Logical >= hi || hi > in.hi {
			w.broken(ExtentOrder, e.Physical, "an index entry for blocks %d to %d is out of order", e.Logical, hi)
			return
		}
		next = hi
		if w.cancelled() {
			return
		}
		w.walkExtentNode(e.Physical, height, extentBounds{e.Logical, hi})
	}
}

// walkExtentNode walks the node in block. The recursion is as deep as the
// tree is high, at most maxDepth.
func (w *worker) walkExtentNode(block uint64, height int, in extentBounds) {
	if !w.claim(w.at.ino, block, 1, "an extent node") {
		return
	}
	n := layout.Node(w.block(block))
	switch count := int(n.Count()); {
	case !layout.Verify(w.seed, block, n.Covered()):
		w.broken(ExtentNode, block, "the checksum of extent node %d is wrong", block)
	case n.Magic() != layout.ExtentMagic, n.Owner() != w.at.ino, int(n.Depth()) != height, count == 0, count > layout.NodeExtents:
		w.broken(ExtentNode, block, "extent node %d has magic %#x, owner %d, height %d (of %d), %d entries",
			block, n.Magic(), n.Owner(), n.Depth(), height, count)
	default:
		w.walkExtents(n.Payload(), count, height-1, in)
	}
}

func (w *worker) checkLeafExtents(array []byte, count int, in extentBounds) {
	next := in.lo
	for i := range count {
		e := layout.GetExtent(array, i)
		w.sum.Extents++
		if e.Len == 0 || e.Logical < next || e.Logical >= in.hi || e.End() > in.hi {
			w.broken(ExtentOrder, e.Physical, "the extent of blocks %d+%d of the file is out of order, or outside of %d to %d", e.Logical, e.Len, next, in.hi)
			if e.Len == 0 || e.Logical >= maxLogical {
				continue
			}
		}
		next = e.End()
		if e.Flags&^layout.ExtentUnwritten != 0 {
			w.problem(ExtentFlags, "the extent at block %d of the file has flags %#x", e.Logical, e.Flags)
		}
		if !e.Unwritten() && next > w.at.last {
			w.problem(ExtentEOF, "blocks %d+%d of the file are written, but it ends at block %d", e.Logical, e.Len, w.at.last)
		}
		w.claim(w.at.ino, e.Physical, uint64(e.Len), "an extent")
	}
}
