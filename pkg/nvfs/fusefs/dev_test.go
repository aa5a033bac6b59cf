package fusefs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// inProcess serves a null filesystem in the test process. The test must touch
// it by plain system calls only.
type inProcess struct {
	t         *testing.T
	transport string
	dir       string
	fd        *os.File
	fs        Filesystem
	stop      context.CancelFunc
	done      chan error
	tr        Transport
}

// eachTransport runs a test with each transport.
func eachTransport(t *testing.T, test func(t *testing.T, transport string)) {
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) { test(t, transport) })
	}
}

func startInProcess(t *testing.T, transport string) *inProcess {
	p := mountInProcess(t, transport, smallNull(t))
	p.serve(nil)
	return p
}

// smallNull is a null filesystem of 8 MiB.
func smallNull(t *testing.T) Filesystem {
	space, err := pmem.NewMemory(8 << 20)
	must(t, err)
	return NewNull(space)
}

// mountInProcess mounts fs; serve is to follow.
func mountInProcess(t *testing.T, transport string, fs Filesystem) *inProcess {
	needMount(t)
	p := &inProcess{t: t, transport: transport, dir: t.TempDir(), fs: fs}
	var err error
	p.fd, err = Mount(p.dir, MountOptions{Source: "null", Transport: transport})
	must(t, err)
	t.Cleanup(func() {
		p.fd.Close()
		if m, _ := IsMountPoint(p.dir); m {
			Detach(p.dir)
		}
	})
	return p
}

// serve starts a transport and returns when it is ready.
func (p *inProcess) serve(s *Session) {
	p.t.Helper()
	p.serveBy(s, func(Transport) {})
	if p.tr.Name() != p.transport || p.tr.Reason() != "" {
		p.t.Fatalf("served by %s, %q", p.tr.Name(), p.tr.Reason())
	}
}

// serveBy is serve with a transport that the test changes before it starts.
func (p *inProcess) serveBy(s *Session, change func(Transport)) {
	p.t.Helper()
	ready := make(chan struct{})
	tr, err := NewTransport(p.fd, p.fs, Options{Transport: p.transport, Threads: 3, Pin: []int{0}, Session: s, OnReady: func(Session) { close(ready) }})
	must(p.t, err)
	change(tr)
	ctx, stop := context.WithCancel(context.Background())
	p.t.Cleanup(stop)
	p.tr, p.stop, p.done = tr, stop, make(chan error, 1)
	go func() { p.done <- tr.Serve(ctx) }()
	select {
	case <-ready:
	case err := <-p.done:
		p.t.Fatalf("Serve: %v", err)
	}
}

// end unmounts and returns what Serve returned.
func (p *inProcess) end() error {
	p.t.Helper()
	must(p.t, Unmount(p.dir))
	return <-p.done
}

func TestServeEndsAtUnmount(t *testing.T) { eachTransport(t, testServeEndsAtUnmount) }

func testServeEndsAtUnmount(t *testing.T, transport string) {
	p := startInProcess(t, transport)
	must(t, os.WriteFile(filepath.Join(p.dir, "f"), []byte("x"), 0o644))
	runtime.GC() // threads that wait for requests must not hold it up
	top, err := Top(p.dir)
	must(t, err)
	if top == nil || !top.IsNVFS() || top.Source != "null" || top.Connection == 0 {
		t.Fatalf("mount %+v", top)
	}
	if ms, err := ConnectionMounts(top.Connection); err != nil || len(ms) != 1 || ms[0].Mountpoint != top.Mountpoint {
		t.Errorf("mounts of the connection: %+v, %v", ms, err)
	}
	must(t, Unmount(p.dir))
	if err := <-p.done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if m, err := IsMountPoint(p.dir); m || err != nil {
		t.Errorf("still a mount point: %v, %v", m, err)
	}
}

// A connection goes on with another server, which continues the session.
func TestServeStopsAndIsContinued(t *testing.T) {
	p := startInProcess(t, devName)
	path := filepath.Join(p.dir, "f")
	must(t, os.WriteFile(path, []byte("content"), 0o644))
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	for range 5 {
		p.stop()
		if err := <-p.done; !errors.Is(err, context.Canceled) {
			t.Fatalf("Serve: %v", err)
		}
		session := p.tr.Session()
		// A request that comes while nobody serves waits for the successor.
		var st unix.Statfs_t
		answered := make(chan error, 1)
		go func() { answered <- unix.Statfs(p.dir, &st) }()
		p.serve(session)
		must(t, <-answered)
		b := make([]byte, 7)
		if _, err := f.ReadAt(b, 0); err != nil || string(b) != "content" {
			t.Errorf("%q, %v", b, err)
		}
		must(t, os.WriteFile(filepath.Join(p.dir, "g"), nil, 0o644))
	}
	must(t, f.Close())
	must(t, Unmount(p.dir))
	if err := <-p.done; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

func TestAbort(t *testing.T) { eachTransport(t, testAbort) }

func testAbort(t *testing.T, transport string) {
	p := startInProcess(t, transport)
	top, err := Top(p.dir)
	must(t, err)
	must(t, AbortConnection(top.Connection))
	if err := <-p.done; !errors.Is(err, ErrAborted) {
		t.Errorf("Serve: %v, want ErrAborted", err)
	}
	if _, err := os.ReadDir(p.dir); err == nil {
		t.Error("the mount still answers")
	}
}

func TestServeRefusedInit(t *testing.T) { eachTransport(t, testServeRefusedInit) }

func testServeRefusedInit(t *testing.T, transport string) {
	needMount(t)
	dir := t.TempDir()
	fd, err := Mount(dir, MountOptions{Source: "null", Transport: transport})
	must(t, err)
	defer Detach(dir)
	defer fd.Close()
	failing := workerFunc(func() (Worker, error) { return nil, unix.ENOMEM })
	tr, err := NewTransport(fd, failing, Options{Transport: transport})
	must(t, err)
	if err := tr.Serve(context.Background()); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("Serve: %v, want ENOMEM", err)
	}
}

type workerFunc func() (Worker, error)

func (f workerFunc) NewWorker() (Worker, error) { return f() }

func TestNewTransportOptions(t *testing.T) {
	for _, o := range []Options{{Transport: "tcp"}, {Cache: "none"}} {
		if _, err := NewTransport(nil, nil, o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
