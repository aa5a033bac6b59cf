package fsck

import (
	"bytes"

	"github.com/dchest/siphash"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// eachDirectory visits the directories in use.
func (r *repairer) eachDirectory(visit func(g *group, index uint32, n layout.Inode)) {
	r.eachInode(func(g *group, index uint32, n layout.Inode) {
		if n.Mode()&unix.S_IFMT == unix.S_IFDIR {
			visit(g, index, n)
		}
	})
}

// noteParents marks the directories that the directory which they call their
// parent names.
func (r *repairer) noteParents() {
	r.eachDirectory(func(g *group, index uint32, n layout.Inode) {
		ino := r.ino(g, index)
		for _, l := range r.walkTree(ino, n.DirRoot(), false).leaves {
			payload := layout.Node(r.block(l.block)).Payload()
			for pos := 0; pos < len(payload); {
				e := layout.DirEntryAt(payload, pos)
				if e == nil {
					break
				}
				pos += len(e)
				if child := r.inode(e.Ino()); child != nil && child.Mode()&unix.S_IFMT == unix.S_IFDIR && child.Parent() == ino {
					cg, ci := r.place(e.Ino())
					setBit(&cg.byParent, ci, cg.inodes)
				}
			}
		}
	})
}

// repairNames removes the names that may not be, and makes the counts of the
// directories right.
func (r *repairer) repairNames() {
	r.eachDirectory(func(g *group, index uint32, n layout.Inode) {
		d := dirNames{r: r, ino: r.ino(g, index)}
		t := r.walkTree(d.ino, n.DirRoot(), false)
		for _, l := range t.leaves {
			d.leaf(l)
		}
		if d.emptied {
			r.rebuildTree(d.ino, t, nil)
		}
		nlink := d.subdirs + 2
		if n.Nlink() == 0 && d.names == 0 {
			nlink = 0 // an orphan, unless it has a name
		}
		if n.Entries() == d.names && n.Nlink() == nlink {
			return
		}
		r.did(Problem{Code: DirCount, Group: g.num, Ino: d.ino}, "names were set from %d to %d, links from %d to %d", n.Entries(), d.names, n.Nlink(), nlink)
		c := r.stageInode(g, index)
		c.SetEntries(d.names)
		c.SetNlink(nlink)
		r.ch.commit()
	})
}

// dirNames repairs the names of one directory.
type dirNames struct {
	r       *repairer
	ino     uint64
	names   uint64
	subdirs uint32
	emptied bool // a leaf has lost its last name
}

// leaf repairs one leaf, in one step.
func (d *dirNames) leaf(l leafRef) {
	n := layout.Node(append([]byte(nil), d.r.block(l.block)...))
	payload, count := n.Payload(), 0
	var seen leafNames
	for pos, last := 0, -1; pos < len(payload); {
		e := layout.DirEntryAt(payload, pos)
		if e == nil {
			d.r.did(Problem{Code: DirEntries, Ino: d.ino, Block: l.block}, "leaf %d was cut at byte %d", l.block, pos)
			cutLeaf(payload, pos, last)
			break
		}
		last = pos
		if e.Ino() != 0 {
			if code, why := d.refuse(l, e, payload, pos, &seen); code != "" {
				d.r.did(Problem{Code: code, Ino: d.ino, Block: l.block}, "name %q of inode %d was removed: %s", e.Name(), e.Ino(), why)
				e.SetIno(0)
			} else {
				count++
				d.accept(l, e)
			}
		}
		pos += len(e)
	}
	n.SetCount(uint16(count))
	d.names += uint64(count)
	d.emptied = d.emptied || count == 0
	if !bytes.Equal(n, d.r.block(l.block)) {
		copy(d.r.ch.stageNode(l.block), n)
		d.r.ch.commit()
	}
}

// cutLeaf makes free space of what is behind pos; last is the entry before.
func cutLeaf(payload []byte, pos, last int) {
	rest := len(payload) - pos
	if rest >= layout.DirEntryMin {
		free := layout.DirEntry(payload[pos:])
		free.SetIno(0)
		free.SetRecLen(uint16(rest))
		return
	}
	e := layout.DirEntry(payload[last:])
	e.SetRecLen(e.RecLen() + uint16(rest))
}

// refuse says why a name may not stay, "" if it may.
func (d *dirNames) refuse(l leafRef, e layout.DirEntry, payload []byte, pos int, seen *leafNames) (code Code, why string) {
	key := layout.KeyOf(siphash.Hash(d.r.key0, d.r.key1, e.Name()))
	child := d.r.inode(e.Ino())
	switch {
	case !legalName(e.Name()):
		return DirName, "it is illegal"
	case e.Key()&^layout.KeyIndexMask != key, e.Key()>>(layout.KeyBits-l.depth) != l.prefix:
		return DirKey, "it is in the wrong place"
	case child == nil:
		return DirDangling, "its inode is not in use"
	case e.Ino() == rootIno:
		return Root, "it names the root"
	}
	seen.add(payload, pos, func(o layout.DirEntry) {
		if o.Ino() != 0 && (bytes.Equal(e.Name(), o.Name()) || e.Key() == o.Key()) {
			code, why = DirDuplicate, "it is there twice"
		}
	})
	if code == "" && child.Mode()&unix.S_IFMT == unix.S_IFDIR && !d.mayName(e.Ino(), child) {
		return DirNamedTwice, "the directory has another name"
	}
	return code, why
}

// mayName decides which name of a directory stays: one in the directory that
// it calls its parent, else the first.
func (d *dirNames) mayName(ino uint64, child layout.Inode) bool {
	g, index := d.r.place(ino)
	switch {
	case hasBit(&g.kept, index), child.Parent() != d.ino && hasBit(&g.byParent, index):
		return false
	}
	setBit(&g.kept, index, g.inodes)
	return true
}

// accept counts a name, and makes its type and the parent of a directory
// right.
func (d *dirNames) accept(l leafRef, e layout.DirEntry) {
	g, index := d.r.place(e.Ino())
	n := d.r.inodeIn(g, index)
	d.r.countName(g, index, e.Ino())
	if typ := uint8(n.Mode() >> 12); e.Type() != typ {
		d.r.did(Problem{Code: DirType, Ino: d.ino, Block: l.block}, "the type of name %q was set to %d", e.Name(), typ)
		e.SetType(typ)
	}
	if n.Mode()&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	d.subdirs++
	if n.Parent() != d.ino {
		d.r.did(Problem{Code: DirParent, Group: g.num, Ino: e.Ino()}, "its parent was set from %d to %d", n.Parent(), d.ino)
		d.r.stageInode(g, index).SetParent(d.ino)
		d.r.ch.commit()
	}
}

// breakLoops finds directories that name each other in a circle. The one with
// the lowest number loses its name, and goes to lost+found.
func (r *repairer) breakLoops() {
	r.eachDirectory(func(g *group, index uint32, _ layout.Inode) {
		low := uint64(0)
		path := r.path[:0]
		for ino := r.ino(g, index); ; {
			g, index := r.place(ino)
			if ino == rootIno || hasBit(&g.connected, index) || r.nameCount(g, index, ino) == 0 {
				break
			}
			if hasBit(&g.lost, index) { // on this path: a circle
				low = lowestOnCircle(path, ino)
				break
			}
			setBit(&g.lost, index, g.inodes)
			path = append(path, ino)
			ino = r.inodeIn(g, index).Parent()
		}
		for _, ino := range path {
			g, index := r.place(ino)
			setBit(&g.connected, index, g.inodes)
		}
		r.path = path
		if low != 0 {
			r.unname(low)
		}
	})
}

func lowestOnCircle(path []uint64, ino uint64) uint64 {
	low := ino
	for i := len(path) - 1; path[i] != ino; i-- {
		low = min(low, path[i])
	}
	return low
}

// unname removes the one name of a directory.
func (r *repairer) unname(ino uint64) {
	g, index := r.place(ino)
	parent := r.inodeIn(g, index).Parent()
	pg, pi := r.place(parent)
	t := r.walkTree(parent, r.inodeIn(pg, pi).DirRoot(), false)
	for _, l := range t.leaves {
		n := layout.Node(r.block(l.block))
		for pos := 0; pos < len(n.Payload()); {
			e := layout.DirEntryAt(n.Payload(), pos)
			if e.Ino() != ino {
				pos += len(e)
				continue
			}
			r.did(Problem{Code: DirLoop, Group: g.num, Ino: ino}, "name %q was removed: the directory contains itself", e.Name())
			c := r.ch.stageNode(l.block)
			layout.DirEntry(c.Payload()[pos:]).SetIno(0)
			c.SetCount(c.Count() - 1)
			d := r.stageInode(pg, pi)
			d.SetEntries(d.Entries() - 1)
			d.SetNlink(d.Nlink() - 1)
			empty := c.Count() == 0
			r.ch.commit()
			r.uncountName(g, index)
			if empty {
				r.rebuildTree(parent, t, nil)
			}
			return
		}
	}
}

// uncountName forgets the one name of an inode.
func (r *repairer) uncountName(g *group, index uint32) {
	(*g.names.Load())[index/4] &^= nameMax << (index % 4 * 8)
}

// repairLinks makes link counts and the orphan bitmap right, and lists the
// inodes that no directory names.
func (r *repairer) repairLinks() (lost []uint64) {
	r.eachInode(func(g *group, index uint32, n layout.Inode) {
		ino := r.ino(g, index)
		names, nlink := r.nameCount(g, index, ino), n.Nlink()
		dir := n.Mode()&unix.S_IFMT == unix.S_IFDIR
		switch {
		case ino == rootIno:
		case names == 0 && nlink != 0:
			lost = append(lost, ino)
		case dir:
			nlink = max(nlink, uint32(min(names, 1))*2)
		default:
			nlink = uint32(names)
		}
		orphan := nlink == 0
		if nlink == n.Nlink() && orphan == r.isOrphan(g, index) {
			return
		}
		code := InodeNlink
		if orphan != r.isOrphan(g, index) {
			code = Orphan
			r.setInodeBit(g, layout.GroupOrphans, index, orphan)
		}
		r.did(Problem{Code: code, Group: g.num, Ino: ino}, "links were set from %d to %d", n.Nlink(), nlink)
		r.stageInode(g, index).SetNlink(nlink)
		r.ch.commit()
	})
	return lost
}
