package nvfs

// NodeID names an inode over the lifetime of a volume: the inode number in
// the low 36 bits and the inode's generation in the high 28. A number that is
// reused gets another generation, so a stale NodeID is detected (ESTALE).
type NodeID uint64

// RootID is the root directory; it equals FUSE_ROOT_ID.
const RootID NodeID = 1

const inoBits = 36

// Ino is the inode number that st_ino shows.
func (id NodeID) Ino() uint64 { return uint64(id) & (1<<inoBits - 1) }

// Generation is the inode generation, for NFS-style file handles.
func (id NodeID) Generation() uint32 { return uint32(id >> inoBits) }

func makeNodeID(ino uint64, gen uint32) NodeID { return NodeID(uint64(gen)<<inoBits | ino) }

// Time is a timestamp with nanosecond resolution.
type Time struct {
	Sec  int64
	Nsec uint32
}

// Attr is what stat(2) reports of an inode.
type Attr struct {
	ID      NodeID
	Mode    uint32 // type and permission bits, as st_mode
	Nlink   uint32
	UID     uint32
	GID     uint32
	Rdev    uint32 // in the kernel's new_encode_dev form
	Size    uint64
	Blocks  uint64 // 512-byte units
	Atime   Time
	Mtime   Time
	Ctime   Time
	Btime   Time
	Changes uint64 // grows with every change of the inode (statx change cookie)
}

// SetAttrMask says which members of SetAttr are to be applied.
type SetAttrMask uint32

// The members of SetAttrMask. SetAtimeNow and SetMtimeNow take the engine's
// clock instead of the value given. KillSuidgid strips set-user-ID and
// set-group-ID and security.capability as write(2), truncate(2) and chown(2)
// by an unprivileged user must.
const (
	SetMode SetAttrMask = 1 << iota
	SetUID
	SetGID
	SetSize
	SetAtime
	SetMtime
	SetCtime
	SetAtimeNow
	SetMtimeNow
	KillSuidgid
)

// SetAttr is a change of any set of attributes; it is applied atomically.
type SetAttr struct {
	Valid SetAttrMask
	Mode  uint32 // permission bits; the type bits are ignored
	UID   uint32
	GID   uint32
	Size  uint64
	Atime Time
	Mtime Time
	Ctime Time
}

// Request identifies a mutating request, so that a resent one is answered
// from the record of its first execution. Unique has bit 63 cleared. A Request
// with Conn 0 is never sent again.
type Request struct {
	Conn   uint64
	Unique uint64
	UID    uint32
	GID    uint32
	// Resent says that the kernel sends the request again, since a server before
	// this one did not answer it (bit 63 of its unique is set). If that server
	// executed it, the operation does nothing and reports what it did then; if
	// it was interrupted in the middle, the operation is completed.
	Resent bool
}

// CreateArgs are the attributes of a new inode. The umask is applied unless
// the parent has a default ACL.
type CreateArgs struct {
	Mode  uint32 // type and permission bits, without the umask applied
	Umask uint32
	Rdev  uint32
}

// WriteFlags modify Write.
type WriteFlags uint32

const (
	// WriteKillSuidgid strips set-ID bits and security.capability with the
	// write.
	WriteKillSuidgid WriteFlags = 1 << iota
	// WriteKeepTimes leaves mtime and ctime alone: with a writeback cache the
	// kernel keeps them and sets them by itself.
	WriteKeepTimes
)

// Flags of Rename, with the values of renameat2(2).
const (
	RenameNoReplace = 1 << 0
	RenameExchange  = 1 << 1
	RenameWhiteout  = 1 << 2
)

// Modes of Fallocate, with the values of fallocate(2). FallocKeepTimes is
// ours, for WriteKeepTimes.
const (
	FallocKeepSize  = 0x01
	FallocPunchHole = 0x02
	FallocZeroRange = 0x10
	FallocKeepTimes = 1 << 31
)

// Flags of SetXattr, with the values of setxattr(2) and, for ACLKillSGID, of
// FUSE's setxattr_flags shifted to bit 16.
const (
	XattrCreate  = 1
	XattrReplace = 2
	ACLKillSGID  = 1 << 16
)

// DirEntry is one name in a directory. Name is valid only during the call
// that yields it.
type DirEntry struct {
	Name   []byte
	ID     NodeID // 0 when the caller did not ask for attributes and only Ino is known
	Ino    uint64
	Type   uint32 // file type bits as in st_mode
	Cookie uint64 // pass to ReadDir to continue after this entry
}

// StatFS is what statfs(2) reports.
type StatFS struct {
	BlockSize   uint32
	Blocks      uint64 // data blocks in all
	BlocksFree  uint64
	BlocksAvail uint64 // without the reserve that keeps a full volume usable
	Files       uint64
	FilesFree   uint64
	NameMax     uint32
	FSID        uint64
}
