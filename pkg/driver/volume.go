package driver

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// volume returns the record of a volume; errNoVolume when this node knows
// nothing of it. A record that was lost is made again from the device. The
// caller holds the volume's place in inflight.
func (d *Driver) volume(ctx context.Context, id string) (*record, error) {
	r, err := d.records.load(id)
	if err == nil || !errors.Is(err, errNoRecord) {
		return r, err
	}
	r, err = d.recover(ctx, id)
	if err != nil {
		return nil, err
	}
	klog.InfoS("Recovered the record of a volume from its device", "volumeID", id, "region", r.Region)
	return r, d.records.save(r)
}

// peek is volume for calls that hold no lock: it writes nothing.
func (d *Driver) peek(ctx context.Context, id string) (*record, error) {
	r, err := d.records.load(id)
	if err == nil || !errors.Is(err, errNoRecord) {
		return r, err
	}
	return d.recover(ctx, id)
}

// recover makes a record from the namespace of that name, provided that its
// superblock says that it holds this very volume.
//
// Only NVFS on a devdax namespace can say so. A filesystem of the kernel has no
// place for the parameters, and what is on a raw block volume a pod has written.
func (d *Driver) recover(ctx context.Context, id string) (*record, error) {
	ns, err := d.namespaces.Namespace(ctx, id)
	if errors.Is(err, ndctl.ErrNotFound) {
		if err := d.settled(); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %s has no record and no namespace", errNoVolume, id)
	}
	if err != nil {
		return nil, fmt.Errorf("volume %s has no record: %w", id, err)
	}
	if ns.Mode != ndctl.DevDax {
		return nil, &codedError{code: codes.FailedPrecondition, err: &recordLostError{d.records.path(id), ns}}
	}
	found, err := d.volumes.Probe(ctx, ns.Device)
	if err != nil {
		return nil, fmt.Errorf("volume %s has no record and its device %s cannot be read: %w", id, ns.Device, err)
	}
	if found.Content != ContentNVFS || found.VolumeID != id {
		return nil, failedPrecondition("namespace %s has no record and does not hold this volume but %s; look at it and destroy it by hand if it is not needed", id, describe(found))
	}
	if _, err := ParseParams(OriginState, found.Params); err != nil {
		return nil, fmt.Errorf("volume %s: parameters in its superblock: %w", id, err)
	}
	more, err := d.recoverFurther(ctx, id, ns.Region)
	if err != nil {
		return nil, err
	}
	capacity := ns.Size
	for _, f := range more {
		capacity += f.Capacity
	}
	return &record{ID: id, Phase: phaseReady, Params: found.Params, Namespace: id, NamespaceUUID: ns.UUID,
		Region: ns.Region, NUMANode: &ns.NUMANode, Requested: ns.Size, Capacity: capacity, Further: more}, nil
}

// recordLostError says that a volume cannot be used, because nothing tells any
// more what it is. Its namespace is left as it is.
type recordLostError struct {
	path string // of the record that is missing
	ns   ndctl.Namespace
}

func (e *recordLostError) Error() string {
	return fmt.Sprintf("namespace %s (%s, in region %s) has no record on this node, so it is neither handed out nor formatted nor erased. "+recordLostRemedy, e.ns.Name, e.ns.Mode, e.ns.Region, e.path, e.ns.Name)
}

// recordLostRemedy takes the path of the record and the name of the namespace.
const recordLostRemedy = `If it is needed, put %s back or write it anew ("A record that is lost" in docs/persistent-memory.md), else remove it: ndctl destroy-namespace --force with the number that ndctl list -N shows for %s`

func describe(f Found) string {
	switch f.Content {
	case ContentBlank:
		return "nothing at all"
	case ContentNVFS:
		return fmt.Sprintf("NVFS volume %q", f.VolumeID)
	}
	return f.What
}

// backing returns the namespace of a ready volume. A namespace that is gone,
// or another one of the same name, means that the data is lost: nothing takes
// its place.
func (d *Driver) backing(ctx context.Context, r *record) (ndctl.Namespace, error) {
	ns, err := d.namespaces.Namespace(ctx, r.Namespace)
	if errors.Is(err, ndctl.ErrNotFound) || errors.Is(err, ndctl.ErrLost) {
		if err := d.settled(); err != nil {
			return ns, err
		}
	}
	switch {
	case errors.Is(err, ndctl.ErrNotFound):
		return ns, dataLost(r, "namespace %s of region %s does not exist any more", r.Namespace, r.Region)
	case errors.Is(err, ndctl.ErrLost):
		return ns, dataLost(r, "%w", err)
	case err != nil:
		return ns, fmt.Errorf("volume %s: %w", r.ID, err)
	case !r.owns(ns):
		return ns, dataLost(r, "namespace %s was replaced: its UUID is %s, not %s", r.Namespace, ns.UUID, r.NamespaceUUID)
	}
	return ns, nil
}

// dataLossError says that a volume's content is gone.
type dataLossError struct {
	volumeID string
	cause    error
}

func (e *dataLossError) Error() string {
	return fmt.Sprintf("the data of volume %s is lost: %v. Restore it from a backup into a new PersistentVolumeClaim and delete the old one", e.volumeID, e.cause)
}

func (e *dataLossError) Unwrap() error { return e.cause }

func dataLost(r *record, format string, args ...any) error {
	return &codedError{code: codes.FailedPrecondition, err: &dataLossError{volumeID: r.ID, cause: fmt.Errorf(format, args...)}}
}

// verifyContent makes sure that the device holds this volume. It is what
// stands between a mistaken identity and somebody's data.
func (d *Driver) verifyContent(ctx context.Context, r *record, ns ndctl.Namespace) error {
	if params, err := r.params(); err == nil && params.kernel() {
		return d.verifyKernelContent(ctx, r, ns, params)
	}
	found, err := d.volumes.Probe(ctx, ns.Device)
	switch {
	case err != nil:
		return fmt.Errorf("volume %s: device %s cannot be read: %w", r.ID, ns.Device, err)
	case found.Content != ContentNVFS:
		return dataLost(r, "device %s holds %s where the volume was", ns.Device, describe(found))
	case found.VolumeID != r.ID:
		return dataLost(r, "device %s holds another volume, %q", ns.Device, found.VolumeID)
	}
	return nil
}
