package fusefs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// The structures that follow the request header, as the kernel lays them out.
type (
	w32 = uint32
	w64 = uint64

	setattrWire struct {
		Valid, _                        w32
		Fh, Size, Owner                 w64
		Atime, Mtime, Ctime             w64
		Atimensec, Mtimensec, Ctimensec w32
		Mode, _, UID, GID, _            w32
	}
	readWire struct {
		Fh, Offset  w64
		Size, Flags w32
		Owner       w64
		Open, _     w32
	}
	copyWire struct{ FhIn, OffIn, Node, FhOut, OffOut, Len, Flags w64 }
)

func TestOperations(t *testing.T) {
	long := strings.Repeat("n", 256)
	tests := []struct {
		name  string
		op    opcode
		parts []any
		call  string // "" when the worker must not be called
		errno syscall.Errno
	}{
		{"lookup", opLookup, []any{"file"}, "Lookup 9 file", 0},
		{"lookup dot dot", opLookup, []any{".."}, "Lookup 9 ..", 0},
		{"lookup without NUL", opLookup, []any{[]byte("file")}, "", syscall.EIO},
		{"lookup empty", opLookup, []any{""}, "", syscall.EINVAL},
		{"lookup slash", opLookup, []any{"a/b"}, "", syscall.EINVAL},
		{"lookup long", opLookup, []any{long}, "", syscall.ENAMETOOLONG},
		{"lookup longest", opLookup, []any{long[1:]}, "Lookup 9 " + long[1:], 0},
		{"getattr", opGetattr, []any{[4]w32{}}, "GetAttr 9", 0},
		{"readlink", opReadlink, nil, "Readlink 9", 0},
		{"symlink", opSymlink, []any{"name", "to/there"}, "Symlink 9 name to/there 120777", 0},
		{"symlink to nothing", opSymlink, []any{"name", ""}, "", syscall.ENOENT},
		{"symlink too long", opSymlink, []any{"name", strings.Repeat("t", 4096)}, "", syscall.ENAMETOOLONG},
		{"symlink without target", opSymlink, []any{"name"}, "", syscall.EIO},
		{"mknod file", opMknod, []any{[]w32{unix.S_IFREG | 0o666, 0, 0o22, 0}, "f"}, "Mknod 9 f 100666 22 0", 0},
		{"mknod device", opMknod, []any{[]w32{unix.S_IFCHR | 0o600, 259, 0o22, 0}, "d"}, "Mknod 9 d 20600 22 259", 0},
		{"mknod directory", opMknod, []any{[]w32{unix.S_IFDIR | 0o600, 0, 0o22, 0}, "d"}, "", syscall.EINVAL},
		{"mknod dot", opMknod, []any{[]w32{unix.S_IFREG, 0, 0, 0}, "."}, "", syscall.EINVAL},
		{"mknod short", opMknod, []any{[]w32{unix.S_IFREG}}, "", syscall.EIO},
		{"mkdir", opMkdir, []any{[]w32{0o1777, 0o22}, "d"}, "Mkdir 9 d 41777 22", 0},
		{"unlink", opUnlink, []any{"f"}, "Unlink 9 f", 0},
		{"rmdir", opRmdir, []any{"d"}, "Rmdir 9 d", 0},
		{"rmdir dot dot", opRmdir, []any{".."}, "", syscall.EINVAL},
		{"rename", opRename, []any{w64(5), "a", "b"}, "Rename 9 a 5 b 0", 0},
		{"rename2", opRename2, []any{w64(5), []w32{nvfs.RenameExchange, 0}, "a", "b"}, "Rename 9 a 5 b 2", 0},
		{"rename2 unknown flag", opRename2, []any{w64(5), []w32{8, 0}, "a", "b"}, "", syscall.EINVAL},
		{"rename one name", opRename, []any{w64(5), "a"}, "", syscall.EIO},
		{"link", opLink, []any{w64(6), "l"}, "Link 6 9 l", 0},
		{"read", opRead, []any{readWire{Offset: 4096, Size: 100}}, "Read 9 4096 100", 0},
		{"read more than allowed", opRead, []any{readWire{Size: 1 << 31}}, fmt.Sprintf("Read 9 0 %d", MaxWrite), 0},
		{"read beyond", opRead, []any{readWire{Offset: 1 << 63, Size: 1}}, "", syscall.EINVAL},
		{"read short", opRead, []any{w64(1)}, "", syscall.EIO},
		{"write", opWrite, []any{readWire{Offset: 7, Size: 5}, []byte("hello")}, `Write 9 7 "hello" 0`, 0},
		{"write killing", opWrite, []any{readWire{Size: 1, Flags: fuse.WRITE_KILL_SUIDGID}, []byte("x")}, `Write 9 0 "x" 1`, 0},
		{"write of another size", opWrite, []any{readWire{Size: 6}, []byte("hello")}, "", syscall.EIO},
		{"write beyond", opWrite, []any{readWire{Offset: 1<<63 - 2, Size: 5}, []byte("hello")}, "", syscall.EFBIG},
		{"statfs", opStatfs, nil, "StatFS", 0},
		{"release", opRelease, []any{[3]w64{}}, "", 0},
		{"releasedir", opReleasedir, []any{[3]w64{}}, "", 0},
		{"destroy", opDestroy, nil, "", 0},
		{"syncfs", opSyncfs, []any{w64(0)}, "", 0},
		{"fsync", opFsync, []any{[2]w64{}}, "Fsync 9", syscall.ENOSYS},
		{"fsyncdir", opFsyncdir, []any{[2]w64{}}, "Fsync 9", syscall.ENOSYS},
		{"flush", opFlush, []any{[3]w64{}}, "", syscall.ENOSYS},
		{"access", opAccess, []any{w64(0)}, "", syscall.ENOSYS},
		{"open", opOpen, []any{w64(0)}, "", syscall.ENOSYS},
		{"opendir", opOpendir, []any{w64(0)}, "", syscall.ENOSYS},
		{"create", opCreate, []any{[4]w32{}, "f"}, "", syscall.ENOSYS},
		{"interrupt", opInterrupt, []any{w64(3)}, "", syscall.ENOSYS},
		{"bmap", opcode(37), []any{[2]w64{}}, "", syscall.ENOSYS},
		{"unknown", opcode(9999), nil, "", syscall.ENOSYS},
		{"tmpfile", opTmpfile, []any{[]w32{unix.O_RDWR, 0o600, 0o22, 0}, "#1"}, "Tmpfile 9 100600 22", 0},
		{"setxattr", opSetxattr, []any{[]w32{3, nvfs.XattrCreate, 1, 0}, "user.a", []byte("val")}, "SetXattr 9 user.a val 0x10001", 0},
		{"setxattr empty value", opSetxattr, []any{[]w32{0, 0, 0, 0}, "user.a"}, "SetXattr 9 user.a  0x0", 0},
		{"setxattr of another size", opSetxattr, []any{[]w32{4, 0, 0, 0}, "user.a", []byte("val")}, "", syscall.EIO},
		{"setxattr unknown flag", opSetxattr, []any{[]w32{3, 8, 0, 0}, "user.a", []byte("val")}, "", syscall.EINVAL},
		{"setxattr long name", opSetxattr, []any{[]w32{0, 0, 0, 0}, long}, "", syscall.ERANGE},
		{"getxattr", opGetxattr, []any{[]w32{64, 0}, "user.a"}, "GetXattr 9 user.a 64", 0},
		{"listxattr", opListxattr, []any{[]w32{64, 0}}, "ListXattr 9 64", 0},
		{"removexattr", opRemovexattr, []any{"user.a"}, "RemoveXattr 9 user.a", 0},
		{"fallocate", opFallocate, []any{[]w64{0, 4096, 8192}, []w32{nvfs.FallocPunchHole | nvfs.FallocKeepSize, 0}}, "Fallocate 9 3 4096 8192", 0},
		{"fallocate unknown mode", opFallocate, []any{[]w64{0, 0, 8192}, []w32{0x20, 0}}, "", syscall.EOPNOTSUPP},
		{"fallocate nothing", opFallocate, []any{[]w64{0, 0, 0}, []w32{0, 0}}, "", syscall.EINVAL},
		{"fallocate beyond", opFallocate, []any{[]w64{0, 1 << 62, 1 << 62}, []w32{0, 0}}, "", syscall.EFBIG},
		{"lseek", opLseek, []any{[]w64{0, 100}, []w32{unix.SEEK_HOLE, 0}}, "Lseek 9 100 4", 0},
		{"lseek from the start", opLseek, []any{[]w64{0, 100}, []w32{0, 0}}, "", syscall.EINVAL},
		{"lseek beyond", opLseek, []any{[]w64{0, 1 << 63}, []w32{unix.SEEK_DATA, 0}}, "", syscall.ENXIO},
		{"copy", opCopyFileRange, []any{copyWire{OffIn: 1, Node: 5, OffOut: 2, Len: 3}}, "CopyFileRange 9 1 5 2 3 1", 0},
		{"copy at length", opCopyFileRange64, []any{copyWire{OffIn: 1, Node: 5, OffOut: 2, Len: 1 << 40}}, fmt.Sprintf("CopyFileRange 9 1 5 2 %d 1", maxCopy), 0},
		{"copy beyond", opCopyFileRange, []any{copyWire{OffIn: 1<<63 - 1, Node: 5, Len: 3}}, "", syscall.EFBIG},
		{"statx", opStatx, []any{[4]w64{}}, "GetAttr 9", 0},
		{"second init", opInit, []any{[16]w32{7, 45}}, "", syscall.EIO},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, CacheThrough)
			e, _ := r.do(r.request(test.op, 9, test.parts...))
			if r.w.call != test.call {
				t.Errorf("called %q, want %q", r.w.call, test.call)
			}
			if syscall.Errno(e) != test.errno {
				t.Errorf("errno %d, want %d (%v)", e, test.errno, test.errno)
			}
			if r.w.begun != r.w.ended {
				t.Errorf("%d requests begun, %d ended", r.w.begun, r.w.ended)
			}
			if r.w.begun == 1 && (r.w.req.Unique != 0x42 || r.w.req.Conn == 0 || r.w.req.UID != 1000 || r.w.req.GID != 100) {
				t.Errorf("request %+v", r.w.req)
			}
		})
	}
}

func TestErrorNumbers(t *testing.T) {
	tests := []struct {
		err  error
		want syscall.Errno
	}{
		{syscall.ENOTEMPTY, syscall.ENOTEMPTY},
		{fmt.Errorf("directory: %w", syscall.ENOSPC), syscall.ENOSPC},
		{errors.New("checksum"), syscall.EIO},
		// The kernel would never ask again.
		{syscall.ENOSYS, syscall.EOPNOTSUPP},
		{syscall.Errno(512), syscall.EIO},
		{syscall.Errno(0), syscall.EIO},
	}
	for _, test := range tests {
		r := newRig(t, CacheThrough)
		r.w.err = test.err
		e, b := r.do(r.request(opRmdir, 9, "d"))
		if syscall.Errno(e) != test.want || len(b) != 0 {
			t.Errorf("%v: errno %d with %d bytes, want %v", test.err, e, len(b), test.want)
		}
	}
}

// FSYNC is answered ENOSYS, which the kernel takes for success for ever; a
// failure has to be told before.
func TestFsyncFailure(t *testing.T) {
	r := newRig(t, CacheThrough)
	r.w.err = syscall.EIO
	if e, _ := r.do(r.request(opFsync, 9, [2]w64{})); e != int(syscall.EIO) {
		t.Errorf("errno %d, want EIO", e)
	}
}

func TestEntryReply(t *testing.T) {
	r := newRig(t, CacheThrough)
	_, b := r.do(r.request(opLookup, 1, "f"))
	o := body[fuse.EntryOut](t, b)
	if o.NodeId != uint64(someAttr.ID) || o.Generation != 7 || o.EntryValid != cacheSeconds || o.AttrValid != cacheSeconds {
		t.Errorf("entry %+v", o)
	}
	checkAttr(t, o.Attr)
}

func checkAttr(t *testing.T, a fuse.Attr) {
	t.Helper()
	want := fuse.Attr{Ino: 77, Size: 12345, Blocks: 32, Atime: 1, Atimensec: 2, Mtime: 3, Mtimensec: 4, Ctime: 5, Ctimensec: 6,
		Mode: 0o100644, Nlink: 2, Owner: fuse.Owner{Uid: 10, Gid: 11}, Rdev: 0x01234567, Blksize: 4096}
	if a != want {
		t.Errorf("attributes %+v, want %+v", a, want)
	}
}

func TestNegativeEntry(t *testing.T) {
	r := newRig(t, CacheThrough)
	r.w.err = syscall.ENOENT
	e, b := r.do(r.request(opLookup, 1, "f"))
	o := body[fuse.EntryOut](t, b)
	if e != 0 || o != (fuse.EntryOut{EntryValid: cacheSeconds}) {
		t.Errorf("errno %d, entry %+v", e, o)
	}
}

func TestAttrReplies(t *testing.T) {
	r := newRig(t, CacheThrough)
	_, b := r.do(r.request(opGetattr, 9, [4]w32{}))
	a := body[fuse.AttrOut](t, b)
	if a.AttrValid != cacheSeconds {
		t.Errorf("valid for %d s", a.AttrValid)
	}
	checkAttr(t, a.Attr)

	_, b = r.do(r.request(opStatx, 9, [4]w64{}))
	x := body[fuse.StatxOut](t, b)
	if x.Mask != unix.STATX_BASIC_STATS|unix.STATX_BTIME || x.Btime != (fuse.SxTime{Sec: 7, Nsec: 8}) || x.Ino != 77 || x.Mode != 0o100644 {
		t.Errorf("statx %+v", x)
	}
	// 0x01234567 is what the kernel makes of major 0x345 and minor 0x1267.
	if x.RdevMajor != 0x345 || x.RdevMinor != 0x01267 {
		t.Errorf("device %#x:%#x", x.RdevMajor, x.RdevMinor)
	}

	_, b = r.do(r.request(opStatfs, 9))
	s := body[fuse.StatfsOut](t, b)
	if s.Blocks != 100 || s.Bfree != 50 || s.Bavail != 40 || s.Files != 9 || s.Ffree != 8 || s.Bsize != 4096 || s.Frsize != 4096 || s.NameLen != 255 {
		t.Errorf("statfs %+v", s)
	}
}

func TestSetattr(t *testing.T) {
	all := uint32(fuse.FATTR_MODE | fuse.FATTR_SIZE | fuse.FATTR_ATIME | fuse.FATTR_MTIME | fuse.FATTR_CTIME)
	wire := setattrWire{Valid: all, Size: 10, Atime: 1, Mtime: 2, Ctime: 3, Atimensec: 4, Mtimensec: 5, Ctimensec: 6, Mode: 0o104755, UID: 7, GID: 8}
	values := nvfs.SetAttr{Mode: 0o4755, UID: 7, GID: 8, Size: 10, Atime: nvfs.Time{Sec: 1, Nsec: 4}, Mtime: nvfs.Time{Sec: 2, Nsec: 5}, Ctime: nvfs.Time{Sec: 3, Nsec: 6}}
	for valid, mask := range map[uint32]nvfs.SetAttrMask{
		all:                     nvfs.SetMode | nvfs.SetSize | nvfs.SetAtime | nvfs.SetMtime | nvfs.SetCtime,
		fuse.FATTR_UID:          nvfs.SetUID | nvfs.KillSuidgid, // chown strips set-ID bits, whoever asks
		fuse.FATTR_GID:          nvfs.SetGID | nvfs.KillSuidgid,
		fuse.FATTR_ATIME_NOW:    nvfs.SetAtimeNow,
		fuse.FATTR_MTIME_NOW:    nvfs.SetMtimeNow,
		fuse.FATTR_KILL_SUIDGID: nvfs.KillSuidgid,
		// chown of neither user nor group leaves nothing to set.
		fuse.FATTR_FH:        nvfs.KillSuidgid,
		fuse.FATTR_LOCKOWNER: nvfs.KillSuidgid,
		fuse.FATTR_CTIME:     nvfs.SetCtime | nvfs.KillSuidgid,
		0:                    nvfs.KillSuidgid,
		// Where the time of change is the kernel's, so is the present.
		fuse.FATTR_ATIME | fuse.FATTR_ATIME_NOW | fuse.FATTR_CTIME: nvfs.SetAtime | nvfs.SetCtime,
	} {
		r := newRig(t, CacheThrough)
		wire.Valid, values.Valid = valid, mask
		e, b := r.do(r.request(opSetattr, 9, wire))
		if want := fmt.Sprintf("SetAttr 9 %+v", values); e != 0 || r.w.call != want {
			t.Errorf("errno %d, called %s, want %s", e, r.w.call, want)
		}
		checkAttr(t, body[fuse.AttrOut](t, b).Attr)
	}
	r := newRig(t, CacheThrough)
	wire.Valid, wire.Mtimensec = fuse.FATTR_MTIME, 1e9
	if e, _ := r.do(r.request(opSetattr, 9, wire)); e != int(syscall.EINVAL) || r.w.call != "" {
		t.Errorf("a full second of nanoseconds: errno %d", e)
	}
}

func TestDataReplies(t *testing.T) {
	r := newRig(t, CacheThrough)
	r.w.data, r.w.n = []byte("some data"), 4711
	if _, b := r.do(r.request(opRead, 9, readWire{Size: 4096})); string(b) != "some data" {
		t.Errorf("read %q", b)
	}
	if _, b := r.do(r.request(opReadlink, 9)); string(b) != "some data" {
		t.Errorf("link to %q", b)
	}
	_, b := r.do(r.request(opWrite, 9, readWire{Size: 5}, []byte("hello")))
	if o := body[fuse.WriteOut](t, b); o.Size != 5 {
		t.Errorf("wrote %d", o.Size)
	}
	_, b = r.do(r.request(opLseek, 9, []w64{0, 0}, []w32{unix.SEEK_DATA, 0}))
	if o := body[fuse.LseekOut](t, b); o.Offset != 4711 {
		t.Errorf("offset %d", o.Offset)
	}
	_, b = r.do(r.request(opCopyFileRange, 9, copyWire{Len: 10}))
	if o := body[fuse.WriteOut](t, b); o.Size != 4711 {
		t.Errorf("copied %d", o.Size)
	}
	_, b = r.do(r.request(opCopyFileRange64, 9, copyWire{Len: 10}))
	if o := body[fuse.CopyFileRangeOut](t, b); o.BytesCopied != 4711 {
		t.Errorf("copied %d", o.BytesCopied)
	}
}

func TestXattrReplies(t *testing.T) {
	r := newRig(t, CacheThrough)
	r.w.data = []byte("value")
	for _, op := range []opcode{opGetxattr, opListxattr} {
		_, b := r.do(r.request(op, 9, []w32{0, 0}, "user.a"))
		if o := body[fuse.GetXAttrOut](t, b); o.Size != 5 {
			t.Errorf("%v: size %d", op, o.Size)
		}
		if _, b = r.do(r.request(op, 9, []w32{5, 0}, "user.a")); string(b) != "value" {
			t.Errorf("%v: %q", op, b)
		}
		if e, _ := r.do(r.request(op, 9, []w32{4, 0}, "user.a")); e != int(syscall.ERANGE) {
			t.Errorf("%v: errno %d, want ERANGE", op, e)
		}
	}
}

func TestSetxattrWithoutExtension(t *testing.T) {
	r := newRawRig(t, CacheThrough)
	s, err := negotiate(45, allOffered&^uint64(fuse.CAP_SETXATTR_EXT), CacheThrough)
	must(t, err)
	r.h.conn.session.Store(s)
	if e, _ := r.do(r.request(opSetxattr, 9, []w32{3, 0}, "user.a", []byte("val"))); e != 0 || r.w.call != "SetXattr 9 user.a val 0x0" {
		t.Errorf("errno %d, called %s", e, r.w.call)
	}
}

func TestForget(t *testing.T) {
	r := newRig(t, CacheThrough)
	if n := r.h.handle(r.request(opForget, 9, w64(3)), r.out); n != 0 {
		t.Errorf("FORGET got a reply of %d bytes", n)
	}
	r.h.done()
	if n := r.h.handle(r.request(opBatchForget, 0, []w32{3, 0}, []w64{5, 1, 6, 2, 1, 9}), r.out); n != 0 {
		t.Errorf("BATCH_FORGET got a reply of %d bytes", n)
	}
	if want := "Forget 9 3;Forget 5 1;Forget 6 2;"; r.w.call != want { // the root has no lookups
		t.Errorf("called %s, want %s", r.w.call, want)
	}
	r.w.call = ""
	if n := r.h.handle(r.request(opBatchForget, 0, []w32{1 << 31, 0}, []w64{5, 1}), r.out); n != 0 || r.w.call != "" {
		t.Errorf("a count beyond the message: reply %d, called %s", n, r.w.call)
	}
}

func TestStrippedBitsAreInvalidated(t *testing.T) {
	r := newRig(t, CacheThrough)
	r.w.stripped = true
	r.do(r.request(opWrite, 9, readWire{Size: 1}, []byte("x")))
	r.do(r.request(opFallocate, 10, []w64{0, 0, 1}, []w32{0, 0}))
	r.do(r.request(opCopyFileRange, 8, copyWire{Node: 11, Len: 1}))
	if got := fmt.Sprint(r.invalidated); got != "[9 10 11]" {
		t.Errorf("invalidated %s", got)
	}
	r.w.stripped = false
	r.do(r.request(opWrite, 12, readWire{Size: 1}, []byte("x")))
	r.w.stripped, r.w.err = true, syscall.ENOSPC
	r.do(r.request(opWrite, 13, readWire{Size: 1}, []byte("x")))
	if len(r.invalidated) != 3 {
		t.Errorf("invalidated %v", r.invalidated)
	}
}

// Root may copy over a set-ID file without changing its mode.
func TestCopyByRootKeepsBits(t *testing.T) {
	r := newRig(t, CacheThrough)
	msg := r.request(opCopyFileRange, 9, copyWire{Node: 5, Len: 3})
	(*fuse.InHeader)(unsafe.Pointer(&msg[0])).Uid = 0
	r.do(msg)
	if want := "CopyFileRange 9 0 5 0 3 0"; r.w.call != want {
		t.Errorf("called %s, want %s", r.w.call, want)
	}
}

func TestDirectMode(t *testing.T) {
	const flags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES | fuse.FOPEN_NOFLUSH
	r := newRig(t, CacheDirect)
	e, b := r.do(r.request(opOpen, 9, w64(0)))
	if o := body[fuse.OpenOut](t, b); e != 0 || o.OpenFlags != flags {
		t.Errorf("OPEN: errno %d, flags %#x", e, o.OpenFlags)
	}
	e, b = r.do(r.request(opCreate, 9, []w32{unix.O_RDWR | unix.O_CREAT, 0o644, 0o22, 0}, "f"))
	if o := body[fuse.CreateOut](t, b); e != 0 || o.OpenFlags != flags || o.NodeId != uint64(someAttr.ID) {
		t.Errorf("CREATE: errno %d, %+v", e, o)
	}
	if r.w.call != "Mknod 9 f 100644 22 0" {
		t.Errorf("called %s", r.w.call)
	}
	if e, _ := r.do(r.request(opFlush, 9, [3]w64{})); e != int(syscall.ENOSYS) {
		t.Errorf("FLUSH: errno %d", e)
	}
	// A name that appeared since the kernel looked: exclusive creation fails,
	// any other looks again.
	r.w.err = syscall.EEXIST
	if e, _ := r.do(r.request(opCreate, 9, []w32{unix.O_EXCL, 0o644, 0, 0}, "f")); e != int(syscall.EEXIST) {
		t.Errorf("exclusive CREATE: errno %d", e)
	}
	if e, _ := r.do(r.request(opCreate, 9, []w32{0, 0o644, 0, 0}, "f")); e != int(syscall.ESTALE) {
		t.Errorf("CREATE: errno %d", e)
	}
}

func TestWritebackMode(t *testing.T) {
	r := newRig(t, CacheWriteback)
	if e, _ := r.do(r.request(opLseek, 9, []w64{0, 0}, []w32{unix.SEEK_HOLE, 0})); e != int(syscall.ENOSYS) {
		t.Errorf("LSEEK: errno %d, want ENOSYS: dirty pages are not known here", e)
	}
}

// TestListingsAreInvalidated wants the kernel to forget what it has cached of a
// directory's listing when that changes, and not to be told for nothing.
func TestListingsAreInvalidated(t *testing.T) {
	r := newRig(t, CacheThrough)
	list := func(id w64) { r.do(r.request(opReaddir, id, readWire{Size: 4096})) }
	unlink := func(id w64) { r.do(r.request(opUnlink, id, "name")) }
	want := func(what string, ids ...nvfs.NodeID) {
		t.Helper()
		if !slices.Equal(r.relisted, ids) {
			t.Errorf("%s: told of %d, want %d", what, r.relisted, ids)
		}
		r.relisted = nil
	}
	unlink(9)
	want("a directory that was not listed")
	list(9)
	list(9)
	want("listing")
	unlink(9)
	want("the first change", 9)
	unlink(9)
	want("the second change")
	list(9)
	r.do(r.request(opRename, 8, w64(9), "old", "new"))
	want("a rename into it", 9)
	list(9)
	r.w.err = syscall.ENOENT
	unlink(9)
	want("a change that failed")
	r.w.err = nil
	for id := w64(100); id < 1000; id++ {
		list(id)
	}
	for id := w64(100); id < 1000; id++ {
		unlink(id)
	}
	slices.Sort(r.relisted)
	for id := nvfs.NodeID(100); id < 1000; id++ {
		if _, told := slices.BinarySearch(r.relisted, id); !told {
			t.Errorf("directory %d of many was changed and kept", id)
		}
	}
}

// TestSeekAfterTakeover wants a process that continues a connection to report
// no holes: it does not know what the kernel has in its page cache.
func TestSeekAfterTakeover(t *testing.T) {
	r := newRig(t, CacheThrough)
	r.h.conn.fresh.Store(false)
	r.w.attr.Size = 5000
	const size = 5000
	for _, c := range []struct {
		off    uint64
		whence uint32
		errno  syscall.Errno
		found  uint64
	}{{1, unix.SEEK_DATA, 0, 1}, {1, unix.SEEK_HOLE, 0, size}, {size, unix.SEEK_HOLE, syscall.ENXIO, 0}, {size, unix.SEEK_DATA, syscall.ENXIO, 0}} {
		e, b := r.do(r.request(opLseek, 9, []w64{0, w64(c.off)}, []w32{w32(c.whence), 0}))
		if e != int(c.errno) || e == 0 && body[fuse.LseekOut](t, b).Offset != c.found {
			t.Errorf("%+v: errno %d, reply %x", c, e, b)
		}
	}
	if strings.Contains(r.w.call, "Lseek") {
		t.Errorf("called %s", r.w.call)
	}
}

func TestFaultFailsOneRequest(t *testing.T) {
	r := newRig(t, CacheThrough)
	var fault Fault
	r.h.conn.onPanic = func(f Fault) { fault = f }
	r.w.panics = "boom"
	if e, _ := r.do(r.request(opUnlink, 9, "f")); e != int(syscall.EIO) {
		t.Errorf("errno %d, want EIO", e)
	}
	if r.w.aborted != 1 || r.w.ended != 1 {
		t.Errorf("aborted %d, ended %d", r.w.aborted, r.w.ended)
	}
	if fault.Op != "UNLINK" || fault.Node != 9 || fault.Value != "boom" || len(fault.Stack) == 0 {
		t.Errorf("fault %v", fault)
	}
	r.w.panics = nil
	if e, _ := r.do(r.request(opUnlink, 9, "f")); e != 0 {
		t.Errorf("the request after it: errno %d", e)
	}
	r.w.panics = "boom"
	if n := r.h.handle(r.request(opForget, 9, w64(1)), r.out); n != 0 {
		t.Errorf("FORGET got a reply of %d bytes", n)
	}
}

func TestMalformedFrames(t *testing.T) {
	r := newRig(t, CacheThrough)
	if n := r.h.handle(r.msg[:inHeaderSize-1], r.out); n != 0 {
		t.Errorf("half a header got a reply of %d bytes", n)
	}
	msg := r.request(opUnlink, 9, "f")
	binary.LittleEndian.PutUint32(msg, uint32(len(msg)+1))
	if e, _ := r.do(msg); e != int(syscall.EIO) {
		t.Errorf("wrong length: errno %d", e)
	}
	msg = r.request(opUnlink, 9, "f")
	(*fuse.InHeader)(unsafe.Pointer(&msg[0])).TotalExtlen = 1
	if e, _ := r.do(msg); e != int(syscall.EIO) {
		t.Errorf("extension beyond the message: errno %d", e)
	}
	// An extension is not part of the name.
	msg = r.request(opUnlink, 9, "f", [8]byte{1}, [6]byte{})
	(*fuse.InHeader)(unsafe.Pointer(&msg[0])).TotalExtlen = 1
	if e, _ := r.do(msg); e != 0 || r.w.call != "Unlink 9 f" {
		t.Errorf("extension: errno %d, called %s", e, r.w.call)
	}
}

func TestBeforeInit(t *testing.T) {
	r := newRawRig(t, CacheThrough)
	if e, _ := r.do(r.request(opGetattr, 1, [4]w32{})); e != int(syscall.EIO) || r.w.begun != 0 {
		t.Errorf("errno %d, begun %d", e, r.w.begun)
	}
}
