package pmem

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// newLoop makes a loop device over file and returns its path.
func newLoop(t *testing.T, file string) string {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("NOT TESTED: block devices, for want of a loop device: %v (run as root)", err)
	}
	defer control.Close()
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer backing.Close()
	for range 10 { // another process may take the free one first
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatalf("find a free loop device: %v", err)
		}
		path := fmt.Sprintf("/dev/loop%d", n)
		loop, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if errors.Is(err, unix.EBUSY) {
			loop.Close()
			continue
		}
		if err != nil {
			t.Fatalf("set up %s: %v", path, err)
		}
		t.Cleanup(func() { loop.Close() }) // the last close detaches it
		return path
	}
	t.Fatal("every free loop device was taken by another process")
	return ""
}

func TestBlockDevice(t *testing.T) {
	const size = 4 << 20
	file := newFile(t, diskDir(t), "disk", size)
	path := newLoop(t, file)
	b, err := Probe(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.Kind != KindBlock || b.Size != size || b.Volatile {
		t.Errorf("probed %+v", b)
	}
	var modeError *ModeError
	_, err = Open(path, Options{Mode: CPUModes()[0], Emulated: true})
	if !errors.As(err, &modeError) || !slices.Equal(modeError.Allowed, []Mode{MSync}) || !strings.Contains(err.Error(), "reconfigure to devdax") {
		t.Errorf("flush instructions on a block device: %v", err)
	}
	m := open(t, path, Options{})
	if m.Mode() != MSync {
		t.Errorf("auto is %s", m.Mode())
	}
	p := m.NewPersister()
	p.Copy(12345, []byte("on the disk"))
	if err := p.Fence(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil || string(content[12345:12356]) != "on the disk" {
		t.Errorf("the disk has %q, %v", content[12345:12356], err)
	}
	if size, err := m.Extend(); size != b.Size || err != nil {
		t.Errorf("Extend: %d, %v", size, err)
	}
	if _, err := Open(path, Options{}); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v, want ErrInUse", err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	// Somebody who knows nothing of our lock, such as a mount.
	claim, err := os.OpenFile(path, os.O_RDONLY|unix.O_EXCL, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer claim.Close()
	if _, err := Open(path, Options{}); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "unmount") {
		t.Errorf("opened a claimed device: %v, want ErrInUse with the remedy", err)
	}
	if _, err := calibrateIn(t, path); err != nil {
		t.Errorf("calibrate: %v, want the default strategy", err)
	}
}
