package nvfs

import (
	"bytes"
	"slices"

	"github.com/dchest/siphash"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// A directory is a hash tree that is cut off as soon as a block holds all
// names of a hash prefix: leaves with names, index blocks with 256 slots
// above them. Neighbouring slots share a leaf until it fills and is split.

// dirKey is the key of a name, with index 0.
func (fs *FS) dirKey(name []byte) uint64 {
	return layout.KeyOf(siphash.Hash(fs.key0, fs.key1, name))
}

// dirPath is the way to a leaf. level is the number of index blocks above
// it; leaf is 0 when the slot is empty.
type dirPath struct {
	index [layout.MaxDirLevel + 1]uint64 // blocks
	slot  [layout.MaxDirLevel + 1]int
	level int
	leaf  uint64
}

// dirWalk finds the leaf that covers key. A lock of the directory is held.
func (w *Worker) dirWalk(ino uint64, n layout.Inode, key uint64, p *dirPath) error {
	*p = dirPath{}
	for block := n.DirRoot(); block != 0; {
		b, err := w.peekNode(block, 0, ino)
		if err != nil {
			return err
		}
		if b.Magic() == layout.DirLeafMagic {
			if d := int(b.Depth()); d > layout.DirFanoutBits*p.level || d > 0 && b.Prefix() != key>>(layout.KeyBits-d) {
				return w.fs.damaged(false, "directory %d: leaf %d is out of place", ino, block)
			}
			p.leaf = block
			return nil
		}
		if int(b.Depth()) != p.level || p.level > layout.MaxDirLevel ||
			p.level > 0 && b.Prefix() != key>>(layout.KeyBits-layout.DirFanoutBits*p.level) {
			return w.fs.damaged(false, "directory %d: index block %d is out of place", ino, block)
		}
		p.index[p.level], p.slot[p.level] = block, layout.KeySlot(key, uint16(p.level))
		block = b.Slot(p.slot[p.level])
		p.level++
	}
	return nil
}

// dirEntryAt returns the entry at pos of a leaf's payload, nil when it is
// malformed or has no name.
func dirEntryAt(payload []byte, pos int) layout.DirEntry {
	e := layout.DirEntryAt(payload, pos)
	if e != nil && e.Ino() != 0 && e.NameLen() == 0 {
		return nil
	}
	return e
}

// dirScan is what a pass over a leaf found.
type dirScan struct {
	pos  int // of the name; -1 when it is not there
	prev int // of the entry before it; -1 for none
	room int // of free space for a new entry; -1 for none
	free int // free bytes in all
	used uint8
}

// scanLeaf looks for a name, and for room for one of its length.
func (w *Worker) scanLeaf(ino uint64, leaf layout.Node, key uint64, name []byte) (dirScan, error) {
	s := dirScan{pos: -1, prev: -1, room: -1}
	need := layout.DirEntryLen(len(name))
	payload, last := leaf.Payload(), -1
	for pos := 0; pos < len(payload); {
		e := dirEntryAt(payload, pos)
		if e == nil {
			return s, w.fs.damaged(false, "directory %d: an entry is malformed", ino)
		}
		room := len(e)
		if e.Ino() != 0 {
			if e.Key()&^layout.KeyIndexMask == key {
				s.used |= 1 << (e.Key() & layout.KeyIndexMask)
				if bytes.Equal(e.Name(), name) {
					s.pos, s.prev = pos, last
					return s, nil
				}
			}
			room -= layout.DirEntryLen(int(e.NameLen()))
		}
		s.free += room
		if room >= need && s.room < 0 {
			s.room = pos
		}
		last = pos
		pos += len(e)
	}
	return s, nil
}

// dirFind looks a name up: the inode number and type, or ENOENT.
func (w *Worker) dirFind(ino uint64, n layout.Inode, name []byte) (uint64, uint8, error) {
	var p dirPath
	key := w.fs.dirKey(name)
	if err := w.dirWalk(ino, n, key, &p); err != nil {
		return 0, 0, err
	}
	if p.leaf == 0 {
		return 0, 0, errNotExist
	}
	leaf, err := w.peekNode(p.leaf, layout.DirLeafMagic, ino)
	if err != nil {
		return 0, 0, err
	}
	s, err := w.scanLeaf(ino, leaf, key, name)
	if err != nil {
		return 0, 0, err
	}
	if s.pos < 0 {
		return 0, 0, errNotExist
	}
	e := dirEntryAt(leaf.Payload(), s.pos)
	return e.Ino(), e.Type(), nil
}

// dirInsert stages a new name, which must not exist, in the staged directory
// inode n.
func (w *Worker) dirInsert(ino uint64, n layout.Inode, name []byte, child uint64, typ uint8) error {
	key := w.fs.dirKey(name)
	for {
		var p dirPath
		if err := w.dirWalk(ino, n, key, &p); err != nil {
			return err
		}
		leaf, err := w.leafFor(ino, n, key, &p)
		if err != nil {
			return err
		}
		s, err := w.scanLeaf(ino, leaf, key, name)
		if err != nil {
			return err
		}
		if s.pos >= 0 {
			return errExist
		}
		if s.used == 1<<(layout.KeyIndexMask+1)-1 {
			return errNoSpace // nine names of one 59-bit keyed hash
		}
		if s.room < 0 && s.free >= layout.DirEntryLen(len(name))+layout.DirEntryMin {
			w.compactLeaf(leaf)
			if s, err = w.scanLeaf(ino, leaf, key, name); err != nil {
				return err
			}
		}
		if s.room >= 0 {
			for s.used>>(key&layout.KeyIndexMask)&1 == 1 {
				key++
			}
			placeEntry(leaf, s.room, name, key, child, typ)
			n.SetEntries(n.Entries() + 1)
			return nil
		}
		if err := w.splitLeaf(ino, n, &p, leaf); err != nil {
			return err
		}
	}
}

// placeEntry puts an entry into the free space at or behind the entry at pos.
func placeEntry(leaf layout.Node, pos int, name []byte, key, child uint64, typ uint8) {
	e := dirEntryAt(leaf.Payload(), pos)
	if e.Ino() != 0 {
		used := layout.DirEntryLen(int(e.NameLen()))
		rest := e[used:]
		e.SetRecLen(uint16(used))
		rest.SetRecLen(uint16(len(rest)))
		e = rest
	} else if need := layout.DirEntryLen(len(name)); len(e)-need >= layout.DirEntryMin {
		rest := e[need:]
		rest.SetIno(0)
		rest.SetRecLen(uint16(len(rest)))
		e.SetRecLen(uint16(need))
	}
	e.SetIno(child)
	e.SetKey(key)
	e.SetType(typ)
	e.SetName(name)
	leaf.SetCount(leaf.Count() + 1)
}

// emptyLeaf makes the payload one free entry.
func emptyLeaf(leaf layout.Node) {
	e := layout.DirEntry(leaf.Payload())
	e.SetIno(0)
	e.SetRecLen(uint16(len(leaf.Payload())))
	leaf.SetCount(0)
}

// compactLeaf joins the free space of a staged leaf.
func (w *Worker) compactLeaf(leaf layout.Node) {
	var old [layout.BlockSize - layout.NodeHeader]byte
	copy(old[:], leaf.Payload())
	w.moveEntries(leaf, old[:], func(uint64) bool { return true })
}

// moveEntries fills leaf with those entries of payload whose key is wanted.
func (w *Worker) moveEntries(leaf layout.Node, payload []byte, want func(key uint64) bool) {
	to, count, last := 0, 0, layout.DirEntry(nil)
	for pos := 0; pos < len(payload); {
		e := dirEntryAt(payload, pos)
		pos += len(e)
		if e.Ino() == 0 || !want(e.Key()) {
			continue
		}
		size := layout.DirEntryLen(int(e.NameLen()))
		last = layout.DirEntry(leaf.Payload()[to:])
		copy(last, e[:size])
		last.SetRecLen(uint16(size))
		to += size
		count++
	}
	rest := len(leaf.Payload()) - to
	switch {
	case last == nil:
		emptyLeaf(leaf)
	case rest >= layout.DirEntryMin:
		free := layout.DirEntry(leaf.Payload()[to:])
		free.SetIno(0)
		free.SetRecLen(uint16(rest))
	default:
		last.SetRecLen(last.RecLen() + uint16(rest))
	}
	leaf.SetCount(uint16(count))
}

// leafFor returns the staged leaf of the path, made new where there is none.
func (w *Worker) leafFor(ino uint64, n layout.Inode, key uint64, p *dirPath) (layout.Node, error) {
	if p.leaf != 0 {
		return w.stageNode(p.leaf, layout.DirLeafMagic, ino)
	}
	depth := uint16(0)
	var index layout.Node
	lo, run := 0, 0
	if p.level > 0 {
		var err error
		if index, err = w.stageNode(p.index[p.level-1], layout.DirIndexMagic, ino); err != nil {
			return nil, err
		}
		lo, run = emptyRun(index, p.slot[p.level-1])
		depth = uint16(layout.DirFanoutBits*p.level) - log2(run)
	}
	block, leaf, err := w.newNode(layout.DirLeafMagic, ino, depth)
	if err != nil {
		return nil, err
	}
	emptyLeaf(leaf)
	leaf.SetPrefix(key >> (layout.KeyBits - depth))
	n.SetBlocks(n.Blocks() + 1)
	p.leaf = block
	if index == nil {
		n.SetDirRoot(block)
		return leaf, nil
	}
	for i := lo; i < lo+run; i++ {
		index.SetSlot(i, block)
	}
	index.SetCount(index.Count() + uint16(run))
	return leaf, nil
}

// emptyRun is the largest aligned power-of-two run of empty slots around
// slot.
func emptyRun(index layout.Node, slot int) (lo, run int) {
	lo, run = slot, 1
	for run < layout.DirFanout {
		start := lo &^ (2*run - 1)
		for i := start; i < start+2*run; i++ {
			if index.Slot(i) != 0 {
				return lo, run
			}
		}
		lo, run = start, 2*run
	}
	return lo, run
}

func log2(n int) uint16 {
	k := uint16(0)
	for ; n > 1; n >>= 1 {
		k++
	}
	return k
}

// splitLeaf divides a full staged leaf by the next bit of the key, adding an
// index block above it when the leaf has only one slot.
func (w *Worker) splitLeaf(ino uint64, n layout.Inode, p *dirPath, leaf layout.Node) error {
	depth := int(leaf.Depth())
	if depth == layout.DirFanoutBits*p.level {
		return w.deepen(ino, n, p, leaf)
	}
	index, err := w.stageNode(p.index[p.level-1], layout.DirIndexMagic, ino)
	if err != nil {
		return err
	}
	w.tx.cost += layout.BlockSize
	run := 1 << (layout.DirFanoutBits*p.level - depth)
	lo := p.slot[p.level-1] &^ (run - 1)
	bit := layout.KeyBits - depth - 1
	var old [layout.BlockSize - layout.NodeHeader]byte
	copy(old[:], leaf.Payload())
	ones := countOnes(old[:], bit)
	prefix := leaf.Prefix() << 1
	leaf.SetDepth(uint16(depth + 1))
	if ones == 0 || ones == int(leaf.Count()) { // the other half is empty: no block for it
		empty := lo + run/2
		leaf.SetPrefix(prefix)
		if ones != 0 {
			empty = lo
			leaf.SetPrefix(prefix | 1)
		}
		for i := empty; i < empty+run/2; i++ {
			index.SetSlot(i, 0)
		}
		index.SetCount(index.Count() - uint16(run/2))
		return nil
	}
	block, right, err := w.newNode(layout.DirLeafMagic, ino, uint16(depth+1))
	if err != nil {
		return err
	}
	n.SetBlocks(n.Blocks() + 1)
	right.SetPrefix(prefix | 1)
	leaf.SetPrefix(prefix)
	w.moveEntries(right, old[:], func(key uint64) bool { return key>>bit&1 == 1 })
	dropEntries(leaf, func(key uint64) bool { return key>>bit&1 == 1 })
	for i := lo + run/2; i < lo+run; i++ {
		index.SetSlot(i, block)
	}
	return nil
}

func countOnes(payload []byte, bit int) int {
	n := 0
	for pos := 0; pos < len(payload); {
		e := dirEntryAt(payload, pos)
		if e.Ino() != 0 && e.Key()>>bit&1 == 1 {
			n++
		}
		pos += len(e)
	}
	return n
}

// dropEntries frees the entries with a key that is to go, in place, so that
// the record stays small.
func dropEntries(leaf layout.Node, drop func(key uint64) bool) {
	prev, count := layout.DirEntry(nil), 0
	payload := leaf.Payload()
	for pos := 0; pos < len(payload); {
		e := dirEntryAt(payload, pos)
		size := len(e)
		if e.Ino() != 0 && drop(e.Key()) {
			e.SetIno(0)
		}
		if e.Ino() == 0 && prev != nil && prev.Ino() == 0 {
			prev.SetRecLen(prev.RecLen() + uint16(size))
		} else {
			prev = layout.DirEntry(payload[pos:])
		}
		if e.Ino() != 0 {
			count++
		}
		pos += size
	}
	leaf.SetCount(uint16(count))
}

// deepen puts an index block above a leaf that has a single slot.
func (w *Worker) deepen(ino uint64, n layout.Inode, p *dirPath, leaf layout.Node) error {
	if p.level > layout.MaxDirLevel {
		return errNoSpace
	}
	block, index, err := w.newNode(layout.DirIndexMagic, ino, uint16(p.level))
	if err != nil {
		return err
	}
	n.SetBlocks(n.Blocks() + 1)
	index.SetPrefix(leaf.Prefix())
	index.SetCount(layout.DirFanout)
	for i := range layout.DirFanout {
		index.SetSlot(i, p.leaf)
	}
	if p.level == 0 {
		n.SetDirRoot(block)
		return nil
	}
	above, err := w.stageNode(p.index[p.level-1], layout.DirIndexMagic, ino)
	if err != nil {
		return err
	}
	above.SetSlot(p.slot[p.level-1], block)
	return nil
}

// dirStage finds a name and stages its leaf.
func (w *Worker) dirStage(ino uint64, n layout.Inode, name []byte, p *dirPath) (layout.Node, dirScan, error) {
	key := w.fs.dirKey(name)
	if err := w.dirWalk(ino, n, key, p); err != nil {
		return nil, dirScan{}, err
	}
	if p.leaf == 0 {
		return nil, dirScan{}, errNotExist
	}
	leaf, err := w.stageNode(p.leaf, layout.DirLeafMagic, ino)
	if err != nil {
		return nil, dirScan{}, err
	}
	s, err := w.scanLeaf(ino, leaf, key, name)
	if err == nil && s.pos < 0 {
		err = errNotExist
	}
	return leaf, s, err
}

// dirReplace lets an existing name refer to another inode.
func (w *Worker) dirReplace(ino uint64, n layout.Inode, name []byte, child uint64, typ uint8) error {
	var p dirPath
	leaf, s, err := w.dirStage(ino, n, name, &p)
	if err != nil {
		return err
	}
	e := dirEntryAt(leaf.Payload(), s.pos)
	e.SetIno(child)
	e.SetType(typ)
	return nil
}

// dirRemove stages the removal of a name and frees blocks that became empty.
func (w *Worker) dirRemove(ino uint64, n layout.Inode, name []byte) error {
	var p dirPath
	leaf, s, err := w.dirStage(ino, n, name, &p)
	if err != nil {
		return err
	}
	e := dirEntryAt(leaf.Payload(), s.pos)
	e.SetIno(0)
	n.SetEntries(n.Entries() - 1)
	leaf.SetCount(leaf.Count() - 1)
	if leaf.Count() == 0 {
		return w.dropLeaf(ino, n, &p, int(leaf.Depth()))
	}
	if next := s.pos + len(e); next < len(leaf.Payload()) {
		if f := dirEntryAt(leaf.Payload(), next); f != nil && f.Ino() == 0 {
			e.SetRecLen(e.RecLen() + f.RecLen())
		}
	}
	if s.prev >= 0 {
		f := layout.DirEntry(leaf.Payload()[s.prev:])
		f.SetRecLen(f.RecLen() + e.RecLen())
	}
	return nil
}

// dropLeaf frees an empty leaf and the index blocks above it that have no
// other.
func (w *Worker) dropLeaf(ino uint64, n layout.Inode, p *dirPath, depth int) error {
	block := p.leaf
	run := 1
	if p.level > 0 {
		run = 1 << (layout.DirFanoutBits*p.level - depth)
	}
	for level := p.level; ; level-- {
		if err := w.freeNode(block); err != nil {
			return err
		}
		n.SetBlocks(n.Blocks() - 1)
		if level == 0 {
			n.SetDirRoot(0)
			return nil
		}
		block = p.index[level-1]
		index, err := w.stageNode(block, layout.DirIndexMagic, ino)
		if err != nil {
			return err
		}
		lo := p.slot[level-1] &^ (run - 1)
		for i := lo; i < lo+run; i++ {
			index.SetSlot(i, 0)
		}
		if int(index.Count()) < run {
			return w.fs.damaged(false, "directory %d: index block %d miscounts its slots", ino, block)
		}
		index.SetCount(index.Count() - uint16(run))
		if index.Count() > 0 {
			return nil
		}
		run = 1
	}
}

// dirOrder is an entry of a leaf in the order of keys.
type dirOrder struct {
	key uint64
	pos int
}

// Directory cookies: names follow "." and ".." in the order of their keys.
// A cookie is the position after an entry, so it stays good while names
// come and go.
const (
	cookieDot    = 1
	cookieDotDot = 2
	cookieKey    = 3 // plus the key
)

// ReadDir yields the names after cookie (0: from the start), until yield
// returns false. The directory is locked meanwhile: yield must not call the
// worker. IDs are not filled in.
func (w *Worker) ReadDir(id NodeID, cookie uint64, yield func(*DirEntry) bool) error {
	w.rlock(id.Ino())
	defer w.unlock()
	n, err := w.fs.inodeAt(id)
	if err != nil {
		return err
	}
	if !isDir(n) {
		return errNotDir
	}
	e := DirEntry{Type: 0040000}
	if cookie < cookieDot {
		e.Name, e.Ino, e.Cookie = dotName, id.Ino(), cookieDot
		if !yield(&e) {
			return nil
		}
	}
	if cookie < cookieDotDot {
		e.Name, e.Ino, e.Cookie = dotDotName, n.Parent(), cookieDotDot
		if !yield(&e) {
			return nil
		}
	}
	key := uint64(0)
	if cookie > cookieDotDot {
		key = cookie - cookieKey + 1
	}
	for key < 1<<layout.KeyBits {
		var p dirPath
		if err := w.dirWalk(id.Ino(), n, key, &p); err != nil {
			return err
		}
		depth := layout.DirFanoutBits * p.level
		if p.leaf != 0 {
			leaf, err := w.peekNode(p.leaf, layout.DirLeafMagic, id.Ino())
			if err != nil {
				return err
			}
			depth = int(leaf.Depth())
			if more, err := w.readLeaf(id.Ino(), leaf, key, &e, yield); err != nil || !more {
				return err
			}
		}
		key = (key>>(layout.KeyBits-depth) + 1) << (layout.KeyBits - depth)
	}
	return nil
}

var dotName, dotDotName = []byte("."), []byte("..")

// readLeaf yields the names of a leaf from key on, in the order of keys.
func (w *Worker) readLeaf(ino uint64, leaf layout.Node, key uint64, e *DirEntry, yield func(*DirEntry) bool) (bool, error) {
	w.order = w.order[:0]
	payload := leaf.Payload()
	for pos := 0; pos < len(payload); {
		d := dirEntryAt(payload, pos)
		if d == nil {
			return false, w.fs.damaged(false, "directory %d: an entry is malformed", ino)
		}
		if d.Ino() != 0 && d.Key() >= key {
			w.order = append(w.order, dirOrder{d.Key(), pos})
		}
		pos += len(d)
	}
	slices.SortFunc(w.order, func(a, b dirOrder) int {
		if a.key < b.key {
			return -1
		}
		return 1
	})
	for _, o := range w.order {
		d := dirEntryAt(payload, o.pos)
		e.Name, e.Ino, e.Type, e.Cookie = d.Name(), d.Ino(), uint32(d.Type())<<12, o.key+cookieKey
		if !yield(e) {
			return false, nil
		}
	}
	return true, nil
}
