package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// rollbackTimeout bounds the undoing of a failed creation, which goes on when
// the caller has given up.
const rollbackTimeout = 30 * time.Second

// volumeSpec is what CreateVolume asks for.
type volumeSpec struct {
	id     string
	name   string
	label  string
	size   sizeRange
	params Params
}

// create returns the record of the volume, made now or before.
//
// An error with a final code leaves nothing behind; when something may be
// left the code is Aborted or that of an ended context, so that the caller
// asks again.
func (d *Driver) create(ctx context.Context, spec volumeSpec) (*record, error) {
	if err := d.settled(); err != nil {
		return nil, err
	}
	r, err := d.volume(ctx, spec.id)
	switch {
	case errors.Is(err, errNoVolume):
		return d.createNew(ctx, spec)
	case err != nil:
		return nil, undecided(err)
	}
	switch r.Phase {
	case phaseDeleting:
		return nil, errorf(codes.Aborted, "volume %s of the same name is still being deleted", r.ID)
	case phaseReady:
		return r, d.checkCompatible(ctx, spec, r)
	}
	if d.sameRequest(spec, r) {
		return d.finish(ctx, r)
	}
	// Nobody was ever given this volume, so it need not stand in the way of a
	// request that has changed.
	if err := d.rollback(ctx, r); err != nil {
		return nil, errorf(codes.Aborted, "volume %s: undoing an earlier, unfinished creation: %w", r.ID, err)
	}
	return d.createNew(ctx, spec)
}

// undecided keeps an error without a code from being taken as final: it does
// not say whether the volume exists.
func undecided(err error) error {
	if codeOf(err) == codes.Internal {
		return errorf(codes.Aborted, "%w", err)
	}
	return err
}

func (d *Driver) checkCompatible(ctx context.Context, spec volumeSpec, r *record) error {
	params, err := r.params()
	if err != nil {
		return err
	}
	if params != spec.params {
		return errorf(codes.AlreadyExists, "volume %q exists with other parameters: %v, not %v", spec.name, r.Params, spec.params.Map(OriginState))
	}
	if !spec.size.allows(r.Capacity) {
		return errorf(codes.AlreadyExists, "volume %q exists with %d bytes; asked for are %s", spec.name, r.Capacity, spec.size)
	}
	_, err = d.backing(ctx, r)
	return err
}

func (d *Driver) sameRequest(spec volumeSpec, r *record) bool {
	return r.Requested == spec.size.required && spec.size.allows(r.Capacity) && maps.Equal(r.Params, spec.params.Map(OriginState))
}

// createNew tries the places for a new volume in order of preference.
func (d *Driver) createNew(ctx context.Context, spec volumeSpec) (*record, error) {
	regions, err := d.candidateRegions(ctx, spec.params)
	if err != nil {
		return nil, err
	}
	if spec.params.Provision == ProvisionNamespace {
		return d.createInNamespace(ctx, spec, regions)
	}
	mode := spec.params.namespaceMode()
	if err := checkRounding(mode, spec.size, regions); err != nil {
		return nil, err
	}
	var full []error
	for _, region := range regions {
		size, ok := usableSizeFor(mode, spec.size.required, region)
		if !ok || !spec.size.allows(size) {
			continue
		}
		r := spec.record(region.Name, spec.id, size)
		if err := d.records.save(r); err != nil {
			return nil, undecided(err)
		}
		r, err := d.finish(ctx, r)
		var noSpace *ndctl.NoSpaceError
		if !errors.As(err, &noSpace) {
			return r, err
		}
		full = append(full, err)
	}
	return nil, errorf(codes.ResourceExhausted, "node %s has no room for %d bytes: %w", d.options.NodeID, spec.size.required, joinReasons(full...))
}

// createInNamespace puts the volume into an existing namespace.
func (d *Driver) createInNamespace(ctx context.Context, spec volumeSpec, regions []ndctl.Region) (*record, error) {
	idle, err := d.idleNamespaces(ctx, spec.params, regions)
	if err != nil {
		return nil, err
	}
	for _, ns := range idle {
		if !spec.size.allows(ns.Size) {
			continue
		}
		// Two volumes must not take one namespace, so it has a place in
		// inflight as well while it is taken.
		end, err := d.inflight.begin(namespaceKey(ns.Name), "CreateVolume")
		if err != nil {
			continue
		}
		defer end()
		if d.namespaceTaken(ns.Name) {
			continue
		}
		r := spec.record(ns.Region, ns.Name, ns.Size)
		r.NamespaceUUID = ns.UUID
		if err := d.records.save(r); err != nil {
			return nil, undecided(err)
		}
		return d.finish(ctx, r)
	}
	return nil, errorf(codes.ResourceExhausted, "node %s has no idle, blank %s namespace of %s", d.options.NodeID, spec.params.namespaceMode(), spec.size)
}

// namespaceKey is not a valid volume ID.
func namespaceKey(name string) string { return "namespace/" + name }

func (d *Driver) namespaceTaken(name string) bool {
	all, err := d.records.list()
	if err != nil {
		return true
	}
	for _, r := range all {
		if slices.Contains(r.namespaceNames(), name) {
			return true
		}
	}
	return false
}

func (spec volumeSpec) record(region, namespace string, capacity uint64) *record {
	return &record{ID: spec.id, Name: spec.name, Label: spec.label, Phase: phaseCreating, Params: spec.params.Map(OriginState),
		Namespace: namespace, Region: region, Requested: spec.size.required, Capacity: capacity}
}

// finish brings a volume in phaseCreating to phaseReady, or undoes it.
func (d *Driver) finish(ctx context.Context, r *record) (*record, error) {
	err := d.tryFinish(ctx, r)
	if err == nil {
		klog.V(2).InfoS("Created volume", "volumeID", r.ID, "region", r.Region, "namespace", r.Namespace, "bytes", r.Capacity)
		return r, nil
	}
	if ctx.Err() != nil {
		return nil, errorf(codes.Aborted, "volume %s is not finished yet, ask again: %w", r.ID, err)
	}
	if undo := d.rollback(ctx, r); undo != nil {
		return nil, errorf(codes.Aborted, "volume %s could not be created (%w) and not be undone yet: %w", r.ID, err, undo)
	}
	return nil, fmt.Errorf("create volume %s: %w", r.ID, err)
}

func (d *Driver) tryFinish(ctx context.Context, r *record) error {
	params, err := r.params()
	if err != nil {
		return err
	}
	ns, err := d.carve(ctx, r, params)
	if err != nil {
		return err
	}
	r.NamespaceUUID, r.Region, r.NUMANode, r.Capacity = ns.UUID, ns.Region, &ns.NUMANode, ns.Size
	if err := d.records.save(r); err != nil {
		return err
	}
	if params.kernel() {
		if err := d.formatKernel(ctx, r, ns, params); err != nil {
			return err
		}
		r.Phase = phaseReady
		return d.records.save(r)
	}
	// What is formatted here is ours: made for this record and not handed out
	// yet. An existing namespace is only taken when it is blank.
	err = d.volumes.Format(ctx, ns.Device, FormatOptions{VolumeID: r.ID, Label: r.Label, Params: r.Params,
		Wipe: params.Provision == ProvisionRegion})
	if err != nil {
		return fmt.Errorf("format %s: %w", ns.Device, err)
	}
	if err := d.verifyContent(ctx, r, ns); err != nil {
		return errorf(codes.Internal, "after formatting: %w", err)
	}
	r.Phase = phaseReady
	return d.records.save(r)
}

// carve returns the namespace of a volume in phaseCreating, made now or by an
// attempt that was interrupted.
func (d *Driver) carve(ctx context.Context, r *record, params Params) (ndctl.Namespace, error) {
	ns, err := d.namespaces.Namespace(ctx, r.Namespace)
	if err == nil {
		if !r.owns(ns) || ns.Mode != params.namespaceMode() || ns.Size < r.Requested {
			return ns, failedPrecondition("namespace %s exists and was not made for this volume (region %s, mode %s, %d bytes)", ns.Name, ns.Region, ns.Mode, ns.Size)
		}
		return ns, nil
	}
	if !errors.Is(err, ndctl.ErrNotFound) || params.Provision == ProvisionNamespace {
		return ns, err
	}
	ns, err = d.namespaces.Create(ctx, ndctl.CreateRequest{Name: r.Namespace, Region: r.Region, Mode: params.namespaceMode(), Size: r.Requested})
	if errors.Is(err, ndctl.ErrExists) {
		// An earlier attempt that we had given up waiting for has made it.
		return ns, errorf(codes.Aborted, "namespace %s has just been made, ask again: %w", r.Namespace, err)
	}
	return ns, err
}

// rollback undoes an unfinished creation: first the namespace, then the
// record, so that what is left always has a record.
func (d *Driver) rollback(ctx context.Context, r *record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	params, err := r.params()
	if err != nil {
		return err
	}
	if params.Provision == ProvisionNamespace {
		return d.releaseNamespace(ctx, r)
	}
	ns, err := d.namespaces.Namespace(ctx, r.Namespace)
	switch {
	case errors.Is(err, ndctl.ErrNotFound):
		return d.records.remove(r.ID)
	case err != nil && !errors.Is(err, ndctl.ErrLost):
		return err
	}
	if r.owns(ns) && ns.Mode == params.namespaceMode() {
		if err := d.namespaces.Destroy(ctx, r.Namespace); err != nil && !errors.Is(err, ndctl.ErrNotFound) {
			return err
		}
	}
	return d.records.remove(r.ID)
}

// releaseNamespace gives an existing namespace back that was taken but not
// handed out. It is erased only if this volume is on it: whatever else may
// have got there meanwhile is not ours.
func (d *Driver) releaseNamespace(ctx context.Context, r *record) error {
	ns, err := d.namespaces.Namespace(ctx, r.Namespace)
	if errors.Is(err, ndctl.ErrNotFound) || errors.Is(err, ndctl.ErrLost) {
		return d.records.remove(r.ID)
	}
	if err != nil {
		return err
	}
	if r.owns(ns) {
		found, err := d.volumes.Probe(ctx, ns.Device)
		if err != nil {
			return err
		}
		if found.Content == ContentNVFS && found.VolumeID == r.ID {
			if err := d.volumes.Zero(ctx, ns.Device, 0, func(uint64) {}); err != nil {
				return err
			}
		}
	}
	return d.records.remove(r.ID)
}
