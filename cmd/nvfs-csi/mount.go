package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// mountTimeout bounds how long mount waits for the filesystem to answer.
const mountTimeout = 60 * time.Second

func newMountCommand() *cobra.Command {
	var regions regionFlags
	var options []string
	var foreground bool
	var stateDir string
	cmd := &cobra.Command{
		Use:   "mount [-o OPTION,...] [--foreground] PATH MOUNTPOINT",
		Short: "Mount an NVFS volume",
		Long: "mount mounts the NVFS volume on PATH, a devdax device, a file or the name of a\n" +
			"namespace, and returns once the filesystem answers. umount(8) ends it.\n\n" +
			"A volume that has grown onto further devices needs all of them: PATH is its first\n" +
			"device, and each of the others is given as -o device=PATH2, in any order.\n\n" +
			"Options: flush=MODE how stores become durable (default auto); cache=through,\n" +
			"direct or writeback; transport=dev (default), uring or auto; ro; emulated, which\n" +
			"declares that PATH stands in for persistent memory, so that any flush mode is\n" +
			"allowed although nothing survives a power cut; numa=NODE binds the serving\n" +
			"process; and nosuid, nodev, noexec, noatime and the like as for mount(8). Access\n" +
			"times are not kept.\n\n" +
			"Transport uring serves each request on the CPU that it was made on, by io_uring\n" +
			"(Linux 6.14). It is the fastest, but the mount ends if its serving process dies;\n" +
			"on dev another process goes on and no program notices. auto is uring where it\n" +
			"works, else dev. uring and auto switch FUSE over io_uring on for the machine, if\n" +
			"root has not done it (/sys/module/fuse/parameters/enable_uring).",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := mountSpec(cmd.Context(), &regions, args[0], args[1], options)
			if err != nil {
				return err
			}
			dir, err := runDirectory(stateDir)
			if err != nil {
				return err
			}
			return runMount(cmd.Context(), spec, dir, foreground, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringArrayVarP(&options, "options", "o", nil, "mount options, separated by commas")
	cmd.Flags().BoolVar(&foreground, "foreground", false, "stay until the volume is unmounted; an interrupt unmounts it")
	cmd.Flags().StringVar(&stateDir, "state-dir", mountd.DefaultStateDir, "directory of control sockets and locks")
	regions.addTo(cmd)
	return cmd
}

// mountSpec describes the mount that a command line asks for.
func mountSpec(ctx context.Context, regions *regionFlags, path, mountpoint string, options []string) (mountd.Spec, error) {
	b, err := regions.resolve(ctx, path)
	if err != nil {
		return mountd.Spec{}, err
	}
	mountpoint, err = realDirectory(mountpoint)
	if err != nil {
		return mountd.Spec{}, err
	}
	spec := mountd.Spec{
		VolumeID:   mountID(mountpoint),
		Path:       b.path,
		Mountpoint: mountpoint,
		Emulated:   b.emulated,
		NUMANode:   b.numaNode,
		// As with any filesystem on a device: permissions decide, not who
		// mounted.
		AllowOther: true,
	}
	if err := applyMountOptions(&spec, options); err != nil {
		return mountd.Spec{}, err
	}
	for i, device := range spec.Devices {
		if b, err = regions.resolve(ctx, device); err != nil {
			return mountd.Spec{}, fmt.Errorf("mount option device=%s: %w", device, err)
		}
		spec.Devices[i] = b.path
	}
	return spec, nil
}

// realDirectory is the mount point as the kernel will show it.
func realDirectory(name string) (string, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if deadMount(err) {
		return abs, nil // mounting heals it
	}
	if err != nil {
		return "", fmt.Errorf("mount point: %w", err)
	}
	info, err := os.Stat(real)
	if deadMount(err) {
		return real, nil
	}
	if err != nil {
		return "", fmt.Errorf("mount point: %w", err)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("mount point %s is not a directory", real)
	}
	return real, nil
}

// mountID stands for the volume ID of a mount that the driver has nothing to
// do with: one per mount point.
func mountID(mountpoint string) string {
	sum := sha256.Sum256([]byte(mountpoint))
	return "mount-" + hex.EncodeToString(sum[:8])
}

// emulatedNotice is what mount says of memory that only stands in for
// persistent memory.
const emulatedNotice = "emulated memory: nothing survives a power cut"

// runMount mounts, and tells notices what the user should know about the
// memory.
func runMount(ctx context.Context, spec mountd.Spec, stateDir string, foreground bool, notices io.Writer) error {
	var err error
	if foreground {
		err = serveForeground(ctx, spec, stateDir, notices)
	} else {
		err = mountBackground(ctx, spec, stateDir, notices)
	}
	if errors.Is(err, mountd.ErrInUse) {
		return explainInUse(spec.Mountpoint, err)
	}
	return err
}

func mountBackground(ctx context.Context, spec mountd.Spec, stateDir string, notices io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, mountTimeout)
	defer cancel()
	launcher := newLauncher(stateDir, true)
	// What is wrong with the device after that, the mount itself says.
	_ = awaitLetGo(ctx, spec.Path, func() error { return pmem.CheckUnused(spec.Path) })
	if err := launcher.Mount(ctx, spec); err != nil {
		return err
	}
	// It is mounted, whatever becomes of the question.
	if status, err := launcher.Status(ctx, spec.VolumeID); err != nil {
		klog.V(2).InfoS("No status", "mountpoint", spec.Mountpoint, "reason", err.Error())
	} else {
		if status.Emulated {
			fmt.Fprintln(notices, emulatedNotice)
		}
		if status.TransportReason != "" {
			fmt.Fprintf(notices, "transport %s: %s\n", status.Transport, status.TransportReason)
		}
	}
	return nil
}

// serveForeground mounts and serves in this process until the volume is
// unmounted; when ctx ends it unmounts.
func serveForeground(ctx context.Context, spec mountd.Spec, stateDir string, notices io.Writer) error {
	open := func(spec mountd.Spec, o mountd.OpenOptions) (mountd.Volume, error) {
		volume, err := openVolume(spec, o)
		if err == nil && (spec.Emulated || volume.Emulated()) {
			fmt.Fprintln(notices, emulatedNotice)
		}
		return volume, err
	}
	return mountd.ServeForeground(ctx, spec, mountd.ServeOptions{Version: version, StateDir: stateDir, OpenVolume: open})
}

// explainInUse says what is in the way of a mount. After a lazy unmount that
// is a process that nothing shows any more at the mount point.
func explainInUse(mountpoint string, err error) error {
	mounted, tableErr := fusefs.IsMountPoint(mountpoint)
	switch {
	case tableErr != nil:
		return errors.Join(err, tableErr)
	case mounted:
		return fmt.Errorf("something is mounted at %s already: unmount it first: %w", mountpoint, err)
	}
	return fmt.Errorf("nothing is mounted at %s any more, but what was unmounted there is still used, as after umount -l, or is just being mounted or unmounted: "+
		"end the programs that have files of it open (fuser and lsof find them), then mount again: %w", mountpoint, err)
}

// newLauncher lets serving processes write logs of their own: they outlive the
// terminal, the pipe or the container that this process writes to. removeLogs
// is for mounts that nobody else tidies up after.
func newLauncher(stateDir string, removeLogs bool) *mountd.Launcher {
	return mountd.NewLauncher(launcherOptions(stateDir, removeLogs))
}

func launcherOptions(stateDir string, removeLogs bool) mountd.LauncherOptions {
	return mountd.LauncherOptions{StateDir: stateDir, LogDir: filepath.Join(stateDir, "log"), RemoveLogs: removeLogs}
}

// runDirectory is the directory that a flag names; "" is the default as well,
// and never the working directory.
func runDirectory(flag string) (string, error) {
	if flag == "" {
		return mountd.DefaultStateDir, nil
	}
	return filepath.Abs(flag)
}

// deadMount reports whether err is that of a mount whose server has gone.
func deadMount(err error) bool {
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
}
