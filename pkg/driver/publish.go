package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// publishRequest is what NodePublishVolume asks for.
type publishRequest struct {
	volumeID    string
	stagingPath string
	target      published
	flags       []string
	block       bool
}

// publish bind mounts the staged volume at the target. Whatever is mounted at
// the target already is never unmounted: a pod may be using it, and would then
// write to the disk below without noticing.
func (d *Driver) publish(ctx context.Context, req publishRequest) error {
	r, err := d.stageable(ctx, req.volumeID)
	if err != nil {
		return err
	}
	ns, err := d.backing(ctx, r)
	if err != nil {
		return err
	}
	if err := d.checkTargets(r, req.target); err != nil {
		return err
	}
	if err := checkAccess(r, req.block); err != nil {
		return err
	}
	if req.block {
		return d.publishBlock(r, ns, req)
	}
	if done, err := d.alreadyPublished(ctx, r, ns, req); done || err != nil {
		return err
	}
	if err := d.checkStaged(ctx, r, ns, req); err != nil {
		return err
	}
	r.forgetTarget(req.target.Path)
	r.Published = append(r.Published, req.target)
	if err := d.records.save(r); err != nil {
		return err
	}
	if err := d.bind(req); err != nil {
		return joinReasons(fmt.Errorf("publish volume %s: %w", r.ID, err), d.unpublishTarget(r, req.target.Path))
	}
	r.target(req.target.Path).Done = true
	if err := d.records.save(r); err != nil {
		return err
	}
	klog.V(2).InfoS("Published volume", "volumeID", r.ID, "path", req.target.Path, "readOnly", req.target.ReadOnly)
	return nil
}

// checkTargets refuses a second target for a volume that may have one only.
func (d *Driver) checkTargets(r *record, target published) error {
	live, err := d.liveTargets(r)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(live, func(path string) bool { return path == target.Path })
	single := target.Single || slices.ContainsFunc(others, func(path string) bool { return r.target(path).Single })
	if single && len(others) > 0 {
		return failedPrecondition("volume %s may be used by a single pod and is published at %s", r.ID, strings.Join(others, ", "))
	}
	// Keep what is mounted; the rest was unmounted behind our back.
	r.Published = slices.DeleteFunc(r.Published, func(p published) bool {
		return p.Path != target.Path && !slices.Contains(others, p.Path)
	})
	return nil
}

// alreadyPublished returns true when the target is what the request wants.
func (d *Driver) alreadyPublished(ctx context.Context, r *record, ns ndctl.Namespace, req publishRequest) (bool, error) {
	path := req.target.Path
	recorded := r.target(path)
	if recorded != nil && !recorded.Done {
		// Interrupted before any pod got it, perhaps between the bind mount
		// and its remount: begin anew.
		return false, d.mounts.clear(path)
	}
	top, state, err := d.mounts.inspect(ctx, path)
	switch state {
	case notMounted:
		return false, err
	case mountDead:
		return false, failedPrecondition("the mount of volume %s at %s is dead (%w) and may be in use; delete the pod to get a new one", r.ID, path, err)
	case mountSick:
		return false, errorf(codes.Unavailable, "the mount of volume %s at %s fails: %w", r.ID, path, err)
	}
	if !isMountOf(top, ns) {
		return false, failedPrecondition("%s (%s) is mounted at target path %s instead of volume %s", top.Device, top.Type, path, r.ID)
	}
	if recorded != nil && recorded.ReadOnly != req.target.ReadOnly {
		return false, errorf(codes.AlreadyExists, "volume %s is published at %s with read-only %v", r.ID, path, recorded.ReadOnly)
	}
	if readOnly := slices.Contains(top.Opts, "ro"); readOnly != req.target.ReadOnly {
		return false, errorf(codes.AlreadyExists, "volume %s is mounted at %s with read-only %v", r.ID, path, readOnly)
	}
	if recorded == nil {
		req.target.Done = true
		r.Published = append(r.Published, req.target)
		return true, d.records.save(r)
	}
	return true, nil
}

// checkStaged makes sure that the staging path is a live mount of this volume:
// a bind mount of an empty directory would look like an empty volume.
func (d *Driver) checkStaged(ctx context.Context, r *record, ns ndctl.Namespace, req publishRequest) error {
	if r.Staged == nil || r.Staged.Path != req.stagingPath {
		return failedPrecondition("volume %s is not staged at %s; it has to be staged first", r.ID, req.stagingPath)
	}
	top, state, err := d.mounts.inspect(ctx, req.stagingPath)
	switch {
	case state == notMounted && err != nil:
		return err
	case state == notMounted:
		return failedPrecondition("volume %s is not mounted at %s any more; it has to be staged again", r.ID, req.stagingPath)
	case state != mountLive:
		return failedPrecondition("the staging mount of volume %s at %s is %s (%w); it has to be staged again", r.ID, req.stagingPath, state, err)
	case !isMountOf(top, ns):
		return failedPrecondition("%s (%s) is mounted at staging path %s instead of volume %s", top.Device, top.Type, req.stagingPath, r.ID)
	case r.Staged.ReadOnly && !req.target.ReadOnly:
		return failedPrecondition("volume %s is staged read-only", r.ID)
	}
	return nil
}

func (d *Driver) bind(req publishRequest) error {
	if err := os.MkdirAll(req.target.Path, 0o750); err != nil {
		return fmt.Errorf("target path: %w", err)
	}
	return d.mounts.table.Mount(req.stagingPath, req.target.Path, "", bindOptions(req.flags, req.target.ReadOnly))
}

// unpublish unmounts the target and removes it. It works without a record and
// on dead mounts, so that a pod can always be torn down.
func (d *Driver) unpublish(id, path string) error {
	r, err := d.records.load(id)
	if err != nil && !errors.Is(err, errNoRecord) {
		klog.ErrorS(err, "Unpublishing without a record", "volumeID", id)
	}
	if err != nil {
		r = nil
	}
	if err := d.unpublishTarget(r, path); err != nil {
		return fmt.Errorf("unpublish volume %s: %w", id, err)
	}
	klog.V(2).InfoS("Unpublished volume", "volumeID", id, "path", path)
	return nil
}

func (d *Driver) unpublishTarget(r *record, path string) error {
	if err := d.mounts.remove(path); err != nil {
		return err
	}
	if r == nil || r.Phase != phaseReady || !r.forgetTarget(path) {
		return nil
	}
	return d.records.save(r)
}
