package nvfs

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// checkName accepts what can be a name of its own in a directory.
func checkName(name []byte) error {
	switch {
	case len(name) > layout.NameMax:
		return errNameTooLong
	case len(name) == 0, bytes.IndexByte(name, '/') >= 0, bytes.IndexByte(name, 0) >= 0:
		return errInvalid
	case bytes.Equal(name, dotName), bytes.Equal(name, dotDotName):
		return errExist
	}
	return nil
}

// dirAt returns the directory that id names, in place.
func (fs *FS) dirAt(id NodeID) (layout.Inode, error) {
	n, err := fs.inodeAt(id)
	if err == nil && !isDir(n) {
		err = errNotDir
	}
	return n, err
}

// stageDir returns the private copy of a directory that names can be added
// to.
func (w *Worker) stageDir(id NodeID) (layout.Inode, error) {
	n, err := w.stageInode(id)
	if err != nil {
		return nil, err
	}
	if !isDir(n) {
		return nil, errNotDir
	}
	if n.Nlink() == 0 {
		return nil, errNotExist
	}
	return n, nil
}

// find looks a name up under the directory's lock, which it takes and
// releases. pin counts a lookup of what it finds.
func (w *Worker) find(parent NodeID, name []byte, pin bool) (uint64, uint8, error) {
	w.rlock(parent.Ino())
	defer w.unlock()
	n, err := w.fs.inodeAt(parent)
	if err != nil {
		return 0, 0, err
	}
	var ino uint64
	var typ uint8
	switch {
	case bytes.Equal(name, dotName):
		// This is how the kernel finds what a file handle names, be it a
		// directory or not. What has no name left is gone for it.
		if n.Nlink() == 0 {
			return 0, 0, errStale
		}
		ino, typ = parent.Ino(), uint8(n.Mode()>>12)
	case !isDir(n):
		return 0, 0, errNotDir
	case bytes.Equal(name, dotDotName):
		if n.Nlink() == 0 {
			return 0, 0, errNotExist // removed, and what was above it may be gone too
		}
		ino, typ = n.Parent(), unix.S_IFDIR>>12
	default:
		if ino, typ, err = w.dirFind(parent.Ino(), n, name); err != nil {
			return 0, 0, err
		}
	}
	if w.fs.validIno(ino) != nil {
		return 0, 0, w.fs.damaged(false, "directory %d: an entry points to inode %d, which cannot be", parent.Ino(), ino)
	}
	if pin {
		w.fs.lookups.add(ino, 1)
	}
	return ino, typ, nil
}

// Lookup finds a name in a directory, "." and ".." included, and counts a
// lookup of what it finds: the inode stays until Forget takes the count back,
// even when its last name is removed.
func (w *Worker) Lookup(parent NodeID, name []byte, a *Attr) error {
	if len(name) > layout.NameMax {
		return errNameTooLong
	}
	ino, _, err := w.find(parent, name, true)
	if err != nil {
		return err
	}
	if err := w.attrOf(ino, a); err != nil {
		w.forget(ino, 1)
		return err
	}
	return nil
}

func (w *Worker) attrOf(ino uint64, a *Attr) error {
	w.rlock(ino)
	defer w.unlock()
	n, err := w.fs.inode(ino)
	if err != nil {
		return err
	}
	if n.Mode() == 0 {
		return w.fs.damaged(false, "a name points to inode %d, which is free", ino)
	}
	fillAttr(ino, n, a)
	return nil
}

// LookupID counts a lookup of an inode that is known already.
func (w *Worker) LookupID(id NodeID, a *Attr) error {
	w.rlock(id.Ino())
	defer w.unlock()
	n, err := w.fs.inodeAt(id)
	if err != nil {
		return err
	}
	w.fs.lookups.add(id.Ino(), 1)
	fillAttr(id.Ino(), n, a)
	return nil
}

// Forget takes n lookups back. An inode without names and lookups is freed.
// An id that names no inode any more is ignored.
func (w *Worker) Forget(id NodeID, n uint64) {
	w.rlock(id.Ino())
	_, err := w.fs.inodeAt(id)
	w.unlock()
	if err == nil {
		w.forget(id.Ino(), n)
	}
}

func (w *Worker) forget(ino, n uint64) {
	left, exact := w.fs.lookups.sub(ino, n)
	if left > 0 {
		return
	}
	w.fs.holes.forget(ino)
	w.rlock(ino)
	node, err := w.fs.inode(ino)
	orphan := err == nil && node.Mode() != 0 && node.Nlink() == 0
	var id NodeID
	if orphan {
		id = makeNodeID(ino, node.Generation())
	}
	w.unlock()
	switch {
	case !orphan:
	case exact || w.fs.resumed == 0:
		w.releaseOrphan(ino)
	case w.fs.onOrphan != nil:
		w.fs.onOrphan(id)
	}
}

// unused reports whether an inode whose last name goes can be released at once.
// On a resumed connection the kernel may refer to it although no lookup was
// counted; it will forget it.
func (w *Worker) unused(ino uint64) bool {
	return w.fs.resumed == 0 && w.fs.lookups.count(ino) == 0
}

// Mknod makes a file of any type but directory and symlink.
func (w *Worker) Mknod(parent NodeID, name []byte, c *CreateArgs, a *Attr) error {
	switch c.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK:
		return w.create(opMknod, parent, name, nil, c, a)
	}
	return errInvalid
}

// Mkdir makes a directory.
func (w *Worker) Mkdir(parent NodeID, name []byte, c *CreateArgs, a *Attr) error {
	d := *c
	d.Mode = c.Mode&^uint32(unix.S_IFMT) | unix.S_IFDIR
	return w.create(opMkdir, parent, name, nil, &d, a)
}

// Symlink makes a symbolic link.
func (w *Worker) Symlink(parent NodeID, name, target []byte, c *CreateArgs, a *Attr) error {
	if len(target) == 0 || len(target) >= layout.BlockSize {
		return errNameTooLong
	}
	return w.create(opSymlink, parent, name, target, &CreateArgs{Mode: unix.S_IFLNK | 0777}, a)
}

func (w *Worker) create(op uint32, parent NodeID, name, target []byte, c *CreateArgs, a *Attr) error {
	if done, err := w.startEntry(op, a); done {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	ino, err := w.reserveInode(c.Mode)
	if err != nil {
		return err
	}
	w.lock(parent.Ino(), ino)
	defer w.unlock()
	if err := w.createLocked(parent, name, target, ino, c); err != nil {
		w.rollback()
		return err
	}
	return w.created(ino, a)
}

// created reports a new inode and counts the lookup of the reply.
func (w *Worker) created(ino uint64, a *Attr) error { return w.linked(ino, 1|lookupExact, a) }

// linked reports an inode and adds to its count of lookups.
func (w *Worker) linked(ino uint64, lookups uint32, a *Attr) error {
	n, err := w.fs.inode(ino)
	if err != nil {
		return err
	}
	w.fs.lookups.add(ino, lookups)
	fillAttr(ino, n, a)
	return nil
}

func (w *Worker) createLocked(parent NodeID, name, target []byte, ino uint64, c *CreateArgs) error {
	p, err := w.stageDir(parent)
	if err != nil {
		return err
	}
	id, n := w.newInode(ino, c.Mode)
	if err := w.inherit(parent.Ino(), p, n, c); err != nil {
		return err
	}
	if err := w.dirInsert(parent.Ino(), p, name, ino, uint8(c.Mode>>12)); err != nil {
		return err
	}
	if isDir(n) {
		if p.Nlink() >= maxNlink {
			return errMlink
		}
		p.SetNlink(p.Nlink() + 1)
	}
	if target != nil {
		if err := w.writeRange(ino, n, 0, target); err != nil {
			return err
		}
	}
	w.modified(p)
	w.tx.result = layout.RequestTuple{Ino: uint64(id)}
	return w.commit()
}

// inherit sets owner, mode and ACLs of a new inode in directory p.
func (w *Worker) inherit(parent uint64, p, n layout.Inode, c *CreateArgs) error {
	n.SetUID(w.req.UID)
	n.SetGID(w.req.GID)
	n.SetParent(parent)
	if t := n.Mode() & unix.S_IFMT; t == unix.S_IFCHR || t == unix.S_IFBLK {
		n.SetRdev(c.Rdev)
	}
	if p.Mode()&unix.S_ISGID != 0 {
		n.SetGID(p.GID())
		if isDir(n) {
			n.SetMode(n.Mode() | unix.S_ISGID)
		}
	}
	return w.inheritACL(parent, p, n, c.Umask)
}

// Tmpfile makes a file without a name, to be linked or to go with its last
// user.
func (w *Worker) Tmpfile(parent NodeID, c *CreateArgs, a *Attr) error {
	if done, err := w.startEntry(opTmpfile, a); done {
		return err
	}
	if c.Mode&unix.S_IFMT != unix.S_IFREG {
		return errInvalid
	}
	ino, err := w.reserveInode(c.Mode)
	if err != nil {
		return err
	}
	w.lock(parent.Ino(), ino)
	defer w.unlock()
	p, err := w.stageDir(parent)
	if err == nil {
		id, n := w.newInode(ino, c.Mode)
		n.SetNlink(0)
		w.tx.orphaned = append(w.tx.orphaned, ino)
		w.tx.result = layout.RequestTuple{Ino: uint64(id)}
		if err = w.inherit(parent.Ino(), p, n, c); err == nil {
			err = w.commit()
		}
	}
	if err != nil {
		w.rollback()
		return err
	}
	return w.created(ino, a)
}

// Readlink copies the target of a symlink into dst and returns its length.
func (w *Worker) Readlink(id NodeID, dst []byte) (int, error) {
	w.rlock(id.Ino())
	defer w.unlock()
	n, err := w.fs.inodeAt(id)
	if err != nil {
		return 0, err
	}
	if n.Mode()&unix.S_IFMT != unix.S_IFLNK {
		return 0, errInvalid
	}
	return w.readAt(id.Ino(), n, 0, dst)
}

// Link gives an inode a further name.
func (w *Worker) Link(id, parent NodeID, name []byte, a *Attr) error {
	if done, err := w.startEntry(opLink, a); done {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	w.lock(parent.Ino(), id.Ino())
	defer w.unlock()
	if err := w.linkLocked(id, parent, name); err != nil {
		w.rollback()
		return err
	}
	return w.linked(id.Ino(), 1, a)
}

func (w *Worker) linkLocked(id, parent NodeID, name []byte) error {
	p, err := w.stageDir(parent)
	if err != nil {
		return err
	}
	n, err := w.stageInode(id)
	if err != nil {
		return err
	}
	switch {
	case isDir(n):
		return errPerm
	case n.Nlink() >= maxNlink:
		return errMlink
	case n.Nlink() == 0: // a temporary file gets a name
		w.tx.adopted = append(w.tx.adopted, id.Ino())
		n.SetParent(parent.Ino())
	}
	if err := w.dirInsert(parent.Ino(), p, name, id.Ino(), uint8(n.Mode()>>12)); err != nil {
		return err
	}
	n.SetNlink(n.Nlink() + 1)
	w.touch(n)
	w.modified(p)
	w.tx.result = layout.RequestTuple{Ino: uint64(id)}
	return w.commit()
}

// Unlink removes the name of something that is not a directory.
func (w *Worker) Unlink(parent NodeID, name []byte) error { return w.remove(parent, name, false) }

// Rmdir removes an empty directory.
func (w *Worker) Rmdir(parent NodeID, name []byte) error { return w.remove(parent, name, true) }

func (w *Worker) remove(parent NodeID, name []byte, dir bool) error {
	op := uint32(opUnlink)
	if dir {
		op = opRmdir
	}
	if done, err := w.start(op); done {
		return err
	}
	if err := checkName(name); err != nil {
		if err == errExist { // "." or ".."
			return errInvalid
		}
		return err
	}
	for {
		ino, _, err := w.find(parent, name, false)
		if err != nil {
			return err
		}
		again, err := w.removeLocked(parent, name, ino, dir)
		if !again {
			return err
		}
	}
}

// removeLocked removes name if it still refers to ino; again is true when it
// does not.
func (w *Worker) removeLocked(parent NodeID, name []byte, ino uint64, dir bool) (again bool, err error) {
	w.lock(parent.Ino(), ino)
	again, free, err := w.removeName(parent, name, ino, dir)
	if err != nil || again {
		w.rollback()
	}
	w.unlock()
	if free && err == nil {
		w.releaseOrphan(ino)
	}
	return again, err
}

func (w *Worker) removeName(parent NodeID, name []byte, ino uint64, dir bool) (again, free bool, err error) {
	p, err := w.stageDir(parent)
	if err != nil {
		return false, false, err
	}
	if now, _, err := w.dirFind(parent.Ino(), p, name); err != nil || now != ino {
		return err == nil, false, err
	}
	n, err := w.stageChild(ino)
	if err != nil {
		return false, false, err
	}
	if err := mayRemove(n, dir); err != nil {
		return false, false, err
	}
	if err := w.dirRemove(parent.Ino(), p, name); err != nil {
		return false, false, err
	}
	if dir {
		p.SetNlink(p.Nlink() - 1)
	}
	w.modified(p)
	w.dropLink(ino, n)
	w.tx.result = layout.RequestTuple{Ino: uint64(makeNodeID(ino, n.Generation()))}
	free = n.Nlink() == 0 && w.unused(ino)
	return false, free, w.commit()
}

// stageChild stages an inode that a directory entry refers to.
func (w *Worker) stageChild(ino uint64) (layout.Inode, error) {
	n, err := w.fs.inode(ino)
	if err != nil {
		return nil, err
	}
	if n.Mode() == 0 || n.Nlink() == 0 {
		return nil, w.fs.damaged(false, "a name points to inode %d, which has none", ino)
	}
	return w.stageInode(makeNodeID(ino, n.Generation()))
}

// mayRemove checks the type, and that a directory is empty.
func mayRemove(n layout.Inode, dir bool) error {
	switch {
	case dir && !isDir(n):
		return errNotDir
	case !dir && isDir(n):
		return errIsDir
	case dir && n.Entries() != 0:
		return errNotEmpty
	}
	return nil
}

// dropLink takes a link off a staged inode; the last one makes it an orphan.
func (w *Worker) dropLink(ino uint64, n layout.Inode) {
	w.touch(n)
	if isDir(n) {
		n.SetNlink(0)
	} else {
		n.SetNlink(n.Nlink() - 1)
	}
	if n.Nlink() == 0 {
		w.tx.orphaned = append(w.tx.orphaned, ino)
	}
}

// releaseOrphan frees an inode that has neither names nor lookups, in as many
// records as it takes. Until the last one it stays in the orphan bitmap, so a
// crash leaves it to the next mount. Damage stops it: fsck frees the rest.
func (w *Worker) releaseOrphan(ino uint64) {
	if w.mayChange() != nil {
		return
	}
	w.lock(ino)
	defer w.unlock()
	req := w.req
	w.req = Request{} // whose record has been made
	defer func() { w.req = req }()
	for {
		n, err := w.fs.inode(ino)
		if err != nil || n.Mode() == 0 || n.Nlink() != 0 || w.fs.lookups.count(ino) != 0 {
			return
		}
		done, err := w.releaseStep(ino, makeNodeID(ino, n.Generation()))
		if err != nil {
			w.rollback()
			return
		}
		if done {
			return
		}
	}
}

func (w *Worker) releaseStep(ino uint64, id NodeID) (done bool, err error) {
	n, err := w.stageInode(id)
	if err != nil {
		return false, err
	}
	next := uint64(noBlock)
	if n.Format() == layout.FormatExtents {
		if next, err = w.unmapExtents(ino, n, 0, noBlock, true); err != nil {
			return false, err
		}
	}
	if next == noBlock {
		done = true
		if err := w.dropXattrs(ino, n); err != nil {
			return false, err
		}
		gen := n.Generation()
		clear(n)
		n.SetGeneration(gen)
		w.tx.oldInodes = append(w.tx.oldInodes, ino)
		w.tx.adopted = append(w.tx.adopted, ino)
	}
	return done, w.commit()
}

// validIno reports whether ino can be an inode of the volume.
func (fs *FS) validIno(ino uint64) error {
	if ino == 0 {
		return errStale
	}
	g := fs.group(layout.InodeGroup(ino, fs.sb.InodesPerGroup))
	if g == nil || layout.InodeIndex(ino, fs.sb.InodesPerGroup) >= g.inodes {
		return errStale
	}
	return nil
}
