package fsck

import (
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// eachInode visits the inodes in use, in order of their numbers.
func (r *repairer) eachInode(visit func(g *group, index uint32, n layout.Inode)) {
	for k := range r.groups {
		g := &r.groups[k]
		r.volume.eachInode(g, 0, g.inodes, func(index uint32, n layout.Inode) bool {
			if r.halted() {
				return false
			}
			visit(g, index, n)
			return true
		})
	}
}

func (r *repairer) stageInode(g *group, index uint32) layout.Inode {
	ino := r.ino(g, index)
	return r.ch.stage(layout.InodeOffset(ino, r.sb.InodesPerGroup), layout.InodeSize, ino, false)
}

// place is where inode ino, which is in use, lies.
func (r *repairer) place(ino uint64) (*group, uint32) {
	perGroup := r.sb.InodesPerGroup
	return r.groupAt(layout.InodeGroup(ino, perGroup)), layout.InodeIndex(ino, perGroup)
}

// setInodeBit stages a change of an inode's bit in the inode or the orphan
// bitmap.
func (r *repairer) setInodeBit(g *group, which int, index uint32, v bool) {
	c := r.ch.stageChunk(g.start+uint64(which), index)
	c.SetBit(index%layout.ChunkBits, v)
	setCount(c, which)
}

func (r *repairer) isOrphan(g *group, index uint32) bool {
	return g.word(r.volume, layout.GroupOrphans, int(index/64))>>(index%64)&1 == 1
}

// clearInode takes an inode out of use.
func (r *repairer) clearInode(code Code, g *group, index uint32, why string) {
	r.setInodeBit(g, layout.GroupInodeBitmap, index, false)
	r.setInodeBit(g, layout.GroupOrphans, index, false)
	if n := r.inodeIn(g, index); layout.Verify(r.seed, r.ino(g, index), n) {
		gen, staged := n.Generation(), r.stageInode(g, index)
		clear(staged)
		staged.SetGeneration(gen)
	}
	r.did(Problem{Code: code, Group: g.num, Ino: r.ino(g, index)}, "it was given up: %s", why)
	r.ch.commit()
}

// repairInodes is the first pass over the inodes: those that cannot be
// interpreted are given up, the others made right, and the blocks of their
// trees claimed, so that these win over file data.
func (r *repairer) repairInodes() {
	r.repairRootInode()
	r.eachInode(func(g *group, index uint32, n layout.Inode) {
		ino := r.ino(g, index)
		switch {
		case !layout.Verify(r.seed, ino, n):
			r.clearInode(InodeChecksum, g, index, "its checksum was wrong")
			return
		case !knownType(n.Mode()):
			r.clearInode(InodeMode, g, index, "its type was unknown")
			return
		}
		r.repairFields(g, index, n)
		r.repairXattrs(g, index, n)
		switch n.Mode() & unix.S_IFMT {
		case unix.S_IFDIR:
			r.claimDirectory(ino, n)
		case unix.S_IFREG, unix.S_IFLNK:
			if n.Format() == layout.FormatExtents && n.ExtentDepth() > 0 {
				r.repairTree(g, index, n)
			}
		}
	})
}

// repairRootInode makes the root directory anew when its inode is damaged.
// Its leaves are found again by salvage.
func (r *repairer) repairRootInode() {
	g, index := r.place(rootIno)
	old := r.inodeIn(g, index)
	verified := layout.Verify(r.seed, rootIno, old)
	isDir := verified && old.Mode()&unix.S_IFMT == unix.S_IFDIR
	if isDir && g.inUse(r.volume, index) && old.Generation() == 0 && old.Parent() == rootIno && old.Nlink() != 0 {
		return
	}
	n := r.stageInode(g, index)
	if !isDir {
		clear(n)
		n.SetMode(unix.S_IFDIR | 0o755)
		n.SetFormat(layout.FormatDir)
		r.setTimes(n)
		r.damaged[rootIno] = &dirTree{}
	}
	n.SetGeneration(0)
	n.SetParent(rootIno)
	n.SetNlink(max(n.Nlink(), 2))
	r.setInodeBit(g, layout.GroupInodeBitmap, index, true)
	r.setInodeBit(g, layout.GroupOrphans, index, false)
	r.did(Problem{Code: Root, Ino: rootIno}, "the inode of the root directory was made anew")
	r.ch.commit()
}

func (r *repairer) setTimes(n layout.Inode) {
	sec, nsec := r.now.Unix(), uint32(r.now.Nanosecond())
	n.SetAtime(sec, nsec)
	n.SetMtime(sec, nsec)
	n.SetCtime(sec, nsec)
	n.SetBtime(sec, nsec)
}

// repairFields makes the fields of an inode fit its type.
func (r *repairer) repairFields(g *group, index uint32, n layout.Inode) {
	fixed := append(layout.Inode(nil), n...)
	code := r.fixFields(fixed)
	if code == "" {
		return
	}
	copy(r.stageInode(g, index), fixed)
	r.did(Problem{Code: code, Group: g.num, Ino: r.ino(g, index)}, "fields that its type does not allow were set anew")
	r.ch.commit()
}

// fixFields returns the code of the last field that it changed, "" for none.
func (r *repairer) fixFields(n layout.Inode) (code Code) {
	if max(n.AtimeNsec(), n.MtimeNsec(), n.CtimeNsec(), n.BtimeNsec()) > maxNsec {
		code = InodeTime
		n.SetAtime(n.AtimeSec(), min(n.AtimeNsec(), maxNsec))
		n.SetMtime(n.MtimeSec(), min(n.MtimeNsec(), maxNsec))
		n.SetCtime(n.CtimeSec(), min(n.CtimeNsec(), maxNsec))
		n.SetBtime(n.BtimeSec(), min(n.BtimeNsec(), maxNsec))
	}
	if n.Mode()>>16 != 0 {
		code = InodeMode
		n.SetMode(n.Mode() & 0xffff)
	}
	if int(n.XattrInline()) > layout.InodeBodySize-8 {
		code = InodeFormat
		n.SetXattrInline(0)
	}
	switch n.Mode() & unix.S_IFMT {
	case unix.S_IFDIR:
		if n.Format() != layout.FormatDir {
			code = InodeFormat
			n.SetFormat(layout.FormatDir)
			n.SetDirRoot(0)
		}
	case unix.S_IFREG, unix.S_IFLNK:
		if c := fixContent(n); c != "" {
			code = c
		}
	default:
		if n.Format() != layout.FormatNone || n.Size() != 0 {
			code = InodeFormat
			n.SetFormat(layout.FormatNone)
			n.SetSize(0)
		}
	}
	return code
}

func fixContent(n layout.Inode) (code Code) {
	switch n.Format() {
	case layout.FormatInline:
		if n.Size() > uint64(n.BodyRoom()) {
			code = InodeSize
			n.SetSize(uint64(n.BodyRoom()))
		}
	case layout.FormatExtents:
		depth, count := int(n.ExtentDepth()), int(n.ExtentCount())
		if depth > maxDepth || count > n.RootExtents() || depth > 0 && count == 0 {
			code = InodeFormat
			emptyRoot(n)
		}
	default:
		code = InodeFormat
		n.SetFormat(layout.FormatInline)
		n.SetSize(0)
	}
	return code
}

func emptyRoot(n layout.Inode) {
	clear(n.Body())
	n.SetExtentDepth(0)
	n.SetExtentCount(0)
}

// repairData is the second pass: the extents of files are claimed and the
// counts of blocks made right.
func (r *repairer) repairData() {
	r.eachInode(func(g *group, index uint32, n layout.Inode) {
		mode := n.Mode() & unix.S_IFMT
		if mode == unix.S_IFDIR {
			return
		}
		owned, shared := uint64(0), len(r.shared)
		if n.Format() == layout.FormatExtents {
			owned = r.repairExtents(g, index, n)
		}
		if mode == unix.S_IFLNK && (n.Size() == 0 || n.Size() > maxTarget || r.hollow(n)) {
			r.shared = r.shared[:shared]
			r.clearInode(InodeSize, g, index, "the target of the symbolic link is lost")
			return
		}
		if len(r.shared) == shared { // else cloneShared counts anew
			r.setBlocks(g, index, owned+r.xattrBlocks(n))
		}
	})
}

// setBlocks makes the count of the blocks that a file owns right.
func (r *repairer) setBlocks(g *group, index uint32, owned uint64) {
	n := r.inodeIn(g, index)
	if old := n.Blocks(); owned != old {
		r.stageInode(g, index).SetBlocks(owned)
		r.did(Problem{Code: InodeBlocks, Group: g.num, Ino: r.ino(g, index)}, "its count of blocks was set from %d to %d", old, owned)
		r.ch.commit()
	}
}

// hollow reports whether the content of a symbolic link has no block.
func (r *repairer) hollow(n layout.Inode) bool {
	return n.Format() == layout.FormatExtents && n.ExtentCount() == 0
}
