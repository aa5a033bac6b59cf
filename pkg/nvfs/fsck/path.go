package fsck

import (
	"strings"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// The cost of finding paths is bounded: so many directory blocks for one
// problem, and so many in all.
const (
	pathBlocksEach = 4096
	pathBlocksAll  = 1 << 18
	pathDepthMax   = 64
)

// findPaths gives the problems of the report the paths of their inodes.
func (w *worker) findPaths() error {
	all := pathBlocksAll
	done := map[uint64]string{}
	f := w.found
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.problems {
		p := &f.problems[i]
		if p.Ino == 0 || all <= 0 || w.cancelled() {
			continue
		}
		path, ok := done[p.Ino]
		if !ok {
			budget := min(pathBlocksEach, all)
			all -= budget
			path = w.pathOf(p.Ino, &budget)
			all += budget
			done[p.Ino] = path
		}
		p.Path = path
	}
	return nil
}

// pathOf is the path of an inode by its parent pointers, "" when these do not
// lead to the root or the budget of directory blocks does not suffice.
func (w *worker) pathOf(ino uint64, budget *int) string {
	if ino == rootIno {
		return "/"
	}
	var names []string
	for len(names) < pathDepthMax {
		n := w.inode(ino)
		if n == nil {
			return ""
		}
		parent := w.inode(n.Parent())
		if parent == nil || parent.Format() != layout.FormatDir || parent.BodyRoom() < 8 {
			return ""
		}
		name, ok := w.nameIn(parent.DirRoot(), ino, 0, budget)
		if !ok {
			return ""
		}
		names = append(names, name)
		ino = n.Parent()
		if ino == rootIno {
			var b strings.Builder
			for i := len(names) - 1; i >= 0; i-- {
				b.WriteByte('/')
				b.WriteString(names[i])
			}
			return b.String()
		}
	}
	return ""
}

// nameIn looks for a name of inode ino in the tree of directory blocks below
// block.
func (w *worker) nameIn(block, ino uint64, level int, budget *int) (string, bool) {
	if w.groupOf(block) == nil || level > layout.MaxDirLevel+1 || *budget <= 0 {
		return "", false
	}
	*budget--
	n := layout.Node(w.block(block))
	if n.Magic() == layout.DirIndexMagic {
		last := uint64(0)
		for i := range layout.DirFanout {
			child := n.Slot(i)
			if child == last || child == 0 {
				continue
			}
			last = child
			if name, ok := w.nameIn(child, ino, level+1, budget); ok {
				return name, true
			}
		}
		return "", false
	}
	if n.Magic() != layout.DirLeafMagic {
		return "", false
	}
	payload := n.Payload()
	for pos := 0; pos < len(payload); {
		e := layout.DirEntryAt(payload, pos)
		if e == nil {
			return "", false
		}
		if e.Ino() == ino {
			return string(e.Name()), true
		}
		pos += len(e)
	}
	return "", false
}
