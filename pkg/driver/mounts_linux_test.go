package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

// deadFUSE mounts a FUSE filesystem whose server is gone: every access says
// ENOTCONN.
func deadFUSE(t *testing.T, path, source string) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("NOT TESTED: real dead mounts need /dev/fuse: %v", err)
	}
	err = unix.Mount(source, path, MountType, 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd))
	if closeErr := unix.Close(fd); closeErr != nil {
		t.Error(closeErr)
	}
	if err != nil {
		t.Skipf("NOT TESTED: real dead mounts need the right to mount: %v", err)
	}
}

func realMounts() *mounts {
	return &mounts{table: mount.New(""), statfs: unix.Statfs, ping: mountd.Ping}
}

// TestRealDeadMounts goes through the kernel and the mount program: dead FUSE
// mounts stacked on one path, seen through a link, are recognised and removed.
func TestRealDeadMounts(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "staging")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(link, "staging")
	m := realMounts()
	if _, state, err := m.inspect(t.Context(), path); state != notMounted || err != nil {
		t.Errorf("before: %s, %v", state, err)
	}
	deadFUSE(t, path, "/dev/one")
	deadFUSE(t, path, "/dev/two")
	t.Cleanup(func() { _ = m.clear(path) })
	top, state, err := m.inspect(t.Context(), path)
	if state != mountDead || top.Device != "/dev/two" || top.Type != MountType {
		t.Errorf("dead mount: %+v is %s, %v", top, state, err)
	}
	if err := m.remove(path); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("mount point is left: %v", err)
	}
}

// TestRealBindMount makes sure of what fakes cannot tell: that options of a
// bind mount are in force, and that its source is that of the volume.
func TestRealBindMount(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	if err := unix.Mount("/dev/fake", source, "tmpfs", unix.MS_NOSUID, "size=1m"); err != nil {
		t.Skipf("NOT TESTED: real bind mounts need the right to mount: %v", err)
	}
	m := realMounts()
	t.Cleanup(func() {
		if err := unix.Unmount(source, 0); err != nil {
			t.Error(err)
		}
	})
	if err := m.table.Mount(source, target, "", bindOptions([]string{"nosuid", "noexec"}, true)); err != nil {
		t.Fatal(err)
	}
	top, state, err := m.inspect(t.Context(), target)
	if err != nil || state != mountLive || top.Device != "/dev/fake" {
		t.Errorf("bind mount: %+v is %s, %v", top, state, err)
	}
	if err := os.WriteFile(filepath.Join(target, "x"), nil, 0o600); err == nil {
		t.Error("writable though read-only")
	}
	if err := os.WriteFile(filepath.Join(source, "x"), nil, 0o600); err != nil {
		t.Errorf("the source became read-only as well: %v", err)
	}
	for _, option := range []string{"ro", "nosuid", "noexec"} {
		if !slices.Contains(top.Opts, option) {
			t.Errorf("no %s in %v", option, top.Opts)
		}
	}
	if err := m.remove(target); err != nil {
		t.Error(err)
	}
}

// TestStatIsSharedAndBounded: callers of a path that hangs share one system
// call, and each leaves when its own context ends.
func TestStatIsSharedAndBounded(t *testing.T) {
	gate, calls := make(chan struct{}), make(chan string, 10)
	m := &mounts{statfs: func(path string, _ *unix.Statfs_t) error {
		calls <- path
		<-gate
		return nil
	}}
	first := m.start(question{opStatfs, "/x"})
	<-calls
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if _, err := m.stat(ctx, "/x"); err == nil {
			t.Error("a call that hangs returned")
		}
	}
	close(gate)
	<-first.done
	if len(calls) != 0 {
		t.Errorf("%d further system calls", len(calls))
	}
	if _, err := m.stat(t.Context(), "/x"); err != nil {
		t.Error(err)
	}
}

// TestPingOfARealMount: what is asked to find out whether a mount lives is
// answered by a filesystem that is no FUSE as well.
func TestPingOfARealMount(t *testing.T) {
	m := realMounts()
	if _, err := m.ask(t.Context(), question{opPing, t.TempDir()}); err != nil {
		t.Error(err)
	}
}
