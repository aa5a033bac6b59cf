package driver

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

// unmountedServer deals with a server whose mount at the staging path is gone,
// because somebody has unmounted it behind the driver's back. If pods still use
// the volume the staging mount is made again, from theirs: done is true then.
// Otherwise nobody can use what is served there any more, and it is ended.
func (d *Driver) unmountedServer(ctx context.Context, r *record, want staged) (done bool, err error) {
	if r.Staged == nil {
		return false, nil
	}
	status, err := d.nvfs.Status(ctx, r.ID)
	if errors.Is(err, mountd.ErrNotServed) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("the server of volume %s: %w", r.ID, err)
	}
	targets, err := d.liveTargets(r)
	if err != nil {
		return false, err
	}
	for _, target := range targets {
		if _, state, _ := d.mounts.inspect(ctx, target); state != mountLive || r.target(target).ReadOnly && !want.ReadOnly {
			continue
		}
		klog.InfoS("The staging mount was taken away from a volume in use; it is made again", "volumeID", r.ID, "path", want.Path, "target", target)
		return d.bindStaged(r, target, want)
	}
	if len(targets) > 0 {
		return false, failedPrecondition("the staging mount of volume %s was taken away while it is published at %v, and cannot be made again from there: delete these pods", r.ID, targets)
	}
	klog.InfoS("A server without a mount is ended", "volumeID", r.ID, "pid", status.PID)
	if err := d.nvfs.Evict(ctx, r.ID); err != nil {
		return false, fmt.Errorf("end the server of volume %s, which is mounted nowhere: %w", r.ID, err)
	}
	return false, nil
}

// bindStaged makes the staging mount from a target.
func (d *Driver) bindStaged(r *record, target string, want staged) (bool, error) {
	if r.Staged.ReadOnly != want.ReadOnly {
		return false, failedPrecondition("volume %s is used with read-only %v", r.ID, r.Staged.ReadOnly)
	}
	if err := os.MkdirAll(want.Path, 0o750); err != nil {
		return false, fmt.Errorf("staging path: %w", err)
	}
	if err := d.mounts.table.Mount(target, want.Path, "", bindOptions(want.Flags, want.ReadOnly)); err != nil {
		return false, fmt.Errorf("stage volume %s: %w", r.ID, err)
	}
	r.Staged = &want
	return true, d.records.save(r)
}
