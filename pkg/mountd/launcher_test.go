package mountd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

func TestMountAndUnmount(t *testing.T) {
	n := newNode(t, "")
	n.spec.Cache = "direct"
	n.mount()
	var st unix.Statfs_t
	must(t, unix.Statfs(n.spec.Mountpoint, &st))
	if st.Blocks != 16<<20/4096 {
		t.Errorf("statfs: %d blocks", st.Blocks)
	}
	must(t, os.WriteFile(filepath.Join(n.spec.Mountpoint, "f"), []byte("x"), 0o644))
	n.checkMedium("dirty")

	p := n.running()
	status, err := n.l.Status(within(t), n.spec.VolumeID)
	must(t, err)
	want := Status{Protocol: 1, Version: "test", PID: p.pid, VolumeID: "vol-1", Path: n.spec.Path, Mountpoint: n.spec.Mountpoint, Flush: "clwb (chosen for the test)",
		Cache: "direct", Transport: "dev", Emulated: true, SizeBytes: 16 << 20}
	if status.Connection == 0 {
		t.Error("the connection is not known")
	}
	status.Connection = 0
	if !reflect.DeepEqual(status, want) {
		t.Errorf("status %+v, want %+v", status, want)
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	must(t, err)
	if args := strings.Split(string(cmdline), "\x00"); args[1] != "serve" || !strings.Contains(string(cmdline), "\x00"+n.spec.Path+"\x00") {
		t.Errorf("the process list shows %q", args[:min(len(args), 20)])
	}
	// A session of its own: signals to the caller's do not reach it.
	if sid, err := unix.Getsid(p.pid); err != nil || sid != p.pid {
		t.Errorf("session %d of process %d, %v", sid, p.pid, err)
	}

	n.unmount()
	must(t, p.wait(within(t)))
	n.checkMounted(false)
	n.checkMedium("clean")
	if _, err := n.l.Status(within(t), n.spec.VolumeID); !errors.Is(err, ErrNotServed) {
		t.Errorf("status: %v, want ErrNotServed", err)
	}
	n.unmount() // again
	n.mount()
	n.unmount()
}

func TestUnmountUnknownVolume(t *testing.T) {
	n := newNode(t, "")
	n.unmount()
}

// A mount is ready before the volume has been counted, however long that takes.
func TestMountDoesNotWaitForTotals(t *testing.T) {
	n := newNode(t, "uncounted")
	n.mount()
	must(t, Ping(n.spec.Mountpoint))
	n.unmount()
}

// An unmount where the volume is not mounted has nothing to wait for.
func TestUnmountAtAnotherPlace(t *testing.T) {
	n := newNode(t, "")
	n.mount()
	must(t, n.l.Unmount(within(t), n.spec.VolumeID, t.TempDir()))
	n.checkMounted(true)
	n.running()
	// The same place by another name is the same place.
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(filepath.Dir(n.spec.Mountpoint), link))
	must(t, n.l.Unmount(within(t), n.spec.VolumeID, filepath.Join(link, filepath.Base(n.spec.Mountpoint))))
	n.checkMounted(false)
	n.checkMedium("clean")
}

func TestVolatileMemoryIsEmulated(t *testing.T) {
	n := newNode(t, "volatile")
	n.spec.Emulated = false
	n.mount()
	defer n.unmount()
	if status, err := n.l.Status(within(t), n.spec.VolumeID); err != nil || !status.Emulated {
		t.Errorf("status %+v, %v; want emulated", status, err)
	}
}

func TestFilesAreRemoved(t *testing.T) {
	n := newNode(t, "")
	n.mount()
	n.checkFiles("vol-1.lock", "vol-1.sock", "vol-1.log")
	if err := n.l.Forget("vol-1"); !errors.Is(err, ErrInUse) {
		t.Errorf("forget a served volume: %v, want ErrInUse", err)
	}
	n.unmount()
	n.checkFiles("vol-1.log")
	must(t, n.l.Forget("vol-1"))
	n.checkFiles()
	must(t, n.l.Forget("vol-1"))

	// Nobody is there to remove the files of a process that was killed.
	n.mount()
	n.killAll()
	n.checkFiles("vol-1.lock", "vol-1.sock", "vol-1.log")
	n.unmount()
	n.checkFiles("vol-1.log")

	// A volume that cannot be served leaves the log that says why.
	must(t, os.WriteFile(n.spec.Path, []byte("damaged"), 0o600))
	checkError(t, n.l.Mount(within(t), n.spec), "damaged")
	n.checkFiles("vol-1.log")
}

func TestLogIsRemovedAfterUmount(t *testing.T) {
	n := newNode(t, "")
	n.l.opts.RemoveLogs = true
	n.mount()
	n.checkFiles("vol-1.lock", "vol-1.sock", "vol-1.log")
	p := n.running()
	must(t, fusefs.Unmount(n.spec.Mountpoint)) // as umount(8) does
	must(t, p.wait(within(t)))
	n.checkFiles()
}

func TestForgetWithoutStateDir(t *testing.T) {
	l := NewLauncher(LauncherOptions{StateDir: filepath.Join(t.TempDir(), "none")})
	must(t, l.Forget("vol-1"))
}

func TestMountExclusive(t *testing.T) {
	n := newNode(t, "")
	n.mount()
	defer n.unmount()
	elsewhere := n.spec
	elsewhere.Mountpoint = t.TempDir()
	err := n.l.Mount(within(t), elsewhere)
	if !errors.Is(err, ErrInUse) {
		t.Errorf("second mount: %v, want ErrInUse", err)
	}
	checkError(t, err, "vol-1", fmt.Sprintf("process %d", n.running().pid))
	other := n.spec
	other.VolumeID = "vol-2"
	checkError(t, n.l.Mount(within(t), other), "mount point already", n.spec.Path)
	var st unix.Statfs_t
	must(t, unix.Statfs(n.spec.Mountpoint, &st)) // still served
}

func TestMountReportsTheReason(t *testing.T) {
	for content, want := range map[string]string{
		"damaged": "volume is damaged: both superblocks fail their checksum",
		"crash":   "exit status 7: these are the last words",
	} {
		n := newNode(t, content)
		err := n.l.Mount(within(t), n.spec)
		checkError(t, err, want)
		var serveErr *ServeError
		if !errors.As(err, &serveErr) || serveErr.VolumeID != "vol-1" {
			t.Errorf("%s: %v is no ServeError", content, err)
		}
		n.checkMounted(false)
		if p := n.process(); p != nil {
			t.Errorf("%s: the process lives", content)
		}
		// Nothing is left that would be in the way.
		must(t, os.WriteFile(n.spec.Path, nil, 0o600))
		n.mount()
		n.unmount()
	}
}

func TestMountTimeout(t *testing.T) {
	n := newNode(t, "hang")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		for { // until the process is there, which then hangs
			if p := n.process(); p != nil {
				p.Close()
				return
			}
		}
	}()
	if err := n.l.Mount(ctx, n.spec); !errors.Is(err, context.Canceled) {
		t.Errorf("mount: %v, want the context's error", err)
	}
	n.checkMounted(false)
	if n.process() != nil {
		t.Error("the process lives")
	}
}

func TestMountRefusesBadSpecs(t *testing.T) {
	n := newNode(t, "")
	for _, change := range []func(*Spec){
		func(s *Spec) { s.VolumeID = "" },
		func(s *Spec) { s.Path = "" },
		func(s *Spec) { s.Mountpoint = "relative" },
		func(s *Spec) { s.Cache = "none" },
		func(s *Spec) { s.MountFlags = []string{"dax"} },
		func(s *Spec) { s.Mountpoint += "/missing" },
		func(s *Spec) { s.Transport = "tcp" },
	} {
		spec := n.spec
		change(&spec)
		checkError(t, n.l.Mount(within(t), spec))
		n.checkMounted(false)
	}
}

func TestUnmountBusy(t *testing.T) {
	n := newNode(t, "")
	n.mount()
	f, err := os.Create(filepath.Join(n.spec.Mountpoint, "f"))
	must(t, err)
	if err := n.l.Unmount(within(t), n.spec.VolumeID, n.spec.Mountpoint); !errors.Is(err, ErrBusy) {
		t.Errorf("unmount: %v, want ErrBusy", err)
	}
	if _, err := f.WriteString("still served"); err != nil {
		t.Error(err)
	}
	must(t, f.Close())
	n.unmount()
	n.checkMedium("clean")
}

// A further mount of the same filesystem keeps its process alive.
func TestUnmountMountedElsewhere(t *testing.T) {
	n := newNode(t, "")
	n.mount()
	bound := t.TempDir()
	must(t, unix.Mount(n.spec.Mountpoint, bound, "", unix.MS_BIND, ""))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	err := n.l.Unmount(ctx, n.spec.VolumeID, n.spec.Mountpoint)
	if !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("unmount: %v", err)
	}
	checkError(t, err, bound)
	must(t, fusefs.Unmount(bound))
	n.unmount()
	n.checkMedium("clean")
}

func TestKilledProcessIsHealed(t *testing.T) {
	n := newNode(t, "")
	kill := func() {
		t.Helper()
		n.mount()
		_, err := os.Stat(n.spec.Mountpoint) // fills the kernel's cache
		must(t, err)
		n.killAll()
		var st unix.Statfs_t
		if err := unix.Statfs(n.spec.Mountpoint, &st); err != unix.ENOTCONN {
			t.Errorf("statfs of the dead mount: %v", err)
		}
		if err := Ping(n.spec.Mountpoint); err != unix.ENOTCONN {
			t.Errorf("ping of the dead mount: %v", err)
		}
		n.checkMedium("dirty")
	}
	kill()
	n.unmount()
	n.checkMounted(false)

	// A file that is open does not keep a dead mount.
	n.mount()
	f, err := os.Create(filepath.Join(n.spec.Mountpoint, "f"))
	must(t, err)
	n.killAll()
	n.unmount()
	n.checkMounted(false)
	f.Close()

	// Mounting again takes the dead mount off by itself.
	kill()
	n.mount()
	if ms, err := fusefs.Mounts(n.spec.Mountpoint); err != nil || len(ms) != 1 {
		t.Errorf("%d mounts, %v", len(ms), err)
	}
	n.unmount()
	n.checkMedium("clean")
}

func TestSignalUnmounts(t *testing.T) {
	n := newNode(t, "")
	n.mount()
	p := n.running()
	must(t, unix.Kill(p.pid, unix.SIGTERM))
	must(t, p.wait(within(t)))
	n.checkMounted(false)
	n.checkMedium("clean")
}

// A busy mount is taken out of sight, and served to its last user.
func TestSignalWhileBusy(t *testing.T) {
	n := newNode(t, "")
	n.mount()
	p := n.running()
	f, err := os.Create(filepath.Join(n.spec.Mountpoint, "f"))
	must(t, err)
	must(t, unix.Kill(p.pid, unix.SIGTERM))
	for ctx := within(t); ; {
		mounted, err := fusefs.IsMountPoint(n.spec.Mountpoint)
		must(t, err)
		if !mounted {
			break
		}
		must(t, ctx.Err())
	}
	if _, err := f.WriteString("still served"); err != nil {
		t.Error(err)
	}
	n.checkMedium("dirty")
	must(t, f.Close())
	must(t, p.wait(within(t)))
	n.checkMedium("clean")
}

func TestStop(t *testing.T) {
	n := newNode(t, "")
	n.mount()
	p := n.running()
	must(t, n.l.Stop(within(t), n.spec.VolumeID))
	must(t, p.wait(within(t)))
	n.checkMounted(false)
	n.checkMedium("clean")
}

func TestEvict(t *testing.T) {
	n := newNode(t, "")
	must(t, n.l.Evict(within(t), n.spec.VolumeID))
	n.mount()
	f, err := os.Create(filepath.Join(n.spec.Mountpoint, "f"))
	must(t, err)
	defer f.Close()
	must(t, fusefs.Detach(n.spec.Mountpoint)) // the open file keeps it alive
	must(t, n.l.Evict(within(t), n.spec.VolumeID))
	if _, err := f.WriteString("x"); err == nil {
		t.Error("the open file can still be written to")
	}
	n.mount()
	n.unmount()
}

func TestGrow(t *testing.T) {
	n := newNode(t, "")
	n.mount()
	defer n.unmount()
	status, err := n.l.Grow(within(t), n.spec.VolumeID)
	if err != nil || status.SizeBytes != 32<<20 {
		t.Errorf("grown to %d, %v", status.SizeBytes, err)
	}
	_, err = n.l.Grow(within(t), n.spec.VolumeID)
	checkError(t, err, "vol-1", "the device has not grown")
}

func TestFaultShowsInHealth(t *testing.T) {
	n := newNode(t, "")
	n.mount()
	defer n.unmount()
	if _, err := os.Stat(filepath.Join(n.spec.Mountpoint, "poison")); !errors.Is(err, unix.EIO) {
		t.Errorf("stat: %v, want EIO", err)
	}
	status, err := n.l.Status(within(t), n.spec.VolumeID)
	must(t, err)
	if !strings.Contains(status.Health, "LOOKUP") || !strings.Contains(status.Health, "poisoned memory") {
		t.Errorf("health %q", status.Health)
	}
	must(t, os.Mkdir(filepath.Join(n.spec.Mountpoint, "d"), 0o755)) // still served
}

// The process outlives whoever mounted, and with it the reader of its log.
func TestServingSurvivesItsLogReader(t *testing.T) {
	n := newNode(t, "")
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	stderr := os.Stderr
	os.Stderr = w
	n.l.opts.LogDir = ""
	err = n.l.Mount(within(t), n.spec)
	os.Stderr = stderr
	must(t, w.Close())
	must(t, err)
	must(t, r.Close())
	_, err = os.Stat(filepath.Join(n.spec.Mountpoint, "poison")) // makes it log
	if !errors.Is(err, unix.EIO) {
		t.Errorf("stat: %v, want EIO", err)
	}
	must(t, os.Mkdir(filepath.Join(n.spec.Mountpoint, "d"), 0o755))
	n.unmount()
	n.checkMedium("clean")
}

func TestMountBoundToNode(t *testing.T) {
	n := newNode(t, "")
	cpus, err := nodeCPUs(sysfsNodes, 0)
	must(t, err)
	if len(cpus) == 0 {
		t.Skip("this kernel shows no NUMA node 0")
	}
	n.spec.NUMANode = 0
	n.mount()
	defer n.unmount()
	var got unix.CPUSet
	must(t, unix.SchedGetaffinity(n.running().pid, &got))
	var want unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &want))
	for cpu := range len(want) * 64 {
		if got.IsSet(cpu) && !want.IsSet(cpu) {
			t.Errorf("bound to CPU %d, which is not allowed", cpu)
		}
	}
	if got.Count() == 0 || got.Count() > len(cpus) {
		t.Errorf("bound to %d CPUs of %v", got.Count(), cpus)
	}
}

func TestServeForeground(t *testing.T) {
	n := newNode(t, "")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- ServeForeground(ctx, n.spec, ServeOptions{StateDir: n.l.opts.StateDir, OpenVolume: openTestVolume})
	}()
	for { // until it is served
		status, err := n.l.Status(within(t), n.spec.VolumeID)
		if err == nil {
			if status.PID != os.Getpid() {
				t.Errorf("served by %d", status.PID)
			}
			break
		}
		if !errors.Is(err, ErrNotServed) {
			t.Fatal(err)
		}
	}
	if err := n.l.Mount(within(t), n.spec); !errors.Is(err, ErrInUse) {
		t.Errorf("second mount: %v, want ErrInUse", err)
	}
	cancel()
	must(t, <-done)
	n.checkMounted(false)
	n.checkMedium("clean")
	if _, err := os.Stat(lockPath(n.l.opts.StateDir, n.spec.VolumeID)); !os.IsNotExist(err) {
		t.Errorf("the lock file is left: %v", err)
	}

	must(t, os.WriteFile(n.spec.Path, []byte("damaged"), 0o600))
	err := ServeForeground(context.Background(), n.spec, ServeOptions{StateDir: n.l.opts.StateDir, OpenVolume: openTestVolume})
	checkError(t, err, "volume is damaged")
	n.checkMounted(false)
}

func TestServeWithoutDescriptor(t *testing.T) {
	checkError(t, Serve(context.Background(), ServeOptions{}), "no connection to mountd")
}

// kubernetes-sigs/blob-csi-driver#1718: after an installation the process that
// mounts was not started, and mounts time out without a word of that.
func TestNobodyStartsMountd(t *testing.T) {
	n := newNode(t, "")
	l := NewLauncher(LauncherOptions{StateDir: n.l.opts.StateDir, External: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := l.Mount(ctx, n.spec)
	checkError(t, err, "mountd does not listen")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("mount: %v, want the context's error", err)
	}
	n.checkMounted(false)
}
