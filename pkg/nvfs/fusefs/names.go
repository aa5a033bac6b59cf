package fusefs

import (
	"errors"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// entryReply is a reply that carries the inode in h.attr.
func (h *handler) entryReply(body []byte) int {
	o, n := reply[fuse.EntryOut](body)
	fillEntry(o, &h.attr)
	return n
}

func (h *handler) lookup(parent nvfs.NodeID, msg, body []byte) (int, error) {
	name, _, err := cutName(msg[inHeaderSize:])
	if err != nil {
		return 0, err
	}
	err = h.w.Lookup(parent, name, &h.attr)
	if errors.Is(err, syscall.ENOENT) {
		// Node 0 lets the kernel remember that there is no such name.
		o, n := reply[fuse.EntryOut](body)
		o.EntryValid = cacheSeconds
		return n, nil
	}
	if err != nil {
		return 0, err
	}
	return h.entryReply(body), nil
}

func (h *handler) forget(id nvfs.NodeID, msg []byte) (int, error) {
	in, _ := arg[fuse.ForgetIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	h.forgetOne(id, in.Nlookup)
	return 0, nil
}

func (h *handler) batchForget(msg []byte) (int, error) {
	in, rest := arg[batchForgetIn](msg)
	if in == nil || uint64(in.Count)*uint64(unsafe.Sizeof(forgetOne{})) > uint64(len(rest)) {
		return 0, syscall.EIO
	}
	for _, f := range unsafe.Slice((*forgetOne)(unsafe.Pointer(unsafe.SliceData(rest))), in.Count) {
		h.forgetOne(nvfs.NodeID(f.NodeID), f.Nlookup)
	}
	return 0, nil
}

func (h *handler) forgetOne(id nvfs.NodeID, n uint64) {
	if id != nvfs.RootID { // the root is not looked up
		h.w.Forget(id, n)
	}
}

// mknod makes the inode of a MKNOD. Without CREATE the kernel makes regular
// files by it, too.
func (h *handler) mknod(parent nvfs.NodeID, msg, body []byte) (int, error) {
	in, rest := arg[fuse.MknodIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	name, _, err := cutNewName(rest)
	if err != nil {
		return 0, err
	}
	switch in.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFCHR, unix.S_IFBLK, unix.S_IFIFO, unix.S_IFSOCK:
	default:
		return 0, syscall.EINVAL
	}
	h.create = nvfs.CreateArgs{Mode: in.Mode, Umask: in.Umask, Rdev: in.Rdev}
	if err := h.w.Mknod(parent, name, &h.create, &h.attr); err != nil {
		return 0, err
	}
	h.directoryChanged(parent)
	return h.entryReply(body), nil
}

func (h *handler) mkdir(parent nvfs.NodeID, msg, body []byte) (int, error) {
	in, rest := arg[fuse.MkdirIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	name, _, err := cutNewName(rest)
	if err != nil {
		return 0, err
	}
	h.create = nvfs.CreateArgs{Mode: in.Mode&^unix.S_IFMT | unix.S_IFDIR, Umask: in.Umask}
	if err := h.w.Mkdir(parent, name, &h.create, &h.attr); err != nil {
		return 0, err
	}
	h.directoryChanged(parent)
	return h.entryReply(body), nil
}

func (h *handler) symlink(parent nvfs.NodeID, msg, body []byte) (int, error) {
	name, rest, err := cutNewName(msg[inHeaderSize:])
	if err != nil {
		return 0, err
	}
	target, _, err := cutString(rest)
	switch {
	case err != nil:
		return 0, err
	case len(target) == 0:
		return 0, syscall.ENOENT
	case len(target) >= pathMax:
		return 0, syscall.ENAMETOOLONG
	}
	h.create = nvfs.CreateArgs{Mode: unix.S_IFLNK | 0o777}
	if err := h.w.Symlink(parent, name, target, &h.create, &h.attr); err != nil {
		return 0, err
	}
	h.directoryChanged(parent)
	return h.entryReply(body), nil
}

func (h *handler) readlink(id nvfs.NodeID, body []byte) (int, error) {
	return h.w.Readlink(id, body[:pathMax-1])
}

// link makes a name in the directory that the header names.
func (h *handler) link(parent nvfs.NodeID, msg, body []byte) (int, error) {
	in, rest := arg[fuse.LinkIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	name, _, err := cutNewName(rest)
	if err != nil {
		return 0, err
	}
	if err := h.w.Link(nvfs.NodeID(in.Oldnodeid), parent, name, &h.attr); err != nil {
		return 0, err
	}
	h.directoryChanged(parent)
	return h.entryReply(body), nil
}

func (h *handler) unlink(parent nvfs.NodeID, msg []byte) (int, error) {
	name, _, err := cutNewName(msg[inHeaderSize:])
	if err != nil {
		return 0, err
	}
	return 0, h.changed(h.w.Unlink(parent, name), parent)
}

func (h *handler) rmdir(parent nvfs.NodeID, msg []byte) (int, error) {
	name, _, err := cutNewName(msg[inHeaderSize:])
	if err != nil {
		return 0, err
	}
	return 0, h.changed(h.w.Rmdir(parent, name), parent)
}

func (h *handler) rename(parent nvfs.NodeID, msg []byte) (int, error) {
	in, rest := arg[renameIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	return h.renameNames(parent, nvfs.NodeID(in.Newdir), rest, 0)
}

func (h *handler) rename2(parent nvfs.NodeID, msg []byte) (int, error) {
	in, rest := arg[fuse.RenameIn](msg)
	if in == nil || in.Flags&^(nvfs.RenameNoReplace|nvfs.RenameExchange|nvfs.RenameWhiteout) != 0 {
		return 0, syscall.EINVAL
	}
	return h.renameNames(parent, nvfs.NodeID(in.Newdir), rest, in.Flags)
}

func (h *handler) renameNames(oldParent, newParent nvfs.NodeID, names []byte, flags uint32) (int, error) {
	oldName, rest, err := cutNewName(names)
	if err != nil {
		return 0, err
	}
	newName, _, err := cutNewName(rest)
	if err != nil {
		return 0, err
	}
	err = h.w.Rename(oldParent, oldName, newParent, newName, flags)
	return 0, h.changed(h.changed(err, oldParent), newParent)
}

// createOpen serves CREATE, which the kernel sends in direct mode only, and
// only for a name that it believes is absent.
func (h *handler) createOpen(s *Session, parent nvfs.NodeID, msg, body []byte) (int, error) {
	in, rest := arg[fuse.CreateIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	name, _, err := cutNewName(rest)
	if err != nil {
		return 0, err
	}
	h.create = nvfs.CreateArgs{Mode: in.Mode&^unix.S_IFMT | unix.S_IFREG, Umask: in.Umask}
	err = h.w.Mknod(parent, name, &h.create, &h.attr)
	if errors.Is(err, syscall.EEXIST) && in.Flags&unix.O_EXCL == 0 {
		// Makes the kernel look the name up and open what it finds.
		err = syscall.ESTALE
	}
	if err != nil {
		return 0, err
	}
	h.directoryChanged(parent)
	return h.createReply(s, body), nil
}

// tmpfile serves O_TMPFILE. The name in the message is a placeholder.
func (h *handler) tmpfile(s *Session, parent nvfs.NodeID, msg, body []byte) (int, error) {
	in, _ := arg[fuse.CreateIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	h.create = nvfs.CreateArgs{Mode: in.Mode&^unix.S_IFMT | unix.S_IFREG, Umask: in.Umask}
	if err := h.w.Tmpfile(parent, &h.create, &h.attr); err != nil {
		return 0, err
	}
	return h.createReply(s, body), nil
}

// createReply is the inode in h.attr, opened.
func (h *handler) createReply(s *Session, body []byte) int {
	o, n := reply[fuse.CreateOut](body)
	fillEntry(&o.EntryOut, &h.attr)
	o.OpenFlags = s.openFlags()
	return n
}

// open serves OPEN. Handles carry no state.
func open(s *Session, body []byte) (int, error) {
	o, n := reply[fuse.OpenOut](body)
	o.OpenFlags = s.openFlags()
	return n, nil
}
