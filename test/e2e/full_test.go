package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
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
