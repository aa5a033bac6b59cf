package driver

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// expand grows the namespace, or makes a further one, and then grows the mounted
// filesystem, and returns the new usable size. Steps are repeated when an
// earlier call was interrupted between them.
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
	if err := d.finishFurther(ctx, r, ns.Mode); err != nil {
		return 0, err
	}
	devices, size, err := d.furtherDevices(ctx, r)
	if err != nil {
		return 0, err
	}
	size += ns.Size
	if want.limit != 0 && size > want.limit {
		return 0, errorf(codes.OutOfRange, "volume %s has %d bytes already, at most %d are asked for; volumes cannot shrink", id, size, want.limit)
	}
	if size < want.required {
		if devices, size, err = d.enlarge(ctx, r, ns, size, want); err != nil {
			return 0, err
		}
	}
	if _, err := d.nvfs.Grow(ctx, id, devices...); err != nil {
		return 0, fmt.Errorf("grow the filesystem of volume %s to %d bytes: %w", id, size, err)
	}
	if r.Capacity != size {
		r.Capacity = size
		if err := d.records.save(r); err != nil {
			return 0, err
		}
		klog.V(2).InfoS("Expanded volume", "volumeID", id, "bytes", size)
	}
	return size, nil
}

// enlarge gives a volume of size bytes more memory: its namespace grows in place
// where the region can do that, else it gets a further one. It returns the
// further devices and the new size.
func (d *Driver) enlarge(ctx context.Context, r *record, ns ndctl.Namespace, size uint64, want sizeRange) ([]string, uint64, error) {
	if len(r.Further) == 0 {
		extended, err := d.extend(ctx, r, ns, want)
		if !errors.Is(err, ndctl.ErrUnsupported) {
			return nil, extended.Size, err
		}
	}
	missing := max(want.required-size, minimumVolumeSize)
	if err := d.checkAddition(ctx, r, ns, size, missing, want); err != nil {
		return nil, 0, err
	}
	if err := d.addFurther(ctx, r, ns.Mode, missing); err != nil {
		return nil, 0, err
	}
	devices, more, err := d.furtherDevices(ctx, r)
	return devices, ns.Size + more, err
}

// checkAddition refuses a further namespace that would make the volume larger
// than is asked for.
func (d *Driver) checkAddition(ctx context.Context, r *record, ns ndctl.Namespace, size, missing uint64, want sizeRange) error {
	regions, err := d.namespaces.Regions(ctx)
	if err != nil {
		return err
	}
	for _, region := range regions {
		if region.Name != ns.Region {
			continue
		}
		usable, ok := usableSizeFor(ns.Mode, missing, region)
		if !ok {
			return errorf(codes.OutOfRange, "volume %s cannot have %d bytes: that is more than any region can have", r.ID, want.required)
		}
		if want.limit != 0 && size+usable > want.limit {
			return errorf(codes.OutOfRange, "volume %s has %d bytes; a further namespace of region %s makes it %d, more than the %d that are asked for; raise the limit", r.ID, size, region.Name, size+usable, want.limit)
		}
	}
	return nil
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
		// Of these codes only OutOfRange lets users take a request back: with
		// any other one the kubelet tries for ever, and the claim is stuck.
		return ns, errorf(codes.OutOfRange, "volume %s cannot grow to %d bytes: it grows in place only, and with what follows it in region %s it can have at most %d bytes; ask for less, or copy the data to a new, larger volume",
			r.ID, want.required, noSpace.Region, noSpace.Largest)
	}
	if err != nil {
		return ns, fmt.Errorf("expand volume %s to %d bytes: %w", r.ID, want.required, err)
	}
	return extended, nil
}
