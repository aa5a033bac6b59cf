package fusefs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const uringName = "uring"

// uring is the transport of FUSE over io_uring. The kernel keeps a queue of
// requests for each CPU, and a thread on that CPU serves it, so that a request
// is served where it was made and no other CPU has to be woken.
//
// What the kernel does not send through the queues is read from /dev/fuse by
// one more thread.
//
// A connection over io_uring ends with its server. While a queue's ring is
// being closed the kernel may still give it a request, which then nobody knows
// of; and there is no way to take the entries back before.
type uring struct {
	fd   *os.File
	fs   Filesystem
	conn *conn
	opts Options
	// must forbids dev instead.
	must bool
	// sysfs is where the kernel shows the machine's CPUs.
	sysfs string
	// maxExecutors is the number of executors from which on threads share
	// them.
	maxExecutors int
	// payload is the size of an entry's buffer for names and data, in bytes.
	payload int

	mem     *ringMemory
	threads []*ringThread
	reader  *deviceReader
	long    *longRequests
	// exited has one value for each thread that has ended.
	exited chan error

	stopping    atomic.Bool
	queuesServe atomic.Bool
	// instead serves when uring cannot.
	instead atomic.Pointer[dev]
}

func newUring(fd *os.File, fs Filesystem, c *conn, o Options, must bool) *uring {
	return &uring{fd: fd, fs: fs, conn: c, opts: o, must: must, sysfs: sysfsCPU, maxExecutors: maxExecutors, payload: MaxWrite}
}

// queueDepth is the number of requests of one CPU that can be under way: those
// that wait for their turn, and long ones that other threads execute.
const queueDepth = 8

// ringMemoryLimit bounds the buffers of a connection on machines with very
// many CPUs. They need memory only once they are used.
const ringMemoryLimit = 256 << 20

func (u *uring) Name() string {
	if u.instead.Load() != nil {
		return devName
	}
	return uringName
}

// Reason implements Transport.
func (u *uring) Reason() string {
	if d := u.instead.Load(); d != nil {
		return d.Reason()
	}
	return ""
}

func (u *uring) Session() *Session { return u.conn.session.Load() }

// Progress implements Progress.
func (u *uring) Progress() []uint64 { return u.conn.progress() }

// Requests implements RequestCounter.
func (u *uring) Requests() []RequestStats { return u.conn.requests() }

// Serve implements Transport.
func (u *uring) Serve(ctx context.Context) error {
	err := u.serve(ctx)
	var unusable *unusableError
	if !errors.As(err, &unusable) {
		return err
	}
	if u.must {
		return fmt.Errorf("transport uring cannot be used; use transport=dev, or auto: %w", unusable.err)
	}
	klog.InfoS("FUSE over io_uring cannot be used; requests are read from /dev/fuse instead", "reason", unusable.err.Error())
	return u.serveInstead(ctx, unusable.err)
}

// serveInstead lets dev take over.
func (u *uring) serveInstead(ctx context.Context, reason error) error {
	u.conn.transport = devName
	if s := u.Session(); s != nil {
		changed := *s
		changed.Transport = devName
		if u.conn.onSession != nil {
			if err := u.conn.onSession(changed); err != nil {
				return err
			}
		}
		u.conn.session.Store(&changed)
	}
	d := &dev{fd: u.fd, fs: u.fs, conn: u.conn, opts: u.opts, reason: reason.Error()}
	u.instead.Store(d)
	return d.Serve(ctx)
}

// unusableError is why requests cannot come through queues. None has been
// taken from the kernel, so that they can be read from /dev/fuse.
type unusableError struct{ err error }

func (e *unusableError) Error() string { return e.err.Error() }

// serve is Serve without anything instead.
func (u *uring) serve(ctx context.Context) (err error) {
	if err := unix.SetNonblock(int(u.fd.Fd()), true); err != nil {
		return fmt.Errorf("/dev/fuse: %w", err)
	}
	if err := u.prepare(); err != nil {
		return errors.Join(err, u.free())
	}
	defer func() { err = errors.Join(err, u.free()) }()
	begin, begun, err := u.startThreads()
	if err != nil {
		return &unusableError{err}
	}
	negotiated := make(chan struct{})
	go func() { u.exited <- u.reader.run(negotiated) }()
	running := len(u.threads) + 1
	select {
	case <-negotiated:
		if err = u.begin(begin, begun); err == nil {
			return u.wait(ctx, running)
		}
	case err = <-u.exited:
		running--
		u.tell(begin, false)
	case <-ctx.Done():
		err = ctx.Err()
		u.tell(begin, false)
	}
	if e := u.stop(running); e != nil {
		return e
	}
	return err
}

// prepare makes what the threads work with.
func (u *uring) prepare() error {
	plans, err := planQueues(u.sysfs)
	if err != nil {
		return err
	}
	queues := 0
	for _, p := range plans {
		queues += len(p.queues)
	}
	depth := min(max(ringMemoryLimit/(queues*entrySize), 1), queueDepth)
	if u.mem, err = newRingMemory(queues, depth); err != nil {
		return err
	}
	if u.reader, err = newDeviceReader(u); err != nil {
		return err
	}
	slow, err := u.newExecutors(longThreads, longThreads)
	if err != nil {
		return err
	}
	executors, err := u.newExecutors(min(len(plans), u.maxExecutors), len(plans))
	if err != nil {
		return err
	}
	for i, p := range plans {
		t, err := newRingThread(u, p, executors[i%len(executors)])
		if err != nil {
			return err
		}
		u.threads = append(u.threads, t)
	}
	reserveProcs(len(u.threads) + 1 + longThreads)
	u.exited = make(chan error, len(u.threads)+1)
	u.long = startLong(u, queues*depth, slow)
	return nil
}

// newExecutors makes n executors for a number of threads.
func (u *uring) newExecutors(n, threads int) ([]*executor, error) {
	var all []*executor
	for range n {
		w, err := u.fs.NewWorker()
		if err != nil {
			return nil, fmt.Errorf("FUSE queues: %w", err)
		}
		x := &executor{shared: n < threads}
		x.h = newHandler(u.conn, w, &devThread{fd: u.fd.Fd()})
		all = append(all, x)
	}
	return all, nil
}

// free gives back what prepare has made. All threads have ended.
func (u *uring) free() error {
	var errs []error
	if u.long != nil {
		u.long.stop()
	}
	for _, t := range u.threads {
		errs = append(errs, t.wake.Close())
	}
	if u.reader != nil {
		errs = append(errs, u.reader.free())
	}
	if u.mem != nil {
		errs = append(errs, u.mem.free())
	}
	u.long, u.threads, u.reader, u.mem = nil, nil, nil, nil
	return errors.Join(errs...)
}

// startThreads starts the threads of all queues and returns when each has its
// ring. They wait to be told on begin, each, whether to go on, and then report
// on begun. On an error all of them have ended.
func (u *uring) startThreads() (begin chan bool, begun chan error, err error) {
	n := len(u.threads)
	prepared := make(chan error, n)
	begin, begun = make(chan bool, n), make(chan error, n)
	for _, t := range u.threads {
		go func() { u.exited <- t.run(prepared, begin, begun) }()
	}
	failed := 0
	for range n {
		if e := <-prepared; e != nil {
			err = e
			failed++
		}
	}
	if err == nil {
		return begin, begun, nil
	}
	for range n - failed {
		begin <- false
	}
	for range n {
		err = errors.Join(err, <-u.exited)
	}
	return nil, nil, err
}

func (u *uring) tell(begin chan<- bool, goOn bool) {
	for range u.threads {
		begin <- goOn
	}
}

// begin lets the threads give their entries to the kernel, which uses the
// queues as soon as it has some of each.
func (u *uring) begin(begin chan<- bool, begun <-chan error) error {
	if s := u.Session(); s.Transport != uringName {
		u.tell(begin, false)
		return &unusableError{errors.New("the kernel does not offer it to this connection: it was switched off (" + uringParameter + ") when the connection was mounted")}
	}
	u.tell(begin, true)
	var err error
	for range u.threads {
		if e := <-begun; e != nil {
			err = &unusableError{e}
		}
	}
	if err != nil {
		return err
	}
	u.queuesServe.Store(true)
	if u.opts.OnReady != nil {
		u.opts.OnReady(*u.Session())
	}
	return nil
}

// wait returns when all threads have ended. The first that ends ends all.
func (u *uring) wait(ctx context.Context, running int) error {
	var result error
	select {
	case result = <-u.exited:
		running--
	case <-ctx.Done():
		result = ctx.Err()
	}
	return errors.Join(result, u.stop(running))
}

// stop ends the threads that still run.
func (u *uring) stop(running int) error {
	u.stopping.Store(true)
	var errs []error
	for _, t := range u.threads {
		errs = append(errs, signal(t.wake))
	}
	errs = append(errs, signal(u.reader.wake))
	for range running {
		errs = append(errs, <-u.exited)
	}
	return errors.Join(errs...)
}
