package nvfs

import (
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// renameArgs is one rename with what its names refer to.
type renameArgs struct {
	fromDir, toDir   NodeID
	fromName, toName []byte
	flags            uint32
	src, dst         uint64 // inode numbers; dst 0: the new name does not exist
	srcType, dstType uint8
	whiteout         uint64 // inode number reserved for one, or 0
}

func (r *renameArgs) exchange() bool { return r.flags&RenameExchange != 0 }

// Rename moves a name, with the flags of renameat2(2).
func (w *Worker) Rename(fromDir NodeID, fromName []byte, toDir NodeID, toName []byte, flags uint32) error {
	if done, err := w.start(opRename); done {
		return err
	}
	switch flags {
	case 0, RenameNoReplace, RenameExchange, RenameWhiteout, RenameWhiteout | RenameNoReplace:
	default:
		return errInvalid
	}
	for _, name := range [...][]byte{fromName, toName} {
		if err := checkName(name); err != nil {
			if err == errExist { // "." or ".."
				return unix.EBUSY
			}
			return err
		}
	}
	r := renameArgs{fromDir: fromDir, toDir: toDir, fromName: fromName, toName: toName, flags: flags}
	for {
		again, err := w.renameOnce(&r)
		if !again {
			return err
		}
	}
}

// renameOnce looks the names up and renames; again is true when a name
// changed in between.
func (w *Worker) renameOnce(r *renameArgs) (again bool, err error) {
	if r.src, r.srcType, err = w.find(r.fromDir, r.fromName, false); err != nil {
		return false, err
	}
	if r.dst, r.dstType, err = w.find(r.toDir, r.toName, false); err == errNotExist {
		r.dst = 0
	} else if err != nil {
		return false, err
	}
	switch {
	case r.dst != 0 && r.flags&RenameNoReplace != 0:
		return false, errExist
	case r.dst == 0 && r.exchange():
		return false, errNotExist
	}
	const dir = unix.S_IFDIR >> 12
	if r.fromDir != r.toDir && (r.srcType == dir || r.exchange() && r.dstType == dir) {
		w.fs.renameMu.Lock() // the shape of the tree above stays as it is
		w.renaming = true
		defer func() {
			w.renaming = false
			w.fs.renameMu.Unlock()
		}()
		if err := w.checkLoop(r); err != nil {
			return false, err
		}
	}
	r.whiteout = 0
	if r.flags&RenameWhiteout != 0 {
		if r.whiteout, err = w.reserveInode(unix.S_IFCHR); err != nil {
			return false, err
		}
	}
	w.lock(r.fromDir.Ino(), r.toDir.Ino(), r.src, r.dst, r.whiteout)
	again, free, err := w.renameLocked(r)
	if err != nil || again {
		w.rollback()
	}
	w.unlock()
	if free && err == nil {
		w.releaseOrphan(r.dst)
	}
	return again, err
}

// checkLoop refuses to move a directory into itself. renameMu is held.
func (w *Worker) checkLoop(r *renameArgs) error {
	if err := w.notBelow(r.toDir.Ino(), r.src); err != nil {
		return err
	}
	if r.exchange() {
		return w.notBelow(r.fromDir.Ino(), r.dst)
	}
	return nil
}

// notBelow fails when directory ino is top or lies below it.
func (w *Worker) notBelow(ino, top uint64) error {
	for range 1 << 20 { // deeper than any path; a cycle is damage
		if ino == top {
			return errInvalid
		}
		if ino == RootID.Ino() {
			return nil
		}
		w.rlock(ino)
		n, err := w.fs.inode(ino)
		if err == nil && (!isDir(n) || n.Nlink() == 0) {
			err = errNotExist // removed meanwhile
		}
		if err == nil {
			ino = n.Parent()
		}
		w.unlock()
		if err != nil {
			return err
		}
	}
	return w.fs.damaged(false, "directories form a cycle at inode %d", ino)
}

// renameLocked renames with all inodes locked. free says that the replaced
// inode is to be released afterwards.
func (w *Worker) renameLocked(r *renameArgs) (again, free bool, err error) {
	w.tx.last = true // names can be moved on a full volume
	from, err := w.stageDir(r.fromDir)
	if err != nil {
		return false, false, err
	}
	to, err := w.stageDir(r.toDir)
	if err != nil {
		return false, false, err
	}
	if same, err := w.stillNamed(r, from, to); err != nil || !same {
		return err == nil, false, err
	}
	if r.src == r.dst {
		w.rollback() // two names of one file: nothing to do
		return false, false, nil
	}
	if mistakeRename && r.flags == 0 {
		if from, to, err = w.removeOldNameFirst(r, from); err != nil {
			return false, false, err
		}
	}
	src, err := w.stageChild(r.src)
	if err != nil {
		return false, false, err
	}
	var dst layout.Inode
	if r.dst != 0 {
		if dst, err = w.stageChild(r.dst); err != nil {
			return false, false, err
		}
	}
	if r.exchange() {
		err = w.exchangeNames(r, from, to, src, dst)
	} else {
		err = w.moveName(r, from, to, src, dst)
	}
	if err != nil {
		return false, false, err
	}
	w.modified(from)
	if r.fromDir != r.toDir {
		w.modified(to)
	}
	w.touch(src)
	free = dst != nil && dst.Nlink() == 0 && w.unused(r.dst)
	w.tx.result = layout.RequestTuple{Ino: uint64(makeNodeID(r.src, src.Generation()))}
	return false, free, w.commit()
}

// stillNamed reports whether both names refer to what they did before the
// locks were taken.
func (w *Worker) stillNamed(r *renameArgs, from, to layout.Inode) (bool, error) {
	src, srcType, err := w.dirFind(r.fromDir.Ino(), from, r.fromName)
	if err != nil {
		return false, err
	}
	dst, dstType, err := w.dirFind(r.toDir.Ino(), to, r.toName)
	if err == errNotExist {
		dst, dstType, err = 0, 0, nil
	}
	same := src == r.src && srcType == r.srcType && dst == r.dst && dstType == r.dstType
	return same, err
}

// exchangeNames swaps what two names refer to.
func (w *Worker) exchangeNames(r *renameArgs, from, to, src, dst layout.Inode) error {
	if err := w.dirReplace(r.fromDir.Ino(), from, r.fromName, r.dst, r.dstType); err != nil {
		return err
	}
	if err := w.dirReplace(r.toDir.Ino(), to, r.toName, r.src, r.srcType); err != nil {
		return err
	}
	w.reparent(r, from, to, src, r.toDir)
	w.reparent(r, to, from, dst, r.fromDir)
	w.touch(dst)
	return nil
}

// reparent records that child moved from directory `from` to directory `to`,
// whose id is toID.
func (w *Worker) reparent(r *renameArgs, from, to, child layout.Inode, toID NodeID) {
	if r.fromDir == r.toDir {
		return
	}
	child.SetParent(toID.Ino())
	if isDir(child) {
		from.SetNlink(from.Nlink() - 1)
		to.SetNlink(to.Nlink() + 1)
	}
}

// moveName gives src the new name, which it takes from dst if that exists,
// and removes the old one or leaves a whiteout there.
func (w *Worker) moveName(r *renameArgs, from, to, src, dst layout.Inode) error {
	if dst != nil {
		if err := mayRemove(dst, isDir(src)); err != nil {
			return err
		}
		if err := w.dirReplace(r.toDir.Ino(), to, r.toName, r.src, r.srcType); err != nil {
			return err
		}
		if isDir(dst) {
			to.SetNlink(to.Nlink() - 1)
		}
		w.dropLink(r.dst, dst)
	} else if err := w.dirInsert(r.toDir.Ino(), to, r.toName, r.src, r.srcType); err != nil {
		return err
	}
	w.reparent(r, from, to, src, r.toDir)
	if mistakeRename && r.flags == 0 {
		return nil
	}
	if r.whiteout == 0 {
		return w.dirRemove(r.fromDir.Ino(), from, r.fromName)
	}
	_, n := w.newInode(r.whiteout, unix.S_IFCHR)
	n.SetUID(w.req.UID)
	n.SetGID(w.req.GID)
	n.SetParent(r.fromDir.Ino())
	return w.dirReplace(r.fromDir.Ino(), from, r.fromName, r.whiteout, unix.S_IFCHR>>12)
}
