package mkfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// TestBlankIsProven: a single byte anywhere keeps a device from being blank.
func TestBlankIsProven(t *testing.T) {
	p := make([]byte, testSize)
	if f := probeBytes(t, p); f.Kind != Blank {
		t.Fatalf("zeros: %v %q", f.Kind, f.What)
	}
	for _, at := range []int{probeWindow, probeWindow + scanChunk - 1, probeWindow + scanChunk, testSize / 2, testSize - probeWindow - 1} {
		p[at] = 1
		want := fmt.Sprintf("unknown data at byte %d", at)
		if f := probeBytes(t, p); f.Kind != Foreign || f.What != want {
			t.Errorf("mapped: %v %q, want %q", f.Kind, f.What, want)
		}
		if f, err := Probe(t.Context(), writeImage(t, p)); err != nil || f.Kind != Foreign || f.What != want {
			t.Errorf("file: %v %q, %v, want %q", f.Kind, f.What, err, want)
		}
		p[at] = 0
	}
	if f, err := Probe(t.Context(), writeImage(t, p)); err != nil || f.Kind != Blank {
		t.Errorf("file of zeros: %v %q, %v", f.Kind, f.What, err)
	}
}

// sparseFile has size bytes, and a byte at each offset of data.
func sparseFile(t *testing.T, dir string, size int64, data ...int64) string {
	t.Helper()
	path := filepath.Join(dir, "sparse")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for _, at := range data {
		if _, err := f.WriteAt([]byte{1}, at); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// TestProbeSkipsHoles: a file that is too large to be read is proven blank by
// its holes; data in it is found all the same.
func TestProbeSkipsHoles(t *testing.T) {
	const size, at = 1 << 40, 1<<39 + 12345
	if f, err := Probe(t.Context(), sparseFile(t, t.TempDir(), size)); err != nil || f.Kind != Blank {
		t.Errorf("holes: %v %q, %v", f.Kind, f.What, err)
	}
	want := fmt.Sprintf("unknown data at byte %d", int64(at))
	if f, err := Probe(t.Context(), sparseFile(t, t.TempDir(), size, at)); err != nil || f.Kind != Foreign || f.What != want {
		t.Errorf("%v %q, %v, want %q", f.Kind, f.What, err, want)
	}
}

// TestProbeAllocatesNothing: to look at a mapped file on tmpfs must not fill
// its holes.
func TestProbeAllocatesNothing(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "mkfs-probe-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	const size = 256 << 20
	path := sparseFile(t, dir, size)
	m, err := pmem.Open(path, pmem.Options{Emulated: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if f, err := ProbeSpace(t.Context(), m); err != nil || f.Kind != Blank {
		t.Errorf("%v %q, %v", f.Kind, f.What, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Blocks*512 > 2*probeWindow {
		t.Errorf("%d bytes are allocated, %v; want no more than the windows", st.Blocks*512, err)
	}
}

func TestFindDataStops(t *testing.T) {
	all := func(off uint64) (uint64, uint64, error) { return off, testSize, nil }
	zeros := make([]byte, testSize)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := findData(cancelled, 0, testSize, all, slicesOf(zeros)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if f, err := probeMapped(cancelled, zeros, testSize, all); !errors.Is(err, context.Canceled) || f.Kind == Blank {
		t.Errorf("cancelled: %v, %v", f.Kind, err)
	}
	if found, err := Probe(cancelled, writeImage(t, volumeImage(t))); err != nil || found.Kind != NVFS {
		t.Errorf("what is recognised needs no scan: %v, %v", found.Kind, err)
	}
	bad := errors.New("bad sector")
	failing := func(off, n uint64) ([]byte, error) {
		if off+n > testSize/2 {
			return nil, bad
		}
		return zeros[off : off+n], nil
	}
	if _, found, err := findData(t.Context(), 0, testSize, all, failing); found || !errors.Is(err, bad) {
		t.Errorf("read error: %v, %v", found, err)
	}
	noMap := func(uint64) (uint64, uint64, error) { return 0, 0, bad }
	if _, found, err := findData(t.Context(), 0, testSize, noMap, slicesOf(zeros)); found || !errors.Is(err, bad) {
		t.Errorf("error of the map of holes: %v, %v", found, err)
	}
	stuck := func(off uint64) (uint64, uint64, error) { return off, off, nil }
	if _, found, err := findData(t.Context(), 0, testSize, stuck, slicesOf(zeros)); found || err == nil {
		t.Errorf("a map of holes that makes no progress: %v, %v", found, err)
	}
}
