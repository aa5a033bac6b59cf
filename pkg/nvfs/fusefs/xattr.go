package fusefs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// cutXattrName cuts the NUL-terminated name of an extended attribute from b.
func cutXattrName(b []byte) (name, rest []byte, err error) {
	name, rest, err = cutString(b)
	switch {
	case err != nil:
		return nil, nil, err
	case len(name) == 0 || len(name) > nameMax:
		return nil, nil, syscall.ERANGE
	}
	return name, rest, nil
}

func (h *handler) getxattr(id nvfs.NodeID, msg, body []byte) (int, error) {
	in, rest := arg[fuse.GetXAttrIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	name, _, err := cutXattrName(rest)
	if err != nil {
		return 0, err
	}
	size, err := h.w.GetXattr(id, name, body[:min(int(in.Size), len(body))])
	return xattrReply(in.Size, body, size, err)
}

func (h *handler) listxattr(id nvfs.NodeID, msg, body []byte) (int, error) {
	in, _ := arg[fuse.GetXAttrIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	size, err := h.w.ListXattr(id, body[:min(int(in.Size), len(body))])
	return xattrReply(in.Size, body, size, err)
}

// xattrReply is a value or list that stands in body, or its size when the
// kernel asked with an empty buffer.
func xattrReply(asked uint32, body []byte, size int, err error) (int, error) {
	switch {
	case err != nil:
		return 0, err
	case asked == 0:
		o, n := reply[fuse.GetXAttrOut](body)
		o.Size = uint32(size)
		return n, nil
	case uint64(size) > uint64(asked):
		return 0, syscall.ERANGE
	}
	return size, nil
}

func (h *handler) setxattr(s *Session, id nvfs.NodeID, msg []byte) (int, error) {
	var size, flags uint32
	var rest []byte
	if s.has(fuse.CAP_SETXATTR_EXT) {
		var in *fuse.SetXAttrIn
		if in, rest = arg[fuse.SetXAttrIn](msg); in == nil {
			return 0, syscall.EIO
		}
		size, flags = in.Size, in.Flags
		if in.SetXAttrFlags&fuse.SETXATTR_ACL_KILL_SGID != 0 {
			flags |= nvfs.ACLKillSGID
		}
	} else {
		var in *setxattrInCompat
		if in, rest = arg[setxattrInCompat](msg); in == nil {
			return 0, syscall.EIO
		}
		size, flags = in.Size, in.Flags
	}
	name, value, err := cutXattrName(rest)
	if err != nil {
		return 0, err
	}
	if uint64(size) != uint64(len(value)) {
		return 0, syscall.EIO
	}
	if flags&^(nvfs.XattrCreate|nvfs.XattrReplace|nvfs.ACLKillSGID) != 0 {
		return 0, syscall.EINVAL
	}
	return 0, h.w.SetXattr(id, name, value, flags)
}

func (h *handler) removexattr(id nvfs.NodeID, msg []byte) (int, error) {
	name, _, err := cutXattrName(msg[inHeaderSize:])
	if err != nil {
		return 0, err
	}
	return 0, h.w.RemoveXattr(id, name)
}
