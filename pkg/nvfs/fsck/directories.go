package fsck

import (
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// largeBlocks is how many blocks a directory has whose walk is shared out: 2
// MiB, some milliseconds.
const largeBlocks = 512

// directory is a directory that was found and is to be walked.
type directory struct {
	group *group
	index uint32
	dirSums
}

// dirSums is what was found of a directory so far.
type dirSums struct {
	owned, names, subdirs uint64
	broken                bool
}

// subtree is a part of a large directory: what one run of slots of its first
// index block leads to.
type subtree struct {
	dir   *directory
	block uint64
	at    dirPlace
	dirSums
}

func (w *worker) sums() dirSums {
	return dirSums{w.at.owned, w.at.names, w.at.subdirs, w.at.broken}
}

// enter makes d the directory at work on.
func (w *worker) enter(d *directory, so dirSums) layout.Inode {
	w.group = d.group
	w.at = inodeWalk{ino: w.ino(d.group, d.index), owned: so.owned, names: so.names, subdirs: so.subdirs, broken: so.broken}
	return w.inodeIn(d.group, d.index)
}

func (c *checker) gatherDirectories() []part {
	c.dirs = c.workers[0].dirsFound
	for _, w := range c.workers[1:] {
		c.dirs = append(c.dirs, w.dirsFound...)
		w.dirsFound = nil
	}
	return cut(len(c.dirs), partDirs)
}

// checkDirectories is the third pass, over the directories. What large ones
// consist of is left for gatherSubtrees.
func (w *worker) checkDirectories() {
	for ; w.next < w.part.to && !w.cancelled(); w.next++ {
		d := &w.dirs[w.next]
		n := w.enter(d, d.dirSums)
		w.split = nil
		if len(w.workers) > 1 && n.Blocks() >= largeBlocks {
			w.split = d
		}
		if !w.walkDirectory(n) {
			continue
		}
		if w.split != nil {
			d.dirSums = w.sums()
			w.large = append(w.large, d)
			continue
		}
		w.finishDirectory(n)
	}
}

// gatherSubtrees collects what large directories consist of.
func (c *checker) gatherSubtrees() []part {
	for _, w := range c.workers {
		c.subtrees = append(c.subtrees, w.later...)
	}
	return cut(len(c.subtrees), 1)
}

// checkSubtrees walks parts of large directories.
func (w *worker) checkSubtrees() {
	s := &w.subtrees[w.next]
	w.split = nil
	s.broken = true // unless the walk comes to its end
	w.enter(s.dir, dirSums{})
	w.walkDirBlock(s.block, s.at)
	s.dirSums = w.sums()
}

// finishLarge adds up what was found of the large directories.
func (w *worker) finishLarge() error {
	for i := range w.subtrees {
		s := &w.subtrees[i]
		d := s.dir
		d.owned += s.owned
		d.names += s.names
		d.subdirs += s.subdirs
		d.broken = d.broken || s.broken
	}
	for _, o := range w.workers {
		for _, d := range o.large {
			w.finishDirectory(w.enter(d, d.dirSums))
		}
	}
	w.workers[0].sum.Names += w.sum.Names
	return nil
}
