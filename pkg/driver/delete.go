package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/klog/v2"
)

// delete deletes a volume that is not in use. It returns nil only when nothing
// of the volume is left.
func (d *Driver) delete(ctx context.Context, id string) error {
	if err := d.settled(); err != nil {
		return err
	}
	r, err := d.volume(ctx, id)
	if errors.Is(err, errNoVolume) {
		return nil
	}
	if err != nil {
		return err
	}
	switch r.Phase {
	case phaseCreating:
		return d.rollback(ctx, r)
	case phaseReady:
		if err := d.retire(ctx, r); err != nil {
			return err
		}
	}
	return d.eraser.wait(ctx, r, d.eraser.start(r), d.options.EraseWait)
}

// forget removes what is on the node of a volume that is deleted: last the
// record, so that what is left always has one. Files that its server has left
// do no harm and hold nothing up.
func (d *Driver) forget(id string) error {
	if err := d.nvfs.Forget(id); err != nil {
		klog.ErrorS(err, "The files of a deleted volume's server are left", "volumeID", id)
	}
	return d.records.remove(id)
}

// retire takes a volume out of use for good.
func (d *Driver) retire(ctx context.Context, r *record) error {
	if targets, err := d.liveTargets(r); err != nil {
		return err
	} else if len(targets) > 0 {
		return failedPrecondition("volume %s is in use at %s; delete the pods first", r.ID, strings.Join(targets, ", "))
	}
	if r.Staged != nil {
		// The kubelet may have been restarted between unpublish and unstage,
		// and the unstage then never comes.
		klog.InfoS("Unstaging a volume that is deleted while it is staged", "volumeID", r.ID, "path", r.Staged.Path)
		if err := d.unmountStaged(ctx, r.ID, r.Staged.Path); err != nil {
			return failedPrecondition("volume %s is still mounted at %s: %w", r.ID, r.Staged.Path, err)
		}
	}
	r.Phase, r.Staged, r.Published = phaseDeleting, nil, nil
	if err := d.records.save(r); err != nil {
		return fmt.Errorf("delete volume %s: %w", r.ID, err)
	}
	return nil
}

// liveTargets returns where the volume is published according to the mount
// table; what a record says beyond that is out of date.
func (d *Driver) liveTargets(r *record) ([]string, error) {
	var live []string
	for _, p := range r.Published {
		stack, err := d.mounts.at(p.Path)
		if err != nil {
			return nil, err
		}
		if len(stack) > 0 {
			live = append(live, p.Path)
		}
	}
	return live, nil
}
