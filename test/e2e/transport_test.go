package e2e

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

func transportOf(t *testing.T, v testVolume) mountd.Status {
	t.Helper()
	s, err := mountd.NewLauncher(mountd.LauncherOptions{StateDir: mountd.DefaultStateDir}).Status(t.Context(), volumeOf(t, v.server(t)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTransports wants each transport in use that was asked for, the same files
// on all of them, and a clean volume after each.
func TestTransports(t *testing.T) {
	v := newVolume(t, 128<<20)
	for _, test := range []struct{ options, want string }{
		{"cache=through", "dev"}, // a serving process that dies is to be replaced
		{"transport=dev", "dev"},
		{"transport=uring", "uring"},
		{"transport=auto", "uring"},
	} {
		v.mount(t, test.options)
		if s := transportOf(t, v); s.Transport != test.want || s.TransportReason != "" {
			t.Errorf("%s: transport %s %q, want %s", test.options, s.Transport, s.TransportReason, test.want)
		}
		writePayload(t, v)
		wantPayload(t, v)
		v.unmount(t)
		wantClean(t, v)
		v.check(t)
	}
}

// TestUringServerDies wants an error, and not a wait without end, for who uses a
// mount over io_uring whose serving process was killed; and everything that
// was acknowledged to be there when the volume is mounted again.
func TestUringServerDies(t *testing.T) {
	v := newVolume(t, 128<<20)
	v.mount(t, "transport=uring")
	writePayload(t, v)
	killAndWait(t, v.server(t), syscall.SIGKILL)
	// The requests of the test itself may wait until the connection ends.
	failed := make(chan error, 1)
	go func() {
		for {
			if _, err := os.ReadDir(v.mnt); err != nil {
				failed <- err
				return
			}
		}
	}()
	select {
	case err := <-failed:
		// The last is that of a request which was on its way to the server.
		if !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, syscall.ECANCELED) {
			t.Errorf("the mount answers %v", err)
		}
	case <-time.After(settleTimeout):
		t.Fatal("the mount neither answers nor fails")
	}
	v.mount(t)
	wantPayload(t, v)
	v.unmount(t)
	v.check(t)
}
