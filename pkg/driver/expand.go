package driver

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// expand grows the namespace and then the mounted filesystem, and returns the
// new usable size. Both steps are repeated when an earlier call was
// interrupted between them.
func (d *Driver) expand(ctx context.Context, id string, want sizeRange) (uint64, error) {
	r, err := d.stageable(ctx, id)
	if err != nil {
		return 0, err
	}
	if err := r.checkKernelGrowth(want); err != nil {
		return 0, err
	}
	if r.kernel() {
		return r.Capacity, nil
	}
	if r.Staged == nil {
		return 0, failedPrecondition("volume %s is not staged; it grows while it is mounted", id)
	}
	ns, err := d.backing(ctx, r)
	if err != nil {
		return 0, err
	}
	if want.limit != 0 && ns.Size > want.limit {
		return 0, errorf(codes.OutOfRange, "volume %s has %d bytes already, at most %d are asked for; volumes cannot shrink", id, ns.Size, want.limit)
	}
	if ns.Size < want.required {
		if ns, err = d.extend(ctx, r, ns, want); err != nil {
			return 0, err
		}
	}
	if _, err := d.nvfs.Grow(ctx, id); err != nil {
		return 0, fmt.Errorf("grow the filesystem of volume %s to %d bytes: %w", id, ns.Size, err)
	}
	if r.Capacity != ns.Size {
		r.Capacity = ns.Size
		if err := d.records.save(r); err != nil {
			return 0, err
		}
		klog.V(2).InfoS("Expanded volume", "volumeID", id, "bytes", ns.Size)
	}
	return ns.Size, nil
}

func (d *Driver) extend(ctx context.Context, r *record, ns ndctl.Namespace, want sizeRange) (ndctl.Namespace, error) {
	regions, err := d.namespaces.Regions(ctx)
	if err != nil {
		return ns, err
	}
	for _, region := range regions {
		if region.Name != ns.Region {
			continue
		}
		if err := checkRounding(ns.Mode, want, []ndctl.Region{region}); err != nil {
			return ns, fmt.Errorf("expand volume %s: %w", r.ID, err)
		}
	}
	extended, err := d.namespaces.Extend(ctx, r.Namespace, want.required)
	var noSpace *ndctl.NoSpaceError
	if errors.As(err, &noSpace) {
		return ns, errorf(codes.ResourceExhausted, "volume %s cannot grow to %d bytes: it grows in place only, and with what follows it in region %s it can have at most %d bytes; copy the data to a new, larger volume",
			r.ID, want.required, noSpace.Region, noSpace.Largest)
	}
	if errors.Is(err, ndctl.ErrUnsupported) {
		return ns, failedPrecondition("volume %s cannot grow: %w; copy the data to a new, larger volume", r.ID, err)
	}
	if err != nil {
		return ns, fmt.Errorf("expand volume %s to %d bytes: %w", r.ID, want.required, err)
	}
	return extended, nil
}
