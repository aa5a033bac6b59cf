package drivertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

// NVFS is a mountd.Mounter whose volumes are lines in a Mounts. It is safe for
// concurrent use.
type NVFS struct {
	mounts *Mounts

	mu      sync.Mutex
	serving map[string]*served
	pid     int
	mountE  []error
	growE   []error
	grown   map[string]int
	forgot  []string
}

type served struct {
	spec   mountd.Spec
	status mountd.Status
}

var _ mountd.Mounter = (*NVFS)(nil)

// NewNVFS returns a mounter that mounts into mounts.
func NewNVFS(mounts *Mounts) *NVFS {
	return &NVFS{mounts: mounts, serving: map[string]*served{}, pid: 100, grown: map[string]int{}}
}

// Mount implements mountd.Mounter.
func (n *NVFS) Mount(ctx context.Context, spec mountd.Spec) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.mountE) > 0 {
		err := n.mountE[0]
		n.mountE = n.mountE[1:]
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if n.serving[spec.VolumeID] != nil {
		return fmt.Errorf("%w: %s", mountd.ErrInUse, spec.VolumeID)
	}
	if count, _ := n.mounts.At(spec.Mountpoint); count > 0 {
		return fmt.Errorf("%s is a mount point already", spec.Mountpoint)
	}
	n.pid++
	n.serving[spec.VolumeID] = &served{spec: spec, status: mountd.Status{PID: n.pid, VolumeID: spec.VolumeID, Path: spec.Path,
		Flush: spec.Flush, Cache: spec.Cache, Transport: spec.Transport, ReadOnly: spec.ReadOnly, Emulated: spec.Emulated}}
	n.mounts.Add(spec.Path, spec.Mountpoint, driver.MountType)
	return nil
}

// Unmount implements mountd.Mounter.
func (n *NVFS) Unmount(ctx context.Context, volumeID, mountpoint string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if count, top := n.mounts.At(mountpoint); count > 0 && top.Type == driver.MountType {
		if err := n.mounts.Unmount(mountpoint); err != nil {
			return err
		}
	}
	if s := n.serving[volumeID]; s != nil && s.spec.Mountpoint == mountpoint {
		delete(n.serving, volumeID)
	}
	return nil
}

// Evict implements mountd.Mounter.
func (n *NVFS) Evict(ctx context.Context, volumeID string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.serving[volumeID]; s != nil {
		n.mounts.breakDevice(s.spec.Path, unix.ENOTCONN)
		delete(n.serving, volumeID)
	}
	return ctx.Err()
}

// Status implements mountd.Mounter.
func (n *NVFS) Status(ctx context.Context, volumeID string) (mountd.Status, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.serving[volumeID]
	if s == nil {
		return mountd.Status{}, fmt.Errorf("%w: %s", mountd.ErrNotServed, volumeID)
	}
	return s.status, ctx.Err()
}

// Requests implements mountd.Mounter: each volume that is served was written to
// 17 times.
func (n *NVFS) Requests(ctx context.Context, volumeID string) ([]mountd.RequestStats, error) {
	if _, err := n.Status(ctx, volumeID); err != nil {
		return nil, err
	}
	return []mountd.RequestStats{{Op: "WRITE", Requests: 17, Timed: 3, Total: 5006 * time.Microsecond,
		Latency: []mountd.LatencyBucket{{Below: 4096, Requests: 2}, {Below: 8192 * time.Microsecond, Requests: 1}}}}, nil
}

// Grow implements mountd.Mounter.
func (n *NVFS) Grow(ctx context.Context, volumeID string, devices ...string) (mountd.Status, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.growE) > 0 {
		err := n.growE[0]
		n.growE = n.growE[1:]
		return mountd.Status{}, err
	}
	s := n.serving[volumeID]
	if s == nil {
		return mountd.Status{}, fmt.Errorf("%w: %s", mountd.ErrNotServed, volumeID)
	}
	n.grown[volumeID]++
	for _, path := range devices {
		if !slices.Contains(s.spec.Devices, path) {
			s.spec.Devices = append(s.spec.Devices, path)
		}
	}
	s.status.Devices = slices.Clone(s.spec.Devices)
	return s.status, ctx.Err()
}

// Forget implements mountd.Mounter.
func (n *NVFS) Forget(volumeID string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.serving[volumeID] != nil {
		return fmt.Errorf("%w: %s", mountd.ErrInUse, volumeID)
	}
	n.forgot = append(n.forgot, volumeID)
	return nil
}

// Forgotten returns the volumes that Forget was called for.
func (n *NVFS) Forgotten() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.forgot)
}

// FailMount lets the next Mount fail.
func (n *NVFS) FailMount(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mountE = append(n.mountE, err)
}

// FailGrow lets the next Grow fail.
func (n *NVFS) FailGrow(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.growE = append(n.growE, err)
}

// Grown returns how often the volume was grown.
func (n *NVFS) Grown(volumeID string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.grown[volumeID]
}

// Spec returns with what the volume was mounted.
func (n *NVFS) Spec(volumeID string) mountd.Spec {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.serving[volumeID]; s != nil {
		return s.spec
	}
	return mountd.Spec{}
}

// Kill ends the server of a volume; its mounts stay and are dead.
func (n *NVFS) Kill(volumeID string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mounts.breakDevice(n.serving[volumeID].spec.Path, unix.ENOTCONN)
	delete(n.serving, volumeID)
}

// SetStatus changes what the server says of itself.
func (n *NVFS) SetStatus(volumeID string, change func(*mountd.Status)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.serving[volumeID].status)
}

// Reboot ends all servers and mounts.
func (n *NVFS) Reboot() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.serving = map[string]*served{}
	n.mounts.Reboot()
}
