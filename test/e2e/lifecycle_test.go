package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const payload = "written before the end"

func writePayload(t *testing.T, v testVolume) {
	t.Helper()
	if err := os.WriteFile(v.path("f"), []byte(payload), 0o600); err != nil {
		t.Fatal(err)
	}
}

func wantPayload(t *testing.T, v testVolume) {
	t.Helper()
	if got, err := os.ReadFile(v.path("f")); err != nil || string(got) != payload {
		t.Errorf("read %q, %v; want %q", got, err, payload)
	}
}

// wantClean wants a volume that needs no recovery.
func wantClean(t *testing.T, v testVolume) {
	t.Helper()
	r := mustNVFS(t, "fsck", "-n", v.device)
	if strings.Contains(r.stdout, "note:") {
		t.Errorf("the volume was not left clean:\n%s", r.stdout)
	}
}

// TestUnmountEndsServer wants the serving process gone within a second of
// umount(8), and a clean volume. A machine that is busy with other tests gets
// three tries for the second.
func TestUnmountEndsServer(t *testing.T) {
	v := newVolume(t, 128<<20)
	var took []time.Duration
	for range 3 {
		v.mount(t)
		writePayload(t, v)
		w := watch(t, v.server(t))
		must(t, "umount", v.mnt)
		begin := time.Now()
		if !w.ended(t, settleTimeout) {
			t.Fatalf("the serving process is still there %s after umount", settleTimeout)
		}
		wantClean(t, v)
		took = append(took, time.Since(begin))
		if took[len(took)-1] <= time.Second {
			return
		}
	}
	t.Errorf("the serving process ended %v after umount, want at most 1 s", took)
}

// TestSignalUnmounts wants SIGTERM and SIGINT to do what umount does.
func TestSignalUnmounts(t *testing.T) {
	v := newVolume(t, 128<<20)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		v.mount(t)
		writePayload(t, v)
		killAndWait(t, v.server(t), sig)
		if isMounted(t, v.mnt) {
			t.Fatalf("still mounted after %v", sig)
		}
		wantClean(t, v)
	}
	v.mount(t)
	wantPayload(t, v)
}

// TestSignalWhileBusy wants a mount with an open file to be taken out of sight
// by SIGTERM, and the open file to stay usable until it is closed.
func TestSignalWhileBusy(t *testing.T) {
	v := newVolume(t, 128<<20)
	v.mount(t)
	f, err := os.Create(v.path("open"))
	if err != nil {
		t.Fatal(err)
	}
	pid := v.server(t)
	w := watch(t, pid)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the mount is out of sight", func() bool { return !isMounted(t, v.mnt) })
	if _, err := f.WriteString(payload); err != nil {
		t.Errorf("write to the open file: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if !w.ended(t, settleTimeout) {
		t.Fatal("the serving process did not end with its last user")
	}
	wantClean(t, v)
	v.mount(t)
	if got, err := os.ReadFile(v.path("open")); err != nil || string(got) != payload {
		t.Errorf("read %q, %v; want %q", got, err, payload)
	}
}

// TestKillKeepsData wants everything that was acknowledged to be there after
// the serving process was killed for good, and the dead mount to be healed by mount.
func TestKillKeepsData(t *testing.T) {
	v := newVolume(t, 128<<20)
	v.mount(t)
	writePayload(t, v)
	v.dieForGood(t)
	if _, err := os.ReadFile(v.path("f")); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("read on a dead mount: %v, want ENOTCONN", err)
	}
	v.mount(t) // over the dead one
	wantPayload(t, v)
	if got := mountCount(t, v.mnt); got != 1 {
		t.Errorf("%d mounts at the mount point, want 1", got)
	}
	v.unmount(t)
	v.check(t)
}

// TestForeground wants --foreground to serve in the process that was started.
func TestForeground(t *testing.T) {
	v := newVolume(t, 128<<20)
	var stderr bytes.Buffer
	cmd := exec.Command(binary, "mount", "--foreground", "-o", "emulated", v.device, v.mnt)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	eventually(t, "the volume is mounted", func() bool { return isMounted(t, v.mnt) })
	writePayload(t, v) // waits until it is served
	must(t, "umount", v.mnt)
	select {
	case err := <-exited:
		if err != nil {
			t.Errorf("%v\n%s", err, stderr.String())
		}
	case <-time.After(settleTimeout):
		cmd.Process.Kill()
		t.Fatalf("did not end after umount: %v", <-exited)
	}
	wantClean(t, v)
}

// TestMountOptionsAreInForce looks at what the kernel says about the mount.
func TestMountOptionsAreInForce(t *testing.T) {
	v := newVolume(t, 128<<20)
	v.mount(t, "ro", "nosuid", "noexec")
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(info)) {
		if !strings.Contains(line, " "+v.mnt+" ") {
			continue
		}
		for _, want := range []string{"ro", "nosuid", "noexec", "fuse.nvfs", v.device} {
			if !strings.Contains(line, want) {
				t.Errorf("%q lacks %s", line, want)
			}
		}
	}
	if err := os.WriteFile(v.path("f"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write to a read-only mount: %v, want EROFS", err)
	}
}

// TestEveryFlushMode mounts and writes in each mode that the CPU has.
func TestEveryFlushMode(t *testing.T) {
	dir := memoryDir(t)
	r := mustNVFS(t, "discover", "--emulate", "dir="+filepath.Join(dir, "region")+",size=1Gi")
	line, _, _ := strings.Cut(r.stdout, "\n")
	_, list, found := strings.Cut(line, ":")
	if !found || len(strings.Fields(list)) < 2 {
		t.Fatalf("discover lists no flush modes: %s", r)
	}
	for _, mode := range append(strings.Fields(list), "auto") {
		t.Run(mode, func(t *testing.T) {
			v := newVolume(t, 64<<20)
			content := bytes.Repeat([]byte(fmt.Sprintf("%s mode. ", mode)), 100000)
			v.mount(t, "flush="+mode)
			if err := os.WriteFile(v.path("f"), content, 0o600); err != nil {
				t.Fatal(err)
			}
			v.unmount(t)
			wantClean(t, v)
			v.mount(t, "flush="+mode)
			if got, err := os.ReadFile(v.path("f")); err != nil || !bytes.Equal(got, content) {
				t.Errorf("content lost: %v", err)
			}
		})
	}
}

// TestMountHelper mounts through mount(8), which looks for mount.nvfs.
func TestMountHelper(t *testing.T) {
	v := newVolume(t, 64<<20)
	helper := filepath.Join(filepath.Dir(v.device), "mount.nvfs")
	if err := os.Symlink(binary, helper); err != nil {
		t.Fatal(err)
	}
	must(t, helper, v.device, v.mnt, "-n", "-o", "rw,emulated,nodev")
	writePayload(t, v)
	wantPayload(t, v)
	v.unmount(t)
	mkfs, fsck := filepath.Join(filepath.Dir(v.device), "mkfs.nvfs"), filepath.Join(filepath.Dir(v.device), "fsck.nvfs")
	for _, link := range []string{mkfs, fsck} {
		if err := os.Symlink(binary, link); err != nil {
			t.Fatal(err)
		}
	}
	must(t, fsck, "-a", v.device)
	must(t, mkfs, "--force", "--label", "again", v.device)
	must(t, fsck, "-n", v.device)
}

// TestMountElsewhereAtOnce mounts a volume at another place as soon as
// umount(8) has returned, when its server may not have ended.
func TestMountElsewhereAtOnce(t *testing.T) {
	v := newVolume(t, 8<<30)
	other := testVolume{device: v.device, mnt: filepath.Join(filepath.Dir(v.mnt), "other")}
	if err := os.Mkdir(other.mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	v.mount(t)
	writePayload(t, v)
	for range 5 {
		must(t, "umount", v.mnt)
		other.mount(t)
		wantPayload(t, other)
		v, other = other, v
	}
	v.unmount(t)
	wantClean(t, v)
}
