package fusefs

import (
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

const (
	// cacheSeconds is how long the kernel may keep attributes, names and the
	// absence of names: for good, since nothing changes but through it.
	cacheSeconds = 365 * 24 * 3600

	ioBlockSize = 4096 // st_blksize
)

// fillAttr writes a as the kernel's attributes.
func fillAttr(o *fuse.Attr, a *nvfs.Attr) {
	*o = fuse.Attr{
		Ino:       a.ID.Ino(),
		Size:      a.Size,
		Blocks:    a.Blocks,
		Atime:     uint64(a.Atime.Sec),
		Mtime:     uint64(a.Mtime.Sec),
		Ctime:     uint64(a.Ctime.Sec),
		Atimensec: a.Atime.Nsec,
		Mtimensec: a.Mtime.Nsec,
		Ctimensec: a.Ctime.Nsec,
		Mode:      a.Mode,
		Nlink:     a.Nlink,
		Owner:     fuse.Owner{Uid: a.UID, Gid: a.GID},
		Rdev:      a.Rdev,
		Blksize:   ioBlockSize,
	}
}

// fillEntry writes a as the inode a name leads to.
func fillEntry(o *fuse.EntryOut, a *nvfs.Attr) {
	o.NodeId = uint64(a.ID)
	o.Generation = uint64(a.ID.Generation())
	o.EntryValid = cacheSeconds
	o.EntryValidNsec = 0
	o.AttrValid = cacheSeconds
	o.AttrValidNsec = 0
	fillAttr(&o.Attr, a)
}

// attrReply is a reply that carries attributes.
func attrReply(body []byte, a *nvfs.Attr) int {
	o, n := reply[fuse.AttrOut](body)
	o.AttrValid = cacheSeconds
	fillAttr(&o.Attr, a)
	return n
}

func (h *handler) getattr(id nvfs.NodeID, body []byte) (int, error) {
	if err := h.w.GetAttr(id, &h.attr); err != nil {
		return 0, err
	}
	return attrReply(body, &h.attr), nil
}

// setattrMasks pairs the wire's mask with the filesystem's.
var setattrMasks = [...]struct {
	wire uint32
	mask nvfs.SetAttrMask
}{
	{fuse.FATTR_MODE, nvfs.SetMode},
	{fuse.FATTR_UID, nvfs.SetUID},
	{fuse.FATTR_GID, nvfs.SetGID},
	{fuse.FATTR_SIZE, nvfs.SetSize},
	{fuse.FATTR_ATIME, nvfs.SetAtime},
	{fuse.FATTR_MTIME, nvfs.SetMtime},
	{fuse.FATTR_CTIME, nvfs.SetCtime},
	{fuse.FATTR_ATIME_NOW, nvfs.SetAtimeNow},
	{fuse.FATTR_MTIME_NOW, nvfs.SetMtimeNow},
	{fuse.FATTR_KILL_SUIDGID, nvfs.KillSuidgid},
}

func (h *handler) setattr(id nvfs.NodeID, msg, body []byte) (int, error) {
	in, _ := arg[fuse.SetAttrInCommon](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	h.set = nvfs.SetAttr{
		Mode:  in.Mode & 0o7777,
		UID:   in.Uid,
		GID:   in.Gid,
		Size:  in.Size,
		Atime: nvfs.Time{Sec: int64(in.Atime), Nsec: in.Atimensec},
		Mtime: nvfs.Time{Sec: int64(in.Mtime), Nsec: in.Mtimensec},
		Ctime: nvfs.Time{Sec: int64(in.Ctime), Nsec: in.Ctimensec},
	}
	for i := range setattrMasks {
		if in.Valid&setattrMasks[i].wire != 0 {
			h.set.Valid |= setattrMasks[i].mask
		}
	}
	if isChown(in.Valid) {
		// The kernel leaves chown(2) to the filesystem, whoever the caller.
		h.set.Valid |= nvfs.KillSuidgid
	}
	if in.Valid&(fuse.FATTR_ATIME_NOW|fuse.FATTR_CTIME) == fuse.FATTR_ATIME_NOW|fuse.FATTR_CTIME {
		// The times of data are the kernel's, and by its clock all are one.
		h.set.Valid &^= nvfs.SetAtimeNow
	}
	if !validTimes(&h.set) || in.Valid&fuse.FATTR_SIZE != 0 && in.Size > math.MaxInt64 {
		return 0, syscall.EINVAL
	}
	// The reply carries the mode, so stripped bits need no notification.
	if err := h.w.SetAttr(id, &h.set, &h.attr); err != nil {
		return 0, err
	}
	return attrReply(body, &h.attr), nil
}

// isChown reports whether a SETATTR is that of a chown(2). One of neither user
// nor group is left with nothing to set, but for the time of change where that
// is the kernel's.
func isChown(valid uint32) bool {
	const aside = fuse.FATTR_FH | fuse.FATTR_LOCKOWNER | fuse.FATTR_CTIME
	return valid&(fuse.FATTR_UID|fuse.FATTR_GID) != 0 || valid&^uint32(aside) == 0
}

// validTimes reports whether the nanoseconds of the times to set are below a
// second.
func validTimes(s *nvfs.SetAttr) bool {
	const limit = 1_000_000_000
	return (s.Valid&nvfs.SetAtime == 0 || s.Atime.Nsec < limit) &&
		(s.Valid&nvfs.SetMtime == 0 || s.Mtime.Nsec < limit) &&
		(s.Valid&nvfs.SetCtime == 0 || s.Ctime.Nsec < limit)
}

func (h *handler) statx(id nvfs.NodeID, body []byte) (int, error) {
	if err := h.w.GetAttr(id, &h.attr); err != nil {
		return 0, err
	}
	a := &h.attr
	o, n := reply[fuse.StatxOut](body)
	o.AttrValid = cacheSeconds
	o.Mask = unix.STATX_BASIC_STATS | unix.STATX_BTIME
	o.Blksize = ioBlockSize
	o.Nlink = a.Nlink
	o.Uid, o.Gid = a.UID, a.GID
	o.Mode = uint16(a.Mode)
	o.Ino = a.ID.Ino()
	o.Size = a.Size
	o.Blocks = a.Blocks
	o.Atime = sxTime(a.Atime)
	o.Btime = sxTime(a.Btime)
	o.Ctime = sxTime(a.Ctime)
	o.Mtime = sxTime(a.Mtime)
	// The inverse of the kernel's new_encode_dev.
	o.RdevMajor = a.Rdev >> 8 & 0xfff
	o.RdevMinor = a.Rdev&0xff | a.Rdev>>12&0xfff00
	return n, nil
}

func sxTime(t nvfs.Time) fuse.SxTime { return fuse.SxTime{Sec: uint64(t.Sec), Nsec: t.Nsec} }

func (h *handler) statfsReply(body []byte) (int, error) {
	if err := h.w.StatFS(&h.statfs); err != nil {
		return 0, err
	}
	s := &h.statfs
	o, n := reply[fuse.StatfsOut](body)
	o.Blocks, o.Bfree, o.Bavail = s.Blocks, s.BlocksFree, s.BlocksAvail
	o.Files, o.Ffree = s.Files, s.FilesFree
	o.Bsize, o.Frsize = s.BlockSize, s.BlockSize
	o.NameLen = s.NameMax
	return n, nil
}
