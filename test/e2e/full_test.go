package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const fullVolumeSize = 64 << 20

// fill appends to a file until the volume is full and returns its size.
func fill(t *testing.T, name string) int64 {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 1} { // down to the last block
		block := bytes.Repeat([]byte{0xa5}, size)
		for err == nil {
			_, err = f.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("write to a full volume: %v, want ENOSPC", err)
		}
		err = nil
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// TestFullVolume wants a full volume to say so, to keep what is on it, and to
// let go of it.
func TestFullVolume(t *testing.T) {
	v := newVolume(t, fullVolumeSize)
	v.mount(t)
	fresh := freeSpace(t, v.mnt)

	content := bytes.Repeat([]byte("keep me. "), 10000)
	if err := os.WriteFile(v.path("precious"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	size := fill(t, v.path("big"))
	if size < fullVolumeSize/2 {
		t.Errorf("full after %d of %d bytes", size, fullVolumeSize)
	}
	if err := os.WriteFile(v.path("more"), bytes.Repeat([]byte{1}, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a new file of 1 MiB on the full volume: %v, want ENOSPC", err)
	}
	if got, err := os.ReadFile(v.path("precious")); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the full volume lost a file: %v", err)
	}

	if err := os.Truncate(v.path("big"), size/2); err != nil {
		t.Errorf("truncate on the full volume: %v", err)
	}
	if err := os.WriteFile(v.path("after"), content, 0o600); err != nil {
		t.Errorf("write after truncate: %v", err)
	}
	fill(t, v.path("big"))
	for _, name := range []string{"big", "after", "precious", "more"} {
		if err := os.Remove(v.path(name)); err != nil && !(name == "more" && os.IsNotExist(err)) {
			t.Errorf("unlink on the full volume: %v", err)
		}
	}
	eventually(t, "the free space is that of the fresh volume", func() bool { return freeSpace(t, v.mnt) == fresh })
	v.unmount(t)
	v.check(t)
}

// TestOutOfInodes fills a volume with small files and removes them.
func TestOutOfInodes(t *testing.T) {
	v := newVolume(t, fullVolumeSize)
	v.mount(t)
	fresh := freeSpace(t, v.mnt)
	var names []string
	var err error
	for i := 0; err == nil; i++ {
		name := v.path(fmt.Sprintf("file-%d", i))
		if err = os.WriteFile(name, []byte(name), 0o600); err == nil {
			names = append(names, name)
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("file %d: %v, want ENOSPC", len(names), err)
	}
	if len(names) < 1000 {
		t.Errorf("full after %d small files", len(names))
	}
	for _, name := range names {
		if got, err := os.ReadFile(name); err != nil || string(got) != name {
			t.Fatalf("%s: %v", name, err)
		}
	}
	left, err := os.ReadDir(v.mnt)
	if err != nil {
		t.Fatal(err)
	}
	// The file that failed may be there, empty.
	if len(left) > len(names)+1 {
		t.Errorf("%d names, wrote %d", len(left), len(names))
	}
	for _, e := range left {
		if err := os.Remove(v.path(e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the free space is that of the fresh volume", func() bool { return freeSpace(t, v.mnt) == fresh })
	v.unmount(t)
	v.check(t)
}

// TestFullVolumeReportsLateWrites stores to a mapping of a hole, and in
// writeback mode to a file, when there is no room for it: fsync(2) and msync(2)
// say so, and once there is room what is stored is kept.
func TestFullVolumeReportsLateWrites(t *testing.T) {
	eachMode(t, fullVolumeSize, func(t *testing.T, v testVolume, mount func()) {
		const size = 4 << 20
		f, err := os.Create(v.path("sparse"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(mem)
		for n := int64(32 << 20); n >= 4096; n /= 2 { // all that there is
			for i := 0; ; i++ {
				if err := fallocateFile(v.path(fmt.Sprintf("big-%d-%d", n, i)), n); err != nil {
					wantErrno(t, "fallocate", err, syscall.ENOSPC)
					break
				}
			}
		}
		copy(mem[1<<20:], "no room")
		wantErrno(t, "msync without room", unix.Msync(mem, unix.MS_SYNC), syscall.ENOSPC)
		copy(mem[2<<20:], "no room")
		wantErrno(t, "fsync without room", f.Sync(), syscall.ENOSPC)

		for _, name := range globMust(t, v.path("big-*")) {
			if err := os.Remove(name); err != nil {
				t.Error(err)
			}
		}
		copy(mem[1<<20:], "there is")
		copy(mem[2<<20:], "there is")
		eventually(t, "msync succeeds", func() bool { return unix.Msync(mem, unix.MS_SYNC) == nil })
		v.dropAndCompare(t, f, 1<<20, "there is")
		v.dropAndCompare(t, f, 2<<20, "there is")
	})
}

// fallocateFile makes a file with space for n bytes, or none.
func fallocateFile(name string, n int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err = unix.Fallocate(int(f.Fd()), 0, 0, n); err != nil {
		err = errors.Join(err, os.Remove(name))
	}
	return errors.Join(err, f.Close())
}

func globMust(t *testing.T, pattern string) []string {
	t.Helper()
	list, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// dropAndCompare reads a place of a file from the volume.
func (v testVolume) dropAndCompare(t *testing.T, f *os.File, off int64, want string) {
	t.Helper()
	dropCaches(t, f.Name())
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, off); err != nil || string(got) != want {
		t.Errorf("at %d: %q, %v; want %q", off, got, err, want)
	}
}
