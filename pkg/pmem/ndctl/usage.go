package ndctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountTables are the mounts of this process and, where it is visible, of the
// host's first process: a container does not see all mounts of its host.
var mountTables = []string{"/proc/self/mountinfo", "/proc/1/mountinfo"}

// mountedDevices returns the numbers of all devices that are mounted.
func mountedDevices() (map[uint64]bool, error) {
	mounted := map[uint64]bool{}
	for _, table := range mountTables {
		f, err := os.Open(table)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return nil, err
		}
		mounts, err := mountinfo.GetMountsFromReader(f, nil)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", table, err)
		}
		for _, m := range mounts {
			mounted[unix.Mkdev(uint32(m.Major), uint32(m.Minor))] = true
		}
	}
	return mounted, nil
}

// findUsers fills in which namespaces are in use.
func (b ndBus) findUsers(namespaces []sysNamespace) error {
	mounted, err := mountedDevices()
	if err != nil {
		return fmt.Errorf("mounted devices: %w", err)
	}
	for i := range namespaces {
		ns := &namespaces[i].Namespace
		if ns.Lost != "" || ns.InUse {
			continue
		}
		if ns.InUse, err = b.deviceInUse(*ns, mounted); err != nil {
			ns.Lost = err.Error()
		}
	}
	return nil
}

// deviceInUse reports whether somebody uses the device of a namespace: it is
// mounted, part of another device, or locked by a serving process. The kernel
// does not know who else maps a devdax device.
//
// The test takes and drops the lock. A server that starts in that moment
// finds the file locked, so servers try for a while before they give up.
func (b ndBus) deviceInUse(ns Namespace, mounted map[uint64]bool) (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(ns.Device, &st); err != nil {
		return false, fmt.Errorf("look at %s: %w", ns.Device, err)
	}
	if ns.Mode != DevDax {
		holders, err := os.ReadDir(filepath.Join(b.block, filepath.Base(ns.Device), "holders"))
		if err == nil && len(holders) > 0 || mounted[st.Rdev] {
			return true, nil
		}
	}
	return deviceLocked(ns.Device, 0)
}

// deviceClaimed is asked before a namespace is destroyed. It also finds users
// that the tables do not show, but keeps others from mounting while it looks,
// so listings do not use it.
func deviceClaimed(ns Namespace) (bool, error) {
	if ns.Mode == DevDax {
		return deviceLocked(ns.Device, 0)
	}
	return deviceLocked(ns.Device, unix.O_EXCL)
}

func deviceLocked(path string, flags int) (bool, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|flags, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("open %s: %w", path, err)
	}
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if closeErr := unix.Close(fd); closeErr != nil {
		return false, closeErr
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, unix.EINTR):
		return true, nil // interrupted: not proven idle
	case err != nil:
		return false, fmt.Errorf("lock probe of %s: %w", path, err)
	}
	return false, nil
}
