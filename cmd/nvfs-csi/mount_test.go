package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
)

// write puts bytes on a device.
func write(t *testing.T, device string, off int64, data []byte) {
	t.Helper()
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(data, off)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestOpenNamesWhatIsThere(t *testing.T) {
	for want, content := range map[string]struct {
		off  int64
		data string
	}{
		"it is blank; make a volume on it":  {0, "\x00"},
		"it holds xfs":                      {0, "XFSB"},
		"it holds swap":                     {4086, "SWAPSPACE2"},
		"it holds unknown data":             {12345, "something"},
		"nvfs-csi mkfs --force would destr": {0, "XFSB"},
	} {
		device := newDevice(t)
		write(t, device, content.off, []byte(content.data))
		_, err := openVolume(mountd.Spec{Path: device, Flush: "auto", Emulated: true}, mountd.OpenOptions{})
		if err == nil || !strings.Contains(err.Error(), "no NVFS superblock") || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

func TestRunDirectory(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{"": mountd.DefaultStateDir, "/run/x": "/run/x", "x": filepath.Join(wd, "x")} {
		if got, err := runDirectory(flag); err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", flag, got, err, want)
		}
	}
}

func TestInUseIsExplained(t *testing.T) {
	inUse := fmt.Errorf("volume x: %w by process 7", mountd.ErrInUse)
	if err := explainInUse("/proc", inUse); !errors.Is(err, mountd.ErrInUse) || !strings.Contains(err.Error(), "something is mounted at /proc") {
		t.Errorf("a mount point: %v", err)
	}
	err := explainInUse(t.TempDir(), inUse)
	if !errors.Is(err, mountd.ErrInUse) || !strings.Contains(err.Error(), "nothing is mounted") || !strings.Contains(err.Error(), "process 7") {
		t.Errorf("a lazy unmount: %v", err)
	}
}

// leaveDeadMount leaves a mount whose server has gone.
func leaveDeadMount(t *testing.T, device, mountpoint string) {
	t.Helper()
	f, err := fusefs.Mount(mountpoint, fusefs.MountOptions{Source: device})
	if err != nil {
		t.Fatalf("this test mounts FUSE and must run as root: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := mountd.Ping(mountpoint); err != unix.ENOTCONN {
		t.Fatalf("the mount is not dead: %v", err)
	}
}

// TestForegroundMount: a dead mount is healed, what is mounted is locked like
// any other mount, the user is told of emulated memory, and nothing is left.
func TestForegroundMount(t *testing.T) {
	dir, device := t.TempDir(), newDevice(t)
	if _, err := formatDevice(t.Context(), device, true, false, mkfs.Options{}); err != nil {
		t.Fatal(err)
	}
	spec := mountd.Spec{VolumeID: "x", Path: device, Mountpoint: filepath.Join(dir, "mnt"), Flush: "auto", Emulated: true, NUMANode: -1}
	if err := os.Mkdir(spec.Mountpoint, 0o755); err != nil {
		t.Fatal(err)
	}
	leaveDeadMount(t, device, spec.Mountpoint)
	t.Cleanup(func() {
		if mounted, err := fusefs.IsMountPoint(spec.Mountpoint); err != nil || mounted {
			t.Errorf("a mount is left: %v, %v", err, fusefs.Detach(spec.Mountpoint))
		}
	})
	state := filepath.Join(dir, "state")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var notices bytes.Buffer
	done := make(chan error, 1)
	go func() { done <- runMount(ctx, spec, state, true, &notices) }()
	awaitServed(t, newLauncher(state, true), spec.VolumeID, done)
	if err := runMount(t.Context(), spec, state, true, &bytes.Buffer{}); !errors.Is(err, mountd.ErrInUse) {
		t.Errorf("second mount: %v, want ErrInUse", err)
	}
	if mounts, err := fusefs.Mounts(spec.Mountpoint); err != nil || len(mounts) != 1 {
		t.Errorf("mounts %v, %v", mounts, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if notices.String() != emulatedNotice+"\n" {
		t.Errorf("notices %q", notices.String())
	}
	if left, err := os.ReadDir(state); err != nil || len(left) != 0 {
		t.Errorf("left in the state directory: %v, %v", left, err)
	}
}

// awaitServed waits until the volume is served, or whoever serves it gives up.
func awaitServed(t *testing.T, l *mountd.Launcher, volumeID string, done <-chan error) {
	t.Helper()
	for {
		_, err := l.Status(t.Context(), volumeID)
		if err == nil {
			return
		}
		if !errors.Is(err, mountd.ErrNotServed) {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			t.Fatalf("the mount ended: %v", err)
		default:
		}
	}
}
