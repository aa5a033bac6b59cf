package fusefs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// readerPause is how long a connection's FORGETs are left to gather. A reader
// that waited for each would be woken by every file that is removed.
const readerPause = 20 * time.Millisecond

// deviceReader reads what does not come through the queues: INIT, FORGET and
// INTERRUPT.
type deviceReader struct {
	u    *uring
	wake *os.File // an eventfd

	mu sync.Mutex // guards the thread's buffers and its use of the device
	devThread
}

func newDeviceReader(u *uring) (*deviceReader, error) {
	wake, err := newEvent()
	if err != nil {
		return nil, err
	}
	w, err := u.fs.NewWorker()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("FUSE reader: %w", err), wake.Close())
	}
	b, err := newBuffers()
	if err != nil {
		return nil, errors.Join(err, wake.Close())
	}
	r := &deviceReader{u: u, wake: wake}
	r.fd, r.b = u.fd.Fd(), b
	r.h = newHandler(u.conn, w, &r.devThread)
	return r, nil
}

func (r *deviceReader) free() error { return errors.Join(r.b.free(), r.wake.Close()) }

// run reads until the connection is gone or the transport is stopping. It
// closes negotiated once there is a session.
func (r *deviceReader) run(negotiated chan<- struct{}) error {
	runtime.LockOSThread()
	beServingThread()
	for {
		if err := r.wait(-1, true); err != nil {
			return err
		}
		// The queues may have seen the end of the connection before this
		// thread; only a read says how it ended.
		if r.u.stopping.Load() && !r.disconnected() {
			return nil
		}
		if _, err := r.read(); err != nil {
			return ended(err)
		}
		if e := r.u.conn.initErr.Load(); e != nil {
			return *e
		}
		if negotiated != nil && r.u.conn.session.Load() != nil {
			close(negotiated)
			negotiated = nil
		}
		if r.u.queuesServe.Load() {
			if err := r.wait(readerPause, false); err != nil {
				return err
			}
		}
	}
}

// wait returns when the transport wants the reader's attention, or after the
// timeout, or, if device is set, when there is something to read.
func (r *deviceReader) wait(timeout time.Duration, device bool) error {
	fds := []unix.PollFd{{Fd: int32(r.wake.Fd()), Events: unix.POLLIN}, {Fd: int32(r.fd), Events: unix.POLLIN}}
	if !device {
		fds = fds[:1]
	}
	ms := -1
	if timeout >= 0 {
		ms = int(timeout.Milliseconds())
	}
	if _, err := unix.Poll(fds, ms); err != nil && err != unix.EINTR {
		return fmt.Errorf("wait for FUSE messages: %w", err)
	}
	return nil
}

// disconnected reports whether the connection has ended; then a read fails and
// takes no request.
func (r *deviceReader) disconnected() bool {
	fds := []unix.PollFd{{Fd: int32(r.fd)}}
	_, err := unix.Poll(fds, 0)
	return err == nil && fds[0].Revents&unix.POLLERR != 0
}

// drain executes what waits to be read and returns how many messages there
// were.
func (r *deviceReader) drain() int {
	n, _ := r.read() // an error is the reader's to meet
	return n
}

func (r *deviceReader) read() (messages int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		n, e := r.readOnce()
		switch e {
		case 0:
		case unix.EAGAIN:
			return messages, nil
		case unix.EINTR, unix.ENOENT: // ENOENT: interrupted before it was read
			continue
		default:
			return messages, e
		}
		messages++
		if err := r.answer(n); err != nil {
			return messages, err
		}
	}
}
