//go:build qemu

package guest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// What becomes of a mounted volume on the guest's kernel when its server dies.
// From Linux 6.9 on nobody notices, as test/chaos shows; older ones keep what
// the dead server had read, and the volume has to be mounted anew. Which of them
// the guest has depends on the distribution.

// sendsAgain reports whether the kernel has FUSE_NOTIFY_RESEND.
func sendsAgain(t *testing.T) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		t.Fatalf("kernel release %q: %v", release, err)
	}
	t.Logf("kernel %s", release)
	return major > 6 || major == 6 && minor >= 9
}

// server is the process that serves the volume; 0: none.
func (v *volume) server() int {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lines {
		line, err := os.ReadFile(name)
		args := strings.Split(string(line), "\x00")
		if err != nil || len(args) < 2 || args[1] != "serve" || !slices.Contains(args, v.id) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil {
			return pid
		}
	}
	return 0
}

// until waits for a condition.
func until(t *testing.T, d *driver, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(callTimeout); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s\n%s", callTimeout, what, d.log())
		}
	}
}

const survivor = "written before"

// startWriter writes to the volume until it gets an error, or stop is closed.
func startWriter(v *volume) (stop chan struct{}, failed chan error) {
	stop, failed = make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				failed <- nil
				return
			default:
			}
			if err := os.WriteFile(filepath.Join(v.target, "written"), []byte("content"), 0o600); err != nil {
				failed <- err
				return
			}
		}
	}()
	return stop, failed
}

func TestServerDiesOnThisKernel(t *testing.T) {
	again := sendsAgain(t)
	emptySystem(t)
	d := startDriver(t)
	v := d.mustCreate(t, "mortal", 62*mib, filesystem(""), nil)
	v.up(t)
	if err := os.WriteFile(filepath.Join(v.target, "survivor"), []byte(survivor), 0o600); err != nil {
		t.Fatal(err)
	}
	stop, failed := startWriter(v)
	before := v.server()
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if again {
		until(t, d, "another server", func() bool { pid := v.server(); return pid != 0 && pid != before })
		close(stop)
		if err := <-failed; err != nil {
			t.Errorf("the writer noticed: %v", err)
		}
	} else {
		wantAborted(t, d, failed)
		v.wantFallback(t, "signal: killed", "older than Linux 6.9")
	}
	v.wantSurvivor(t)
	v.down(t)
	v.delete(t)
}

// A new mountd takes the place of the one that runs, on kernels of every age:
// nothing needs to be sent again, so nobody notices.
func TestServerIsExchanged(t *testing.T) {
	sendsAgain(t) // says which kernel it is
	emptySystem(t)
	d := startDriver(t)
	v := d.mustCreate(t, "upgraded", 62*mib, filesystem(""), nil)
	v.up(t)
	if err := os.WriteFile(filepath.Join(v.target, "survivor"), []byte(survivor), 0o600); err != nil {
		t.Fatal(err)
	}
	held := heldWithoutName(t, v)
	stop, failed := startWriter(v)
	for range 3 {
		before := v.server()
		startKeeper(t, d)
		until(t, d, "another server", func() bool { pid := v.server(); return pid != 0 && pid != before })
		held.want(t)
	}
	close(stop)
	select {
	case err := <-failed:
		if err != nil {
			t.Errorf("the writer noticed: %v", err)
		}
	case <-time.After(callTimeout):
		t.Fatalf("the writer hangs\n%s", d.log())
	}
	if reasons := v.health(t); len(reasons) > 0 {
		t.Errorf("health after the exchange: %v", reasons)
	}
	v.wantSurvivor(t)
	held.file.Close()
	v.down(t)
	v.delete(t)
}

// startKeeper starts a keeper, which takes over from the one that runs. It ends
// with the test.
func startKeeper(t *testing.T, d *driver) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "driver.log"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	run := filepath.Join(d.dir, "run")
	cmd := exec.Command("nvfs-csi", "keeper", "--v=2", "--state-dir", run, "--log-dir", filepath.Join(run, "log"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // ended by a successor, or below
		close(exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-exited:
		case <-time.After(callTimeout):
			t.Error("a keeper does not end")
			_ = cmd.Process.Kill()
		}
	})
}

// unnamed is an open file that has been deleted.
type unnamed struct{ file *os.File }

func heldWithoutName(t *testing.T, v *volume) unnamed {
	t.Helper()
	f, err := os.Create(filepath.Join(v.target, "deleted"))
	if err == nil {
		_, err = f.WriteString(survivor)
	}
	if err = errors.Join(err, os.Remove(filepath.Join(v.target, "deleted"))); err != nil {
		t.Fatal(err)
	}
	return unnamed{f}
}

func (u unnamed) want(t *testing.T) {
	t.Helper()
	got := make([]byte, len(survivor))
	if _, err := u.file.ReadAt(got, 0); err != nil || string(got) != survivor {
		t.Errorf("an open file without a name: read %q, %v", got, err)
	}
}

// Lack of memory in the cgroup of one volume is what the volume's health says,
// where the volume does not outlive it.
func TestServerDiesForLackOfMemory(t *testing.T) {
	again := sendsAgain(t)
	const root = "/sys/fs/cgroup"
	if err := unix.Mount("cgroup2", root, "cgroup2", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0o644); err != nil {
		t.Fatalf("the guest's kernel does not account for memory: %v", err)
	}
	emptySystem(t)
	d := startDriver(t)
	v := d.mustCreate(t, "starved", 62*mib, filesystem(""), nil)
	v.up(t)
	if err := os.WriteFile(filepath.Join(v.target, "survivor"), []byte(survivor), 0o600); err != nil {
		t.Fatal(err)
	}
	before := v.server()
	limit := filepath.Join(root, "nvfs-csi", v.id, "memory.max")
	if err := os.WriteFile(limit, []byte("0"), 0o644); err != nil {
		t.Fatal(err)
	}
	stop, failed := startWriter(v)
	until(t, d, "the server is out of memory", func() bool { return v.server() != before })
	if err := os.WriteFile(limit, []byte("max"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if again {
		close(stop)
		if err := <-failed; err != nil {
			t.Errorf("the writer noticed: %v", err)
		}
	} else {
		wantAborted(t, d, failed)
		v.wantFallback(t, "out of memory")
	}
	v.wantSurvivor(t)
	v.down(t)
	v.delete(t)
}

// wantAborted wants the users of a volume to get the errors of a connection that
// has ended, soon.
func wantAborted(t *testing.T, d *driver, failed <-chan error) {
	t.Helper()
	select {
	case err := <-failed:
		if !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("the writer got %v", err)
		}
	case <-time.After(callTimeout):
		t.Fatalf("the writer hangs\n%s", d.log())
	}
}

// wantFallback wants the driver to say why a volume is not served any more, to
// leave what pods use alone, and to mount it anew when the pods are gone.
func (v *volume) wantFallback(t *testing.T, why ...string) {
	t.Helper()
	var text string
	until(t, v.d, "the volume counts as inaccessible", func() bool {
		resp, err := v.d.node.NodeGetVolumeHealth(limit(t, callTimeout), &csi.NodeGetVolumeHealthRequest{VolumeId: v.id})
		if err != nil {
			t.Fatal(err)
		}
		entries := resp.GetVolumeHealth().GetHealthStatuses()
		if len(entries) != 1 || entries[0].GetStatus() != csi.VolumeHealthErrorType_INACCESSIBLE || entries[0].GetReason() != "ServerNotRunning" {
			return false
		}
		text = entries[0].GetMessage()
		return strings.Contains(text, "staged again")
	})
	for _, part := range why {
		if !strings.Contains(text, part) {
			t.Errorf("the health says %q, not %q", text, part)
		}
	}
	_, err := v.d.node.NodePublishVolume(limit(t, callTimeout), &csi.NodePublishVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: v.target,
		VolumeCapability: v.capability, VolumeContext: v.context})
	wantCode(t, err, codes.FailedPrecondition, "delete the pod")
	v.down(t)
	v.up(t)
	if reasons := v.health(t); len(reasons) > 0 {
		t.Errorf("health after a new mount: %v", reasons)
	}
}

func (v *volume) wantSurvivor(t *testing.T) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(v.target, "survivor"))
	if err != nil || string(got) != survivor {
		t.Errorf("read %q, %v", got, err)
	}
}
