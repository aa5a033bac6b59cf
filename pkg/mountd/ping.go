package mountd

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// Ping asks the server of what is mounted at path for the attributes of the
// root, and returns when it has answered. When the server has gone for good
// the error is ENOTCONN or ECONNABORTED.
//
// It is the one question that suits: stat(2) may be answered from the kernel's
// cache although the server is dead, and statfs(2) waits until the engine has
// counted the whole volume, which takes the longer the larger it is.
func Ping(path string) error {
	var st unix.Statx_t
	for {
		err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st)
		if err != unix.EINTR {
			return err
		}
	}
}

// pingWithin is Ping that waits no longer than ctx. The call that hangs stays
// behind until the server answers or its connection ends.
func pingWithin(ctx context.Context, path string) error {
	done := make(chan error, 1)
	go func() { done <- Ping(path) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("it does not answer: %w", ctx.Err())
	}
}

// awaitAnswer waits until the volume that is mounted at mountpoint answers.
func awaitAnswer(ctx context.Context, mountpoint string) error {
	err := pingWithin(ctx, mountpoint)
	if err == nil {
		var top *fusefs.MountEntry
		if top, err = fusefs.Top(mountpoint); err == nil && (top == nil || !top.IsNVFS()) {
			err = errors.New("the volume has been unmounted")
		}
	}
	if err != nil {
		return fmt.Errorf("mount at %s: %w", mountpoint, err)
	}
	return nil
}
