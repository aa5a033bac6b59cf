// Command guestinit is the first process of a test guest: it mounts the root
// image, runs the job that the host describes, and switches the machine off.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/qemu/guestjob"
)

// The guest's devices.
const (
	resultPort   = "/dev/ttyS1"
	rootDisk     = "/dev/vda"
	programsDisk = "/dev/vdb"
	jobDisk      = "/dev/vdc"
	stateDisk    = "/dev/vdd"
)

// diskTimeout bounds the wait for a disk after its driver was loaded.
const diskTimeout = 30 * time.Second

func main() {
	code, err := run()
	if err != nil {
		fmt.Println("guest init:", err) // to the console: the port may be what failed
		code = 125
	}
	report(code)
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("guest init: power off:", err)
	}
	select {} // the first process must not end: the kernel would panic
}

func run() (int, error) {
	if err := enterRoot(); err != nil {
		return 0, err
	}
	port, err := os.OpenFile(resultPort, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return 0, err
	}
	defer port.Close()
	job, err := readJob()
	if err != nil {
		return 0, err
	}
	if err := mountState(job.State); err != nil {
		return 0, err
	}
	for _, module := range job.Modules {
		if err := loadModule(module); err != nil {
			return 0, err
		}
	}
	uptime, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0, err
	}
	fmt.Println("guest init: ready after", strings.Fields(string(uptime))[0], "s")
	for _, c := range job.Commands {
		if code, err := execute(c, port); err != nil || code != 0 {
			return code, err
		}
	}
	return 0, nil
}

func execute(c guestjob.Command, port *os.File) (int, error) {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Dir = "/tmp"
	cmd.Stdout, cmd.Stderr = port, port
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

func report(code int) {
	port, err := os.OpenFile(resultPort, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		fmt.Println("guest init:", err)
		return
	}
	defer port.Close()
	if _, err := fmt.Fprintf(port, "\n%s%d\n", guestjob.ExitPrefix, code); err != nil {
		fmt.Println("guest init:", err)
	}
	// Closing a terminal discards what is not sent yet.
	if err := unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1); err != nil {
		fmt.Println("guest init: drain:", err)
	}
}

// enterRoot makes the root image the root of this process, as switch_root does.
func enterRoot() error {
	if err := mountAll([]mountPoint{{"proc", "/proc", "proc"}, {"sysfs", "/sys", "sysfs"}, {"devtmpfs", "/dev", "devtmpfs"}}); err != nil {
		return err
	}
	if err := insertModules(); err != nil {
		return err
	}
	if err := waitFor(rootDisk); err != nil {
		return err
	}
	if err := unix.Mount(rootDisk, "/newroot", "ext4", 0, ""); err != nil {
		return fmt.Errorf("root image: %w", err)
	}
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if err := unix.Mount(dir, "/newroot"+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	if err := os.Chdir("/newroot"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	for key, value := range map[string]string{"PATH": guestjob.ProgramsDir + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "TMPDIR": "/tmp", guestjob.Marker: "1"} {
		if err := os.Setenv(key, value); err != nil {
			return err
		}
	}
	if err := os.MkdirAll("/dev/shm", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return err
	}
	err := mountAll([]mountPoint{{"tmpfs", "/run", "tmpfs"}, {"tmpfs", "/tmp", "tmpfs"}, {"tmpfs", "/dev/shm", "tmpfs"}})
	if err != nil {
		return err
	}
	if err := waitFor(programsDisk); err != nil {
		return err
	}
	return unix.Mount(programsDisk, guestjob.ProgramsDir, "ext4", unix.MS_RDONLY, "")
}

type mountPoint struct{ source, target, fsType string }

func mountAll(points []mountPoint) error {
	for _, p := range points {
		if err := unix.Mount(p.source, p.target, p.fsType, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", p.target, err)
		}
	}
	return nil
}

func insertModules() error {
	order, err := os.ReadFile("/modules/order")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(order)) {
		if err := insertModule("/modules/" + name); err != nil {
			return err
		}
	}
	return nil
}

func insertModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(path, ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("module %s: %w", path, err)
	}
	return nil
}

// loadModule inserts the module at a path, or the one of a name with all that it
// needs.
func loadModule(module string) error {
	if strings.HasPrefix(module, "/") {
		return insertModule(module)
	}
	if out, err := exec.Command("modprobe", module).CombinedOutput(); err != nil {
		return fmt.Errorf("modprobe %s: %w: %s", module, err, out)
	}
	return nil
}

// mountState mounts the disk that outlives the guest, or memory in its place.
func mountState(disk bool) error {
	if !disk {
		return mountAll([]mountPoint{{"tmpfs", guestjob.StateDir, "tmpfs"}})
	}
	if err := waitFor(stateDisk); err != nil {
		return err
	}
	return mountAll([]mountPoint{{stateDisk, guestjob.StateDir, "ext4"}})
}

// waitFor waits until the kernel has found a device.
func waitFor(device string) error {
	deadline := time.Now().Add(diskTimeout)
	for {
		_, err := os.Stat(device)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond) // there is no udev to tell us
	}
}

func readJob() (guestjob.Job, error) {
	var job guestjob.Job
	data, err := os.ReadFile(jobDisk)
	if err != nil {
		return job, err
	}
	return job, json.NewDecoder(bytes.NewReader(data)).Decode(&job)
}
