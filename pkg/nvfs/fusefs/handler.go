package fusefs

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// conn is one FUSE connection, shared by the handlers of all its threads.
type conn struct {
	cache CacheMode
	// transport is the one that is wanted of the kernel.
	transport string
	// onPanic, when not nil, is told of requests that failed by a panic or a
	// memory fault.
	onPanic func(Fault)
	// session is nil until INIT has been answered.
	session atomic.Pointer[Session]
	// fresh is set when the session began in this process, which then knows
	// everything that the kernel has been told.
	fresh  atomic.Bool
	listed listings
	// initErr is why INIT was refused.
	initErr atomic.Pointer[error]
	// onSession, when not nil, saves the session before the kernel gets it.
	onSession func(Session) error
	// resume is set when another server's requests are sent again.
	resume *Resume

	handlersMu sync.Mutex
	handlers   []*handler
}

// Fault is a request that ended in a panic: a defect, or memory of the volume
// that could not be read. The request has failed with EIO.
type Fault struct {
	Op    string
	Node  nvfs.NodeID
	Value any
	Stack []byte
}

func (f Fault) String() string {
	return fmt.Sprintf("%s of node %#x: %v", f.Op, uint64(f.Node), f.Value)
}

// notifier tells the kernel that what it caches is stale.
type notifier interface {
	invalAttr(id nvfs.NodeID)
	invalListing(id nvfs.NodeID)
}

// handler executes requests, one at a time. Its scratch members are what a
// Worker's arguments point to, so that no request allocates.
type handler struct {
	conn   *conn
	w      Worker
	note   notifier
	begun  bool
	turns  atomic.Uint64 // see Progress
	counts requestCounts

	req    nvfs.Request
	attr   nvfs.Attr
	set    nvfs.SetAttr
	create nvfs.CreateArgs
	statfs nvfs.StatFS
	dir    dirFiller
}

func newHandler(c *conn, w Worker, n notifier) *handler {
	h := &handler{conn: c, w: w, note: n}
	h.dir.yield = h.dir.add
	c.add(h)
	if t, ok := w.(HoleTracker); ok {
		t.TrackHoles()
	}
	return h
}

// handle executes the request in msg and leaves the reply in out, which holds
// at least the reply header and MaxWrite bytes. It returns the length of the
// reply; 0 is none. done must be called once the reply has been given to the
// kernel. Both buffers are aligned to 8 bytes.
func (h *handler) handle(msg, out []byte) int {
	h.turns.Add(1)
	hdr, _ := arg[fuse.InHeader](msg)
	if hdr == nil {
		return 0 // without a unique there is nothing to reply to
	}
	timed, start := h.counts.begin(opcode(hdr.Opcode))
	n, err := h.guarded(hdr, msg, out[outHeaderSize:])
	if timed != nil {
		timed.end(start)
	}
	if !opcode(hdr.Opcode).answered() {
		return 0
	}
	switch {
	case err != nil:
		n = 0
	case n < 0 || n > len(out)-outHeaderSize:
		n, err = 0, fmt.Errorf("%v: reply of %d bytes", opcode(hdr.Opcode), n)
	}
	*(*fuse.OutHeader)(unsafe.Pointer(unsafe.SliceData(out))) = fuse.OutHeader{
		Length: uint32(outHeaderSize + n),
		Status: -errno(opcode(hdr.Opcode), err),
		Unique: hdr.Unique,
	}
	return outHeaderSize + n
}

// done ends the request whose reply the kernel has got.
func (h *handler) done() {
	if h.begun {
		h.begun = false
		h.w.End()
	}
	h.turns.Add(1)
}

// guarded makes a panic in the request, or a fault in the memory it touched,
// the failure of this request alone.
func (h *handler) guarded(hdr *fuse.InHeader, msg, body []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			n, err = 0, syscall.EIO
			h.panicked(hdr, v)
		}
	}()
	return h.execute(hdr, msg, body)
}

func (h *handler) panicked(hdr *fuse.InHeader, v any) {
	fault := Fault{Op: opcode(hdr.Opcode).String(), Node: nvfs.NodeID(hdr.NodeId), Value: v, Stack: debug.Stack()}
	if a, ok := h.w.(Aborter); ok {
		a.Abort()
	}
	if h.conn.onPanic != nil {
		h.conn.onPanic(fault)
	}
}

// execute checks the frame of a request and begins it.
func (h *handler) execute(hdr *fuse.InHeader, msg, body []byte) (int, error) {
	msg, err := trim(hdr, msg)
	if err != nil {
		return 0, err
	}
	op := opcode(hdr.Opcode)
	if op == opInit {
		return h.init(msg, body)
	}
	s := h.conn.session.Load()
	if s == nil || h.conn.refused(hdr.Unique) {
		return 0, syscall.EIO
	}
	h.req = nvfs.Request{Conn: s.ConnID, Unique: hdr.Unique &^ resendBit, UID: hdr.Uid, GID: hdr.Gid, Resent: hdr.Unique&resendBit != 0}
	h.begun = true
	h.w.Begin(&h.req)
	if s.unimplemented(op) {
		return 0, h.refuse(op, hdr)
	}
	return h.dispatch(s, op, nvfs.NodeID(hdr.NodeId), msg, body)
}

// trim checks the length of a message and cuts off extensions, which no
// capability in force asks for.
func trim(hdr *fuse.InHeader, msg []byte) ([]byte, error) {
	ext := int(hdr.TotalExtlen) * 8
	if int64(hdr.Length) != int64(len(msg)) || inHeaderSize+ext > len(msg) {
		return nil, syscall.EIO
	}
	return msg[:len(msg)-ext], nil
}

// refuse answers an opcode that the kernel is told to do without. It takes
// the answer to FSYNC as success, so what the Worker says comes first.
func (h *handler) refuse(op opcode, hdr *fuse.InHeader) error {
	if op == opFsync || op == opFsyncdir {
		if err := h.w.Fsync(nvfs.NodeID(hdr.NodeId)); err != nil {
			return err
		}
	}
	return errEnosys
}

func (h *handler) init(msg, body []byte) (int, error) {
	in, _ := arg[fuse.InitIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	if s := h.conn.session.Load(); s != nil {
		if h.conn.resume == nil {
			return 0, syscall.EIO
		}
		// The server before had fixed the session and not told the kernel.
		out, n := reply[fuse.InitOut](body)
		*out = s.initReply(in)
		return n, nil
	}
	if in.Major > protocolMajor {
		// The kernel asks again with the version it is told.
		out, n := reply[fuse.InitOut](body)
		out.Major = protocolMajor
		return n, nil
	}
	var s *Session
	err := fmt.Errorf("the kernel speaks FUSE %d.%d, not %d", in.Major, in.Minor, protocolMajor)
	if in.Major == protocolMajor {
		s, err = negotiate(in.Minor, in.Flags64(), h.conn.cache)
	}
	if err == nil {
		s.choose(h.conn.transport, in.Flags64())
	}
	if err == nil && h.conn.onSession != nil {
		err = h.conn.onSession(*s)
	}
	if err != nil {
		h.conn.initErr.Store(&err)
		return 0, syscall.EPROTO
	}
	out, n := reply[fuse.InitOut](body)
	*out = s.initReply(in)
	h.conn.fresh.Store(true)
	h.conn.session.Store(s)
	return n, nil
}

// dispatch calls the operation. It returns the length of the reply's body.
func (h *handler) dispatch(s *Session, op opcode, id nvfs.NodeID, msg, body []byte) (int, error) {
	switch op {
	case opLookup:
		return h.lookup(id, msg, body)
	case opGetattr:
		return h.getattr(id, body)
	case opRead:
		return h.read(id, msg, body)
	case opWrite:
		return h.write(id, msg, body)
	case opMknod:
		return h.mknod(id, msg, body)
	case opForget:
		return h.forget(id, msg)
	case opBatchForget:
		return h.batchForget(msg)
	case opSetattr:
		return h.setattr(id, msg, body)
	case opReadlink:
		return h.readlink(id, body)
	case opSymlink:
		return h.symlink(id, msg, body)
	case opMkdir:
		return h.mkdir(id, msg, body)
	case opUnlink:
		return h.unlink(id, msg)
	case opRmdir:
		return h.rmdir(id, msg)
	case opRename:
		return h.rename(id, msg)
	case opRename2:
		return h.rename2(id, msg)
	case opLink:
		return h.link(id, msg, body)
	case opOpen:
		return open(s, body)
	case opCreate:
		return h.createOpen(s, id, msg, body)
	case opTmpfile:
		return h.tmpfile(s, id, msg, body)
	case opRelease, opReleasedir, opDestroy, opNotifyReply, opSyncfs:
		return 0, nil
	case opStatfs:
		return h.statfsReply(body)
	case opSetxattr:
		return h.setxattr(s, id, msg)
	case opGetxattr:
		return h.getxattr(id, msg, body)
	case opListxattr:
		return h.listxattr(id, msg, body)
	case opRemovexattr:
		return h.removexattr(id, msg)
	case opReaddir:
		return h.readdir(id, msg, body, false)
	case opReaddirplus:
		return h.readdir(id, msg, body, true)
	case opFallocate:
		return h.fallocate(id, msg)
	case opLseek:
		return h.lseek(id, msg, body)
	case opCopyFileRange, opCopyFileRange64:
		return h.copyFileRange(op, id, msg, body)
	case opStatx:
		return h.statx(id, body)
	}
	return 0, errEnosys
}

// errEnosys is ENOSYS meant for the kernel, which then stops sending the
// request. A Worker's own ENOSYS is a different value: it must not have that
// effect.
var errEnosys = errors.New("not implemented")

// errno is the error number of a reply.
func errno(op opcode, err error) int32 {
	switch {
	case err == nil:
		return 0
	case err == errEnosys:
		return int32(syscall.ENOSYS)
	}
	e, ok := err.(syscall.Errno)
	if !ok {
		e = wrappedErrno(op, err)
	}
	switch {
	case e == syscall.ENOSYS:
		return int32(syscall.EOPNOTSUPP)
	case e == 0 || e >= 512: // the kernel rejects such a reply
		return int32(syscall.EIO)
	}
	return int32(e)
}

// wrappedErrno is apart because it allocates.
func wrappedErrno(op opcode, err error) syscall.Errno {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	klog.V(2).ErrorS(err, "Request failed", "op", op)
	return syscall.EIO
}
