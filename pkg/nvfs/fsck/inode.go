package fsck

import (
	"math/bits"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

const (
	maxNsec    = 999_999_999
	maxTarget  = 4095    // of a symbolic link
	maxLogical = 1 << 51 // blocks of a file of 2^63 bytes
	maxDepth   = 8       // of an extent tree
)

// inodeWalk is what the walk over an inode's trees gathers.
type inodeWalk struct {
	ino     uint64
	owned   uint64 // blocks
	names   uint64 // in a directory
	subdirs uint64
	broken  bool // part of a tree could not be looked at: sums mean nothing
	last    uint64
}

// eachInode visits the inodes in use of g with an index in [from, to), in
// order, until visit returns false.
func (v *volume) eachInode(g *group, from, to uint32, visit func(index uint32, n layout.Inode) bool) {
	table := g.start + layout.GroupInodeTable
	var block []byte
	last := uint32(1<<32 - 1)
	for i := int(from / 64); uint32(i)*64 < to; i++ {
		word := g.word(v, layout.GroupInodeBitmap, i) & wordMask(i, to) &^ wordMask(i, from)
		for ; word != 0; word &= word - 1 {
			index := uint32(i*64 + bits.TrailingZeros64(word))
			if k := index / layout.InodesPerBlock; k != last {
				block, last = v.block(table+uint64(k)), k
			}
			off := index % layout.InodesPerBlock * layout.InodeSize
			if !visit(index, layout.Inode(block[off:off+layout.InodeSize:off+layout.InodeSize])) {
				return
			}
		}
	}
}

// checkInodes is the second pass: the inodes in use, and all that they refer
// to but directories.
func (w *worker) checkInodes() {
	g := w.group
	w.eachInode(g, w.next, w.part.to, func(index uint32, n layout.Inode) bool {
		w.next = index
		w.checkInode(g, index, n)
		return !w.cancelled()
	})
	w.next = w.part.to
	w.checkOrphanBits(g, w.part)
}

// checkOrphanBits looks for orphans that are not in use at all.
func (w *worker) checkOrphanBits(g *group, p part) {
	for i := int(p.from / 64); uint32(i)*64 < p.to; i++ {
		valid := wordMask(i, p.to)
		if g.wordBad(layout.GroupOrphans, i) || g.wordBad(layout.GroupInodeBitmap, i) {
			continue
		}
		free := g.word(w.volume, layout.GroupOrphans, i) &^ g.word(w.volume, layout.GroupInodeBitmap, i) & valid
		for ; free != 0; free &= free - 1 {
			ino := w.ino(g, uint32(i*64+bits.TrailingZeros64(free)))
			w.found.add(Problem{Code: Orphan, Group: g.num, Ino: ino}, "it is marked as an orphan, but not in use")
		}
	}
}

// problem adds a problem of the inode at work on.
func (w *worker) problem(code Code, format string, args ...any) {
	w.found.add(Problem{Code: code, Group: w.group.num, Ino: w.at.ino}, format, args...)
}

// broken adds a problem that keeps part of the inode from being looked at.
func (w *worker) broken(code Code, block uint64, format string, args ...any) {
	w.at.broken = true
	w.found.add(Problem{Code: code, Group: w.group.num, Ino: w.at.ino, Block: block}, format, args...)
}

func (w *worker) checkInode(g *group, index uint32, n layout.Inode) {
	ino := w.ino(g, index)
	w.at = inodeWalk{ino: ino}
	w.sum.Inodes++
	g.note(index, n)
	if !layout.Verify(w.seed, ino, n) {
		w.problem(InodeChecksum, "its checksum is wrong")
		return
	}
	g.expectNames(index, n)
	w.checkTimes(n)
	w.checkOrphan(g, index, n)
	if ino == rootIno {
		w.checkRoot(n)
	}
	if n.Mode()>>16 != 0 {
		w.problem(InodeMode, "mode %#o has more bits than a mode", n.Mode())
	}
	if int(n.XattrInline()) > layout.InodeBodySize {
		w.problem(InodeFormat, "%d bytes of inline attributes exceed the inode", n.XattrInline())
		return
	}
	switch n.Mode() & unix.S_IFMT {
	case unix.S_IFDIR:
		w.sum.Directories++
		w.checkXattrs(n)
		w.dirsFound = append(w.dirsFound, directory{g, index, w.sums()})
		return
	case unix.S_IFREG:
		w.checkFile(n)
	case unix.S_IFLNK:
		if n.Size() == 0 || n.Size() > maxTarget {
			w.problem(InodeSize, "the target has %d bytes", n.Size())
		}
		w.checkFile(n)
	case unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK:
		w.checkSpecial(n)
	default:
		w.problem(InodeMode, "mode %#o is of no known type", n.Mode())
		return
	}
	w.checkXattrs(n)
	w.checkOwned(n)
}

func (w *worker) checkOwned(n layout.Inode) {
	if !w.at.broken && n.Blocks() != w.at.owned {
		w.problem(InodeBlocks, "it owns %d blocks, its count says %d", w.at.owned, n.Blocks())
	}
}

func (w *worker) checkTimes(n layout.Inode) {
	if max(n.AtimeNsec(), n.MtimeNsec(), n.CtimeNsec(), n.BtimeNsec()) > maxNsec {
		w.problem(InodeTime, "a time has %d nanoseconds", max(n.AtimeNsec(), n.MtimeNsec(), n.CtimeNsec(), n.BtimeNsec()))
	}
}

func (w *worker) checkOrphan(g *group, index uint32, n layout.Inode) {
	i := int(index / 64)
	marked := g.word(w.volume, layout.GroupOrphans, i)>>(index%64)&1 == 1
	if marked {
		w.sum.Orphans++
	}
	if g.wordBad(layout.GroupOrphans, i) {
		return
	}
	switch {
	case marked && n.Nlink() != 0:
		w.problem(Orphan, "it is marked as an orphan, but has %d links", n.Nlink())
	case !marked && n.Nlink() == 0:
		w.problem(Orphan, "it has no links, but is not marked as an orphan")
	}
}

func (w *worker) checkRoot(n layout.Inode) {
	if n.Mode()&unix.S_IFMT != unix.S_IFDIR || n.Generation() != 0 || n.Parent() != rootIno || n.Nlink() == 0 {
		w.problem(Root, "the root has mode %#o, generation %d, parent %d, %d links", n.Mode(), n.Generation(), n.Parent(), n.Nlink())
	}
}

func (w *worker) checkSpecial(n layout.Inode) {
	if n.Format() != layout.FormatNone {
		w.problem(InodeFormat, "a special file has format %d", n.Format())
	}
	if n.Size() != 0 {
		w.problem(InodeSize, "a special file has %d bytes", n.Size())
	}
}

func (w *worker) checkFile(n layout.Inode) {
	if n.Size() > 1<<63-1 {
		w.problem(InodeSize, "its size is %d", n.Size())
		w.at.broken = true
		return
	}
	switch n.Format() {
	case layout.FormatInline:
		if n.Size() > uint64(n.BodyRoom()) {
			w.problem(InodeSize, "%d bytes of inline data exceed the %d there is room for", n.Size(), n.BodyRoom())
		}
	case layout.FormatExtents:
		w.checkExtents(n)
	default:
		w.problem(InodeFormat, "a file has format %d", n.Format())
		w.at.broken = true
	}
}
