package fusefs

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// maxExecutors bounds the Workers of a connection's queues: a volume has
// journal slots for about thirty. On machines with more CPUs they are shared.
const maxExecutors = 24

// executor executes requests, one at a time.
type executor struct {
	h *handler
	// A shared executor is locked from acquire to release.
	shared bool
	mu     sync.Mutex
}

// execute executes the request in e, of which msg is the one-message form, and
// leaves the reply in e. The executor is the caller's.
//
// The Worker is told of the end of the request before the kernel gets the
// reply, which comes with the thread's next system call. Nothing is executed
// in between.
func (x *executor) execute(u *uring, e *entry, msg []byte) {
	if opcode(e.in().Opcode) == opStatfs {
		u.reader.drain() // what was removed is to count as free
	}
	n := x.h.handle(msg, e.out())
	if e.noSpace(n) && u.reader.drain() > 0 {
		// Files were removed of which the filesystem had not heard yet that
		// nobody has them open.
		x.h.done()
		fixed, _, _ := e.sizes()
		e.copyFixed(msg[:fixed])
		n = x.h.handle(msg, e.out())
	}
	e.finish(n)
	x.h.done()
}

func (x *executor) acquire() {
	if x.shared {
		x.mu.Lock()
	}
}

func (x *executor) release() {
	if x.shared {
		x.mu.Unlock()
	}
}

// noSpace reports whether the reply of n bytes in out is that the volume is
// full.
func (e *entry) noSpace(n int) bool {
	return n == outHeaderSize && (*fuse.OutHeader)(unsafe.Pointer(&e.mem[entryHead-outHeaderSize])).Status == -int32(unix.ENOSPC)
}

// fileSize asks the Worker for the size of a file in bytes. A fault is left to
// the request itself to report.
func (x *executor) fileSize(id nvfs.NodeID) (size uint64, err error) {
	x.acquire()
	defer x.release()
	h := x.h
	defer func() {
		if recover() != nil {
			err = syscall.EIO
			if a, ok := h.w.(Aborter); ok {
				a.Abort()
			}
		}
	}()
	h.req = nvfs.Request{}
	h.w.Begin(&h.req)
	err = h.w.GetAttr(id, &h.attr)
	h.w.End()
	return h.attr.Size, err
}
