package fusefs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

const devName = "dev"

// dev is the transport of read(2) and write(2) on /dev/fuse. Each thread
// reads a request, executes it and writes the reply, so that a request is
// served without a further wake-up.
type dev struct {
	fd   *os.File
	fs   Filesystem
	conn *conn
	opts Options
	// reason is why it serves although another transport was preferred.
	reason string

	stopping atomic.Bool
	threads  []interruptible
	// exited has one value for each thread that has ended.
	exited chan error
}

func (d *dev) Name() string      { return devName }
func (d *dev) Reason() string    { return d.reason }
func (d *dev) Session() *Session { return d.conn.session.Load() }

// Progress implements Progress.
func (d *dev) Progress() []uint64 { return d.conn.progress() }

// Requests implements RequestCounter.
func (d *dev) Requests() []RequestStats { return d.conn.requests() }

// Serve implements Transport.
func (d *dev) Serve(ctx context.Context) error {
	n := d.opts.threads()
	d.exited = make(chan error, n)
	d.threads = make([]interruptible, n)
	if err := unix.SetNonblock(int(d.fd.Fd()), false); err != nil {
		return fmt.Errorf("/dev/fuse: %w", err)
	}
	reserveProcs(n)
	// The first thread answers INIT; the kernel sends nothing before, and the
	// others would read it with no session to serve it by.
	ready := make(chan struct{})
	d.start(0, ready)
	running := 1
	select {
	case err := <-d.exited:
		return err
	case <-ready:
	}
	if d.opts.OnReady != nil {
		d.opts.OnReady(*d.Session())
	}
	for ; running < n; running++ {
		d.start(running, nil)
	}
	return d.wait(ctx, running)
}

// reserveProcs gives every thread a scheduling context (P) of its own, and two
// for whatever else runs in the process. A thread that returns from a read and
// finds all of them taken, be it by threads that wait in a read themselves,
// would be parked until the runtime's monitor looks, which may take 10 ms; and
// with one to spare the monitor leaves waiting threads alone, instead of
// running after each request.
func reserveProcs(threads int) {
	if want := threads + 2; runtime.GOMAXPROCS(0) < want {
		runtime.GOMAXPROCS(want)
	}
}

// wait returns when all threads have ended. The first that ends ends all: by
// itself when the connection is gone, else after its present request.
func (d *dev) wait(ctx context.Context, running int) error {
	var result error
	select {
	case result = <-d.exited:
		running--
	case <-ctx.Done():
		result = ctx.Err()
	}
	d.stopping.Store(true)
	return errors.Join(result, d.stop(running))
}

// interruptInterval is how soon a thread that was about to read when it was
// interrupted is interrupted again.
const interruptInterval = 5 * time.Millisecond

// stop ends the threads that still run, after their present requests.
func (d *dev) stop(running int) error {
	if running == 0 {
		return nil
	}
	if err := enableInterrupt(); err != nil {
		return err
	}
	var result error
	ticker := time.NewTicker(interruptInterval)
	defer ticker.Stop()
	for running > 0 {
		for i := range d.threads {
			d.threads[i].interrupt()
		}
		select {
		case err := <-d.exited:
			running--
			result = errors.Join(result, err)
		case <-ticker.C:
		}
	}
	return result
}

// start runs thread number i; it closes ready once there is a session.
func (d *dev) start(i int, ready chan<- struct{}) {
	go func() { d.exited <- d.run(i, ready) }()
}

// run is one thread. It is never unlocked from its OS thread, whose
// attributes it changes.
func (d *dev) run(i int, ready chan<- struct{}) error {
	runtime.LockOSThread()
	d.threads[i].begin()
	defer d.threads[i].end()
	if len(d.opts.Pin) > 0 {
		if err := pin(d.opts.Pin[i%len(d.opts.Pin)]); err != nil {
			return err
		}
	}
	beServingThread()
	w, err := d.fs.NewWorker()
	if err != nil {
		return fmt.Errorf("FUSE thread %d: %w", i, err)
	}
	b, err := newBuffers()
	if err != nil {
		return err
	}
	t := devThread{dev: d, fd: d.fd.Fd(), b: b}
	t.h = newHandler(d.conn, w, &t)
	if d.opts.Resume != nil && ready != nil {
		err = t.replay(d.opts.Resume)
	}
	if err == nil {
		err = t.serve(ready)
	}
	return errors.Join(err, b.free())
}

// beServingThread gives the calling thread, to which its goroutine is locked,
// what threads that serve requests need.
func beServingThread() {
	// Memory allocated for the thread in the kernel must not wait for the
	// filesystem that the thread itself serves. Needs CAP_SYS_RESOURCE; it is
	// a safeguard only.
	_ = unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0)
	// Poisoned or truncated memory fails the request that touches it.
	debug.SetPanicOnFault(true)
}

func pin(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("bind a FUSE thread to CPU %d: %w", cpu, err)
	}
	return nil
}

// devThread is what one thread of a dev works with.
type devThread struct {
	dev *dev
	fd  uintptr
	h   *handler
	b   *buffers
}

// serve answers requests until the connection is gone or the dev is stopping.
func (t *devThread) serve(ready chan<- struct{}) error {
	for {
		if ready != nil && t.dev.conn.session.Load() != nil {
			close(ready)
			ready = nil
		}
		if t.dev.stopping.Load() {
			return nil
		}
		n, err := t.read()
		if err != nil {
			return ended(err)
		}
		if n == 0 {
			continue
		}
		if err := t.answer(n); err != nil {
			return ended(err)
		}
		if e := t.dev.conn.initErr.Load(); e != nil {
			return *e
		}
	}
}

// answer executes the request of n bytes that was read, and replies.
func (t *devThread) answer(n int) (err error) {
	if n = t.h.handle(t.b.msg[:n], t.b.out); n > 0 {
		err = t.reply(n)
	}
	t.h.done()
	return err
}

// read returns the length of the next request; 0 when there is none after
// all.
func (t *devThread) read() (int, error) {
	n, e := t.readOnce()
	switch e {
	case 0:
		return n, nil
	case unix.EINTR, unix.EAGAIN, unix.ENOENT: // ENOENT: interrupted before it was read
		return 0, nil
	}
	return 0, e
}

// readOnce is read(2). A thread that waits here must not hold up the garbage
// collector, so the call goes through the scheduler.
func (t *devThread) readOnce() (int, syscall.Errno) {
	n, _, e := unix.Syscall(unix.SYS_READ, t.fd, uintptr(unsafe.Pointer(unsafe.SliceData(t.b.msg))), uintptr(len(t.b.msg)))
	return int(n), e
}

// shortReply is the length up to which a reply is written without telling the
// scheduler: the kernel copies it at once and waits for nothing.
const shortReply = 64 << 10

func (t *devThread) reply(n int) error {
	e := t.write(n)
	if e == unix.EINVAL || e == unix.EFAULT {
		// The kernel does not accept the reply: without any the caller would
		// wait for ever.
		hdr := (*fuse.OutHeader)(unsafe.Pointer(unsafe.SliceData(t.b.out)))
		klog.ErrorS(e, "The kernel rejects a FUSE reply", "unique", hdr.Unique, "length", n, "status", hdr.Status)
		hdr.Length, hdr.Status = uint32(outHeaderSize), -int32(unix.EIO)
		e = t.write(outHeaderSize)
	}
	switch e {
	case 0, unix.ENOENT: // ENOENT: nobody waits for it any more
		return nil
	}
	return e
}

func (t *devThread) write(n int) syscall.Errno {
	var e syscall.Errno
	p := uintptr(unsafe.Pointer(unsafe.SliceData(t.b.out)))
	if n <= shortReply {
		_, _, e = unix.RawSyscall(unix.SYS_WRITE, t.fd, p, uintptr(n))
	} else {
		_, _, e = unix.Syscall(unix.SYS_WRITE, t.fd, p, uintptr(n))
	}
	return e
}

// invalAttr implements notifier.
func (t *devThread) invalAttr(id nvfs.NodeID) {
	// ENOENT: the kernel does not know the inode, so nothing of it is stale.
	if err := invalidate(t.fd, id); err != nil && err != unix.ENOENT && !gone(err) {
		klog.ErrorS(err, "Invalidating attributes failed", "node", uint64(id))
	}
}

// gone reports whether err means that the connection has ended.
func gone(err error) bool { return err == unix.ENODEV || err == unix.ECONNABORTED }

// ended is what a failed read or write of /dev/fuse means for Serve.
func ended(err error) error {
	switch err {
	case nil, unix.ENODEV:
		return nil
	case unix.ECONNABORTED:
		return ErrAborted
	}
	return fmt.Errorf("/dev/fuse: %w", err)
}
