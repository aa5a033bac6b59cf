package fusefs

import (
	"fmt"
	"slices"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// Resume says how a connection is continued whose server has gone. The kernel
// sends again what that server had read and not answered, and the transport
// serves these requests before anything else, one after the other: two of them
// may be the same operation's past and future to the records of the volume,
// and a request that ends its server must be known by name.
type Resume struct {
	// Refuse lists requests by their unique, without the bit of a request that
	// is sent again: they are answered EIO instead of being executed.
	Refuse []uint64
	// Executing, when not nil, is told of each request that is sent again,
	// before it is executed, and of 0 when none is being executed any more.
	Executing func(unique uint64)
	// Done, when not nil, is told how many requests were sent again once they
	// have all been answered. Others are served from then on.
	Done func(requests int)
}

func (r *Resume) executing(unique uint64) {
	if r.Executing != nil {
		r.Executing(unique)
	}
}

// notifyResend is FUSE_NOTIFY_RESEND as it stands on the wire.
const notifyResend = 7

// CanResume reports whether the kernel sends requests again (Linux 6.9 and
// later), so that the connection can outlive its server.
func (s *Session) CanResume() bool { return s.CanContinue() && s.has(fuse.CAP_HAS_RESEND) }

// resend asks the kernel to send again what was read from fd and has not been
// answered. These requests come before all others.
func resend(fd uintptr) error {
	hdr := fuse.OutHeader{Length: uint32(outHeaderSize), Status: notifyResend}
	if _, err := unix.Write(int(fd), unsafe.Slice((*byte)(unsafe.Pointer(&hdr)), outHeaderSize)); err != nil {
		if gone(err) {
			return ended(err)
		}
		return fmt.Errorf("the kernel does not send requests again (that needs Linux 6.9): %w", err)
	}
	return nil
}

// replay serves the requests that are sent again. No other thread reads yet,
// so all of them have been answered when there is nothing left to read, or
// when a request turns up that is sent for the first time.
func (t *devThread) replay(r *Resume) error {
	session := t.dev.conn.session.Load()
	// Without that there is nothing to be sent again: the server before has
	// handed over, and answered all that it had read.
	if session == nil || session.CanResume() {
		if err := resend(t.fd); err != nil {
			return err
		}
	}
	if session == nil {
		return nil // INIT itself is what is sent again
	}
	// A caller that is killed takes its request back, so whether there is one
	// is only known by trying.
	if err := unix.SetNonblock(int(t.fd), true); err != nil {
		return fmt.Errorf("/dev/fuse: %w", err)
	}
	n, err := t.replayAll(r)
	if e := unix.SetNonblock(int(t.fd), false); e != nil && err == nil {
		err = fmt.Errorf("/dev/fuse: %w", e)
	}
	if err == nil && r.Done != nil {
		r.Done(n)
	}
	return err
}

func (t *devThread) replayAll(r *Resume) (requests int, err error) {
	defer r.executing(0)
	for {
		n, e := t.readOnce()
		switch e {
		case 0:
		case unix.EAGAIN:
			return requests, nil
		case unix.EINTR, unix.ENOENT: // ENOENT: taken back by its caller
			continue
		default:
			return requests, ended(e)
		}
		hdr, _ := arg[fuse.InHeader](t.b.msg[:n])
		again := hdr != nil && hdr.Unique&resendBit != 0
		if again {
			requests++
			r.executing(hdr.Unique &^ resendBit)
		}
		if err := t.answer(n); err != nil {
			return requests, ended(err)
		}
		if !again && hdr != nil && opcode(hdr.Opcode).answered() {
			return requests, nil
		}
	}
}

// refused reports whether a request that is sent again must not be executed.
func (c *conn) refused(unique uint64) bool {
	return c.resume != nil && unique&resendBit != 0 && slices.Contains(c.resume.Refuse, unique&^resendBit)
}

// Progress is implemented by transports that can tell whether their threads
// get on.
type Progress interface {
	// Progress returns one counter for each thread: it changes when the thread
	// begins and when it ends a request, and is odd in between. It may be
	// called at any time.
	Progress() []uint64
}

// progress implements Progress for the transports.
func (c *conn) progress() []uint64 {
	c.handlersMu.Lock()
	defer c.handlersMu.Unlock()
	turns := make([]uint64, len(c.handlers))
	for i, h := range c.handlers {
		turns[i] = h.turns.Load()
	}
	return turns
}

func (c *conn) add(h *handler) {
	c.handlersMu.Lock()
	defer c.handlersMu.Unlock()
	c.handlers = append(c.handlers, h)
}

// Referenced asks the kernel whether it has node id in memory, which it does
// for as long as a file of it is open. What the kernel has cached of the
// node's attributes is dropped. fd is a /dev/fuse descriptor of the
// connection. It must not be called by a thread that is serving a request.
func Referenced(fd uintptr, id nvfs.NodeID) (bool, error) {
	switch err := invalidate(fd, id); err {
	case nil:
		return true, nil
	case syscall.ENOENT:
		return false, nil
	default:
		return false, fmt.Errorf("ask the kernel about node %#x: %w", uint64(id), err)
	}
}

// invalidate makes the kernel drop the attributes that it has cached. Only
// attributes are named (a negative offset), so the kernel takes no page lock,
// which a request that is being served might hold. ENOENT means that the
// kernel does not know the node.
func invalidate(fd uintptr, id nvfs.NodeID) error {
	type inval struct {
		fuse.OutHeader
		fuse.NotifyInvalInodeOut
	}
	msg := inval{
		OutHeader:           fuse.OutHeader{Length: uint32(unsafe.Sizeof(inval{})), Status: notifyInvalInode},
		NotifyInvalInodeOut: fuse.NotifyInvalInodeOut{Ino: uint64(id), Off: -1},
	}
	_, err := unix.Write(int(fd), unsafe.Slice((*byte)(unsafe.Pointer(&msg)), unsafe.Sizeof(msg)))
	return err
}
