package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// statusTimeout bounds the question to one server, so that one that hangs does
// not hide the health of the others.
const statusTimeout = 5 * time.Second

// The reasons of adverse conditions, for machines.
const (
	reasonBackingLost      = "BackingLost"
	reasonContentLost      = "ContentLost"
	reasonUnreadable       = "DeviceUnreadable"
	reasonNotServed        = "ServerNotRunning"
	reasonNoAnswer         = "ServerNotAnswering"
	reasonDamaged          = "FilesystemDamaged"
	reasonReadOnly         = "FilesystemReadOnly"
	reasonRegionUnusable   = "RegionUnusable"
	reasonRegionsUnknown   = "RegionsUnreadable"
	reasonNoRegion         = "NoRegion"
	reasonRecordUnreadable = "RecordUnreadable"
	reasonRecordLost       = "RecordLost"
	reasonMemoryLate       = "MemoryNotThereYet"
	reasonPoison           = "UnreadableBytes"
	reasonFlushMode        = "FlushModeNotPossible"
)

// volumeHealth returns the condition of one volume. It takes no lock and
// works for volumes that could not be staged.
func (d *Driver) volumeHealth(ctx context.Context, id string) (*csi.VolumeHealth, error) {
	if err := checkVolumeID(id); err != nil {
		return nil, err
	}
	r, err := d.peek(ctx, id)
	var recordLost *recordLostError
	switch {
	case errors.As(err, &recordLost):
		return &csi.VolumeHealth{VolumeId: id, HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{
			healthEntry(csi.VolumeHealthErrorType_INACCESSIBLE, reasonRecordLost, err)}}, nil
	case errors.Is(err, errNoVolume) && isOurID(id):
		// Asked about by a node that should have it: the node or its memory
		// was replaced.
		return &csi.VolumeHealth{VolumeId: id, HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{
			healthEntry(csi.VolumeHealthErrorType_DATA_LOSS, reasonBackingLost, err)}}, nil
	case err != nil:
		return nil, err
	}
	return &csi.VolumeHealth{VolumeId: id, HealthStatuses: d.conditions(ctx, r)}, nil
}

func healthEntry(kind csi.VolumeHealthErrorType, reason string, err error) *csi.VolumeHealth_VolumeHealthEntry {
	return &csi.VolumeHealth_VolumeHealthEntry{Status: kind, Reason: reason, Message: err.Error()}
}

// conditions returns what is wrong with a volume.
func (d *Driver) conditions(ctx context.Context, r *record) []*csi.VolumeHealth_VolumeHealthEntry {
	if r.Phase != phaseReady {
		return nil
	}
	ns, err := d.backing(ctx, r)
	var late *memoryLateError
	if errors.As(err, &late) {
		return []*csi.VolumeHealth_VolumeHealthEntry{healthEntry(csi.VolumeHealthErrorType_INACCESSIBLE, reasonMemoryLate, err)}
	}
	if err != nil {
		return []*csi.VolumeHealth_VolumeHealthEntry{lossEntry(err, reasonBackingLost)}
	}
	return append(d.poisonConditions(ctx, r, ns), d.contentConditions(ctx, r, ns)...)
}

// contentConditions returns what is wrong with what is on the volume.
func (d *Driver) contentConditions(ctx context.Context, r *record, ns ndctl.Namespace) []*csi.VolumeHealth_VolumeHealthEntry {
	switch {
	case r.Staged != nil && r.kernel():
		return nil // the kernel serves it, and has no health to ask for
	case r.Staged != nil:
		return d.serverConditions(ctx, r)
	case ns.InUse:
		return nil // being mounted or checked
	}
	if err := d.verifyContent(ctx, r, ns); err != nil {
		return []*csi.VolumeHealth_VolumeHealthEntry{lossEntry(err, reasonContentLost)}
	}
	return nil
}

// poisonConditions returns an entry when the kernel knows of bytes of the volume
// that cannot be read.
func (d *Driver) poisonConditions(ctx context.Context, r *record, ns ndctl.Namespace) []*csi.VolumeHealth_VolumeHealthEntry {
	bad, where := ns.BadBytes, []string{ns.Name}
	for _, f := range r.Further {
		more, err := d.namespaces.Namespace(ctx, f.Namespace)
		if err != nil || !f.isNamespace(more, r.Region) {
			continue // what is missing is found when the volume is staged
		}
		bad, where = bad+more.BadBytes, append(where, more.Name)
	}
	if bad == 0 {
		return nil
	}
	return []*csi.VolumeHealth_VolumeHealthEntry{healthEntry(csi.VolumeHealthErrorType_DEGRADED, reasonPoison,
		fmt.Errorf("%d bytes of namespace %s cannot be read (poison) and give EIO; restore the files concerned from a backup, see \"Unreadable bytes\" in docs/persistent-memory.md for how to find and clear the range", bad, strings.Join(where, ", ")))}
}

// lossEntry tells data that is lost from data that cannot be reached.
func lossEntry(err error, reason string) *csi.VolumeHealth_VolumeHealthEntry {
	var lost *dataLossError
	if errors.As(err, &lost) {
		return healthEntry(csi.VolumeHealthErrorType_DATA_LOSS, reason, err)
	}
	return healthEntry(csi.VolumeHealthErrorType_INACCESSIBLE, reasonUnreadable, err)
}

// serverConditions asks the process that serves the volume.
func (d *Driver) serverConditions(ctx context.Context, r *record) []*csi.VolumeHealth_VolumeHealthEntry {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	status, err := d.nvfs.Status(ctx, r.ID)
	if errors.Is(err, mountd.ErrNotServed) {
		return []*csi.VolumeHealth_VolumeHealthEntry{healthEntry(csi.VolumeHealthErrorType_INACCESSIBLE, reasonNotServed,
			fmt.Errorf("no process serves what is staged at %s (%w); delete the pods that use it, so that it is staged again", r.Staged.Path, err))}
	}
	if err != nil {
		return []*csi.VolumeHealth_VolumeHealthEntry{healthEntry(csi.VolumeHealthErrorType_INACCESSIBLE, reasonNoAnswer, err)}
	}
	var entries []*csi.VolumeHealth_VolumeHealthEntry
	if status.Health != "" {
		entries = append(entries, healthEntry(csi.VolumeHealthErrorType_DEGRADED, reasonDamaged,
			fmt.Errorf("%s; stop the pods and run \"nvfs-csi fsck %s\"", status.Health, status.Path)))
	}
	if status.ReadOnly && !r.Staged.ReadOnly {
		entries = append(entries, healthEntry(csi.VolumeHealthErrorType_DEGRADED, reasonReadOnly,
			errors.New("the filesystem has turned read-only to protect what is on it")))
	}
	return entries
}

// unhealthy returns the volumes that have an adverse condition, by ID.
func (d *Driver) unhealthy(ctx context.Context) ([]*csi.VolumeHealth, error) {
	all, err := d.records.list()
	if all == nil && err != nil {
		return nil, err
	}
	var found []*csi.VolumeHealth
	for _, r := range all {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if conditions := d.conditions(ctx, r); len(conditions) > 0 {
			found = append(found, &csi.VolumeHealth{VolumeId: r.ID, HealthStatuses: conditions})
		}
	}
	return found, nil
}

// storageHealth returns what is wrong with the node's memory.
func (d *Driver) storageHealth(ctx context.Context) []*csi.NodeGetStorageHealthResponse_StorageBackendHealth {
	var entries []*csi.NodeGetStorageHealthResponse_StorageBackendHealth
	add := func(kind csi.StorageHealthErrorType, reason, message string) {
		entries = append(entries, &csi.NodeGetStorageHealthResponse_StorageBackendHealth{Status: kind, Reason: reason, Message: message})
	}
	regions, err := d.namespaces.Regions(ctx)
	var unusable, poisoned, refused []string
	for _, r := range regions {
		switch {
		case r.Unusable != "":
			unusable = append(unusable, fmt.Sprintf("region %s: %s", r.Name, r.Unusable))
		case d.checkFlushIn(string(pmem.Auto), r) != nil:
			refused = append(refused, d.checkFlushIn(string(pmem.Auto), r).Error())
		}
		if r.BadBytes > 0 {
			poisoned = append(poisoned, fmt.Sprintf("%d bytes of region %s", r.BadBytes, r.Name))
		}
	}
	late := d.settling.missing()
	switch {
	case late != "":
		add(csi.StorageHealthErrorType_STORAGE_UNREACHABLE, reasonMemoryLate, "waiting for persistent memory that is not there yet: "+late)
	case err != nil:
		add(csi.StorageHealthErrorType_STORAGE_UNREACHABLE, reasonRegionsUnknown, err.Error())
	case len(regions) == 0:
		add(csi.StorageHealthErrorType_STORAGE_UNREACHABLE, reasonNoRegion, "the node has no persistent memory region; \"nvfs-csi discover\" says more")
	case len(unusable) > 0:
		add(csi.StorageHealthErrorType_STORAGE_DEGRADED, reasonRegionUnusable, strings.Join(unusable, "; "))
	}
	if len(poisoned) > 0 {
		add(csi.StorageHealthErrorType_STORAGE_DEGRADED, reasonPoison, strings.Join(poisoned, ", ")+" cannot be read (poison): ndctl list -RM shows where")
	}
	if len(refused) > 0 {
		add(csi.StorageHealthErrorType_STORAGE_DEGRADED, reasonFlushMode, strings.Join(refused, "; "))
	}
	if _, err := d.records.list(); err != nil {
		add(csi.StorageHealthErrorType_STORAGE_DEGRADED, reasonRecordUnreadable, err.Error())
	}
	return entries
}
