package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// serveInPlace mounts and serves in this process until the volume is
// unmounted; when ctx ends it unmounts.
func serveInPlace(ctx context.Context, spec mountd.Spec, stateDir string) error {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	mounted, err := fusefs.Top(spec.Mountpoint)
	if err != nil {
		return err
	}
	if mounted != nil {
		return fmt.Errorf("%s is a mount point already, of %s: unmount it first", spec.Mountpoint, mounted.Source)
	}
	connection, err := fusefs.Mount(spec.Mountpoint, fusefs.MountOptions{
		Source: spec.Path, ReadOnly: spec.ReadOnly, AllowOther: spec.AllowOther, Flags: spec.MountFlags,
	})
	if err != nil {
		return err
	}
	// Serve takes its descriptor over.
	fd, err := unix.FcntlInt(connection.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err := errors.Join(err, connection.Close()); err != nil {
		return errors.Join(err, fusefs.Detach(spec.Mountpoint))
	}
	err = mountd.Serve(ctx, mountd.ServeOptions{
		Spec: spec, Version: version, StateDir: stateDir, FuseFD: fd, OpenVolume: openVolume,
	})
	if err != nil {
		// It may not have come so far that the kernel let go of the mount.
		if left, topErr := fusefs.Top(spec.Mountpoint); topErr == nil && left != nil && left.IsNVFS() && left.Source == spec.Path {
			err = errors.Join(err, fusefs.Detach(spec.Mountpoint))
		}
	}
	return err
}
