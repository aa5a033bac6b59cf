package fusefs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// FSType is the type of a mounted volume, in /proc/mounts and for mount(2).
const FSType = "fuse.nvfs"

// MountOptions are those of mount(2) that concern the kernel alone.
type MountOptions struct {
	// Source is shown as the device of the mount: the volume's path.
	Source   string
	ReadOnly bool
	// AllowOther lets users other than the one that mounts in; permissions
	// are checked by the kernel in either case.
	AllowOther bool
	// Transport is that which the connection is to be served by. For uring,
	// and for auto if possible, FUSE over io_uring is switched on.
	Transport string
	// Flags are further generic flags by name: nosuid, noexec, and so on.
	Flags []string
}

// mountFlags are the generic flags by name. A volume never updates access
// times by itself, so noatime and relatime change nothing but are accepted.
var mountFlags = map[string]uintptr{
	"rw":          0,
	"ro":          unix.MS_RDONLY,
	"suid":        0,
	"nosuid":      unix.MS_NOSUID,
	"dev":         0,
	"nodev":       unix.MS_NODEV,
	"exec":        0,
	"noexec":      unix.MS_NOEXEC,
	"async":       0,
	"sync":        unix.MS_SYNCHRONOUS,
	"dirsync":     unix.MS_DIRSYNC,
	"noatime":     unix.MS_NOATIME,
	"nodiratime":  unix.MS_NODIRATIME,
	"relatime":    unix.MS_RELATIME,
	"nosymfollow": unix.MS_NOSYMFOLLOW,
}

// flags are the flags for mount(2).
func (o *MountOptions) flags() (uintptr, error) {
	var flags uintptr
	if o.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	for _, name := range o.Flags {
		f, ok := mountFlags[name]
		if !ok {
			known := make([]string, 0, len(mountFlags))
			for k := range mountFlags {
				known = append(known, k)
			}
			slices.Sort(known)
			return 0, fmt.Errorf("unknown mount flag %q: known are %s", name, strings.Join(known, ", "))
		}
		flags |= f
	}
	return flags, nil
}

// Mount opens /dev/fuse and mounts it at mountpoint, a directory. Whoever
// accesses the mount waits until the descriptor that is returned is served;
// when its last copy is closed the connection ends.
func Mount(mountpoint string, o MountOptions) (*os.File, error) {
	flags, err := o.flags()
	if err != nil {
		return nil, err
	}
	if err := o.offerUring(); err != nil {
		return nil, err
	}
	// Not os.Open: the descriptor must stay out of the runtime's poller.
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse (is the fuse module loaded?): %w", err)
	}
	source := o.Source
	if source == "" {
		source = "nvfs"
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,max_read=%d",
		fd, os.Getuid(), os.Getgid(), MaxWrite)
	if o.AllowOther {
		data += ",allow_other"
	}
	if err := unix.Mount(source, mountpoint, FSType, flags, data); err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s at %s: %w", source, mountpoint, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// offerUring lets the kernel offer FUSE over io_uring to the connection.
// Whoever prefers it only is served over /dev/fuse when that fails.
func (o *MountOptions) offerUring() error {
	transport, err := ParseTransport(o.Transport)
	if err != nil || transport == devName {
		return err
	}
	changed, err := EnableUring()
	switch {
	case err == nil && changed:
		klog.InfoS("FUSE over io_uring was off on this machine and has been switched on", "parameter", uringParameter)
	case err != nil && transport == uringName:
		return fmt.Errorf("transport uring cannot be used; use transport=dev, or auto: %w", err)
	}
	return nil
}

// Unmount unmounts the topmost mount at mountpoint; EBUSY when it is in use.
func Unmount(mountpoint string) error { return unmount(mountpoint, 0) }

// Detach takes the topmost mount at mountpoint out of sight, in use or not;
// the connection ends when its last user has gone.
func Detach(mountpoint string) error { return unmount(mountpoint, unix.MNT_DETACH) }

func unmount(mountpoint string, flags int) error {
	if err := unix.Unmount(mountpoint, flags|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount %s: %w", mountpoint, err)
	}
	return nil
}

// MountEntry is one mount as /proc/self/mountinfo shows it.
type MountEntry struct {
	Mountpoint string
	FSType     string
	Source     string
	// Connection names the FUSE connection in /sys/fs/fuse/connections. It is
	// the minor number of the mount's device.
	Connection int
}

// IsNVFS reports whether the mount is a volume of this driver.
func (e *MountEntry) IsNVFS() bool { return e.FSType == FSType }

// Mounts lists the mounts at exactly mountpoint, the topmost last. It does
// not touch them, so a dead mount cannot make it hang or fail.
func Mounts(mountpoint string) ([]MountEntry, error) {
	mountpoint = filepath.Clean(mountpoint)
	if dir, err := filepath.EvalSymlinks(filepath.Dir(mountpoint)); err == nil {
		mountpoint = filepath.Join(dir, filepath.Base(mountpoint))
	}
	return list(func(i *mountinfo.Info) (skip, stop bool) { return i.Mountpoint != mountpoint, false })
}

// ConnectionMounts lists the mounts of one connection, in this process's
// mount namespace.
func ConnectionMounts(connection int) ([]MountEntry, error) {
	return list(func(i *mountinfo.Info) (skip, stop bool) {
		return i.FSType != FSType || i.Major != 0 || i.Minor != connection, false
	})
}

// DeviceMounts lists the mounts of the volume on a device, in this process's
// mount namespace. The path is the one that was given to Mount as source.
func DeviceMounts(path string) ([]MountEntry, error) {
	return list(func(i *mountinfo.Info) (skip, stop bool) {
		return i.FSType != FSType || i.Source != path, false
	})
}

func list(filter mountinfo.FilterFunc) ([]MountEntry, error) {
	infos, err := mountinfo.GetMounts(filter)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	entries := make([]MountEntry, len(infos))
	for i, m := range infos {
		entries[i] = MountEntry{Mountpoint: m.Mountpoint, FSType: m.FSType, Source: m.Source, Connection: m.Minor}
	}
	return entries, nil
}

// Top returns the topmost mount at mountpoint; nil when it is no mount point.
func Top(mountpoint string) (*MountEntry, error) {
	entries, err := Mounts(mountpoint)
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	return &entries[len(entries)-1], nil
}

// IsMountPoint reports whether something is mounted at path.
func IsMountPoint(path string) (bool, error) {
	e, err := Top(path)
	return e != nil, err
}

// fusectl is where the kernel's control filesystem for FUSE belongs.
const fusectl = "/sys/fs/fuse/connections"

// AbortConnection ends a connection at once: requests in flight and later
// ones fail. It mounts the control filesystem when that is missing.
func AbortConnection(connection int) error {
	path := filepath.Join(fusectl, strconv.Itoa(connection), "abort")
	if err := mountFusectl(); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("abort FUSE connection %d: %w", connection, err)
	}
	_, err = f.WriteString("1")
	return errors.Join(err, f.Close())
}

func mountFusectl() error {
	mounted, err := IsMountPoint(fusectl)
	if err != nil || mounted {
		return err
	}
	if err := unix.Mount("fusectl", fusectl, "fusectl", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("mount the FUSE control filesystem at %s: %w", fusectl, err)
	}
	return nil
}
