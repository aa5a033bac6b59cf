package driver

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// A namespace of a real region cannot grow while it is in use. A volume then
// grows onto a further namespace of its region. It stands in the record before
// it is made, so that whatever interrupts the growth, a retry finishes it and a
// deletion finds it.

// maxFurther is how many further namespaces a volume can have.
const maxFurther = 15

// further is a further namespace of a volume.
type further struct {
	Namespace string `json:"namespace"`
	UUID      string `json:"uuid,omitempty"` // once it is known to exist
	Requested uint64 `json:"requested"`      // least size asked for, in bytes
	Capacity  uint64 `json:"capacity,omitempty"`
	// Ready is set before the volume's server is told of the namespace. Until
	// then nothing of the volume is on it, and its old content may be erased;
	// after that, never.
	Ready bool `json:"ready,omitempty"`
}

// furtherPattern matches the names of further namespaces.
var furtherPattern = regexp.MustCompile(`^nvfs-([A-Za-z0-9-]*-)?[a-z2-7]{26}-[0-9]{1,2}$`)

// furtherName is the name of the n-th further namespace of a volume, n from 1.
// The readable part of an ID is left out where the name would be too long.
func furtherName(id string, n int) string {
	suffix := "-" + strconv.Itoa(n)
	if len(id)+len(suffix) > ndctl.MaxNameLength {
		id = idPrefix + id[len(id)-idHashLength:]
	}
	return id + suffix
}

// namespaceNames are the names of all namespaces of the volume.
func (r *record) namespaceNames() []string {
	names := []string{r.Namespace}
	for _, f := range r.Further {
		names = append(names, f.Namespace)
	}
	return names
}

// isNamespace reports whether the namespace is the one that f means, and not
// another of the same name.
func (f *further) isNamespace(ns ndctl.Namespace, region string) bool {
	if f.UUID != "" {
		return f.UUID == ns.UUID
	}
	return ns.Name == f.Namespace && ns.Region == region && ns.Size >= f.Requested
}

// furtherDevices returns the devices of the namespaces that the volume's server
// has been told of, and the size of all of them.
func (d *Driver) furtherDevices(ctx context.Context, r *record) (paths []string, size uint64, err error) {
	for i := range r.Further {
		f := &r.Further[i]
		if !f.Ready {
			continue
		}
		ns, err := d.namespaces.Namespace(ctx, f.Namespace)
		switch {
		case errors.Is(err, ndctl.ErrNotFound):
			return nil, 0, dataLost(r, "namespace %s of region %s does not exist any more", f.Namespace, r.Region)
		case errors.Is(err, ndctl.ErrLost):
			return nil, 0, dataLost(r, "%w", err)
		case err != nil:
			return nil, 0, fmt.Errorf("volume %s: %w", r.ID, err)
		case !f.isNamespace(ns, r.Region):
			return nil, 0, dataLost(r, "namespace %s was replaced: its UUID is %s, not %s", ns.Name, ns.UUID, f.UUID)
		}
		paths = append(paths, ns.Device)
		size += ns.Size
	}
	return paths, size, nil
}

// finishFurther makes the namespaces that an interrupted growth has left
// unfinished.
func (d *Driver) finishFurther(ctx context.Context, r *record, mode ndctl.Mode) error {
	for i := range r.Further {
		if f := &r.Further[i]; !f.Ready {
			if err := d.makeFurther(ctx, r, f, mode); err != nil {
				return err
			}
		}
	}
	return nil
}

// addFurther gives the volume a further namespace of at least size bytes. When
// there is no room, nothing is left.
func (d *Driver) addFurther(ctx context.Context, r *record, mode ndctl.Mode, size uint64) error {
	if len(r.Further) == maxFurther {
		return errorf(codes.OutOfRange, "volume %s has %d namespaces, more are not possible; ask for no more, or copy the data to a new, larger volume", r.ID, maxFurther+1)
	}
	if !isOurID(r.Namespace) {
		return failedPrecondition("volume %s cannot grow: it was put into namespace %s, which this driver did not make; copy the data to a new, larger volume", r.ID, r.Namespace)
	}
	r.Further = append(r.Further, further{Namespace: furtherName(r.ID, len(r.Further)+1), Requested: size})
	if err := d.records.save(r); err != nil {
		return err
	}
	err := d.makeFurther(ctx, r, &r.Further[len(r.Further)-1], mode)
	var noSpace *ndctl.NoSpaceError
	if errors.As(err, &noSpace) {
		r.Further = r.Further[:len(r.Further)-1]
		return joinReasons(errorf(codes.OutOfRange, "volume %s cannot grow by %d bytes: region %s has no room for more than %d at once; ask for less, or copy the data to a new, larger volume",
			r.ID, size, noSpace.Region, noSpace.Largest), d.records.save(r))
	}
	return err
}

// makeFurther makes a namespace that the record lists, or goes on with what an
// earlier attempt has made. Memory keeps what was on it, so what is not blank is
// erased: no tenant reads another's bytes, and the server takes nothing else.
func (d *Driver) makeFurther(ctx context.Context, r *record, f *further, mode ndctl.Mode) error {
	ns, err := d.namespaces.Namespace(ctx, f.Namespace)
	if errors.Is(err, ndctl.ErrNotFound) {
		ns, err = d.namespaces.Create(ctx, ndctl.CreateRequest{Name: f.Namespace, Region: r.Region, Mode: mode, Size: f.Requested})
	}
	switch {
	case err != nil:
		return fmt.Errorf("further namespace of volume %s: %w", r.ID, err)
	case !f.isNamespace(ns, r.Region) || ns.Mode != mode || ns.InUse:
		return failedPrecondition("namespace %s exists and was not made for volume %s; look at it and destroy it by hand if it is not needed", ns.Name, r.ID)
	}
	f.UUID, f.Capacity = ns.UUID, ns.Size
	if err := d.records.save(r); err != nil {
		return err
	}
	found, err := d.volumes.Probe(ctx, ns.Device)
	if err == nil && found.Content != ContentBlank {
		err = d.volumes.Zero(ctx, ns.Device, 0, func(uint64) {})
	}
	if err != nil {
		return fmt.Errorf("further namespace of volume %s: erase %s: %w", r.ID, ns.Device, err)
	}
	f.Ready = true
	if err := d.records.save(r); err != nil {
		return err
	}
	klog.V(2).InfoS("Made a further namespace", "volumeID", r.ID, "namespace", ns.Name, "bytes", ns.Size)
	return nil
}

// eraseFurther erases and destroys the further namespaces of a volume that is
// deleted, the last one first. Each leaves the record when it is gone.
func (d *Driver) eraseFurther(ctx context.Context, r *record, overwrite bool) error {
	for len(r.Further) > 0 {
		f := r.Further[len(r.Further)-1]
		ns, err := d.namespaces.Namespace(ctx, f.Namespace)
		switch {
		case errors.Is(err, ndctl.ErrNotFound):
		case err != nil && !errors.Is(err, ndctl.ErrLost):
			return err
		case err == nil && !f.isNamespace(ns, r.Region):
			klog.InfoS("A namespace of a deleted volume was replaced and is left alone", "volumeID", r.ID, "namespace", ns.Name, "uuid", ns.UUID)
		case err == nil && ns.InUse:
			return fmt.Errorf("%w: %s", ndctl.ErrBusy, ns.Device)
		default:
			if err == nil && overwrite {
				if err := d.zero(ctx, r, ns); err != nil {
					return err
				}
			}
			if err := d.namespaces.Destroy(ctx, f.Namespace); err != nil && !errors.Is(err, ndctl.ErrNotFound) {
				return err
			}
		}
		r.Further, r.Erased = slices.Clone(r.Further[:len(r.Further)-1]), 0
		if err := d.records.save(r); err != nil {
			return err
		}
	}
	return nil
}

// recoverFurther lists the further namespaces of a volume whose record was
// lost. They may hold a part of it whatever a probe says, so they are not erased
// until the volume is deleted.
func (d *Driver) recoverFurther(ctx context.Context, id, region string) ([]further, error) {
	var list []further
	for n := 1; n <= maxFurther; n++ {
		ns, err := d.namespaces.Namespace(ctx, furtherName(id, n))
		switch {
		case errors.Is(err, ndctl.ErrNotFound):
			return list, nil // they are made and destroyed in order
		case err != nil:
			return nil, fmt.Errorf("volume %s has no record: %w", id, err)
		case ns.Region != region:
			return list, nil
		}
		list = append(list, further{Namespace: ns.Name, UUID: ns.UUID, Requested: ns.Size, Capacity: ns.Size, Ready: true})
	}
	return list, nil
}
