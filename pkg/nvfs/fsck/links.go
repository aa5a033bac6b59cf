package fsck

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// compareInodes compares the link counts of the inodes at work on with the
// names that were found, and looks for directories that the root does not lead
// to. Nearly all inodes are done with four at a time: what note and
// expectNames left is what was counted.
func (w *worker) compareInodes(g *group) {
	for i := w.next / 4; i*4 < w.part.to; i++ {
		w.next = max(w.next, i*4)
		if g.asExpected(i) {
			continue
		}
		w.eachInode(g, w.next, min(i*4+4, w.part.to), func(index uint32, n layout.Inode) bool {
			w.next = index
			w.compareLinks(g, index, n)
			return true
		})
		if w.cancelled() {
			return
		}
	}
	if g.num == 0 && w.part.from == 0 && !g.inUse(w.volume, 0) {
		w.found.add(Problem{Code: Root, Ino: rootIno}, "the root directory's inode is not in use")
	}
}

func (w *worker) compareLinks(g *group, index uint32, n layout.Inode) {
	ino := w.ino(g, index)
	names, nlink := w.nameCount(g, index, ino), uint64(n.Nlink())
	w.at = inodeWalk{ino: ino}
	if n.Mode()&unix.S_IFMT != unix.S_IFDIR {
		if names != nlink && layout.Verify(w.seed, ino, n) {
			w.wrongLinks(names, nlink)
		}
		return
	}
	if !layout.Verify(w.seed, ino, n) {
		return
	}
	switch {
	case ino == rootIno:
		if names != 0 {
			w.problem(Root, "the root has a name in a directory")
		}
		return
	case nlink == 0:
		if names != 0 {
			w.problem(Orphan, "a deleted directory has a name")
		}
		return
	case names == 0:
		w.problem(InodeUnreachable, "no directory names this directory")
	case names > 1:
		w.problem(DirNamedTwice, "%d names refer to this directory", names)
	}
	if !w.leadsToRoot(ino) {
		w.problem(DirLoop, "its parents do not lead to the root")
	}
}

func (w *worker) wrongLinks(names, nlink uint64) {
	switch {
	case nlink == 0:
		w.problem(Orphan, "it has no links, but %d names", names)
	case names == 0:
		w.problem(InodeUnreachable, "it has %d links, but no name", nlink)
	default:
		w.problem(InodeNlink, "it has %d names, but %d links", names, nlink)
	}
}

// leadsToRoot follows the parents of directory ino. All directories on the
// way get the answer too, so each is visited once. A cycle is found with
// Brent's algorithm: a mark moves up to where the walk is, at distances that
// double.
func (w *worker) leadsToRoot(ino uint64) bool {
	w.path = w.path[:0]
	mark, until := uint64(0), 1
	found := false
	for cur := ino; ; {
		if cur == rootIno {
			found = true
			break
		}
		if cur == mark {
			break // a cycle
		}
		g, index := w.directory(cur)
		if g == nil {
			break
		}
		if hasBit(&g.connected, index) {
			found = true
			break
		}
		if hasBit(&g.lost, index) {
			break
		}
		w.path = append(w.path, cur)
		if len(w.path) == until {
			mark, until = cur, 2*until
		}
		cur = w.inodeIn(g, index).Parent()
	}
	for _, d := range w.path {
		g, index := w.directory(d)
		if found {
			setBit(&g.connected, index, g.inodes)
		} else {
			setBit(&g.lost, index, g.inodes)
		}
	}
	return found
}

// directory returns where inode ino is, if it is a directory in use.
func (w *worker) directory(ino uint64) (*group, uint32) {
	n := w.inode(ino)
	if n == nil || n.Mode()&unix.S_IFMT != unix.S_IFDIR || n.Nlink() == 0 {
		return nil, 0
	}
	perGroup := uint64(w.sb.InodesPerGroup)
	return w.groupAt((ino - 1) / perGroup), uint32((ino - 1) % perGroup)
}

func hasBit(p *atomic.Pointer[[]uint64], i uint32) bool {
	s := p.Load()
	return s != nil && atomic.LoadUint64(&(*s)[i/64])>>(i%64)&1 == 1
}

func setBit(p *atomic.Pointer[[]uint64], i, n uint32) { takeBit(p, i, n) }

// takeBit sets bit i of n and reports whether it was clear.
func takeBit(p *atomic.Pointer[[]uint64], i, n uint32) bool {
	return atomic.OrUint64(&lazily(p, (n+63)/64)[i/64], 1<<(i%64))>>(i%64)&1 == 0
}
