// Package e2e tests the built program on real mounts: the command line, the
// processes that serve volumes, and the driver over its socket. It needs root
// and /dev/fuse, and the tools that test/setup.sh installs.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
)

const (
	// memoryRoot is where emulated persistent memory is mounted, and
	// memoryLimit what a test may fill of it.
	memoryRoot  = "/dev/shm"
	memoryLimit = 8 << 30

	// settleTimeout bounds the wait for something that happens by itself.
	settleTimeout = 15 * time.Second
)

// binary is the program under test.
var binary string

// init keeps the first thread of the process to the tests' main goroutine. It
// alone does not end with a goroutine that is locked to it, so an actor there
// would keep its working directory and files for good.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	if os.Getuid() != 0 {
		return 1, errors.New("these tests mount filesystems: run them as root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return 1, fmt.Errorf("these tests mount over FUSE: %w (modprobe fuse)", err)
	}
	for _, tool := range []string{"fio", "mkfs.ext4", "mkfs.xfs", "mkswap", "cp", "diff"} {
		if _, err := exec.LookPath(tool); err != nil {
			return 1, fmt.Errorf("%w: run test/setup.sh", err)
		}
	}
	if binary = os.Getenv("NVFS_CSI"); binary == "" {
		dir, err := os.MkdirTemp("", "nvfs-e2e-bin-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "nvfs-csi")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "../../cmd/nvfs-csi")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	return m.Run(), nil
}

// result is what a command did.
type result struct {
	stdout, stderr string
	code           int
}

func (r result) String() string {
	return fmt.Sprintf("exit code %d\nstdout: %s\nstderr: %s", r.code, r.stdout, r.stderr)
}

// nvfs runs the program.
func nvfs(t *testing.T, args ...string) result {
	t.Helper()
	return execute(t, binary, args...)
}

// mustNVFS runs the program and wants exit code 0.
func mustNVFS(t *testing.T, args ...string) result {
	t.Helper()
	r := nvfs(t, args...)
	if r.code != 0 {
		t.Fatalf("nvfs-csi %s: %s", strings.Join(args, " "), r)
	}
	return r
}

// must runs another program and wants exit code 0.
func must(t *testing.T, name string, args ...string) result {
	t.Helper()
	r := execute(t, name, args...)
	if r.code != 0 {
		t.Fatalf("%s %s: %s", name, strings.Join(args, " "), r)
	}
	return r
}

func execute(t *testing.T, name string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// A descendant that kept our pipes would make us wait for its end.
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %s: %v\nstdout: %s\nstderr: %s", name, strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// memoryDir is emulated persistent memory that is gone after the test,
// whatever is still mounted below it or served from it.
func memoryDir(t *testing.T) string {
	t.Helper()
	memory, err := bench.NewMemory(memoryRoot, "nvfs-e2e-", memoryLimit, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, m := range slices.Backward(mountsBelow(t, memory.Dir)) {
			t.Errorf("left mounted: %s", m)
			if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
				t.Errorf("detach %s: %v", m, err)
			}
		}
		for _, pid := range serversOf(t, memory.Dir) {
			t.Errorf("left running: process %d", pid)
			killAndWait(t, pid, syscall.SIGKILL)
		}
		if err := memory.Close(); err != nil {
			t.Error(err)
		}
	})
	return memory.Dir
}

// sparse makes a file of size bytes.
func sparse(t *testing.T, name string, size int64) string {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	return name
}

// testVolume is an NVFS volume in a file, and where it is to be mounted.
type testVolume struct {
	device, mnt string
}

// newVolume makes a volume of size bytes in emulated memory.
func newVolume(t *testing.T, size int64) testVolume {
	t.Helper()
	dir := memoryDir(t)
	v := testVolume{device: sparse(t, filepath.Join(dir, "pmem"), size), mnt: filepath.Join(dir, "mnt")}
	if err := os.Mkdir(v.mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	mustNVFS(t, "mkfs", v.device)
	return v
}

// mount mounts the volume, until the end of the test if nobody unmounts it
// before.
func (v testVolume) mount(t *testing.T, options ...string) {
	t.Helper()
	mustNVFS(t, "mount", "-o", strings.Join(append([]string{"emulated"}, options...), ","), v.device, v.mnt)
	t.Cleanup(func() {
		if isMounted(t, v.mnt) {
			v.unmount(t)
		}
	})
}

// unmount unmounts with umount(8) and waits for the end of the server.
func (v testVolume) unmount(t *testing.T) {
	t.Helper()
	pids := serversOf(t, v.device)
	must(t, "umount", v.mnt)
	for _, pid := range pids {
		waitForExit(t, pid, settleTimeout)
	}
}

// server is the process that serves the mounted volume.
func (v testVolume) server(t *testing.T) int {
	t.Helper()
	pids := serversOf(t, v.device)
	if len(pids) != 1 {
		t.Fatalf("%d processes name %s in their command line, want 1: %v", len(pids), v.device, pids)
	}
	return pids[0]
}

// check wants a consistent volume.
func (v testVolume) check(t *testing.T) {
	t.Helper()
	mustNVFS(t, "fsck", "-n", v.device)
}

func (v testVolume) path(elem ...string) string {
	return filepath.Join(append([]string{v.mnt}, elem...)...)
}

// serversOf lists the processes of the program whose command line names path.
func serversOf(t *testing.T, path string) []int {
	t.Helper()
	return processesWith(t, func(args []string) bool {
		return args[1] == "serve" && strings.Contains(strings.Join(args, "\x00"), path)
	})
}

// processesWith lists the processes whose command line, of at least two
// arguments, is as wanted.
func processesWith(t *testing.T, wanted func(args []string) bool) []int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, name := range lines {
		line, err := os.ReadFile(name)
		args := strings.Split(string(line), "\x00")
		if err != nil || len(args) < 2 || !wanted(args) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// mountPoints lists all mount points in the order in which they were mounted.
func mountPoints(t *testing.T) []string {
	t.Helper()
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(info)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			found = append(found, fields[4])
		}
	}
	return found
}

func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	return slices.DeleteFunc(mountPoints(t), func(m string) bool { return !strings.HasPrefix(m, dir+"/") })
}

// mountCount is how many mounts lie over each other at mnt.
func mountCount(t *testing.T, mnt string) int {
	t.Helper()
	return len(slices.DeleteFunc(mountPoints(t), func(m string) bool { return m != mnt }))
}

func isMounted(t *testing.T, mnt string) bool {
	t.Helper()
	return mountCount(t, mnt) > 0
}

// exitWatch waits for the end of a process that is not our child.
type exitWatch int

func watch(t *testing.T, pid int) exitWatch {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return exitWatch(fd)
}

// ended reports whether the process ended within d.
func (w exitWatch) ended(t *testing.T, d time.Duration) bool {
	t.Helper()
	deadline := time.Now().Add(d)
	for {
		left := max(0, time.Until(deadline))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(w), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
}

// waitForExit fails the test if the process is still there after d.
func waitForExit(t *testing.T, pid int, d time.Duration) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	defer unix.Close(fd)
	if !exitWatch(fd).ended(t, d) {
		t.Errorf("process %d has not ended after %s", pid, d)
	}
}

func killAndWait(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil && err != syscall.ESRCH {
		t.Fatalf("signal %v to %d: %v", sig, pid, err)
	}
	waitForExit(t, pid, settleTimeout)
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(settleTimeout)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", settleTimeout, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// space is what statfs(2) says is free.
type space struct{ blocks, inodes uint64 }

func freeSpace(t *testing.T, dir string) space {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return space{st.Bfree, st.Ffree}
}
