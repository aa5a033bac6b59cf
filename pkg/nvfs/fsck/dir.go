package fsck

import (
	"bytes"

	"github.com/dchest/siphash"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

const rootIno = 1

// walkDirectory walks a directory and counts its names, and reports whether
// it could begin to.
func (w *worker) walkDirectory(n layout.Inode) bool {
	if n.Format() != layout.FormatDir {
		w.broken(InodeFormat, 0, "a directory has format %d", n.Format())
		return false
	}
	if n.BodyRoom() < 8 {
		w.broken(InodeFormat, 0, "%d bytes of inline attributes leave no room for the root pointer", n.XattrInline())
		return false
	}
	if root := n.DirRoot(); root != 0 {
		w.walkDirBlock(root, dirPlace{run: 1})
	}
	return true
}

// finishDirectory compares what was found in a directory with its counts.
func (w *worker) finishDirectory(n layout.Inode) {
	w.sum.Names += w.at.names
	if w.at.broken {
		return
	}
	w.checkOwned(n)
	if n.Entries() != w.at.names {
		w.problem(DirCount, "it has %d names, its count says %d", w.at.names, n.Entries())
	}
	if n.Nlink() == 0 {
		if w.at.names > 0 {
			w.problem(Orphan, "a deleted directory has %d names", w.at.names)
		}
		return
	}
	if uint64(n.Nlink()) != w.at.subdirs+2 {
		w.problem(InodeNlink, "it has %d subdirectories, but %d links", w.at.subdirs, n.Nlink())
	}
}

// dirPlace is where a directory block is referred to from.
type dirPlace struct {
	level  int    // index blocks above
	prefix uint64 // key bits that these select, 8 a level, without the slot
	slot   int    // first of the run that refers to the block
	run    int    // length of the run
}

// walkDirBlock walks the leaf or index block in block. The recursion is at
// most layout.MaxDirLevel+1 deep.
func (w *worker) walkDirBlock(block uint64, at dirPlace) {
	if w.cancelled() || !w.claimDirBlock(block) {
		return
	}
	n := layout.Node(w.block(block))
	magic := n.Magic()
	switch {
	case !layout.Verify(w.seed, block, n.Covered()):
		w.broken(DirBlock, block, "the checksum of directory block %d is wrong", block)
	case magic != layout.DirLeafMagic && magic != layout.DirIndexMagic, n.Owner() != w.at.ino:
		w.broken(DirBlock, block, "directory block %d has magic %#x and owner %d", block, magic, n.Owner())
	case magic == layout.DirLeafMagic:
		w.checkLeaf(block, n, at)
	default:
		w.walkIndex(block, n, at)
	}
}

// claimDirBlock claims a block of the directory at work on and reports whether
// it is to be walked: once. One that a file has claimed too is walked when it
// is sound, lest all its names count as lost.
func (w *worker) claimDirBlock(block uint64) bool {
	free := w.claim(w.at.ino, block, 1, "a directory block")
	g := w.groupOf(block)
	if g == nil || block < g.start+uint64(g.meta) || !takeBit(&g.walked, uint32(block-g.start), layout.BitmapBits) {
		return false
	}
	n := layout.Node(w.block(block))
	return free || n.Owner() == w.at.ino && layout.Verify(w.seed, block, n.Covered())
}

// bitsAbove is the number of key bits that the index blocks above select.
func (p dirPlace) bitsAbove() int { return layout.DirFanoutBits * p.level }

func (w *worker) walkIndex(block uint64, n layout.Node, at dirPlace) {
	if at.level > layout.MaxDirLevel || int(n.Depth()) != at.level || at.run != 1 || n.Prefix() != at.prefixOf(at.bitsAbove()) {
		w.broken(DirTree, block, "index block %d of level %d and prefix %#x is referred to by %d slots of level %d and prefix %#x",
			block, n.Depth(), n.Prefix(), at.run, at.level, at.prefix)
		return
	}
	prefix, used := n.Prefix(), 0
	for i := 0; i < layout.DirFanout; {
		child, run := n.Slot(i), slotRun(n, i)
		i += run
		if child == 0 {
			continue
		}
		used += run
		below := dirPlace{level: at.level + 1, prefix: prefix, slot: i - run, run: run}
		if w.split != nil {
			w.later = append(w.later, subtree{dir: w.split, block: child, at: below})
		} else {
			w.walkDirBlock(child, below)
		}
	}
	if int(n.Count()) != used {
		w.problem(DirTree, "index block %d has %d used slots, its count says %d", block, used, n.Count())
	}
}

// slotRun is the number of neighbouring slots from i on that are the same.
func slotRun(n layout.Node, i int) int {
	run := 1
	for i+run < layout.DirFanout && n.Slot(i+run) == n.Slot(i) {
		run++
	}
	return run
}

// prefixOf is the first n key bits of what the place leads to; n is at least
// the bits above the last level.
func (p dirPlace) prefixOf(n int) uint64 {
	if p.level == 0 {
		return 0
	}
	return (p.prefix<<layout.DirFanoutBits | uint64(p.slot)) >> (p.bitsAbove() - n)
}

// fits reports whether a leaf that shares depth key bits, prefix, is
// referred to by exactly the slots that it should be.
func (p dirPlace) fits(depth int, prefix uint64) bool {
	below := p.bitsAbove() - depth
	if depth < 0 || below < 0 || p.level == 0 && depth != 0 || p.level > 0 && below > layout.DirFanoutBits {
		return false
	}
	return p.run == 1<<below && p.slot%p.run == 0 && prefix == p.prefixOf(depth)
}

// leafNames finds names of equal hash in a leaf: a small hash table of the
// positions of its entries.
type leafNames struct {
	table [512]uint16 // position + 1; a leaf holds at most 168 entries
}

// add enters the entry at pos and returns those with the same hash before it.
func (l *leafNames) add(payload []byte, pos int, visit func(layout.DirEntry)) {
	e := layout.DirEntry(payload[pos:])
	hash := e.Key() >> layout.KeyIndexBits
	for i := (hash * 0x9e3779b97f4a7c15 >> 55); ; i = (i + 1) % uint64(len(l.table)) {
		at := l.table[i]
		if at == 0 {
			l.table[i] = uint16(pos) + 1
			return
		}
		if o := layout.DirEntry(payload[at-1:]); o.Key()>>layout.KeyIndexBits == hash {
			visit(o)
		}
	}
}

func (w *worker) checkLeaf(block uint64, n layout.Node, at dirPlace) {
	depth, prefix := int(n.Depth()), n.Prefix()
	if !at.fits(depth, prefix) {
		w.broken(DirTree, block, "leaf %d of depth %d and prefix %#x is referred to by slots %d+%d of level %d",
			block, depth, prefix, at.slot, at.run, at.level-1)
		depth = 0 // whether its keys have the prefix means nothing now
		prefix = 0
	}
	var seen leafNames
	payload, count := n.Payload(), 0
	for pos := 0; pos < len(payload); {
		e := layout.DirEntryAt(payload, pos)
		if e == nil {
			w.broken(DirEntries, block, "the entry at byte %d of leaf %d is malformed", pos, block)
			return
		}
		if e.Ino() != 0 {
			count++
			w.checkName(block, e, depth, prefix)
			seen.add(payload, pos, func(o layout.DirEntry) { w.checkDuplicate(block, e, o) })
			w.checkTarget(block, e)
		}
		pos += len(e)
	}
	w.at.names += uint64(count)
	if count != int(n.Count()) {
		w.problem(DirEntries, "leaf %d has %d names, its count says %d", block, count, n.Count())
	}
}

// entryProblem adds a problem of an entry of the directory at work on.
func (w *worker) entryProblem(code Code, block uint64, e layout.DirEntry, format string, args ...any) {
	w.found.add(Problem{Code: code, Group: w.group.num, Ino: w.at.ino, Block: block}, "name %q: "+format, append([]any{e.Name()}, args...)...)
}

func (w *worker) checkName(block uint64, e layout.DirEntry, depth int, prefix uint64) {
	name := e.Name()
	if !legalName(name) {
		w.entryProblem(DirName, block, e, "it is not a legal name")
	}
	key := layout.KeyOf(siphash.Hash(w.key0, w.key1, name))
	if e.Key()&^layout.KeyIndexMask != key {
		w.entryProblem(DirKey, block, e, "its key is %#x, it should be %#x", e.Key(), key)
	} else if e.Key()>>(layout.KeyBits-depth) != prefix {
		w.entryProblem(DirKey, block, e, "its key %#x does not belong in leaf %d", e.Key(), block)
	}
}

func legalName(name []byte) bool {
	switch len(name) {
	case 0:
		return false
	case 1:
		return name[0] != 0 && name[0] != '/' && name[0] != '.'
	case 2:
		if name[0] == '.' && name[1] == '.' {
			return false
		}
	}
	return bytes.IndexByte(name, 0) < 0 && bytes.IndexByte(name, '/') < 0
}

func (w *worker) checkDuplicate(block uint64, e, o layout.DirEntry) {
	if bytes.Equal(e.Name(), o.Name()) {
		w.entryProblem(DirDuplicate, block, e, "it is there twice")
	} else if e.Key() == o.Key() {
		w.entryProblem(DirDuplicate, block, e, "it has the same key as %q", o.Name())
	}
}

// checkTarget counts the name for the inode that it refers to.
func (w *worker) checkTarget(block uint64, e layout.DirEntry) {
	ino, typ := e.Ino(), uint32(e.Type())
	perGroup := uint64(w.sb.InodesPerGroup)
	g := w.groupAt((ino - 1) / perGroup)
	index := uint32((ino - 1) % perGroup)
	if g != nil && index < g.inodes {
		if kind := uint32(g.kind(index)); kind != 0 && kind == typ && kind<<12 != unix.S_IFDIR {
			w.countName(g, index, ino)
			return
		}
	}
	if g == nil || index >= g.inodes || !g.inUse(w.volume, index) {
		w.entryProblem(DirDangling, block, e, "it refers to inode %d, which is not in use", ino)
		if typ<<12 == unix.S_IFDIR {
			w.at.subdirs++
		}
		return
	}
	w.countName(g, index, ino)
	n := w.inodeIn(g, index)
	mode := n.Mode()
	if typ != mode>>12 {
		w.entryProblem(DirType, block, e, "its type is %d, but inode %d has mode %#o", typ, ino, mode)
	}
	if mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	w.at.subdirs++
	if n.Parent() != w.at.ino && ino != rootIno {
		w.found.add(Problem{Code: DirParent, Group: g.num, Ino: ino}, "its parent is %d, but inode %d names it, %q", n.Parent(), w.at.ino, e.Name())
	}
}
