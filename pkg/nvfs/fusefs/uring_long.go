package fusefs

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

const (
	// longCopy and longChange are from how many bytes on a COPY_FILE_RANGE, or
	// a change of size or allocation, is executed by a thread of its own: the
	// others of its CPU would wait for it. Both take some tenths of a
	// millisecond, which makes up for waking that thread.
	longCopy   = 1 << 20
	longChange = 64 << 20

	longThreads = 2
)

// longRequests executes what takes its time.
type longRequests struct {
	requests chan longRequest
	threads  sync.WaitGroup
}

// longRequest is the request in an entry.
type longRequest struct {
	t   *ringThread
	i   int
	msg []byte
}

// startLong starts the threads. There are never more requests than entries, so
// giving one does not block.
func startLong(u *uring, entries int, executors []*executor) *longRequests {
	l := &longRequests{requests: make(chan longRequest, entries)}
	for _, x := range executors {
		l.threads.Go(func() {
			runtime.LockOSThread()
			beServingThread()
			for r := range l.requests {
				x.acquire()
				x.execute(u, &r.t.entries[r.i], r.msg)
				r.t.finished(r.i)
				x.release()
			}
		})
	}
	return l
}

// stop ends the threads; nothing may be given any more.
func (l *longRequests) stop() {
	close(l.requests)
	l.threads.Wait()
}

func (l *longRequests) give(r longRequest) { l.requests <- r }

// takes reports whether the request in e is a long one. x looks up the size of
// a file.
func (l *longRequests) takes(e *entry, x *executor) bool {
	op := unsafe.Pointer(&e.header.Op)
	switch opcode(e.in().Opcode) {
	case opCopyFileRange, opCopyFileRange64:
		return (*copyFileRangeOp)(op).Len >= longCopy
	case opFallocate:
		return (*fallocateOp)(op).Length >= longChange
	case opSetattr:
		in := (*setattrOp)(op)
		if in.Valid&fuse.FATTR_SIZE == 0 {
			return false
		}
		size, err := x.fileSize(nvfs.NodeID(e.in().NodeId))
		return err == nil && max(size, in.Size)-min(size, in.Size) >= longChange
	}
	return false
}

// The structures of these requests without the header.
type (
	copyFileRangeOp struct{ FhIn, OffIn, NodeIDOut, FhOut, OffOut, Len, Flags uint64 }
	fallocateOp     struct{ Fh, Offset, Length uint64 }
	setattrOp       struct {
		Valid, _ uint32
		Fh, Size uint64
	}
)
