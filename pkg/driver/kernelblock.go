package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// publishBlock bind mounts the device node of a raw block volume onto a file at
// the target. What is mounted there already is never unmounted.
func (d *Driver) publishBlock(r *record, ns ndctl.Namespace, req publishRequest) error {
	if req.target.ReadOnly {
		return invalidArgument("a raw block volume cannot be published read-only: the kernel would not enforce it")
	}
	if r.Staged == nil || r.Staged.Path != req.stagingPath {
		return failedPrecondition("volume %s is not staged at %s; it has to be staged first", r.ID, req.stagingPath)
	}
	path := req.target.Path
	stack, err := d.mounts.at(path)
	if err != nil {
		return err
	}
	r.forgetTarget(path)
	r.Published = append(r.Published, req.target)
	if err := d.records.save(r); err != nil {
		return err
	}
	if len(stack) == 0 {
		if err := d.bindDevice(ns.Device, path); err != nil {
			return joinReasons(fmt.Errorf("publish volume %s: %w", r.ID, err), d.unpublishTarget(r, path))
		}
	}
	same, err := sameDevice(ns.Device, path)
	if err != nil {
		return err
	}
	if !same {
		return failedPrecondition("something else is mounted at target path %s instead of volume %s", path, r.ID)
	}
	r.target(path).Done = true
	klog.V(2).InfoS("Published raw block volume", "volumeID", r.ID, "path", path, "device", ns.Device)
	return d.records.save(r)
}

func (d *Driver) bindDevice(device, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("target path: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("target path: %w", err)
	}
	return d.mounts.table.Mount(device, path, "", []string{"bind"})
}

// sameDevice reports whether both paths are the same block device.
func sameDevice(a, b string) (bool, error) {
	var sa, sb unix.Stat_t
	for path, st := range map[string]*unix.Stat_t{a: &sa, b: &sb} {
		if err := unix.Stat(path, st); err != nil {
			return false, fmt.Errorf("look at %s: %w", path, err)
		}
	}
	return sa.Mode&unix.S_IFMT == unix.S_IFBLK && sb.Mode&unix.S_IFMT == unix.S_IFBLK && sa.Rdev == sb.Rdev, nil
}

// blockStats is all that can be said of a raw block volume: its size.
func (d *Driver) blockStats(ctx context.Context, id string) (*csi.NodeGetVolumeStatsResponse, bool) {
	r, err := d.peek(ctx, id)
	if err != nil {
		return nil, false
	}
	params, err := r.params()
	if err != nil || params.FSType != FSTypeBlock {
		return nil, false
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: int64(r.Capacity)}}}, true
}

// checkAccess refuses to give a filesystem out as a device, and the other way
// round.
func checkAccess(r *record, block bool) error {
	params, err := r.params()
	if err != nil {
		return err
	}
	if block != (params.FSType == FSTypeBlock) {
		return invalidArgument("volume %s was made as %s; its volumeMode cannot be changed", r.ID, params.FSType)
	}
	return nil
}
