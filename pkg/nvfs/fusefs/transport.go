package fusefs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
)

// Transport moves requests and replies between the kernel and a Filesystem.
type Transport interface {
	// Serve answers requests until the filesystem is unmounted (nil), the
	// connection is aborted (ErrAborted), or ctx ends (its error). In the
	// last case every request that was read has been answered, and the
	// connection lives on for a successor as long as its descriptor is open.
	// Serve is called once.
	Serve(ctx context.Context) error
	// Name is the name that selects the transport.
	Name() string
	// Session is what was negotiated; nil before the kernel's INIT.
	Session() *Session
}

// ErrAborted is returned when the connection was aborted by hand, for example
// through /sys/fs/fuse/connections.
var ErrAborted = errors.New("the FUSE connection was aborted")

// Options of a Transport.
type Options struct {
	// Transport is auto or dev; "" is auto.
	Transport string
	// Cache is the cache mode; "" is CacheThrough. It is not consulted when
	// Session is set.
	Cache CacheMode
	// Threads that serve requests; 0 chooses by the number of CPUs.
	Threads int
	// Pin lists CPUs to bind the threads to, round robin; none when empty.
	Pin []int
	// Session continues a connection that another process has negotiated.
	Session *Session
	// OnReady is called once requests are being answered.
	OnReady func(Session)
	// OnPanic is told, on the thread that served it, of a request that failed
	// by a panic or by memory that cannot be read.
	OnPanic func(Fault)
}

// maxThreads caps the default number of threads: beyond it they contend for
// the connection's one queue.
const maxThreads = 16

func (o *Options) threads() int {
	if o.Threads > 0 {
		return o.Threads
	}
	return min(max(2, runtime.NumCPU()), maxThreads)
}

// NewTransport serves fs on fd, a descriptor of /dev/fuse that is mounted. fd
// stays the caller's to close, after Serve.
func NewTransport(fd *os.File, fs Filesystem, o Options) (Transport, error) {
	cache, err := ParseCacheMode(string(o.Cache))
	if err != nil {
		return nil, err
	}
	switch o.Transport {
	case "", "auto", devName:
	default:
		return nil, fmt.Errorf("unknown transport %q: use auto or dev", o.Transport)
	}
	c := &conn{cache: cache, onPanic: o.OnPanic}
	c.session.Store(o.Session)
	return &dev{fd: fd, fs: fs, conn: c, opts: o}, nil
}
