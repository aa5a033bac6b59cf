package nvfs

import (
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

const (
	maxNlink    = 1<<31 - 1
	maxFileSize = 1<<63 - 1 - layout.BlockSize
	setIDBits   = unix.S_ISUID | unix.S_ISGID
)

// Inode flags.
const flagCapability = 1 // the attribute set holds security.capability

// inodeAt returns the inode that id names, in place and verified. A lock of
// it is held.
func (fs *FS) inodeAt(id NodeID) (layout.Inode, error) {
	ino := id.Ino()
	n, err := fs.inode(ino)
	if err != nil {
		return nil, err
	}
	if n.Generation() != id.Generation() || n.Mode() == 0 {
		return nil, errStale
	}
	return n, nil
}

// inode returns inode ino in place and verified, in use or not.
func (fs *FS) inode(ino uint64) (layout.Inode, error) {
	if ino == 0 {
		return nil, errStale
	}
	g := fs.group(layout.InodeGroup(ino, fs.sb.InodesPerGroup))
	index := layout.InodeIndex(ino, fs.sb.InodesPerGroup)
	if g == nil || index >= g.inodes {
		return nil, errStale
	}
	off := layout.InodeOffset(ino, fs.sb.InodesPerGroup)
	n := layout.Inode(fs.mem[off : off+layout.InodeSize : off+layout.InodeSize])
	if layout.Verify(fs.seed, ino, n) {
		if !soundBody(n) {
			return nil, fs.damaged(false, "inode %d: what it says of its body cannot be", ino)
		}
		return n, nil
	}
	if !fs.inodeTaken(g, index) {
		return nil, errStale // never used
	}
	return nil, fs.damaged(false, "inode %d: checksum is wrong", ino)
}

// inodeTaken reports whether an inode's bit in the bitmap is set.
func (fs *FS) inodeTaken(g *group, index uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return fs.word(g, inodeBitmap, index/64)>>(index%64)&1 == 1
}

// soundBody reports whether the body is in a format that the type has, within
// its bounds.
func soundBody(n layout.Inode) bool {
	if n.XattrInline() > layout.InodeBodySize-8 {
		return false
	}
	switch n.Mode() & unix.S_IFMT {
	case unix.S_IFDIR:
		return n.Format() == layout.FormatDir
	case unix.S_IFREG, unix.S_IFLNK:
		return n.Format() == layout.FormatExtents && n.Size() <= maxFileSize || n.Format() == layout.FormatInline && n.Size() <= uint64(n.BodyRoom())
	}
	return n.Format() == layout.FormatNone
}

// stageInode returns the private copy of the inode that id names.
func (w *Worker) stageInode(id NodeID) (layout.Inode, error) {
	off := layout.InodeOffset(id.Ino(), w.fs.sb.InodesPerGroup)
	if s := w.tx.find(off); s != nil {
		return s.buf, nil
	}
	if _, err := w.fs.inodeAt(id); err != nil {
		return nil, err
	}
	w.tx.cost += layout.InodeSize
	return w.stage(off, layout.InodeSize, id.Ino(), sealWhole), nil
}

// reserveInode takes an inode number for the transaction. It comes before the
// inode locks: the number must be known to lock the inode in order.
func (w *Worker) reserveInode(mode uint32) (uint64, error) {
	ino, err := w.takeInode(mode&unix.S_IFMT == unix.S_IFDIR)
	if err == nil {
		w.tx.newInodes = append(w.tx.newInodes, ino)
	}
	return ino, err
}

// newInode stages the content of a reserved inode: empty, of that mode, with
// all times now.
func (w *Worker) newInode(ino uint64, mode uint32) (NodeID, layout.Inode) {
	gen := randomGeneration()
	off := layout.InodeOffset(ino, w.fs.sb.InodesPerGroup)
	if old := layout.Inode(w.fs.mem[off : off+layout.InodeSize]); layout.Verify(w.fs.seed, ino, old) {
		gen = (old.Generation() + 1) & (1<<(64-inoBits) - 1)
	}
	w.tx.cost += layout.InodeSize
	n := layout.Inode(w.stage(off, layout.InodeSize, ino, sealWhole))
	clear(n)
	n.SetMode(mode)
	n.SetGeneration(gen)
	n.SetNlink(1)
	n.SetAtime(w.now.Sec, w.now.Nsec)
	n.SetMtime(w.now.Sec, w.now.Nsec)
	n.SetCtime(w.now.Sec, w.now.Nsec)
	n.SetBtime(w.now.Sec, w.now.Nsec)
	switch mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFLNK:
		n.SetFormat(layout.FormatInline)
	case unix.S_IFDIR:
		n.SetFormat(layout.FormatDir)
		n.SetNlink(2)
	}
	return makeNodeID(ino, gen), n
}

// touch sets ctime, and with it the change count.
func (w *Worker) touch(n layout.Inode) {
	n.SetCtime(w.now.Sec, w.now.Nsec)
	n.SetChanges(n.Changes() + 1)
}

// modified sets mtime and ctime.
func (w *Worker) modified(n layout.Inode) {
	n.SetMtime(w.now.Sec, w.now.Nsec)
	w.touch(n)
}

func fillAttr(ino uint64, n layout.Inode, a *Attr) {
	*a = Attr{
		ID: makeNodeID(ino, n.Generation()), Mode: n.Mode(), Nlink: n.Nlink(), UID: n.UID(), GID: n.GID(),
		Rdev: n.Rdev(), Size: n.Size(), Blocks: n.Blocks() * (layout.BlockSize / 512), Changes: n.Changes(),
		Atime: Time{n.AtimeSec(), n.AtimeNsec()}, Mtime: Time{n.MtimeSec(), n.MtimeNsec()},
		Ctime: Time{n.CtimeSec(), n.CtimeNsec()}, Btime: Time{n.BtimeSec(), n.BtimeNsec()},
	}
	if isDir(n) {
		a.Size = max(n.Blocks(), 1) * layout.BlockSize
	}
}

func isDir(n layout.Inode) bool     { return n.Mode()&unix.S_IFMT == unix.S_IFDIR }
func isRegular(n layout.Inode) bool { return n.Mode()&unix.S_IFMT == unix.S_IFREG }

// GetAttr reports the attributes of id.
func (w *Worker) GetAttr(id NodeID, a *Attr) error {
	w.rlock(id.Ino())
	defer w.unlock()
	n, err := w.fs.inodeAt(id)
	if err != nil {
		return err
	}
	fillAttr(id.Ino(), n, a)
	return nil
}

// SetAttr changes any set of attributes in one step and reports the result.
func (w *Worker) SetAttr(id NodeID, s *SetAttr, a *Attr) error {
	if done, err := w.start(opSetAttr); done {
		if err == nil {
			err = w.GetAttr(id, a)
		}
		return err
	}
	w.lock(id.Ino())
	defer w.unlock()
	n, err := w.stageInode(id)
	if err == nil {
		err = w.setAttr(id, n, s)
	}
	if err != nil {
		w.rollback()
		return err
	}
	m, err := w.fs.inodeAt(id)
	if err != nil {
		return err
	}
	fillAttr(id.Ino(), m, a)
	return nil
}

// setAttr carries SetAttr out on the staged inode and commits.
func (w *Worker) setAttr(id NodeID, n layout.Inode, s *SetAttr) error {
	if s.Valid&SetSize != 0 {
		if isDir(n) {
			return errIsDir
		}
		if !isRegular(n) {
			return errInvalid
		}
		if s.Size > maxFileSize {
			return errTooBig
		}
	}
	oldMode := n.Mode()
	if s.Valid&SetMode != 0 {
		n.SetMode(n.Mode()&unix.S_IFMT | s.Mode&07777)
	}
	if s.Valid&SetUID != 0 {
		n.SetUID(s.UID)
	}
	if s.Valid&SetGID != 0 {
		n.SetGID(s.GID)
	}
	if err := w.stripPrivileges(n, s); err != nil {
		return err
	}
	if n.Mode() != oldMode {
		if err := w.chmodACL(id, n); err != nil {
			return err
		}
	}
	w.setTimes(n, s)
	w.tx.result = layout.RequestTuple{Ino: uint64(id)}
	if s.Valid&SetSize != 0 {
		return w.truncate(id, n, s.Size)
	}
	return w.commit()
}

// stripPrivileges takes set-ID bits and file capabilities off as chown(2)
// and truncate(2) require.
func (w *Worker) stripPrivileges(n layout.Inode, s *SetAttr) error {
	chown := s.Valid&(SetUID|SetGID) != 0
	if isDir(n) || !chown && s.Valid&(KillSuidgid|SetSize) == 0 {
		return nil
	}
	if s.Valid&KillSuidgid != 0 || chown && s.Valid&SetMode == 0 {
		w.stripSetID(n)
	}
	return w.stripCapability(n)
}

func (w *Worker) stripSetID(n layout.Inode) {
	drop := uint32(unix.S_ISUID)
	if n.Mode()&unix.S_IXGRP != 0 {
		drop |= unix.S_ISGID
	}
	if n.Mode()&drop != 0 {
		n.SetMode(n.Mode() &^ drop)
		w.stripped = true
	}
}

func (w *Worker) setTimes(n layout.Inode, s *SetAttr) {
	if s.Valid&(SetAtime|SetAtimeNow) != 0 {
		t := s.Atime
		if s.Valid&SetAtimeNow != 0 {
			t = w.now
		}
		n.SetAtime(t.Sec, t.Nsec)
	}
	if s.Valid&(SetMtime|SetMtimeNow) != 0 {
		t := s.Mtime
		if s.Valid&SetMtimeNow != 0 {
			t = w.now
		}
		n.SetMtime(t.Sec, t.Nsec)
	} else if s.Valid&SetSize != 0 {
		n.SetMtime(w.now.Sec, w.now.Nsec)
	}
	w.touch(n)
	if s.Valid&SetCtime != 0 {
		n.SetCtime(s.Ctime.Sec, s.Ctime.Nsec)
	}
}

// StatFS reports the volume's totals.
func (w *Worker) StatFS(s *StatFS) error {
	fs := w.fs
	fs.waitTotals()
	free := uint64(max(fs.freeBlocks.Load(), 0))
	*s = StatFS{
		BlockSize: layout.BlockSize, NameMax: layout.NameMax,
		Blocks: uint64(fs.totalBlocks.Load()), BlocksFree: free, BlocksAvail: free - min(free, fs.sb.Reserved),
		Files: uint64(fs.totalInodes.Load()), FilesFree: uint64(max(fs.freeInodes.Load(), 0)),
		FSID: uint64(fs.seed)<<32 | uint64(layout.Sum(fs.seed, 1, fs.sb.UUID[:])),
	}
	return nil
}
