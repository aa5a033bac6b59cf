package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
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
			"Options: flush=MODE how stores become durable (default auto); cache=through,\n" +
			"direct or writeback; transport=auto or dev; ro; emulated, which declares that\n" +
			"PATH stands in for persistent memory, so that any flush mode is allowed although\n" +
			"nothing survives a power cut; numa=NODE binds the serving process; and nosuid,\n" +
			"nodev, noexec, noatime and the like as for mount(8).",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := mountSpec(cmd.Context(), &regions, args[0], args[1], options)
			if err != nil {
				return err
			}
			return runMount(cmd.Context(), spec, stateDir, foreground)
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
	return spec, applyMountOptions(&spec, options)
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

func runMount(ctx context.Context, spec mountd.Spec, stateDir string, foreground bool) error {
	if foreground {
		return serveInPlace(ctx, spec, stateDir)
	}
	ctx, cancel := context.WithTimeout(ctx, mountTimeout)
	defer cancel()
	err := newLauncher(stateDir).Mount(ctx, spec)
	if errors.Is(err, mountd.ErrInUse) {
		return fmt.Errorf("something is mounted at %s already: unmount it first: %w", spec.Mountpoint, err)
	}
	return err
}

// newLauncher lets serving processes write logs of their own: they outlive the
// terminal, the pipe or the container that this process writes to.
func newLauncher(stateDir string) *mountd.Launcher {
	return mountd.NewLauncher(mountd.LauncherOptions{StateDir: stateDir, LogDir: filepath.Join(stateDir, "log")})
}

// deadMount reports whether err is that of a mount whose server has gone.
func deadMount(err error) bool {
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
}
