package driver

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// KernelFilesystems makes and recognises filesystems of the kernel. Its methods
// honour ctx and are safe for concurrent use on different devices.
type KernelFilesystems interface {
	// Format makes a filesystem of the whole device, whatever is on it.
	Format(ctx context.Context, device string, options KernelFormat) error
	// Identify says what filesystem is on a device. One without any is not an
	// error; a device that cannot be read is.
	Identify(ctx context.Context, device string) (KernelFilesystem, error)
}

// KernelFormat describes a filesystem to be made.
type KernelFormat struct {
	Type  string // FSTypeExt4 or FSTypeXFS
	UUID  string
	Label string // cut to what the filesystem can have
	DAX   bool   // the device is persistent memory: fit for mounting with -o dax
}

// KernelFilesystem is what identifies a filesystem.
type KernelFilesystem struct {
	Type string // as mount(8) names it; "" when there is none
	UUID string
}

// xfsMinimum is the smallest xfs, in bytes: its log of 64 MiB has to fit into an
// allocation group, of which there are four.
const xfsMinimum = 512 << 20

// kernel reports whether the volume is not NVFS: it has a filesystem of the
// kernel, or none (raw block).
func (p Params) kernel() bool { return p.FSType != FSTypeNVFS }

// dax reports whether the volume's filesystem is mounted with -o dax.
func (p Params) dax() bool { return p.kernel() && p.namespaceMode() == ndctl.FSDax }

// checkOffered refuses parameters that mean nothing together.
func (p Params) checkOffered() error {
	if !p.kernel() && p.NamespaceMode != "" {
		return invalidArgument("parameter %s=%q cannot be combined with filesystem nvfs, which always uses devdax; remove it", KeyNamespaceMode, p.NamespaceMode)
	}
	if !p.kernel() {
		return nil
	}
	initial := DefaultParams()
	for key, changed := range map[string]bool{KeyFlushMode: p.FlushMode != initial.FlushMode, KeyCacheMode: p.CacheMode != initial.CacheMode, KeyTransport: p.Transport != initial.Transport} {
		if changed {
			return invalidArgument("parameter %s is for filesystem nvfs; remove it from a class for %s", key, p.FSType)
		}
	}
	return nil
}

// leastSize raises a request to what the filesystem needs.
func (p Params) leastSize(want sizeRange) (sizeRange, error) {
	if p.FSType != FSTypeXFS || want.required >= xfsMinimum {
		return want, nil
	}
	if want.limit != 0 && want.limit < xfsMinimum {
		return want, errorf(codes.OutOfRange, "a limit of %d bytes is below the smallest xfs, %d bytes", want.limit, xfsMinimum)
	}
	want.required = xfsMinimum
	return want, nil
}

// checkKernelRegion says whether the region can hold a volume that is not NVFS.
func (d *Driver) checkKernelRegion(p Params, r ndctl.Region) error {
	switch {
	case !p.kernel():
		return nil
	case r.Emulated:
		remedy := KeyFSType + "=" + FSTypeNVFS
		if p.FSType == FSTypeBlock {
			remedy = "volumeMode: Filesystem" // no class says block
		}
		return fmt.Errorf("region %s is emulated and has no device that the kernel could use for %s; use %s", r.Name, p.FSType, remedy)
	case d.kernel == nil:
		return fmt.Errorf("this driver was built without %s", p.FSType)
	}
	return nil
}

// formatKernel makes the volume on a namespace that nobody was given yet. The
// memory still holds what was in it before: all of it is overwritten first,
// because a raw volume would show it, and so would the tools of a filesystem.
func (d *Driver) formatKernel(ctx context.Context, r *record, ns ndctl.Namespace, params Params) error {
	if params.Provision == ProvisionRegion {
		if err := d.zero(ctx, r, ns); err != nil {
			return err
		}
	} else if err := d.wantBlank(ctx, ns); err != nil {
		return err
	}
	if params.FSType != FSTypeBlock {
		err := d.kernel.Format(ctx, ns.Device, KernelFormat{Type: params.FSType, UUID: ns.UUID, Label: r.Label, DAX: params.dax()})
		if err != nil {
			return fmt.Errorf("format %s: %w", ns.Device, err)
		}
	}
	if err := d.verifyKernelContent(ctx, r, ns, params); err != nil {
		return errorf(codes.Internal, "after formatting: %w", err)
	}
	r.Erased = 0 // it counts anew when the volume is deleted
	return nil
}

func (d *Driver) wantBlank(ctx context.Context, ns ndctl.Namespace) error {
	found, err := d.volumes.Probe(ctx, ns.Device)
	if err != nil {
		return err
	}
	if found.Content != ContentBlank {
		return failedPrecondition("namespace %s holds %s; it is left as it is", ns.Name, describe(found))
	}
	return nil
}

// verifyKernelContent makes sure that the device holds the filesystem that was
// made for this volume, which has the UUID of its namespace.
func (d *Driver) verifyKernelContent(ctx context.Context, r *record, ns ndctl.Namespace, params Params) error {
	if params.FSType == FSTypeBlock {
		return nil // what is on it is the pod's affair
	}
	if d.kernel == nil {
		return failedPrecondition("volume %s is %s, which this driver was built without", r.ID, params.FSType)
	}
	found, err := d.kernel.Identify(ctx, ns.Device)
	switch {
	case err != nil:
		return fmt.Errorf("volume %s: device %s cannot be read: %w", r.ID, ns.Device, err)
	case found.Type != params.FSType:
		return dataLost(r, "device %s holds %q where %s was", ns.Device, found.Type, params.FSType)
	case !strings.EqualFold(found.UUID, ns.UUID):
		return dataLost(r, "device %s holds another %s, with UUID %s", ns.Device, found.Type, found.UUID)
	}
	return nil
}

// stageKernel mounts a filesystem of the kernel. It is never made here.
func (d *Driver) stageKernel(ctx context.Context, r *record, ns ndctl.Namespace, params Params, want staged) error {
	if params.FSType == FSTypeBlock {
		r.Staged = &want // nothing to do: the device is published as it is
		return d.records.save(r)
	}
	done, err := d.adoptStaged(ctx, r, ns, want)
	if done || err != nil {
		return err
	}
	if err := d.verifyKernelContent(ctx, r, ns, params); err != nil {
		return err
	}
	if err := os.MkdirAll(want.Path, 0o750); err != nil {
		return fmt.Errorf("staging path: %w", err)
	}
	r.Staged = &want
	if err := d.records.save(r); err != nil {
		return err
	}
	if err := d.mountKernel(ns, params, want); err != nil {
		undo := d.mounts.clear(want.Path)
		r.Staged = nil
		return joinReasons(fmt.Errorf("mount volume %s at %s: %w", r.ID, want.Path, err), undo, d.records.save(r))
	}
	klog.V(2).InfoS("Staged volume", "volumeID", r.ID, "path", want.Path, "device", ns.Device, "filesystem", params.FSType, "dax", params.dax())
	return nil
}

func (d *Driver) mountKernel(ns ndctl.Namespace, params Params, want staged) error {
	options := slices.Clone(want.Flags)
	if want.ReadOnly {
		options = append(options, "ro")
	}
	if params.dax() {
		options = append(options, "dax")
	}
	if err := d.mounts.table.Mount(ns.Device, want.Path, params.FSType, options); err != nil {
		return err
	}
	if !params.dax() {
		return nil
	}
	// xfs mounts without DAX when it cannot have it, and says so in the
	// kernel's log only.
	stack, err := d.mounts.at(want.Path)
	if err != nil {
		return err
	}
	if len(stack) == 0 || !slices.ContainsFunc(stack[len(stack)-1].Opts, isDAXOption) {
		return errorf(codes.FailedPrecondition, "the kernel mounted %s without DAX; dmesg says why", params.FSType)
	}
	return nil
}

// isDAXOption matches "dax" and "dax=always", as kernels before and after 5.8
// show it.
func isDAXOption(option string) bool { return option == "dax" || option == "dax=always" }

// isKernelVolume reports whether the record of a volume says that no process
// of ours serves it.
func (d *Driver) isKernelVolume(id string) bool {
	r, err := d.records.load(id)
	return err == nil && r.kernel()
}

func (r *record) kernel() bool {
	params, err := r.params()
	return err == nil && params.kernel()
}

// checkKernelGrowth refuses to grow what cannot grow: the kernel does not resize
// a namespace that is in use, and only NVFS takes a second one.
func (r *record) checkKernelGrowth(want sizeRange) error {
	if !r.kernel() || want.required <= r.Capacity {
		return nil
	}
	return errorf(codes.OutOfRange, "volume %s is not NVFS and has the %d bytes of its namespace, which cannot grow; copy the data to a new, larger volume, and set allowVolumeExpansion: false in the class", r.ID, r.Capacity)
}
