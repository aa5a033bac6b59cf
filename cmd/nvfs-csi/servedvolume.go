package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// servedVolume is a mapped device with the filesystem engine on it.
type servedVolume struct {
	mapping *pmem.Mapping
	fs      *nvfs.FS
	growing sync.Mutex
}

var (
	_ mountd.Volume    = (*servedVolume)(nil)
	_ mountd.Resumable = (*servedVolume)(nil)
)

// openVolume opens what spec describes. Nothing stays open when it fails.
func openVolume(spec mountd.Spec, o mountd.OpenOptions) (mountd.Volume, error) {
	mapping, err := takePrepared(spec, o.Prepared)
	if mapping == nil && err == nil {
		mapping, err = mapVolume(spec, false)
	}
	if err != nil {
		return nil, err
	}
	fs, err := nvfs.Mount(mapping, nvfs.Options{ReadOnly: spec.ReadOnly, Resume: o.Resume, OnOrphan: o.OnOrphan})
	if err != nil {
		return nil, errors.Join(notMountable(spec.Path, mapping, err), mapping.Close())
	}
	return &servedVolume{mapping: mapping, fs: fs}, nil
}

// mapVolume maps the devices of a volume, which another process may have when
// they are to be unlocked.
func mapVolume(spec mountd.Spec, unlocked bool) (*pmem.Mapping, error) {
	mode, err := pmem.ParseMode(spec.Flush)
	if err != nil {
		return nil, err
	}
	return nvfs.OpenDevices(spec.Path, spec.Devices, nvfs.OpenOptions{Options: pmem.Options{
		Mode: mode, Emulated: spec.Emulated, ReadOnly: spec.ReadOnly, Unlocked: unlocked,
		CalibrationFile: spec.Calibration, NUMANode: &spec.NUMANode,
	}})
}

// prepareVolume maps a volume that another process serves. Where further devices
// belong says the volume itself, and that may change.
func prepareVolume(spec mountd.Spec) (io.Closer, error) {
	if len(spec.Devices) > 0 {
		return nil, errors.New("the volume has further devices")
	}
	return mapVolume(spec, true)
}

// takePrepared returns the mapping that prepareVolume has made; nil when there
// is none, or the volume has got further devices since.
func takePrepared(spec mountd.Spec, prepared io.Closer) (*pmem.Mapping, error) {
	mapping, ok := prepared.(*pmem.Mapping)
	if !ok {
		return nil, nil
	}
	if len(spec.Devices) > 0 {
		return nil, mapping.Close()
	}
	if err := mapping.Lock(); err != nil {
		return nil, errors.Join(err, mapping.Close())
	}
	return mapping, nil
}

// notMountableProbe bounds the look at a device that cannot be mounted.
const notMountableProbe = 10 * time.Second

// notMountable says what is on a device that has no volume, and what to do.
func notMountable(path string, mapping *pmem.Mapping, err error) error {
	if !errors.Is(err, layout.ErrNotNVFS) {
		return fmt.Errorf("%s: %w", path, err)
	}
	// Whoever mounts waits for the answer, so it may be that nobody knows.
	ctx, cancel := context.WithTimeout(context.Background(), notMountableProbe)
	defer cancel()
	found, probeErr := mkfs.ProbeSpace(ctx, mapping)
	switch {
	case probeErr != nil:
		return fmt.Errorf("%s: %w; %w", path, err, probeErr)
	case found.Kind == mkfs.Blank:
		return fmt.Errorf("%s: %w: it is blank; make a volume on it with \"nvfs-csi mkfs %s\"", path, err, path)
	case found.Kind == mkfs.NVFSDamaged:
		return fmt.Errorf("%s: %w: it holds %s; look at it with \"nvfs-csi fsck %s\"", path, err, found.What, path)
	}
	return fmt.Errorf("%s: %w: it holds %s; mount it as what it is, or another device (nvfs-csi mkfs --force would destroy what it holds)", path, err, found.What)
}

// NewWorker implements fusefs.Filesystem.
func (v *servedVolume) NewWorker() (fusefs.Worker, error) { return v.fs.NewWorker() }

// Close implements mountd.Volume.
func (v *servedVolume) Close() error { return errors.Join(v.fs.Unmount(), v.mapping.Close()) }

// EndResume implements mountd.Resumable.
func (v *servedVolume) EndResume() error { return v.fs.EndResume() }

// Orphans implements mountd.Resumable.
func (v *servedVolume) Orphans() ([]nvfs.NodeID, error) { return v.fs.Orphans() }

// ReleaseOrphan implements mountd.Resumable.
func (v *servedVolume) ReleaseOrphan(id nvfs.NodeID) error { return v.fs.ReleaseOrphan(id) }

// Detach implements mountd.Resumable.
func (v *servedVolume) Detach() error {
	v.fs.Detach()
	return v.mapping.Release()
}

// Grow implements mountd.Volume.
func (v *servedVolume) Grow(devices ...string) (uint64, error) {
	v.growing.Lock()
	defer v.growing.Unlock()
	if len(v.fs.Superblock().Devices) == 1 {
		if _, err := v.mapping.Extend(); err != nil {
			return 0, err
		}
	}
	size, err := v.fs.Grow()
	for _, path := range devices {
		if err != nil {
			break
		}
		size, err = v.growOnto(path)
	}
	return size, err
}

// growProbe bounds the look at a device that a volume is to grow onto.
const growProbe = 10 * time.Minute

// growOnto takes a further device into use, which must be blank or have been
// given to this volume before.
func (v *servedVolume) growOnto(path string) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), growProbe)
	defer cancel()
	var uuid [16]byte
	part, err := v.mapping.AttachAt(path, func(c *pmem.Candidate) (_ uint64, err error) {
		uuid, err = mkfs.UsableMember(ctx, c, v.fs.Superblock())
		return v.fs.PlaceDevice(c.Backing.Align), err
	})
	if errors.Is(err, pmem.ErrAttached) && part.Off > 0 {
		return v.fs.SizeBytes(), nil // it was taken into use before
	}
	if err != nil {
		return 0, err
	}
	size, err := v.fs.GrowOnto(part, uuid)
	if err != nil {
		return 0, errors.Join(fmt.Errorf("%s: %w", path, err), v.mapping.Detach(part.Off))
	}
	return size, nil
}

// Emulated implements mountd.Volume.
func (v *servedVolume) Emulated() bool { return v.mapping.Emulated() }

// Health implements mountd.Volume.
func (v *servedVolume) Health() string { return v.fs.Health() }

// Flush implements mountd.Volume.
func (v *servedVolume) Flush() string {
	return fmt.Sprintf("%s (%s)", v.mapping.Strategy(), v.mapping.Why())
}

// ReadOnly implements mountd.Volume.
func (v *servedVolume) ReadOnly() bool { return v.fs.ReadOnly() }

// SizeBytes implements mountd.Volume.
func (v *servedVolume) SizeBytes() uint64 { return v.fs.SizeBytes() }
