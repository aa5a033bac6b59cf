package fsck

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// sharedRun is a run of blocks of a file that another owner keeps: the tree
// that they name themselves, or the file that has claimed them first.
type sharedRun struct {
	ino      uint64
	logical  uint64
	physical uint64
	len      uint64
	flags    uint32
	keeper   uint64          // inode, once it was looked for
	copies   []layout.Extent // what the file gets instead; what is missing becomes a hole
}

func (s *sharedRun) end() uint64 { return s.logical + s.len }

// cloneShared gives the files that share blocks a copy of what they do not
// keep. It comes when all that is in use is known, so that no copy is put over
// it, and behind what needs free blocks for names, which are worth more.
func (r *repairer) cloneShared() {
	r.findKeepers()
	for len(r.shared) > 0 && !r.halted() {
		n := slices.IndexFunc(r.shared, func(s sharedRun) bool { return s.ino != r.shared[0].ino })
		if n < 0 {
			n = len(r.shared)
		}
		c := cloner{r: r, ino: r.shared[0].ino, runs: r.shared[:n]}
		c.g, c.index = r.place(c.ino)
		c.clone()
		r.shared = r.shared[n:]
	}
}

// findKeepers finds out who keeps the blocks, of as many runs as the report
// describes. The first of the inodes that refer to a block has it.
func (r *repairer) findKeepers() {
	runs := r.shared[:min(len(r.shared), int(r.done.share))]
	if len(runs) == 0 {
		return
	}
	for i := range runs {
		runs[i].keeper = r.treeOwner(runs[i].physical)
	}
	r.eachInode(func(g *group, index uint32, n layout.Inode) {
		ino := r.ino(g, index)
		r.eachExtent(n, func(e layout.Extent) {
			for i := range runs {
				s := &runs[i]
				itself := s.ino == ino && s.logical == e.Logical+(s.physical-e.Physical)
				if s.keeper == 0 && !itself && s.physical >= e.Physical && s.physical < e.Physical+uint64(e.Len) {
					s.keeper = ino
				}
			}
		})
	})
}

// treeOwner is the inode that a tree block names as its own; 0 for other
// blocks.
func (r *repairer) treeOwner(block uint64) (owner uint64) {
	// A block that cannot be read is nobody's.
	_ = guard(func() {
		n := layout.Node(r.block(block))
		switch n.Magic() {
		case layout.ExtentMagic, layout.DirLeafMagic, layout.DirIndexMagic, layout.XattrMagic:
			if layout.Verify(r.seed, block, n.Covered()) && r.inode(n.Owner()) != nil {
				owner = n.Owner()
			}
		}
	})
	return owner
}

// eachExtent visits the extents of an inode whose tree is right.
func (r *repairer) eachExtent(n layout.Inode, visit func(e layout.Extent)) {
	if n.Format() != layout.FormatExtents || n.Mode()&unix.S_IFMT == unix.S_IFDIR {
		return
	}
	r.eachExtentIn(n.Body(), int(n.ExtentCount()), int(n.ExtentDepth()), visit, nil)
}

// eachExtentIn visits the extents, and with node the blocks of the nodes, of
// count entries that are height levels above the extents.
func (r *repairer) eachExtentIn(array []byte, count, height int, visit func(e layout.Extent), node func(block uint64)) {
	for i := range count {
		e := layout.GetExtent(array, i)
		if height == 0 {
			visit(e)
			continue
		}
		if node != nil {
			node(e.Physical)
		}
		x := layout.Node(r.block(e.Physical))
		r.eachExtentIn(x.Payload(), int(x.Count()), height-1, visit, node)
	}
}

// cloner gives one file copies of blocks that others keep.
type cloner struct {
	r     *repairer
	g     *group
	index uint32
	ino   uint64
	runs  []sharedRun // ordered by logical
	// scant says that no block is left for a tree that maps all: of an extent
	// with shared blocks only the longest run of its own stays.
	scant bool
}

func (c *cloner) inode() layout.Inode { return c.r.inodeIn(c.g, c.index) }

// clone makes the copies, lets the file refer to them and reports it.
func (c *cloner) clone() {
	for i := range c.runs {
		c.copyRun(&c.runs[i])
	}
	c.r.ch.settle()
	if !c.fits() {
		c.rebuild()
	} else {
		c.inPlace()
	}
	n := c.inode()
	if n.Mode()&unix.S_IFMT == unix.S_IFLNK && c.r.hollow(n) {
		c.r.clearInode(InodeSize, c.g, c.index, "the target of the symbolic link is lost")
		return
	}
	c.r.setBlocks(c.g, c.index, c.r.countBlocks(n))
}

// copyRun stores what a run holds in blocks of its own, which are durable
// after the next fence.
func (c *cloner) copyRun(s *sharedRun) {
	why := "it cannot be read"
	for done := uint64(0); done < s.len; {
		start, n, err := c.r.allocRun(s.len - done)
		if err != nil {
			why = err.Error()
			break
		}
		for k := uint64(0); k < n; {
			copied := n - k
			if s.flags&layout.ExtentUnwritten == 0 {
				copied = c.copyBlocks(s.physical+done+k, start+k, n-k)
			}
			if copied > 0 {
				s.copies = appendExtent(s.copies, layout.Extent{Logical: s.logical + done + k, Physical: start + k, Len: uint32(copied), Flags: s.flags})
			}
			if k += copied; k < n {
				c.r.release(start + k)
				k++
			}
		}
		done += n
	}
	c.report(s, why)
}

// report tells what became of a run; why says it of what is missing.
func (c *cloner) report(s *sharedRun, why string) {
	p := Problem{Code: BlockShared, Group: c.g.num, Ino: c.ino, Block: s.physical}
	keeper := "another owner"
	if s.keeper == c.ino {
		keeper = "another part of the file"
	} else if s.keeper != 0 {
		keeper = fmt.Sprintf("inode %d", s.keeper)
	}
	copied := uint64(0)
	for _, e := range s.copies {
		copied += uint64(e.Len)
	}
	if copied > 0 {
		c.r.did(p, "%d of blocks %d+%d of the file, at %d, which %s keeps, were copied to %d: check whose data it is, and who may read it",
			copied, s.logical, s.len, s.physical, keeper, s.copies[0].Physical)
	}
	if copied < s.len {
		c.r.did(p, "%d of blocks %d+%d of the file, at %d, which %s keeps, became a hole: %s", s.len-copied, s.logical, s.len, s.physical, keeper, why)
	}
}

// cloneBuffer is how much is copied at a time, in blocks.
const cloneBuffer = 32

// copyBlocks copies up to n blocks and returns how many could be read.
func (c *cloner) copyBlocks(from, to, n uint64) uint64 {
	buf := make([]byte, min(n, cloneBuffer)*blockSize)
	for done := uint64(0); done < n; {
		k := min(n-done, cloneBuffer)
		if !readable(buf[:k*blockSize], c.r.mem[(from+done)*blockSize:]) {
			if k = 1; !readable(buf[:blockSize], c.r.mem[(from+done)*blockSize:]) {
				return done
			}
		}
		c.r.ch.copy((to+done)*blockSize, buf[:k*blockSize])
		done += k
	}
	return n
}

// readable reads memory into buf and reports whether the medium let it.
func readable(buf, mem []byte) bool {
	f := guard(func() { copy(buf, mem) })
	if f == nil {
		return true
	}
	if _, ok := f.value.(interface {
		runtime.Error
		Addr() uintptr
	}); !ok {
		panic(f.value)
	}
	return false
}

// appendExtent appends e, or makes the last extent longer.
func appendExtent(list []layout.Extent, e layout.Extent) []layout.Extent {
	if k := len(list); k > 0 {
		last := &list[k-1]
		if last.End() == e.Logical && last.Physical+uint64(last.Len) == e.Physical && last.Flags == e.Flags {
			last.Len += e.Len
			return list
		}
	}
	return append(list, e)
}

// rewritten appends what extent e is to become: its own blocks, and the copies
// of those that others keep.
func (c *cloner) rewritten(list []layout.Extent, e layout.Extent) []layout.Extent {
	i, _ := slices.BinarySearchFunc(c.runs, e.Logical, func(s sharedRun, at uint64) int { return cmp.Compare(s.logical, at) })
	if i == len(c.runs) || c.runs[i].logical >= e.End() {
		return appendExtent(list, e)
	}
	own := func(from, to uint64) layout.Extent {
		return layout.Extent{Logical: from, Physical: e.Physical + (from - e.Logical), Len: uint32(to - from), Flags: e.Flags}
	}
	at, longest := e.Logical, layout.Extent{}
	for ; at < e.End(); i++ {
		next, end := e.End(), e.End()
		var copies []layout.Extent
		if i < len(c.runs) && c.runs[i].logical < e.End() {
			next, end, copies = c.runs[i].logical, c.runs[i].end(), c.runs[i].copies
		}
		if x := own(at, next); x.Len > longest.Len {
			longest = x
		}
		if next > at && !c.scant {
			list = appendExtent(list, own(at, next))
		}
		for _, x := range copies {
			list = appendExtent(list, x)
		}
		at = end
	}
	if c.scant && longest.Len > 0 {
		list = append(list, longest)
	}
	return list
}

// entries is what the extents of a part are to become.
func (c *cloner) entries(part treePart) []layout.Extent {
	var list []layout.Extent
	for i := range part.count {
		list = c.rewritten(list, layout.GetExtent(part.array, i))
	}
	return list
}

// fits reports whether every part of the tree has room for what it is to hold.
func (c *cloner) fits() bool {
	n := c.inode()
	return c.fitsIn(c.r.rootPart(c.g, c.index, n), int(n.ExtentDepth()), n.RootExtents())
}

func (c *cloner) fitsIn(part treePart, height, room int) bool {
	if height == 0 {
		return len(c.entries(part)) <= room
	}
	for i := range part.count {
		if !c.fitsIn(c.r.nodePart(layout.GetExtent(part.array, i).Physical), height-1, layout.NodeExtents) {
			return false
		}
	}
	return true
}

// inPlace changes the parts of the tree that hold shared blocks, a step each.
func (c *cloner) inPlace() {
	n := c.inode()
	c.changePart(c.r.rootPart(c.g, c.index, n), int(n.ExtentDepth()))
}

// changePart returns how many entries are left.
func (c *cloner) changePart(part treePart, height int) int {
	if height == 0 {
		return c.changeLeaf(part)
	}
	return c.r.keep(part, func(_ int, e layout.Extent) (layout.Extent, bool) {
		if c.changePart(c.r.nodePart(e.Physical), height-1) == 0 {
			c.r.release(e.Physical)
			return e, false
		}
		return e, true
	})
}

func (c *cloner) changeLeaf(part treePart) int {
	list := c.entries(part)
	same := len(list) == part.count
	for i := 0; same && i < len(list); i++ {
		same = list[i] == layout.GetExtent(part.array, i)
	}
	if same || len(list) == 0 && part.node {
		return len(list)
	}
	array, setCount := part.stage()
	for i, e := range list {
		layout.PutExtent(array, i, e)
	}
	setCount(len(list))
	c.r.ch.commit()
	return len(list)
}

// rebuild makes a new tree, which the inode refers to in one step. Copies are
// given up again where no block is left for its nodes.
func (c *cloner) rebuild() {
	n := c.inode()
	list := c.gather(n)
	need, free := treeNodes(len(list), n.RootExtents()), c.r.countFree()
	for i := len(c.runs) - 1; i >= 0 && free < need; i-- {
		free += c.giveUp(&c.runs[i])
	}
	if free < need {
		c.scant = true
		c.releaseRest(n)
		c.inPlace()
		return
	}
	list = c.gather(n)
	var old []uint64
	c.r.eachExtentIn(n.Body(), int(n.ExtentCount()), int(n.ExtentDepth()), func(layout.Extent) {}, func(b uint64) { old = append(old, b) })
	root, depth, err := c.r.buildExtents(c.ino, list, n.RootExtents())
	if err != nil {
		c.r.left(Problem{Code: BlockShared, Group: c.g.num, Ino: c.ino}, "its blocks cannot be mapped anew: %v; delete or grow something and repair again", err)
		return
	}
	staged := c.r.stageInode(c.g, c.index)
	emptyRoot(staged)
	for i, e := range root {
		layout.PutExtent(staged.Body(), i, e)
	}
	staged.SetExtentDepth(depth)
	staged.SetExtentCount(uint16(len(root)))
	c.r.ch.commit()
	for _, b := range old {
		c.r.release(b)
	}
}

// gather is what all extents of the file are to become.
func (c *cloner) gather(n layout.Inode) []layout.Extent {
	var list []layout.Extent
	c.r.eachExtent(n, func(e layout.Extent) { list = c.rewritten(list, e) })
	return list
}

// giveUp makes a hole of a run after all, and returns how many blocks it had.
func (c *cloner) giveUp(s *sharedRun) uint64 {
	n := uint64(0)
	for _, e := range s.copies {
		for k := range uint64(e.Len) {
			c.r.release(e.Physical + k)
		}
		n += uint64(e.Len)
	}
	if s.copies = nil; n > 0 {
		c.r.did(Problem{Code: BlockShared, Group: c.g.num, Ino: c.ino, Block: s.physical},
			"the copy of blocks %d+%d of the file was given up, they became a hole: no block is free for the tree that maps it", s.logical, s.len)
	}
	return n
}

// releaseRest takes the claims back of the file's own blocks that a scant tree
// does not map.
func (c *cloner) releaseRest(n layout.Inode) {
	c.r.eachExtent(n, func(e layout.Extent) {
		kept := c.rewritten(nil, e)
		if len(kept) == 1 && kept[0] == e {
			return
		}
		lost := uint64(0)
		for at := e.Logical; at < e.End(); at++ {
			if len(kept) == 1 && at >= kept[0].Logical && at < kept[0].End() || c.shared(at) {
				continue
			}
			c.r.release(e.Physical + (at - e.Logical))
			lost++
		}
		if lost > 0 {
			c.r.did(Problem{Code: BlockShared, Group: c.g.num, Ino: c.ino, Block: e.Physical},
				"%d blocks of its own in the extent of blocks %d+%d of the file became a hole: no block is free for the tree that maps them", lost, e.Logical, e.Len)
		}
	})
}

// shared reports whether another owner keeps what block at of the file was.
func (c *cloner) shared(at uint64) bool {
	i, found := slices.BinarySearchFunc(c.runs, at, func(s sharedRun, at uint64) int { return cmp.Compare(s.logical, at) })
	return found || i > 0 && at < c.runs[i-1].end()
}

// treeNodes is how many nodes a tree of n extents has.
func treeNodes(n, root int) (nodes uint64) {
	for n > root {
		n = (n + layout.NodeExtents - 1) / layout.NodeExtents
		nodes += uint64(n)
	}
	return nodes
}

// buildExtents writes the nodes of a tree of extents. It returns the entries
// of its root, which has room for so many.
func (r *repairer) buildExtents(ino uint64, list []layout.Extent, room int) (root []layout.Extent, depth uint8, err error) {
	var made []uint64
	for len(list) > room {
		depth++
		var up []layout.Extent
		for part := range slices.Chunk(list, layout.NodeExtents) {
			block, err := r.alloc()
			if err != nil {
				for _, b := range made {
					r.release(b)
				}
				return nil, 0, err
			}
			made = append(made, block)
			n := make(layout.Node, blockSize)
			n.InitNode(layout.ExtentMagic, ino, uint16(depth))
			for i, e := range part {
				layout.PutExtent(n.Payload(), i, e)
			}
			n.SetCount(uint16(len(part)))
			r.ch.fresh(block, n)
			up = append(up, layout.Extent{Logical: part[0].Logical, Physical: block})
		}
		list = up
	}
	r.ch.settle()
	return list, depth, nil
}

// countBlocks is how many blocks a file owns.
func (r *repairer) countBlocks(n layout.Inode) uint64 {
	owned := r.xattrBlocks(n)
	if n.Format() == layout.FormatExtents {
		r.eachExtentIn(n.Body(), int(n.ExtentCount()), int(n.ExtentDepth()),
			func(e layout.Extent) { owned += uint64(e.Len) }, func(uint64) { owned++ })
	}
	return owned
}
