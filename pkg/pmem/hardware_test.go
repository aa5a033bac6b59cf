package pmem

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// hardware returns what the environment names, of which the test overwrites the
// content.
func hardware(t *testing.T, variable, what string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Skipf("NOT TESTED: %s: set %s to one whose content may be lost (a QEMU guest with an nvdimm will do)", what, variable)
	}
	return path
}

// checkPersistent stores in every allowed mode, reopens, and reads.
func checkPersistent(t *testing.T, path string, kind Kind) {
	t.Helper()
	b, err := Probe(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", b)
	if b.Kind != kind || b.Volatile || b.Size == 0 || b.HostFlush {
		t.Fatalf("probed %+v, want %s", b, kind)
	}
	allowed := AllowedModes(b, false)
	for _, m := range cpuModes {
		if m != EADR && !slices.Contains(allowed, m) {
			t.Errorf("%s is not allowed", m)
		}
	}
	if eadr := slices.Contains(allowed, EADR); eadr != (b.Domain == DomainCPUCache) {
		t.Errorf("domain %q, eadr allowed: %v", b.Domain, eadr)
	}
	for i, mode := range allowed {
		want := pattern(10000 + i)
		m := open(t, path, Options{Mode: mode})
		p := m.NewPersister()
		p.Zero(0, 1<<20)
		p.Copy(4097, want)
		p.Store64(1<<19, uint64(i))
		p.Flush(1<<19, 8)
		if err := p.Fence(); err != nil {
			t.Fatal(err)
		}
		if m.Emulated() {
			t.Errorf("%s: emulated", mode)
		}
		if _, err := Open(path, Options{}); !errors.Is(err, ErrInUse) {
			t.Errorf("opened twice: %v", err)
		}
		if size, err := m.Extend(); size != b.Size || err != nil {
			t.Errorf("Extend: %d, %v", size, err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		m = open(t, path, Options{ReadOnly: true})
		if !bytes.Equal(m.Bytes()[4097:4097+len(want)], want) || m.Bytes()[1<<19] != byte(i) {
			t.Errorf("%s: what was stored is not there", mode)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDevDaxDevice(t *testing.T) {
	path := hardware(t, "PMEM_TEST_DEVDAX", "devdax device")
	checkPersistent(t, path, KindDevDax)
	c, err := calibrateIn(t, path)
	if err != nil || c.Measured || c.Choice.Bulk != NT {
		t.Errorf("calibrated without scratch: %+v, %v", c, err)
	}
	m := open(t, path, Options{})
	m.NewPersister().Zero(0, scratchBlank)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := OpenScratch(ScratchOptions{Path: path, Scratch: path, Size: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if c, err := s.Calibrate(t.Context(), 1); err != nil || !c.Measured || c.Emulated {
		t.Errorf("calibrated on scratch: %+v, %v", c, err)
	}
}

// TestDevDaxSecond attaches a second device beside the first.
func TestDevDaxSecond(t *testing.T) {
	first := hardware(t, "PMEM_TEST_DEVDAX", "devdax device")
	second := hardware(t, "PMEM_TEST_DEVDAX2", "second devdax device")
	m := open(t, first, Options{})
	size, err := m.Attach(second, m.Size())
	if err != nil {
		t.Fatal(err)
	}
	p, end := m.NewPersister(), m.Size()+size
	p.Copy(end-100, pattern(100))
	if err := p.Fence(); err != nil || !bytes.Equal(m.Bytes()[end-100:end], pattern(100)) {
		t.Errorf("the end of the second device: %v", err)
	}
}

func TestDaxFile(t *testing.T) {
	dir := hardware(t, "PMEM_TEST_DAX_DIR", "directory on a DAX filesystem")
	path := newFile(t, dir, "volume", 8<<20)
	checkPersistent(t, path, KindDaxFile)
	m := open(t, path, Options{Mode: CPUModes()[0]})
	if err := os.Truncate(path, 16<<20); err != nil {
		t.Fatal(err)
	}
	if size, err := m.Extend(); size != 16<<20 || err != nil {
		t.Fatalf("Extend: %d, %v", size, err)
	}
	p := m.NewPersister()
	p.Copy(16<<20-10, pattern(10))
	if err := p.Fence(); err != nil {
		t.Fatal(err)
	}
	if c, err := calibrateIn(t, filepath.Join(dir, "volume")); err != nil || !c.Measured || c.Emulated || c.Kind != KindDaxFile {
		t.Errorf("calibrated: %+v, %v", c, err)
	}
}

func TestPmemBlockDevice(t *testing.T) {
	path := hardware(t, "PMEM_TEST_BLOCK", "persistent memory as a block device")
	b, err := Probe(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", b)
	if modes := AllowedModes(b, false); !slices.Equal(modes, []Mode{MSync}) {
		t.Errorf("allowed %v, want msync only", modes)
	}
	var modeError *ModeError
	if _, err := Open(path, Options{Mode: CPUModes()[0]}); !errors.As(err, &modeError) {
		t.Errorf("opened with flush instructions: %v", err)
	}
}
