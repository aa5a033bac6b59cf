package fusefs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// stubWorker records what it is called with and answers what it is told to.
type stubWorker struct {
	call     string // of the last operation, with its arguments
	calls    int
	err      error
	attr     nvfs.Attr
	n        int
	data     []byte
	entries  []nvfs.DirEntry
	missing  string // a name Lookup does not find
	stripped bool
	panics   any

	begun, ended, aborted int
	req                   nvfs.Request
	quiet                 bool // records nothing, to measure allocations
}

func (w *stubWorker) NewWorker() (Worker, error) { return w, nil }

func (w *stubWorker) did(format string, args ...any) error {
	w.calls++
	w.call = fmt.Sprintf(format, args...)
	if w.panics != nil {
		panic(w.panics)
	}
	return w.err
}

func (w *stubWorker) Begin(r *nvfs.Request) { w.begun++; w.req = *r }
func (w *stubWorker) End()                  { w.ended++ }
func (w *stubWorker) Abort()                { w.aborted++ }
func (w *stubWorker) Stripped() bool        { return w.stripped }

func (w *stubWorker) Lookup(p nvfs.NodeID, name []byte, a *nvfs.Attr) error {
	*a = w.attr
	if w.quiet {
		return w.err
	}
	if string(name) == w.missing {
		return fmt.Errorf("wrapped: %w", syscall.ENOENT)
	}
	return w.did("Lookup %d %s", p, name)
}
func (w *stubWorker) Forget(id nvfs.NodeID, n uint64) { w.call += fmt.Sprintf("Forget %d %d;", id, n) }
func (w *stubWorker) GetAttr(id nvfs.NodeID, a *nvfs.Attr) error {
	*a = w.attr
	if w.quiet {
		return w.err
	}
	return w.did("GetAttr %d", id)
}
func (w *stubWorker) SetAttr(id nvfs.NodeID, s *nvfs.SetAttr, a *nvfs.Attr) error {
	*a = w.attr
	return w.did("SetAttr %d %+v", id, *s)
}
func (w *stubWorker) Mknod(p nvfs.NodeID, name []byte, c *nvfs.CreateArgs, a *nvfs.Attr) error {
	*a = w.attr
	if w.quiet {
		return w.err
	}
	return w.did("Mknod %d %s %o %o %d", p, name, c.Mode, c.Umask, c.Rdev)
}
func (w *stubWorker) Mkdir(p nvfs.NodeID, name []byte, c *nvfs.CreateArgs, a *nvfs.Attr) error {
	*a = w.attr
	return w.did("Mkdir %d %s %o %o", p, name, c.Mode, c.Umask)
}
func (w *stubWorker) Tmpfile(p nvfs.NodeID, c *nvfs.CreateArgs, a *nvfs.Attr) error {
	*a = w.attr
	return w.did("Tmpfile %d %o %o", p, c.Mode, c.Umask)
}
func (w *stubWorker) Symlink(p nvfs.NodeID, name, target []byte, c *nvfs.CreateArgs, a *nvfs.Attr) error {
	*a = w.attr
	return w.did("Symlink %d %s %s %o", p, name, target, c.Mode)
}
func (w *stubWorker) Readlink(id nvfs.NodeID, dst []byte) (int, error) {
	return copy(dst, w.data), w.did("Readlink %d", id)
}
func (w *stubWorker) Link(id, p nvfs.NodeID, name []byte, a *nvfs.Attr) error {
	*a = w.attr
	return w.did("Link %d %d %s", id, p, name)
}
func (w *stubWorker) Unlink(p nvfs.NodeID, name []byte) error { return w.did("Unlink %d %s", p, name) }
func (w *stubWorker) Rmdir(p nvfs.NodeID, name []byte) error  { return w.did("Rmdir %d %s", p, name) }
func (w *stubWorker) Rename(op nvfs.NodeID, on []byte, np nvfs.NodeID, nn []byte, flags uint32) error {
	return w.did("Rename %d %s %d %s %d", op, on, np, nn, flags)
}
func (w *stubWorker) Read(id nvfs.NodeID, off uint64, dst []byte) (int, error) {
	n := copy(dst, w.data)
	if w.quiet {
		return n, w.err
	}
	return n, w.did("Read %d %d %d", id, off, len(dst))
}
func (w *stubWorker) Write(id nvfs.NodeID, off uint64, src []byte, flags nvfs.WriteFlags) (int, error) {
	if w.quiet {
		return len(src), w.err
	}
	return len(src), w.did("Write %d %d %q %d", id, off, src, flags)
}
func (w *stubWorker) Fallocate(id nvfs.NodeID, mode uint32, off, length uint64) error {
	return w.did("Fallocate %d %d %d %d", id, mode, off, length)
}
func (w *stubWorker) Lseek(id nvfs.NodeID, off uint64, whence uint32) (uint64, error) {
	return uint64(w.n), w.did("Lseek %d %d %d", id, off, whence)
}
func (w *stubWorker) CopyFileRange(src nvfs.NodeID, so uint64, dst nvfs.NodeID, do, length uint64, flags nvfs.WriteFlags) (uint64, error) {
	return uint64(w.n), w.did("CopyFileRange %d %d %d %d %d %d", src, so, dst, do, length, flags)
}
func (w *stubWorker) Fsync(id nvfs.NodeID) error { return w.did("Fsync %d", id) }
func (w *stubWorker) ReadDir(id nvfs.NodeID, cookie uint64, yield func(*nvfs.DirEntry) bool) error {
	for i := range w.entries {
		if w.entries[i].Cookie > cookie && !yield(&w.entries[i]) {
			break
		}
	}
	if w.quiet {
		return w.err
	}
	return w.did("ReadDir %d %d", id, cookie)
}
func (w *stubWorker) GetXattr(id nvfs.NodeID, name, dst []byte) (int, error) {
	return copyStub(dst, w.data), w.did("GetXattr %d %s %d", id, name, len(dst))
}
func (w *stubWorker) SetXattr(id nvfs.NodeID, name, value []byte, flags uint32) error {
	return w.did("SetXattr %d %s %s %#x", id, name, value, flags)
}
func (w *stubWorker) ListXattr(id nvfs.NodeID, dst []byte) (int, error) {
	return copyStub(dst, w.data), w.did("ListXattr %d %d", id, len(dst))
}
func (w *stubWorker) RemoveXattr(id nvfs.NodeID, name []byte) error {
	return w.did("RemoveXattr %d %s", id, name)
}
func (w *stubWorker) StatFS(s *nvfs.StatFS) error {
	*s = nvfs.StatFS{BlockSize: 4096, Blocks: 100, BlocksFree: 50, BlocksAvail: 40, Files: 9, FilesFree: 8, NameMax: 255}
	return w.did("StatFS")
}

func copyStub(dst, v []byte) int { copy(dst, v); return len(v) }

// rig drives a handler with messages from memory.
type rig struct {
	t           testing.TB
	w           *stubWorker
	h           *handler
	msg, out    []byte
	invalidated []nvfs.NodeID
	relisted    []nvfs.NodeID
}

func (r *rig) invalListing(id nvfs.NodeID) { r.relisted = append(r.relisted, id) }
func (r *rig) invalAttr(id nvfs.NodeID)    { r.invalidated = append(r.invalidated, id) }

// allOffered is a kernel that can do everything.
const allOffered = ^uint64(0)

func newRig(t testing.TB, cache CacheMode) *rig {
	t.Helper()
	s, err := negotiate(45, allOffered, cache)
	if err != nil {
		t.Fatal(err)
	}
	r := newRawRig(t, cache)
	r.h.conn.session.Store(s)
	r.h.conn.fresh.Store(true)
	return r
}

// newRawRig is a connection before INIT.
func newRawRig(t testing.TB, cache CacheMode) *rig {
	r := &rig{t: t, w: &stubWorker{attr: someAttr}}
	r.msg = aligned(writeHeaderSize + MaxWrite)
	r.out = aligned(outHeaderSize + MaxWrite)
	r.h = newHandler(&conn{cache: cache}, r.w, r)
	return r
}

func aligned(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}

// request composes a message; parts are structures, strings (which get a NUL)
// or bytes.
func (r *rig) request(op opcode, node uint64, parts ...any) []byte {
	var b bytes.Buffer
	hdr := fuse.InHeader{Opcode: uint32(op), Unique: 0x42 | resendBit, NodeId: node}
	hdr.Uid, hdr.Gid = 1000, 100
	must(r.t, binary.Write(&b, binary.LittleEndian, hdr))
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			b.WriteString(p)
			b.WriteByte(0)
		default:
			must(r.t, binary.Write(&b, binary.LittleEndian, p))
		}
	}
	binary.LittleEndian.PutUint32(b.Bytes(), uint32(b.Len()))
	return r.msg[:copy(r.msg, b.Bytes())]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// do executes a message and returns the error number and the body.
func (r *rig) do(msg []byte) (int, []byte) {
	r.t.Helper()
	n := r.h.handle(msg, r.out)
	r.h.done()
	if n == 0 {
		return 0, nil
	}
	hdr := (*fuse.OutHeader)(unsafe.Pointer(&r.out[0]))
	if int(hdr.Length) != n {
		r.t.Fatalf("reply length %d in a message of %d", hdr.Length, n)
	}
	if hdr.Unique != 0x42|resendBit {
		r.t.Fatalf("reply to request %#x", hdr.Unique)
	}
	return int(-hdr.Status), r.out[outHeaderSize:n]
}

// body interprets a reply.
func body[T any](t testing.TB, b []byte) T {
	t.Helper()
	var v T
	if len(b) != int(unsafe.Sizeof(v)) {
		t.Fatalf("reply of %d bytes, a %T has %d", len(b), v, unsafe.Sizeof(v))
	}
	return *(*T)(unsafe.Pointer(unsafe.SliceData(b)))
}

// someAttr has a different value in each member.
var someAttr = nvfs.Attr{
	ID: 7<<36 | 77, Mode: 0o100644, Nlink: 2, UID: 10, GID: 11, Rdev: 0x01234567, Size: 12345, Blocks: 32,
	Atime: nvfs.Time{Sec: 1, Nsec: 2}, Mtime: nvfs.Time{Sec: 3, Nsec: 4}, Ctime: nvfs.Time{Sec: 5, Nsec: 6}, Btime: nvfs.Time{Sec: 7, Nsec: 8},
}
