package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPeersMountAndLeaveNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("mounting the peers needs root")
	}
	for _, fs := range []Filesystem{LoopFS{"ext4"}, LoopFS{"xfs"}, LoopFS{"ext2"}, LoopFS{"btrfs"}, TmpFS{}} {
		t.Run(fs.Name(), func(t *testing.T) {
			if loop, ok := fs.(LoopFS); ok {
				if why := loop.Missing(t.Context()); why != "" {
					t.Skipf("NOT TESTED: %s", why)
				}
			}
			dir := memoryDir(t)
			m, err := fs.Mount(t.Context(), dir, 512<<20)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(m.Dir, "f"), []byte("x"), 0o600); err != nil {
				t.Error(err)
			}
			var st unix.Statfs_t
			if err := unix.Statfs(m.Dir, &st); err != nil {
				t.Error(err)
			}
			if got := int64(st.Blocks) * st.Bsize; got < 400<<20 || got > 512<<20 {
				t.Errorf("a filesystem of %d bytes, want about 512 MiB", got)
			}
			if m.CanRemount() {
				if err := m.Remount(t.Context()); err != nil {
					t.Error(err)
				}
				if text, err := os.ReadFile(filepath.Join(m.Dir, "f")); err != nil || string(text) != "x" {
					t.Errorf("after a remount the file reads %q, %v", text, err)
				}
			}
			for range 2 { // idempotent
				if err := m.Unmount(t.Context()); err != nil {
					t.Error(err)
				}
			}
			assertEmptyDir(t, dir)
		})
	}
}

func TestPeerFailureLeavesNothing(t *testing.T) {
	dir := memoryDir(t)
	if _, err := (LoopFS{"ext4"}).Mount(t.Context(), dir, 1024); err == nil {
		t.Error("ext4 was made on 1 KiB")
	}
	if _, err := (LoopFS{"zfs"}).Mount(t.Context(), dir, 1<<30); err == nil || !strings.Contains(err.Error(), "zfs") {
		t.Errorf("unknown type: got %v", err)
	}
	assertEmptyDir(t, dir)
}

func TestMissingPeerNamesTheRemedy(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if why := (LoopFS{"btrfs"}).Missing(t.Context()); !strings.Contains(why, "btrfs-progs") {
		t.Errorf("without mkfs.btrfs: %q, want the package that has it", why)
	}
}

func TestMountAllUndoesWhatItDid(t *testing.T) {
	dir := memoryDir(t)
	_, err := MountAll(t.Context(), dir, 1<<20, []Filesystem{TmpFS{}, LoopFS{"nosuch"}})
	if err == nil || !strings.Contains(err.Error(), "nosuch") {
		t.Fatalf("got %v, want the error of the second filesystem", err)
	}
	for _, sub := range []string{"fs0", "fs1"} {
		assertEmptyDir(t, filepath.Join(dir, sub))
	}
}

// memoryDir is a directory on a tmpfs.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "nvfs-bench-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
