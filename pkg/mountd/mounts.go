package mountd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// maxStacked bounds how many dead mounts are taken off one mount point.
const maxStacked = 16

func errStacked(mountpoint string) error {
	return fmt.Errorf("%s: more than %d dead mounts lie over each other: unmount them by hand", mountpoint, maxStacked)
}

// clearMountpoint removes dead mounts, which a killed process leaves behind,
// from where a volume is to be mounted; anything else that is mounted there is
// an error.
func clearMountpoint(mountpoint string) error {
	for range maxStacked {
		top, err := fusefs.Top(mountpoint)
		switch {
		case err != nil:
			return err
		case top == nil:
			return nil
		case !top.IsNVFS() || !isDead(mountpoint):
			return fmt.Errorf("%s is a mount point already, of %s (%s): unmount it first", mountpoint, top.Source, top.FSType)
		}
		klog.InfoS("Removing a dead mount", "mountpoint", mountpoint, "source", top.Source)
		if err := fusefs.Detach(mountpoint); err != nil {
			return err
		}
	}
	return errStacked(mountpoint)
}

// unmountAll unmounts a volume, and dead mounts of volumes below it. A mount
// in use is ErrBusy, unless it is dead. It returns the connection of the
// topmost mount; 0 when no volume was mounted there.
func unmountAll(mountpoint string) (connection int, err error) {
	for i := range maxStacked {
		top, err := fusefs.Top(mountpoint)
		if err != nil || top == nil || !top.IsNVFS() {
			return connection, err
		}
		if i == 0 {
			connection = top.Connection
		} else if !isDead(mountpoint) {
			return connection, nil
		}
		err = fusefs.Unmount(mountpoint)
		if errors.Is(err, unix.EBUSY) {
			if !isDead(mountpoint) {
				return connection, fmt.Errorf("%w: %w", ErrBusy, err)
			}
			err = fusefs.Detach(mountpoint)
		}
		if err != nil {
			return connection, err
		}
	}
	return connection, errStacked(mountpoint)
}

// deadTimeout is how long a mount may take to show whether it is dead.
const deadTimeout = time.Second

// isDead reports whether the server of a FUSE mount has gone: the kernel then
// says so at once. A mount that does not answer is not taken for dead.
func isDead(mountpoint string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), deadTimeout)
	defer cancel()
	err := pingWithin(ctx, mountpoint)
	return err == unix.ENOTCONN || err == unix.ECONNABORTED
}

// samePlace reports whether two paths name one mount point. Only their parents
// are looked at: the mounts may be dead.
func samePlace(a, b string) bool { return place(a) == place(b) }

func place(mountpoint string) string {
	mountpoint = filepath.Clean(mountpoint)
	if dir, err := filepath.EvalSymlinks(filepath.Dir(mountpoint)); err == nil {
		return filepath.Join(dir, filepath.Base(mountpoint))
	}
	return mountpoint
}

// detachIfMounted takes a volume's mount out of sight.
func detachIfMounted(mountpoint string) error {
	top, err := fusefs.Top(mountpoint)
	if err != nil || top == nil || !top.IsNVFS() {
		return err
	}
	return fusefs.Detach(mountpoint)
}

// otherMounts tells where else a connection is mounted, which keeps its
// process alive.
func otherMounts(connection int) error {
	if connection == 0 {
		return nil
	}
	mounts, err := fusefs.ConnectionMounts(connection)
	if err != nil || len(mounts) == 0 {
		return err
	}
	points := make([]string, len(mounts))
	for i := range mounts {
		points[i] = mounts[i].Mountpoint
	}
	return fmt.Errorf("%w: the volume is also mounted at %s", ErrBusy, strings.Join(points, ", "))
}
