package e2e

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/mountd/mountdtest"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// A server that is killed is replaced, and nobody notices; test/chaos is about
// that. Here are the means to end a mount for good.

// servicesOf lists the keeper and the mountd of a state directory.
func servicesOf(t *testing.T, stateDir string) []int {
	t.Helper()
	return processesWith(t, func(args []string) bool {
		i := slices.Index(args, "--state-dir")
		return (args[1] == "keeper" || args[1] == "mountd") && i >= 0 && args[i+1] == stateDir
	})
}

// dieForGood kills the serving process and everybody who could replace it, so that
// the mount is dead.
func (v testVolume) dieForGood(t *testing.T) {
	t.Helper()
	v.crashServer(t, v.server(t))
}

func (v testVolume) crashServer(t *testing.T, server int) {
	t.Helper()
	services := servicesOf(t, mountd.DefaultStateDir)
	for _, pid := range services {
		// Else one of them would bring the others back.
		if err := mountdtest.Freeze(callContext(t), pid); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range append([]int{server}, services...) {
		killAndWait(t, pid, syscall.SIGKILL)
	}
}

// crash ends the connection of the volume, which the driver holds as well: the
// mounts are dead, and the server has ended.
func (v *csiVolume) crash(t *testing.T) {
	t.Helper()
	pid := v.server(t)
	top, err := fusefs.Top(v.staging)
	if err != nil || top == nil {
		t.Fatalf("the staging mount: %v, %v", top, err)
	}
	if err := fusefs.AbortConnection(top.Connection); err != nil {
		t.Fatal(err)
	}
	waitForExit(t, pid, settleTimeout)
	if err := mountd.Ping(v.staging); err != unix.ENOTCONN && err != unix.ECONNABORTED {
		t.Fatal(fmt.Errorf("ping of a mount whose connection was aborted: %w", err))
	}
}

// TestServerIsReplaced wants a serving process that is killed to be replaced
// without anybody noticing, with nothing but the command line.
func TestServerIsReplaced(t *testing.T) {
	v := newVolume(t, 128<<20)
	v.mount(t)
	writePayload(t, v)
	f, err := os.OpenFile(v.path("deleted"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Remove(v.path("deleted")); err != nil {
		t.Fatal(err)
	}
	before := freeSpace(t, v.mnt)
	for range 5 {
		killAndWait(t, v.server(t), syscall.SIGKILL)
		if _, err := f.WriteAt([]byte(payload), 1<<20); err != nil {
			t.Fatalf("write to a deleted file: %v", err)
		}
		got := make([]byte, len(payload))
		if _, err := f.ReadAt(got, 1<<20); err != nil || string(got) != payload {
			t.Fatalf("read %q, %v", got, err)
		}
		wantPayload(t, v)
		eventually(t, "another process serves", func() bool { return len(serversOf(t, v.device)) == 1 })
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deleted file is freed", func() bool { return freeSpace(t, v.mnt).inodes > before.inodes })
	v.unmount(t)
	wantClean(t, v)
	eventually(t, "keeper and mountd have ended", func() bool { return len(servicesOf(t, mountd.DefaultStateDir)) == 0 })
}
