// Package mountd starts, watches and stops the processes that serve NVFS
// volumes. The caller mounts; the serving process is a separate one, so the
// mount outlives whoever asked for it.
package mountd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// Spec is a volume to be served.
type Spec struct {
	VolumeID   string   `json:"volumeID"`          // unique per node; names the control socket
	Path       string   `json:"path"`              // devdax device or file: the first device of the volume
	Devices    []string `json:"devices,omitempty"` // its further devices, in any order
	Mountpoint string   `json:"mountpoint"`        // absolute
	Flush      string   `json:"flush"`             // a pmem flush mode by name, "auto" included
	Cache      string   `json:"cache"`             // through, direct or writeback
	Transport  string   `json:"transport"`         // auto, uring, dev; "": the one on which the volume outlives its server
	ReadOnly   bool     `json:"readOnly"`
	Emulated   bool     `json:"emulated"` // the administrator declares the backing emulated
	NUMANode   int      `json:"numaNode"` // -1: not bound
	AllowOther bool     `json:"allowOther"`
	MountFlags []string `json:"mountFlags,omitempty"` // further mount(2) flags: nosuid, nodev, noexec, noatime...

	Calibration string `json:"calibration,omitempty"` // file of what was measured for flush mode auto; "": the default one
}

// check refuses a Spec that cannot be mounted.
func (s *Spec) check() error {
	switch {
	case s.VolumeID == "":
		return errors.New("a volume needs an ID")
	case s.Path == "":
		return fmt.Errorf("volume %s: no path of a device or file", s.VolumeID)
	case !filepath.IsAbs(s.Mountpoint):
		return fmt.Errorf("volume %s: mount point %q is not an absolute path", s.VolumeID, s.Mountpoint)
	}
	if _, err := fusefs.ParseTransport(s.Transport); err != nil {
		return err
	}
	_, err := fusefs.ParseCacheMode(s.Cache)
	return err
}

// Status is what a serving process says of itself.
type Status struct {
	Protocol int    `json:"protocol"` // version of the control protocol
	Version  string `json:"version"`  // of the binary
	PID      int    `json:"pid"`
	VolumeID string `json:"volumeID"`
	Path     string `json:"path"`
	// Devices are the further devices of the volume; a successor of the process
	// needs them all.
	Devices []string `json:"devices,omitempty"`
	// Mountpoint is where the process mounted the volume; "" when it does not
	// say.
	Mountpoint string `json:"mountpoint"`
	Flush      string `json:"flush"` // the flush mode in force, with why it was chosen
	Cache      string `json:"cache"`
	Transport  string `json:"transport"` // uring or dev
	// TransportReason is why it is not uring although the Spec says auto.
	TransportReason string `json:"transportReason,omitempty"`
	Emulated        bool   `json:"emulated"` // declared so, or the memory is volatile
	ReadOnly        bool   `json:"readOnly"` // by option or because damage was found
	Health          string `json:"health"`   // "" is healthy, else what is wrong
	SizeBytes       uint64 `json:"sizeBytes"`
	// Connection is the number of the FUSE connection in
	// /sys/fs/fuse/connections; 0 when it is not known.
	Connection int `json:"connection,omitempty"`
	// Restarts is how many processes have served this mount before; LastDeath
	// is how the last of them ended, "" when it was replaced in order.
	Restarts  int    `json:"restarts"`
	LastDeath string `json:"lastDeath,omitempty"`
}

// Mounter mounts volumes and manages their serving processes. It is safe for
// concurrent use on different volumes.
type Mounter interface {
	// Mount serves spec.Path at spec.Mountpoint and returns once the
	// filesystem answers. Nothing is left behind when it fails.
	Mount(ctx context.Context, spec Spec) error
	// Unmount unmounts and waits until the serving process has ended and the
	// volume is marked clean. A volume that is not mounted is not an error.
	// A dead mount (its server is gone) is removed. A volume that is mounted
	// at another place is left alone.
	Unmount(ctx context.Context, volumeID, mountpoint string) error
	// Evict ends the connection of a volume that is mounted nowhere any more,
	// and waits until the serving process has ended. Whoever still has files of
	// it open gets errors. A volume that is not served is not an error.
	Evict(ctx context.Context, volumeID string) error
	// Status asks the serving process; ErrNotServed when there is none.
	Status(ctx context.Context, volumeID string) (Status, error)
	// Requests asks the serving process what the kernel has asked of it;
	// ErrNotServed when there is none. One of a version that does not count
	// gives an error.
	Requests(ctx context.Context, volumeID string) ([]RequestStats, error)
	// Forget removes the files that a volume, which is not coming back, has
	// left on the node, its log included; ErrInUse while it is served.
	Forget(volumeID string) error
	// Grow lets the filesystem use the whole backing after it was extended,
	// and further devices, which are blank or were given to it before.
	Grow(ctx context.Context, volumeID string, devices ...string) (Status, error)
}
