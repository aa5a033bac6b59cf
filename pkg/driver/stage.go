package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"
	"k8s.io/mount-utils"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// MountType is the type of a mounted volume in the mount table; its source
// there is the device of the namespace.
const MountType = "fuse.nvfs"

// stageRequest is what NodeStageVolume asks for.
type stageRequest struct {
	volumeID string
	staged   staged
	context  map[string]string
	block    bool
}

// stage mounts the volume at the staging path. A mount that is there already
// and lives is left alone; a dead one is torn down and made again.
func (d *Driver) stage(ctx context.Context, req stageRequest) error {
	r, err := d.stageable(ctx, req.volumeID)
	if err != nil {
		return err
	}
	params, err := r.params()
	if err != nil {
		return err
	}
	if params, err = params.withContext(req.context); err != nil {
		return err
	}
	ns, err := d.backing(ctx, r)
	if err != nil {
		return err
	}
	if err := d.checkStagedElsewhere(r, req.staged.Path); err != nil {
		return err
	}
	if err := checkAccess(r, req.block); err != nil {
		return err
	}
	if params.kernel() {
		return d.stageKernel(ctx, r, ns, params, req.staged)
	}
	done, err := d.adoptStaged(ctx, r, ns, req.staged)
	if done || err != nil {
		return err
	}
	if done, err := d.unmountedServer(ctx, r, req.staged); done || err != nil {
		return err
	}
	if err := d.verifyContent(ctx, r, ns); err != nil {
		return err
	}
	if err := d.checkFlushOf(ctx, params.FlushMode, ns); err != nil {
		return err
	}
	return d.mountStaged(ctx, r, ns, params, req.staged)
}

// stageable returns the record of a volume that may be mounted.
func (d *Driver) stageable(ctx context.Context, id string) (*record, error) {
	r, err := d.volume(ctx, id)
	if errors.Is(err, errNoVolume) && isOurID(id) {
		return nil, failedPrecondition("%w: volume %s is not on node %s. If the node or its memory was replaced, the data is lost: restore it from a backup", err, id, d.options.NodeID)
	}
	if err != nil {
		return nil, err
	}
	if r.Phase != phaseReady {
		return nil, failedPrecondition("volume %s is %s", id, r.Phase)
	}
	return r, nil
}

func (d *Driver) checkStagedElsewhere(r *record, path string) error {
	if r.Staged == nil || r.Staged.Path == path {
		return nil
	}
	stack, err := d.mounts.at(r.Staged.Path)
	if err != nil {
		return err
	}
	if len(stack) > 0 {
		return failedPrecondition("volume %s is staged at %s; two PersistentVolumes may not have the same volumeHandle", r.ID, r.Staged.Path)
	}
	return nil
}

// adoptStaged returns true when the volume is mounted at the path already and
// lives. What is dead there is torn down; what is not ours is refused.
func (d *Driver) adoptStaged(ctx context.Context, r *record, ns ndctl.Namespace, want staged) (bool, error) {
	top, state, err := d.mounts.inspect(ctx, want.Path)
	if state == mountSick && d.beyondHope(ctx, r.ID, err) {
		state = mountDead
	}
	switch state {
	case notMounted:
		return false, err
	case mountSick:
		return false, errorf(codes.Unavailable, "volume %s is mounted at %s but fails: %w", r.ID, want.Path, err)
	case mountDead:
		return false, d.tearDown(ctx, r.ID, want.Path, err)
	}
	if !isMountOf(top, ns) {
		return false, failedPrecondition("%s (%s) is mounted at staging path %s instead of volume %s; unmount it", top.Device, top.Type, want.Path, r.ID)
	}
	if r.Staged == nil {
		r.Staged = &want // the record was lost, or never written
		return true, d.records.save(r)
	}
	if r.Staged.ReadOnly != want.ReadOnly || !slices.Equal(r.Staged.Flags, want.Flags) {
		return false, errorf(codes.AlreadyExists, "volume %s is staged with other options: read-only %v, flags %v", r.ID, r.Staged.ReadOnly, r.Staged.Flags)
	}
	return true, nil
}

// tearDown removes dead mounts from the staging path. Bind mounts of them may
// remain with pods that have not ended yet; they do not hinder a new mount.
func (d *Driver) tearDown(ctx context.Context, id, path string, reason error) error {
	klog.InfoS("Tearing down a dead mount", "volumeID", id, "path", path, "reason", reason.Error())
	err := d.unmountStaged(ctx, id, path)
	if errors.Is(err, mountd.ErrBusy) {
		err = d.mounts.clear(path)
	}
	if err != nil {
		return fmt.Errorf("tear down of the dead mount of volume %s: %w", id, err)
	}
	return nil
}

// beyondHope reports whether a mount that fails has lost its server. Errors
// that a working server may give, or one that is being restarted, are no
// reason to tear anything down.
func (d *Driver) beyondHope(ctx context.Context, id string, err error) bool {
	if !mount.IsCorruptedMnt(err) {
		return false
	}
	_, statusErr := d.nvfs.Status(ctx, id)
	return errors.Is(statusErr, mountd.ErrNotServed)
}

// isMountOf reports whether the mount is that of the volume in ns.
func isMountOf(mp mount.MountPoint, ns ndctl.Namespace) bool {
	if ns.Mode != ndctl.DevDax {
		return (mp.Type == FSTypeExt4 || mp.Type == FSTypeXFS) && mp.Device == ns.Device
	}
	return mp.Type == MountType && mp.Device == ns.Device
}

// mountStaged records the mount and makes it.
func (d *Driver) mountStaged(ctx context.Context, r *record, ns ndctl.Namespace, params Params, want staged) error {
	if err := os.MkdirAll(want.Path, 0o750); err != nil {
		return fmt.Errorf("staging path: %w", err)
	}
	devices, _, err := d.furtherDevices(ctx, r)
	if err != nil {
		return err
	}
	flush, err := d.resolveFlush(params.FlushMode)
	if err != nil {
		return err
	}
	r.Staged = &want
	if err := d.records.save(r); err != nil {
		return err
	}
	err = d.nvfs.Mount(ctx, mountd.Spec{
		VolumeID:   r.ID,
		Path:       ns.Device,
		Devices:    devices,
		Mountpoint: want.Path,
		Flush:      flush.mode,
		Cache:      params.CacheMode,
		Transport:  params.Transport,
		ReadOnly:   want.ReadOnly,
		Emulated:   ns.Emulated,
		NUMANode:   ns.NUMANode,
		AllowOther: true,
		MountFlags: want.Flags,
	})
	if err != nil {
		r.Staged = nil // a failed Mount leaves nothing
		return joinReasons(fmt.Errorf("mount volume %s at %s: %w", r.ID, want.Path, err), d.records.save(r))
	}
	klog.V(2).InfoS("Staged volume", "volumeID", r.ID, "path", want.Path, "device", ns.Device, "flushMode", flush.mode, "chosenBy", flush.source)
	return nil
}

// checkFlushOf repeats at stage what capacity promised at create: the CPU may
// be another one since.
func (d *Driver) checkFlushOf(ctx context.Context, mode string, ns ndctl.Namespace) error {
	regions, err := d.namespaces.Regions(ctx)
	if err != nil {
		return fmt.Errorf("regions of node %s: %w", d.options.NodeID, err)
	}
	for _, r := range regions {
		if r.Name != ns.Region {
			continue
		}
		if err := d.checkFlushIn(mode, r); err != nil {
			return failedPrecondition("%s=%s cannot be honoured: %w", KeyFlushMode, mode, err)
		}
		return nil
	}
	return fmt.Errorf("region %s of namespace %s is gone", ns.Region, ns.Name)
}

// unstage unmounts the volume. It works without a record, so that a pod can
// always be torn down.
func (d *Driver) unstage(ctx context.Context, id, path string) error {
	r, err := d.records.load(id)
	if err != nil && !errors.Is(err, errNoRecord) {
		klog.ErrorS(err, "Unstaging without a record", "volumeID", id)
	}
	if err != nil {
		return d.unmountStaged(ctx, id, path)
	}
	if r.Staged == nil || r.Staged.Path != path {
		// The volume's server, if there is one, has nothing to do with what is
		// there and goes on.
		return d.mounts.clear(path)
	}
	// An unmount at the staging path would take the server away from bind
	// mounts that are still used.
	if targets, err := d.liveTargets(r); err != nil {
		return err
	} else if len(targets) > 0 {
		return failedPrecondition("volume %s is still published at %v", id, targets)
	}
	if err := d.unmountStaged(ctx, id, path); err != nil {
		return err
	}
	if r.Phase != phaseReady {
		return nil
	}
	r.Staged, r.Published = nil, nil
	klog.V(2).InfoS("Unstaged volume", "volumeID", id, "path", path)
	return d.records.save(r)
}

// unmountStaged stops the server of the volume and unmounts all that is at the
// path.
func (d *Driver) unmountStaged(ctx context.Context, id, path string) error {
	if d.isKernelVolume(id) {
		return d.mounts.clear(path)
	}
	if err := d.nvfs.Unmount(ctx, id, path); err != nil {
		return fmt.Errorf("unmount volume %s: %w", id, err)
	}
	return d.mounts.clear(path)
}
