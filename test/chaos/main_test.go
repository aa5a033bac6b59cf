// Package chaos kills the processes behind mounted volumes, one at a time and
// in seeded random order, while applications use the volumes, and upgrades them
// in between. The applications must not notice: no error, no difference, only
// pauses, which are measured. It needs root, /dev/fuse and fio.
package chaos

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// program is the program under test.
var program string

// containerArg makes the test program the beginning of a container.
const containerArg = "container"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == containerArg {
		fmt.Fprintln(os.Stderr, "container:", enterContainer(os.Args[2:]))
		os.Exit(1)
	}
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
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
	for _, tool := range []string{"fio", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			return 1, fmt.Errorf("%w: run test/setup.sh", err)
		}
	}
	if program = os.Getenv("NVFS_CSI"); program == "" {
		dir, err := os.MkdirTemp("", "nvfs-chaos-bin-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "nvfs-csi")
		build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "../../cmd/nvfs-csi")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	return m.Run(), nil
}

// enterContainer takes the volumes' mounts out of this mount namespace, as
// they are not seen in a container, and becomes the program. It touches no
// volume: perhaps nobody serves it.
func enterContainer(args []string) error {
	// The thread that executes the program may be another than the one that
	// unshare's --kill-child has asked for its end with its parent's.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(info)) {
		if !strings.Contains(line, " - fuse.nvfs ") {
			continue
		}
		if err := unix.Unmount(strings.Fields(line)[4], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL {
			return err
		}
	}
	return unix.Exec(args[0], args, os.Environ())
}
