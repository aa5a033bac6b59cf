package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

// volumeOf finds the volume ID in the command line of a serving process.
func volumeOf(t *testing.T, pid int) string {
	t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		t.Fatal(err)
	}
	id := regexp.MustCompile(`mount-[0-9a-f]{16}`).Find(line)
	if id == nil {
		t.Fatalf("no volume in %q", line)
	}
	return string(id)
}

// TestShrunkBacking takes the memory away from under a serving process. An
// operation that needs it fails with EIO, the health says so, and the process
// serves on what is left, and unmounts.
func TestShrunkBacking(t *testing.T) {
	const size = 128 << 20 // one group, so that what is written first lies at the start
	for _, cache := range []string{"through", "direct"} {
		t.Run(cache, func(t *testing.T) {
			v := newVolume(t, size)
			v.mount(t, "cache="+cache)
			writePayload(t, v) // at the start of the volume
			big := bytes.Repeat([]byte("0123456789abcdef"), 90<<20/16)
			if err := os.WriteFile(v.path("big"), big, 0o600); err != nil {
				t.Fatal(err)
			}
			dropCaches(t, v.path("big"))
			pid := v.server(t)
			status := func() mountd.Status {
				s, err := mountd.NewLauncher(mountd.LauncherOptions{StateDir: mountd.DefaultStateDir}).Status(t.Context(), volumeOf(t, pid))
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			if h := status().Health; h != "" {
				t.Fatalf("health before: %s", h)
			}
			if err := os.Truncate(v.device, 64<<20); err != nil {
				t.Fatal(err)
			}
			if err := readAll(v.path("big")); !errors.Is(err, unix.EIO) {
				t.Errorf("read: %v, want EIO", err)
			}
			if err := appendByte(v.path("big")); !errors.Is(err, unix.EIO) && !errors.Is(err, unix.EROFS) {
				t.Errorf("write: %v, want EIO or EROFS", err)
			}
			if h := status().Health; h == "" {
				t.Error("the health does not tell")
			}
			wantPayload(t, v)
			if got := v.server(t); got != pid {
				t.Errorf("process %d serves now, it was %d", got, pid)
			}
			v.unmount(t)
			if isMounted(t, v.mnt) {
				t.Error("still mounted")
			}
			for _, args := range [][]string{{"fsck", "-n"}, {"fsck", "--repair"}} {
				if r := nvfs(t, append(args, v.device)...); r.code != 4 {
					t.Errorf("%v: %s", args, r)
				}
			}
		})
	}
}

// dropCaches lets the kernel forget the content of a file.
func dropCaches(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

func readAll(name string) error {
	_, err := os.ReadFile(name)
	return err
}

func appendByte(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte{1})
	return errors.Join(err, f.Close())
}
