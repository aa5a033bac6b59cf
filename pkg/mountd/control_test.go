package mountd

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

type fakeTarget struct {
	growErr error
	stopped bool
	hang    chan struct{}
}

func (f *fakeTarget) status() Status {
	if f.hang != nil {
		<-f.hang
	}
	return Status{Protocol: ControlProtocol, VolumeID: "vol-1"}
}
func (f *fakeTarget) grow([]string) error                 { return f.growErr }
func (f *fakeTarget) stop()                               { f.stopped = true }
func (f *fakeTarget) handOver()                           { f.stopped = true }
func (f *fakeTarget) progress() []uint64                  { return []uint64{1, 2} }
func (f *fakeTarget) requests() []RequestStats            { return []RequestStats{{Op: "WRITE", Requests: 3}} }
func (f *fakeTarget) servedConnection() (*Held, *os.File) { return nil, nil }

func startControl(t *testing.T, target controlTarget) (stateDir string, s *controlServer) {
	t.Helper()
	dir := t.TempDir()
	s, err := listenControl(dir, "vol-1", target)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return dir, s
}

func TestControlProtocol(t *testing.T) {
	target := &fakeTarget{growErr: errors.New("no space behind the device")}
	dir, s := startControl(t, target)
	c, err := net.Dial("unix", filepath.Join(dir, "vol-1.sock"))
	must(t, err)
	defer c.Close()
	lines := bufio.NewScanner(c)
	for _, test := range []struct{ ask, want string }{
		{`{"protocol":1,"method":"status"}`, `"volumeID":"vol-1"`},
		{`{"protocol":1,"method":"status","later":"members are ignored"}`, `"volumeID":"vol-1"`},
		{`{"protocol":1,"method":"requests"}`, `"requests":[{"op":"WRITE","requests":3,`},
		{`{"protocol":1,"method":"grow"}`, `"error":"no space behind the device"`},
		{`{"protocol":2,"method":"status"}`, `control protocol 2 is not supported`},
		{`{"protocol":1,"method":"format"}`, `unknown method`},
		{`status`, `malformed request`},
		{`{"protocol":1,"method":"stop"}`, `"volumeID":"vol-1"`},
	} {
		_, err := c.Write([]byte(test.ask + "\n"))
		must(t, err)
		if !lines.Scan() {
			t.Fatalf("%s: no answer: %v", test.ask, lines.Err())
		}
		if got := lines.Text(); !strings.Contains(got, test.want) || !strings.HasPrefix(got, `{"protocol":1,`) {
			t.Errorf("%s: %s", test.ask, got)
		}
	}
	must(t, s.Close()) // waits for what follows an answer
	if !target.stopped {
		t.Error("stop was not called")
	}
}

func TestControlClient(t *testing.T) {
	target := &fakeTarget{growErr: errors.New("no space behind the device")}
	dir, s := startControl(t, target)
	if st, err := callControl(context.Background(), dir, "vol-1", methodStatus); err != nil || st.VolumeID != "vol-1" {
		t.Errorf("status %+v, %v", st, err)
	}
	_, err := callControl(context.Background(), dir, "vol-1", methodGrow)
	checkError(t, err, "grow of volume vol-1", "no space behind the device")
	if _, err := callControl(context.Background(), dir, "vol-2", methodStatus); !errors.Is(err, ErrNotServed) {
		t.Errorf("another volume: %v", err)
	}
	must(t, s.Close())
	if _, err := callControl(context.Background(), dir, "vol-1", methodStatus); !errors.Is(err, ErrNotServed) {
		t.Errorf("after the end: %v", err)
	}
}

// A process that died leaves its socket; it means nothing, and gives way.
func TestControlStaleSocket(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "vol-1.sock"), Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
	if _, err := callControl(context.Background(), dir, "vol-1", methodStatus); !errors.Is(err, ErrNotServed) {
		t.Errorf("stale socket: %v", err)
	}
	s, err := listenControl(dir, "vol-1", &fakeTarget{})
	must(t, err)
	must(t, s.Close())
}

func TestControlDeadline(t *testing.T) {
	target := &fakeTarget{hang: make(chan struct{})}
	dir, _ := startControl(t, target)
	t.Cleanup(func() { close(target.hang) }) // before the server is closed
	ctx, cancel := context.WithCancel(context.Background())
	go cancel()
	if _, err := callControl(ctx, dir, "vol-1", methodStatus); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
}

func TestControlPeer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test takes the identity of another user and must run as root")
	}
	pair := func() *net.UnixConn {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		unix.Close(fds[1])
		f := os.NewFile(uintptr(fds[0]), "socket")
		defer f.Close()
		c, err := net.FileConn(f)
		must(t, err)
		t.Cleanup(func() { c.Close() })
		return c.(*net.UnixConn)
	}
	must(t, checkPeer(pair()))
	foreign := make(chan *net.UnixConn)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 1000, 1000, 1000); e != 0 {
			panic(e)
		}
		foreign <- pair()
	}()
	checkError(t, checkPeer(<-foreign), "user 1000")
}
