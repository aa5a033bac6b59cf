package fusefs

import (
	"bytes"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// opcode is a FUSE request code.
type opcode uint32

const (
	opLookup          opcode = 1
	opForget          opcode = 2
	opGetattr         opcode = 3
	opSetattr         opcode = 4
	opReadlink        opcode = 5
	opSymlink         opcode = 6
	opMknod           opcode = 8
	opMkdir           opcode = 9
	opUnlink          opcode = 10
	opRmdir           opcode = 11
	opRename          opcode = 12
	opLink            opcode = 13
	opOpen            opcode = 14
	opRead            opcode = 15
	opWrite           opcode = 16
	opStatfs          opcode = 17
	opRelease         opcode = 18
	opFsync           opcode = 20
	opSetxattr        opcode = 21
	opGetxattr        opcode = 22
	opListxattr       opcode = 23
	opRemovexattr     opcode = 24
	opFlush           opcode = 25
	opInit            opcode = 26
	opOpendir         opcode = 27
	opReaddir         opcode = 28
	opReleasedir      opcode = 29
	opFsyncdir        opcode = 30
	opAccess          opcode = 34
	opCreate          opcode = 35
	opInterrupt       opcode = 36
	opDestroy         opcode = 38
	opNotifyReply     opcode = 41
	opBatchForget     opcode = 42
	opFallocate       opcode = 43
	opReaddirplus     opcode = 44
	opRename2         opcode = 45
	opLseek           opcode = 46
	opCopyFileRange   opcode = 47
	opSyncfs          opcode = 50
	opTmpfile         opcode = 51
	opStatx           opcode = 52
	opCopyFileRange64 opcode = 53
)

// opcodeNames are the names of the protocol, for messages.
var opcodeNames = map[opcode]string{
	opLookup: "LOOKUP", opForget: "FORGET", opGetattr: "GETATTR", opSetattr: "SETATTR",
	opReadlink: "READLINK", opSymlink: "SYMLINK", opMknod: "MKNOD", opMkdir: "MKDIR",
	opUnlink: "UNLINK", opRmdir: "RMDIR", opRename: "RENAME", opLink: "LINK", opOpen: "OPEN",
	opRead: "READ", opWrite: "WRITE", opStatfs: "STATFS", opRelease: "RELEASE", opFsync: "FSYNC",
	opSetxattr: "SETXATTR", opGetxattr: "GETXATTR", opListxattr: "LISTXATTR",
	opRemovexattr: "REMOVEXATTR", opFlush: "FLUSH", opInit: "INIT", opOpendir: "OPENDIR",
	opReaddir: "READDIR", opReleasedir: "RELEASEDIR", opFsyncdir: "FSYNCDIR", opAccess: "ACCESS",
	opCreate: "CREATE", opInterrupt: "INTERRUPT", opDestroy: "DESTROY",
	opNotifyReply: "NOTIFY_REPLY", opBatchForget: "BATCH_FORGET", opFallocate: "FALLOCATE",
	opReaddirplus: "READDIRPLUS", opRename2: "RENAME2", opLseek: "LSEEK",
	opCopyFileRange: "COPY_FILE_RANGE", opSyncfs: "SYNCFS", opTmpfile: "TMPFILE",
	opStatx: "STATX", opCopyFileRange64: "COPY_FILE_RANGE_64",
}

func (op opcode) String() string {
	if s, ok := opcodeNames[op]; ok {
		return s
	}
	return "unknown opcode"
}

// answered reports whether the kernel waits for a reply to op.
func (op opcode) answered() bool {
	return op != opForget && op != opBatchForget && op != opNotifyReply
}

const (
	inHeaderSize  = int(unsafe.Sizeof(fuse.InHeader{}))
	outHeaderSize = int(unsafe.Sizeof(fuse.OutHeader{}))

	// writeHeaderSize is what precedes the data of a WRITE.
	writeHeaderSize = int(unsafe.Sizeof(fuse.WriteIn{}))

	// resendBit marks, in a request's unique, one that the kernel sends again
	// because its first reader went away.
	resendBit = 1 << 63

	// nameMax is the longest name of a directory entry, in bytes.
	nameMax = 255
	// pathMax is the longest target of a symbolic link and its NUL.
	pathMax = 4096
)

// Code of a notification, as it stands on the wire.
const notifyInvalInode = 2

// batchForgetIn heads a BATCH_FORGET; Count forgetOnes follow.
type batchForgetIn struct {
	fuse.InHeader
	Count uint32
	_     uint32
}

type forgetOne struct {
	NodeID  uint64
	Nlookup uint64
}

// setxattrInCompat is SETXATTR's header without FUSE_SETXATTR_EXT.
type setxattrInCompat struct {
	fuse.InHeader
	Size  uint32
	Flags uint32
}

// renameIn is RENAME's header; RENAME2 has fuse.RenameIn.
type renameIn struct {
	fuse.InHeader
	Newdir uint64
}

// dirent heads one entry of a READDIR reply; the name follows, padded to 8
// bytes.
type dirent struct {
	Ino     uint64
	Off     uint64
	NameLen uint32
	Type    uint32
}

// direntPlus heads one entry of a READDIRPLUS reply.
type direntPlus struct {
	Entry fuse.EntryOut
	dirent
}

const (
	direntSize     = int(unsafe.Sizeof(dirent{}))
	direntPlusSize = int(unsafe.Sizeof(direntPlus{}))
)

// arg interprets the start of a message as a T, which begins with the
// request header, and returns what follows it; nil when the message is too
// short.
func arg[T any](msg []byte) (*T, []byte) {
	size := int(unsafe.Sizeof(*new(T)))
	if len(msg) < size {
		return nil, nil
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(msg))), msg[size:]
}

// reply interprets the start of a reply buffer as a T, zeroed.
func reply[T any](out []byte) (*T, int) {
	size := int(unsafe.Sizeof(*new(T)))
	p := (*T)(unsafe.Pointer(unsafe.SliceData(out[:size])))
	*p = *new(T)
	return p, size
}

// cutString cuts a NUL-terminated string from b.
func cutString(b []byte) (s, rest []byte, err error) {
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return nil, nil, syscall.EIO
	}
	return b[:i], b[i+1:], nil
}

// cutName cuts the NUL-terminated name of a directory entry from b. "." and
// ".." are names only to LOOKUP.
func cutName(b []byte) (name, rest []byte, err error) {
	name, rest, err = cutString(b)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case len(name) == 0 || bytes.IndexByte(name, '/') >= 0:
		return nil, nil, syscall.EINVAL
	case len(name) > nameMax:
		return nil, nil, syscall.ENAMETOOLONG
	}
	return name, rest, nil
}

// isDots reports whether name is "." or "..".
func isDots(name []byte) bool {
	return len(name) == 1 && name[0] == '.' || len(name) == 2 && name[0] == '.' && name[1] == '.'
}

// cutNewName is cutName for operations that change a directory.
func cutNewName(b []byte) (name, rest []byte, err error) {
	name, rest, err = cutName(b)
	if err == nil && isDots(name) {
		err = syscall.EINVAL
	}
	return name, rest, err
}
