package pmem

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestAttachAt: the place is chosen by what the device holds, and a device that
// is not wanted is let go of.
func TestAttachAt(t *testing.T) {
	const size = 1 << 20
	dir := tmpfsDir(t)
	m := open(t, newFile(t, dir, "first", size), Options{Reserve: 8 * size})
	second := newFile(t, dir, "second", size)
	if err := os.WriteFile(second, append([]byte("label"), make([]byte, size-5)...), 0o600); err != nil {
		t.Fatal(err)
	}
	unwanted := errors.New("unwanted")
	if _, err := m.AttachAt(second, func(*Candidate) (uint64, error) { return 0, unwanted }); !errors.Is(err, unwanted) {
		t.Errorf("%v, want the error of who chooses the place", err)
	}
	var head [5]byte
	part, err := m.AttachAt(second, func(c *Candidate) (uint64, error) {
		for _, off := range []int64{-1, size - 4, size + 1} {
			if _, err := c.ReadAt(head[:], off); err == nil {
				t.Errorf("read at %d of %d bytes", off, c.Backing.Size)
			}
		}
		_, err := c.ReadAt(head[:], 0)
		return 3 * size, err
	})
	if err != nil || part != (Part{3 * size, size}) || string(head[:]) != "label" {
		t.Fatalf("%v, %v, read %q", part, err, head)
	}
	if want := []Part{{0, size}, {3 * size, size}}; !slices.Equal(m.Parts(), want) || !slices.Equal(PartsOf(m), want) {
		t.Errorf("parts %v, want %v", m.Parts(), want)
	}
	for _, off := range []uint64{0, size} {
		if err := m.Detach(off); err == nil {
			t.Errorf("detached at %d", off)
		}
	}
	if err := m.Detach(3 * size); err != nil {
		t.Fatal(err)
	}
	if len(m.Parts()) != 1 || faults(t, func() { head[0] = m.Bytes()[3*size] }) == 0 {
		t.Error("a detached device is still mapped")
	}
	if _, err := m.Attach(second, 3*size); err != nil {
		t.Errorf("attached again: %v", err)
	}
}

// TestAttachAtOfUnreadableMemory: a device that was cut after it was opened.
func TestAttachAtOfUnreadableMemory(t *testing.T) {
	const size = 1 << 20
	dir := tmpfsDir(t)
	m := open(t, newFile(t, dir, "first", size), Options{Reserve: 8 * size})
	second := newFile(t, dir, "second", size)
	_, err := m.AttachAt(second, func(c *Candidate) (uint64, error) {
		if err := os.Truncate(second, 0); err != nil {
			t.Fatal(err)
		}
		_, err := c.ReadAt(make([]byte, 8), 0)
		return size, err
	})
	if err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("%v, want that it cannot be read", err)
	}
}

// TestBeside: what is to be attached has a say in the flush mode.
func TestBeside(t *testing.T) {
	const size = 1 << 20
	shm, disk := newFile(t, tmpfsDir(t), "shm", size), newFile(t, diskDir(t), "disk", size)
	m := open(t, disk, Options{Reserve: 8 * size, Beside: []string{newFile(t, diskDir(t), "other", size)}})
	if m.Strategy().Small != MSync {
		t.Errorf("strategy %v on files of a disk", m.Strategy())
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	// tmpfs alone stands in for persistent memory; beside it nothing need be durable.
	if m = open(t, shm, Options{Reserve: 8 * size, Beside: []string{disk}}); !m.Emulated() {
		t.Error("not emulated")
	}
	if _, err := m.Attach(disk, 2*size); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(disk, Options{Mode: CPUModes()[0], Beside: []string{shm}}); err == nil {
		t.Error("a flush instruction was allowed on the page cache of a disk")
	}
	if _, err := Open(shm, Options{Beside: []string{shm + "-none"}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing device: %v", err)
	}
	b, err := Probe(disk)
	if err != nil {
		t.Fatal(err)
	}
	other, err := Probe(shm)
	if err != nil {
		t.Fatal(err)
	}
	if modes := CommonModes([]Backing{b, other}, false); !slices.Equal(modes, []Mode{MSync}) {
		t.Errorf("modes of both: %v", modes)
	}
}
