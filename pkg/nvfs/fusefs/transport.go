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
	// last case every request that was read has been answered, and a
	// connection that Session.CanContinue lives on for a successor as long as
	// its descriptor is open.
	// Serve is called once.
	Serve(ctx context.Context) error
	// Name is the name of the transport in use: uring or dev.
	Name() string
	// Reason is why it is not the one that was preferred; "" when it is.
	Reason() string
	// Session is what was negotiated; nil before the kernel's INIT. Once Serve
	// has ended it is what a successor continues.
	Session() *Session
}

// ErrAborted is returned when the connection was aborted by hand, for example
// through /sys/fs/fuse/connections.
var ErrAborted = errors.New("the FUSE connection was aborted")

// Options of a Transport.
type Options struct {
	// Transport is auto, uring or dev; "" is auto, which is uring where it can
	// be used and else dev.
	Transport string
	// Cache is the cache mode; "" is CacheThrough. It is not consulted when
	// Session is set.
	Cache CacheMode
	// Threads that serve requests; 0 chooses by the number of CPUs. The uring
	// transport has one for each CPU.
	Threads int
	// Pin lists CPUs to bind the threads of dev to, round robin; none when
	// empty.
	Pin []int
	// Session continues a connection that another process has negotiated.
	Session *Session
	// Resume is set when the process that served the connection before may
	// have left requests unanswered. Session is nil only if that process did
	// not come to negotiate one.
	Resume *Resume
	// OnSession saves a session that is newly negotiated; the kernel gets it
	// only when that has succeeded.
	OnSession func(Session) error
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
	preferred, err := ParseTransport(o.Transport)
	if err != nil {
		return nil, err
	}
	c := &conn{cache: cache, transport: uringName, onPanic: o.OnPanic, onSession: o.OnSession, resume: o.Resume}
	c.session.Store(o.Session)
	if o.Session != nil && !o.Session.CanContinue() {
		return nil, errors.New("a connection over io_uring does not outlive its server: abort it and mount again")
	}
	if preferred != devName && o.Session == nil && o.Resume == nil {
		return newUring(fd, fs, c, o, preferred == uringName), nil
	}
	c.transport = devName
	return &dev{fd: fd, fs: fs, conn: c, opts: o}, nil
}

// ParseTransport checks the name of a transport; "" is auto.
func ParseTransport(s string) (string, error) {
	switch s {
	case "":
		return autoName, nil
	case autoName, uringName, devName:
		return s, nil
	}
	return "", fmt.Errorf("unknown transport %q: use auto, uring or dev", s)
}

// autoName leaves the choice of the transport to NewTransport.
const autoName = "auto"
