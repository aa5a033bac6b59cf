package nvfs

import (
	"encoding/binary"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// The extent tree of a file: a B+tree with its root in the inode. A node's
// entry in its parent carries a lower bound of the node's keys. Nodes are
// split on the way down, so that a parent always has room; a node that loses
// its last entry is freed, others are never joined.

const (
	maxExtentDepth = 8
	noBlock        = 1 << 52 // past every block of a file
	maxExtentLen   = 1<<32 - 1
)

// extentNode is one node of the tree: the root (node nil) or a block.
type extentNode struct {
	inode layout.Inode
	node  layout.Node
	block uint64
}

func (x extentNode) array() []byte {
	if x.node == nil {
		return x.inode.Body()
	}
	return x.node.Payload()
}

func (x extentNode) count() int {
	if x.node == nil {
		return int(x.inode.ExtentCount())
	}
	return int(x.node.Count())
}

func (x extentNode) setCount(n int) {
	if x.node == nil {
		x.inode.SetExtentCount(uint16(n))
	} else {
		x.node.SetCount(uint16(n))
	}
}

func (x extentNode) capacity() int {
	if x.node == nil {
		return x.inode.RootExtents()
	}
	return layout.NodeExtents
}

func (x extentNode) get(i int) layout.Extent    { return layout.GetExtent(x.array(), i) }
func (x extentNode) put(i int, e layout.Extent) { layout.PutExtent(x.array(), i, e) }

// after is the index of the first entry whose key is greater than key.
func (x extentNode) after(key uint64) int {
	a := x.array()
	lo, hi := 0, x.count()
	for lo < hi {
		if m := (lo + hi) / 2; binary.LittleEndian.Uint64(a[m*layout.ExtentSize:]) <= key {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// insertAt makes room at i and puts e there.
func (x extentNode) insertAt(i int, e layout.Extent) {
	a, n := x.array(), x.count()
	copy(a[(i+1)*layout.ExtentSize:(n+1)*layout.ExtentSize], a[i*layout.ExtentSize:n*layout.ExtentSize])
	x.put(i, e)
	x.setCount(n + 1)
}

// deleteAt removes entry i.
func (x extentNode) deleteAt(i int) {
	a, n := x.array(), x.count()
	copy(a[i*layout.ExtentSize:], a[(i+1)*layout.ExtentSize:n*layout.ExtentSize])
	if x.node == nil { // the checksum of a node ends with its last entry
		clear(a[(n-1)*layout.ExtentSize : n*layout.ExtentSize])
	}
	x.setCount(n - 1)
}

// checkRoot confirms that the root in the inode can be walked.
func (fs *FS) checkRoot(ino uint64, n layout.Inode) error {
	if int(n.ExtentCount()) > n.RootExtents() || n.ExtentDepth() > maxExtentDepth ||
		n.ExtentDepth() > 0 && n.ExtentCount() == 0 {
		return fs.damaged(false, "inode %d: root of the extent tree is damaged", ino)
	}
	return nil
}

// child returns the child that entry i of x points to, height levels above
// the extents (1: it holds extents).
func (w *Worker) child(ino uint64, x extentNode, i, height int, stage bool) (extentNode, error) {
	block := x.get(i).Physical
	var n layout.Node
	var err error
	if stage {
		n, err = w.stageNode(block, layout.ExtentMagic, ino)
	} else {
		n, err = w.peekNode(block, layout.ExtentMagic, ino)
	}
	if err != nil {
		return extentNode{}, err
	}
	if int(n.Depth()) != height || n.Count() == 0 || int(n.Count()) > layout.NodeExtents {
		return extentNode{}, w.fs.damaged(false, "inode %d: extent node %d is damaged", ino, block)
	}
	return extentNode{node: n, block: block}, nil
}

// extentAt returns the extent that holds block, or the hole there as an
// extent with Physical 0. A hole may be reported shorter than it is.
func (w *Worker) extentAt(ino uint64, n layout.Inode, block uint64) (layout.Extent, error) {
	if err := w.fs.checkRoot(ino, n); err != nil {
		return layout.Extent{}, err
	}
	x, bound := extentNode{inode: n}, uint64(noBlock)
	for height := int(n.ExtentDepth()); height > 0; height-- {
		i := max(x.after(block)-1, 0)
		if i+1 < x.count() {
			bound = min(bound, x.get(i+1).Logical)
		}
		var err error
		if x, err = w.child(ino, x, i, height, false); err != nil {
			return layout.Extent{}, err
		}
	}
	i := x.after(block)
	if i < x.count() {
		bound = min(bound, x.get(i).Logical)
	}
	if i > 0 {
		if e := x.get(i - 1); block < e.End() {
			if !w.fs.inGroups(e.Physical, uint64(e.Len)) {
				return layout.Extent{}, w.fs.damaged(false, "inode %d: extent outside of the data area", ino)
			}
			return e, nil
		}
	}
	if bound > noBlock {
		return layout.Extent{}, w.fs.damaged(false, "inode %d: extent beyond the largest file", ino)
	}
	if bound <= block {
		bound = block + 1 // a lower bound of the next node that nothing keeps yet
	}
	return layout.Extent{Logical: block, Len: uint32(min(bound-block, maxExtentLen))}, nil
}

// extentPath is the way from the root to a leaf: nodes[0] is the root.
type extentPath struct {
	nodes [maxExtentDepth + 2]extentNode
	index [maxExtentDepth + 2]int // entry taken in nodes[k]
	depth int                     // nodes[depth] is the leaf
}

func (p *extentPath) leaf() extentNode { return p.nodes[p.depth] }

// walk stages the path to the leaf that holds, or would hold, block.
func (w *Worker) walk(ino uint64, n layout.Inode, block uint64, p *extentPath) error {
	if err := w.fs.checkRoot(ino, n); err != nil {
		return err
	}
	p.depth = 0
	p.nodes[0] = extentNode{inode: n}
	for height := int(n.ExtentDepth()); height > 0; height-- {
		x := p.nodes[p.depth]
		i := max(x.after(block)-1, 0)
		p.index[p.depth] = i
		c, err := w.child(ino, x, i, height, true)
		if err != nil {
			return err
		}
		p.depth++
		p.nodes[p.depth] = c
	}
	return nil
}

// lowerBounds repairs the bounds above a leaf that got a lower first key.
func (p *extentPath) lowerBounds(key uint64) {
	for k := p.depth - 1; k >= 0; k-- {
		e := p.nodes[k].get(p.index[k])
		if e.Logical <= key {
			return
		}
		e.Logical = key
		p.nodes[k].put(p.index[k], e)
	}
}

// insertExtent maps e, which must lie in a hole, joining it with its
// neighbours in the leaf where they continue each other.
func (w *Worker) insertExtent(ino uint64, n layout.Inode, e layout.Extent) error {
	var p extentPath
	if err := w.walk(ino, n, e.Logical, &p); err != nil {
		return err
	}
	if p.leaf().join(e, &p) {
		return nil
	}
	for p.leaf().count() >= p.leaf().capacity() {
		if err := w.splitPath(ino, n, &p, e.Logical); err != nil {
			return err
		}
		if err := w.walk(ino, n, e.Logical, &p); err != nil {
			return err
		}
	}
	p.leaf().insertAt(p.leaf().after(e.Logical), e)
	p.lowerBounds(e.Logical)
	return nil
}

// join extends an entry of the leaf by e when it continues it.
func (x extentNode) join(e layout.Extent, p *extentPath) bool {
	i := x.after(e.Logical)
	left, right := i > 0, i < x.count()
	if left {
		l := x.get(i - 1)
		left = continues(l, e)
		if left && right && continues(e, x.get(i)) {
			r := x.get(i)
			if total := uint64(l.Len) + uint64(e.Len) + uint64(r.Len); total <= maxExtentLen {
				l.Len = uint32(total)
				x.put(i-1, l)
				x.deleteAt(i)
				return true
			}
		}
		if left {
			l.Len += e.Len
			x.put(i-1, l)
			return true
		}
	}
	if right {
		if r := x.get(i); continues(e, r) {
			r.Logical, r.Physical, r.Len = e.Logical, e.Physical, r.Len+e.Len
			x.put(i, r)
			p.lowerBounds(e.Logical)
			return true
		}
	}
	return false
}

// continues reports whether b directly follows a, in the file and on the
// volume, within one group (the next group starts with its metadata, so
// neighbours across a group boundary do not exist).
func continues(a, b layout.Extent) bool {
	return a.End() == b.Logical && a.Physical+uint64(a.Len) == b.Physical && a.Flags == b.Flags &&
		uint64(a.Len)+uint64(b.Len) <= layout.GroupBlocks
}

// splitPath splits the highest full node of the path below which all are
// full, so that its parent has room for the new sibling.
func (w *Worker) splitPath(ino uint64, n layout.Inode, p *extentPath, key uint64) error {
	k := p.depth
	for k > 0 && p.nodes[k-1].count() >= p.nodes[k-1].capacity() {
		k--
	}
	if k == 0 {
		return w.growRoot(ino, n)
	}
	x := p.nodes[k]
	count := x.count()
	at := count / 2
	if x.after(key) == count { // appending: keep the full node full
		at = count - 1
	}
	block, right, err := w.newNode(layout.ExtentMagic, ino, x.node.Depth())
	if err != nil {
		return err
	}
	n.SetBlocks(n.Blocks() + 1)
	copy(right.Payload(), x.array()[at*layout.ExtentSize:count*layout.ExtentSize])
	right.SetCount(uint16(count - at))
	x.setCount(at)
	w.tx.cost += layout.BlockSize
	p.nodes[k-1].insertAt(p.index[k-1]+1, layout.Extent{Logical: layout.GetExtent(right.Payload(), 0).Logical, Physical: block})
	return nil
}

// growRoot moves the root's entries into a new node.
func (w *Worker) growRoot(ino uint64, n layout.Inode) error {
	if n.ExtentDepth() >= maxExtentDepth {
		return errTooBig
	}
	block, node, err := w.newNode(layout.ExtentMagic, ino, uint16(n.ExtentDepth())+1)
	if err != nil {
		return err
	}
	root := extentNode{inode: n}
	count := root.count()
	copy(node.Payload(), root.array()[:count*layout.ExtentSize])
	node.SetCount(uint16(count))
	first := root.get(0).Logical
	clear(root.array()[:count*layout.ExtentSize])
	root.setCount(1)
	root.put(0, layout.Extent{Logical: first, Physical: block})
	n.SetExtentDepth(n.ExtentDepth() + 1)
	n.SetBlocks(n.Blocks() + 1)
	return nil
}

// unmapExtents removes the mapping of blocks [start, end) and, if free is
// set, frees the blocks. It stops early when the record is filling up: next
// is where to go on, or end when nothing is left.
func (w *Worker) unmapExtents(ino uint64, n layout.Inode, start, end uint64, free bool) (next uint64, err error) {
	for start < end {
		if w.tx.cost > costLimit {
			return start, nil
		}
		e, err := w.extentAt(ino, n, start)
		if err != nil {
			return start, err
		}
		if e.Physical == 0 { // a hole
			if e.Len == maxExtentLen {
				if last, err := w.lastExtent(ino, n); err != nil || last.End() <= start {
					return end, err
				}
			}
			start = e.End()
			continue
		}
		cut := layout.Extent{Logical: max(e.Logical, start), Flags: e.Flags}
		cut.Len = uint32(min(e.End(), end) - cut.Logical)
		cut.Physical = e.Physical + cut.Logical - e.Logical
		if err := w.cutExtent(ino, n, e, cut); err != nil {
			return start, err
		}
		if free {
			if err := w.free(cut.Physical, uint64(cut.Len)); err != nil {
				return start, err
			}
			n.SetBlocks(n.Blocks() - uint64(cut.Len))
		}
		start = cut.End()
	}
	return end, nil
}

// cutExtent takes cut, a part of the mapped extent e, out of the tree.
func (w *Worker) cutExtent(ino uint64, n layout.Inode, e, cut layout.Extent) error {
	var p extentPath
	if err := w.walk(ino, n, e.Logical, &p); err != nil {
		return err
	}
	leaf := p.leaf()
	i := leaf.after(e.Logical) - 1
	if i < 0 || leaf.get(i) != e {
		return w.fs.damaged(false, "inode %d: extents are out of order", ino)
	}
	head, tail := uint32(cut.Logical-e.Logical), uint32(e.End()-cut.End())
	right := layout.Extent{Logical: cut.End(), Physical: cut.Physical + uint64(cut.Len), Len: tail, Flags: e.Flags}
	switch {
	case head > 0:
		left := e
		left.Len = head
		leaf.put(i, left)
		if tail > 0 {
			return w.insertExtent(ino, n, right)
		}
		return nil
	case tail > 0:
		leaf.put(i, right)
		return nil
	}
	leaf.deleteAt(i)
	return w.prunePath(ino, n, &p)
}

// prunePath frees the leaf of p if it is empty, and the nodes above that
// become empty by it.
func (w *Worker) prunePath(ino uint64, n layout.Inode, p *extentPath) error {
	for k := p.depth; k > 0 && p.nodes[k].count() == 0; k-- {
		if err := w.freeNode(p.nodes[k].block); err != nil {
			return err
		}
		n.SetBlocks(n.Blocks() - 1)
		w.tx.cost += layout.BlockSize
		p.nodes[k-1].deleteAt(p.index[k-1])
	}
	if n.ExtentCount() == 0 {
		n.SetExtentDepth(0)
	}
	return nil
}

// lastExtent returns the extent with the highest key; one without length
// when there is none.
func (w *Worker) lastExtent(ino uint64, n layout.Inode) (layout.Extent, error) {
	if err := w.fs.checkRoot(ino, n); err != nil || n.ExtentCount() == 0 {
		return layout.Extent{}, err
	}
	x := extentNode{inode: n}
	for height := int(n.ExtentDepth()); height > 0; height-- {
		var err error
		if x, err = w.child(ino, x, x.count()-1, height, false); err != nil {
			return layout.Extent{}, err
		}
	}
	return x.get(x.count() - 1), nil
}
