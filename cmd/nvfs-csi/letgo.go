package main

import (
	"context"
	"errors"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

const (
	// letGoTimeout bounds the wait for a device that is in use though nobody
	// has mounted it, as far as this process can see.
	letGoTimeout = 5 * time.Second
	letGoPoll    = 20 * time.Millisecond
)

// awaitLetGo calls open, again while the device at path is in use but not
// mounted: umount(8) returns before the server has closed a large volume, and
// mkfs, fsck or a mount elsewhere may well be the next command.
func awaitLetGo(ctx context.Context, path string, open func() error) error {
	ctx, cancel := context.WithTimeout(ctx, letGoTimeout)
	defer cancel()
	for {
		err := open()
		if !errors.Is(err, pmem.ErrInUse) {
			return err
		}
		mounts, listErr := fusefs.DeviceMounts(path)
		if listErr != nil || len(mounts) > 0 {
			return errors.Join(err, listErr)
		}
		select {
		case <-time.After(letGoPoll):
		case <-ctx.Done():
			return err
		}
	}
}
