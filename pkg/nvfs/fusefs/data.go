package fusefs

import (
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// maxCopy bounds one COPY_FILE_RANGE in bytes: the caller asks for the rest
// again, and other requests are not kept waiting.
const maxCopy = 16 << 20

func (h *handler) read(id nvfs.NodeID, msg, body []byte) (int, error) {
	in, _ := arg[fuse.ReadIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	if in.Offset > math.MaxInt64 {
		return 0, syscall.EINVAL
	}
	return h.w.Read(id, in.Offset, body[:min(int(in.Size), len(body))])
}

func (h *handler) write(id nvfs.NodeID, msg, body []byte) (int, error) {
	in, data := arg[fuse.WriteIn](msg)
	if in == nil || uint64(in.Size) != uint64(len(data)) {
		return 0, syscall.EIO
	}
	if in.Offset > math.MaxInt64-uint64(in.Size) {
		return 0, syscall.EFBIG
	}
	var flags nvfs.WriteFlags
	if in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 {
		flags = nvfs.WriteKillSuidgid
	}
	if in.WriteFlags&fuse.WRITE_CACHE != 0 && h.kernelKeepsTimes() {
		flags |= nvfs.WriteKeepTimes
	}
	size, err := h.w.Write(id, in.Offset, data, flags)
	if err != nil {
		return 0, err
	}
	h.notifyStripped(id)
	o, n := reply[fuse.WriteOut](body)
	o.Size = uint32(size)
	return n, nil
}

// kernelKeepsTimes reports whether mtime and ctime of data are the kernel's
// to set, which it does by SETATTR.
func (h *handler) kernelKeepsTimes() bool {
	return h.conn.session.Load().has(fuse.CAP_WRITEBACK_CACHE)
}

// notifyStripped makes the kernel forget the attributes of id when the last
// call stripped set-ID bits, before the caller learns that it is done: with
// the old mode the file would still be executed set-ID.
func (h *handler) notifyStripped(id nvfs.NodeID) {
	if h.w.Stripped() {
		h.note.invalAttr(id)
	}
}

func (h *handler) fallocate(id nvfs.NodeID, msg []byte) (int, error) {
	in, _ := arg[fuse.FallocateIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	const known = nvfs.FallocKeepSize | nvfs.FallocPunchHole | nvfs.FallocZeroRange
	if in.Mode&^known != 0 {
		return 0, syscall.EOPNOTSUPP
	}
	if err := checkRange(in.Offset, in.Length); err != nil {
		return 0, err
	}
	mode := in.Mode
	if h.kernelKeepsTimes() {
		mode |= nvfs.FallocKeepTimes
	}
	if err := h.w.Fallocate(id, mode, in.Offset, in.Length); err != nil {
		return 0, err
	}
	h.notifyStripped(id)
	return 0, nil
}

// checkRange refuses an empty range, and one beyond the largest file.
func checkRange(off, length uint64) error {
	switch {
	case length == 0:
		return syscall.EINVAL
	case off > math.MaxInt64 || length > math.MaxInt64-off:
		return syscall.EFBIG
	}
	return nil
}

func (h *handler) lseek(id nvfs.NodeID, msg, body []byte) (int, error) {
	in, _ := arg[fuse.LseekIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	if in.Whence != unix.SEEK_DATA && in.Whence != unix.SEEK_HOLE {
		return 0, syscall.EINVAL
	}
	if in.Offset > math.MaxInt64 {
		return 0, syscall.ENXIO
	}
	off, err := h.seek(id, in.Offset, in.Whence)
	if err != nil {
		return 0, err
	}
	o, n := reply[fuse.LseekOut](body)
	o.Offset = off
	return n, nil
}

// seek finds data or a hole. A process that took the connection over does not
// know what the kernel has in its cache, and takes everything for data.
func (h *handler) seek(id nvfs.NodeID, off uint64, whence uint32) (uint64, error) {
	if h.conn.fresh.Load() {
		return h.w.Lseek(id, off, whence)
	}
	if err := h.w.GetAttr(id, &h.attr); err != nil {
		return 0, err
	}
	switch {
	case off >= h.attr.Size:
		return 0, syscall.ENXIO
	case whence == unix.SEEK_HOLE:
		off = h.attr.Size
	}
	return off, nil
}

// copyFileRange serves both forms, which differ in the reply only.
func (h *handler) copyFileRange(op opcode, id nvfs.NodeID, msg, body []byte) (int, error) {
	in, _ := arg[fuse.CopyFileRangeIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	length := min(in.Len, maxCopy)
	if in.OffIn > math.MaxInt64-length || in.OffOut > math.MaxInt64-length {
		return 0, syscall.EFBIG
	}
	dst := nvfs.NodeID(in.NodeIdOut)
	copied, err := h.w.CopyFileRange(id, in.OffIn, dst, in.OffOut, length, h.copyFlags())
	if err != nil {
		return 0, err
	}
	h.notifyStripped(dst)
	if op == opCopyFileRange64 {
		o, n := reply[fuse.CopyFileRangeOut](body)
		o.BytesCopied = copied
		return n, nil
	}
	o, n := reply[fuse.WriteOut](body)
	o.Size = uint32(copied)
	return n, nil
}

// copyFlags stands in for the flag that COPY_FILE_RANGE lacks. On a
// connection that allows mapped owners the caller is unknown.
func (h *handler) copyFlags() nvfs.WriteFlags {
	var flags nvfs.WriteFlags
	if h.req.UID != 0 {
		flags |= nvfs.WriteKillSuidgid
	}
	if h.kernelKeepsTimes() {
		flags |= nvfs.WriteKeepTimes
	}
	return flags
}
