package fsck

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/dchest/siphash"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// lostName is the name of the directory, in the root, for what has lost its
// name.
const lostName = "lost+found"

// newName is a name to be added to a directory.
type newName struct {
	key  uint64
	name string
	ino  uint64
	typ  uint8
}

func (r *repairer) newName(name string, ino uint64, mode uint32) newName {
	return newName{layout.KeyOf(siphash.Hash(r.key0, r.key1, []byte(name))), name, ino, uint8(mode >> 12)}
}

// lostBatch is how many lost inodes get their names in one step.
const lostBatch = 64 << 10

// attachLost gives the inodes of list names in lost+found.
func (r *repairer) attachLost(list []uint64) {
	if len(list) == 0 || r.halted() {
		return
	}
	dir, err := r.lostAndFound()
	if err != nil {
		r.left(Problem{Code: InodeUnreachable}, "%d inodes have no name, and %s cannot be made: %v", len(list), lostName, err)
		return
	}
	list = slices.DeleteFunc(list, func(ino uint64) bool { return ino == dir })
	for batch := range slices.Chunk(list, lostBatch) {
		var names []newName
		subdirs := uint32(0)
		for _, ino := range batch {
			g, index := r.place(ino)
			mode := r.inodeIn(g, index).Mode()
			names = append(names, r.newName(r.freeName(dir, fmt.Sprintf("#%d", ino)), ino, mode))
			if mode&unix.S_IFMT == unix.S_IFDIR {
				subdirs++
			}
		}
		if err := r.addNames(dir, names, subdirs, nil); err != nil {
			r.left(Problem{Code: InodeUnreachable, Ino: batch[0]}, "%d inodes from this one on have no name, and cannot be put into %s: %v", len(batch), lostName, err)
			return
		}
		for _, ino := range batch {
			r.attached(ino, dir)
		}
	}
}

// attached makes the inode of a lost file say that it is in lost+found.
func (r *repairer) attached(ino, dir uint64) {
	g, index := r.place(ino)
	n := r.stageInode(g, index)
	n.SetParent(dir)
	if n.Mode()&unix.S_IFMT != unix.S_IFDIR {
		n.SetNlink(1)
	}
	if r.isOrphan(g, index) {
		r.setInodeBit(g, layout.GroupOrphans, index, false)
	}
	r.did(Problem{Code: InodeUnreachable, Group: g.num, Ino: ino}, "it had no name; it is in %s now", lostName)
	r.ch.commit()
}

// freeName is name, or name with the first suffix that dir has not.
func (r *repairer) freeName(dir uint64, name string) string {
	free := name
	for i := 1; r.find(dir, free) != 0; i++ {
		free = fmt.Sprintf("%s.%d", name, i)
	}
	return free
}

// find looks a name up in a directory that is right; 0 when it is not there.
func (r *repairer) find(dir uint64, name string) uint64 {
	g, index := r.place(dir)
	key := layout.KeyOf(siphash.Hash(r.key0, r.key1, []byte(name)))
	block := r.inodeIn(g, index).DirRoot()
	for level := uint16(0); level <= layout.MaxDirLevel+1 && r.soundDirBlock(dir, block); level++ {
		n := layout.Node(r.block(block))
		if n.Magic() == layout.DirIndexMagic {
			block = n.Slot(layout.KeySlot(key, level))
			continue
		}
		for pos := 0; pos < len(n.Payload()); {
			e := layout.DirEntryAt(n.Payload(), pos)
			if e == nil {
				return 0
			}
			if e.Ino() != 0 && string(e.Name()) == name {
				return e.Ino()
			}
			pos += len(e)
		}
		return 0
	}
	return 0
}

var errNoInode = errors.New("no inode is free")

// lostAndFound returns the directory, made when there is none.
func (r *repairer) lostAndFound() (uint64, error) {
	name := lostName
	for i := 1; ; i++ {
		ino := r.find(rootIno, name)
		if ino == 0 {
			return r.makeLostAndFound(name)
		}
		if n := r.inode(ino); n != nil && n.Mode()&unix.S_IFMT == unix.S_IFDIR {
			return ino, nil
		}
		name = fmt.Sprintf("%s.%d", lostName, i)
	}
}

func (r *repairer) makeLostAndFound(name string) (uint64, error) {
	g, index, err := r.freeInode()
	if err != nil {
		return 0, err
	}
	ino := r.ino(g, index)
	err = r.addNames(rootIno, []newName{r.newName(name, ino, unix.S_IFDIR)}, 1, func() {
		gen := uint32(0)
		if old := r.inodeIn(g, index); layout.Verify(r.seed, ino, old) {
			gen = (old.Generation() + 1) & (1<<28 - 1)
		}
		n := r.stageInode(g, index)
		clear(n)
		n.SetMode(unix.S_IFDIR | 0o700)
		n.SetGeneration(gen)
		n.SetNlink(2)
		n.SetParent(rootIno)
		n.SetFormat(layout.FormatDir)
		r.setTimes(n)
		r.setInodeBit(g, layout.GroupInodeBitmap, index, true)
	})
	return ino, err
}

func (r *repairer) freeInode() (*group, uint32, error) {
	for k := range r.groups {
		g := &r.groups[k]
		for index := range g.inodes {
			if !g.inUse(r.volume, index) {
				return g, index, nil
			}
		}
	}
	return nil, 0, errNoInode
}

// addNames adds names, which must not exist, to a directory that is right.
// The leaves that change are written anew in free blocks, and one step lets
// the directory refer to them; extra stages what else belongs to it.
func (r *repairer) addNames(dir uint64, names []newName, subdirs uint32, extra func()) error {
	g, index := r.place(dir)
	old := r.walkTree(dir, r.inodeIn(g, index).DirRoot(), false)
	slices.SortFunc(old.leaves, byKey)
	slices.SortFunc(names, func(a, b newName) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.name, b.name)) })
	m := leafMerger{r: r, dir: dir}
	added := uint64(len(names))
	leaves, err := m.merge(0, 0, old.leaves, names)
	before := len(r.remaining)
	if err == nil {
		r.rebuildTree(dir, &dirTree{leaves: leaves, index: old.index}, func(n layout.Inode) {
			n.SetEntries(n.Entries() + added)
			n.SetNlink(n.Nlink() + subdirs)
			if extra != nil {
				extra()
			}
		})
	}
	switch {
	case err != nil:
	case r.ch.err != nil:
		err = r.ch.err
	case len(r.remaining) > before: // the index could not be made
		err = errNoBlock
	}
	if err != nil {
		for _, b := range m.made {
			r.release(b)
		}
		return err
	}
	for _, b := range m.replaced {
		r.release(b)
	}
	return nil
}

// leafMerger merges names into leaves.
type leafMerger struct {
	r        *repairer
	dir      uint64
	made     []uint64
	replaced []uint64
}

// merge returns the leaves of the range of keys that begin with prefix, of
// depth bits, once names are added. Both lists are sorted and in the range.
func (m *leafMerger) merge(depth uint8, prefix uint64, leaves []leafRef, names []newName) ([]leafRef, error) {
	if len(names) == 0 {
		return leaves, nil
	}
	if len(leaves) == 1 && (leaves[0].depth <= depth || len(names) <= 64) {
		names = m.open(leaves[0], names)
		leaves = nil
	}
	if len(leaves) == 0 && size(names) <= layout.BlockSize-layout.NodeHeader {
		l, err := m.write(depth, prefix, names)
		return []leafRef{l}, err
	}
	if depth == maxLeafDepth {
		return nil, errNoBlock
	}
	half := leafRef{prefix: prefix<<1 | 1, depth: depth + 1}
	i, _ := slices.BinarySearchFunc(leaves, half, byKey)
	j, _ := slices.BinarySearchFunc(names, half.start(), func(n newName, key uint64) int { return cmp.Compare(n.key, key) })
	left, err := m.merge(depth+1, prefix<<1, leaves[:i:i], names[:j:j])
	if err != nil {
		return nil, err
	}
	right, err := m.merge(depth+1, prefix<<1|1, leaves[i:], names[j:])
	return append(slices.Clip(left), right...), err
}

func size(names []newName) int {
	n := 0
	for _, x := range names {
		n += layout.DirEntryLen(len(x.name))
	}
	return n
}

// open adds the names of a leaf that is to be replaced.
func (m *leafMerger) open(l leafRef, names []newName) []newName {
	m.replaced = append(m.replaced, l.block)
	var all []newName
	payload := layout.Node(m.r.block(l.block)).Payload()
	for pos := 0; pos < len(payload); {
		e := layout.DirEntryAt(payload, pos)
		if e.Ino() != 0 {
			all = append(all, newName{e.Key(), string(e.Name()), e.Ino(), e.Type()})
		}
		pos += len(e)
	}
	// A name that has a key keeps it before a new one of the same hash.
	all = append(all, names...)
	slices.SortStableFunc(all, func(a, b newName) int { return cmp.Compare(a.key, b.key) })
	return all
}

// write makes a leaf.
func (m *leafMerger) write(depth uint8, prefix uint64, names []newName) (leafRef, error) {
	block, err := m.r.alloc()
	if err != nil {
		return leafRef{}, err
	}
	m.made = append(m.made, block)
	n := make(layout.Node, blockSize)
	n.InitNode(layout.DirLeafMagic, m.dir, uint16(depth))
	n.SetPrefix(prefix)
	n.SetCount(uint16(len(names)))
	p, pos, used := n.Payload(), 0, map[uint64]bool{}
	var e layout.DirEntry
	for _, x := range names {
		for used[x.key] {
			if x.key++; x.key&layout.KeyIndexMask == 0 {
				return leafRef{}, fmt.Errorf("too many names of one hash")
			}
		}
		used[x.key] = true
		e = layout.DirEntry(p[pos:])
		e.SetIno(x.ino)
		e.SetKey(x.key)
		e.SetType(x.typ)
		e.SetName([]byte(x.name))
		e.SetRecLen(uint16(layout.DirEntryLen(len(x.name))))
		pos += layout.DirEntryLen(len(x.name))
	}
	if rest := len(p) - pos; rest >= layout.DirEntryMin {
		layout.DirEntry(p[pos:]).SetRecLen(uint16(rest))
	} else {
		e.SetRecLen(e.RecLen() + uint16(rest))
	}
	m.r.ch.fresh(block, n)
	return leafRef{block, prefix, depth}, nil
}
