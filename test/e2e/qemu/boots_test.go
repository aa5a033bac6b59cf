//go:build qemu

package qemu

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/ndctltest"
)

// The real regions do what the emulated ones and the fake do.
func TestConformance(t *testing.T) {
	m := base
	m.nvdimms = newNVDIMMs(t, ndctltest.RegionSize)
	m.timeout = 4 * time.Minute
	guestRun(t, m, "^TestConformance$")
}

func TestNamespaces(t *testing.T) {
	m := base
	m.nvdimms = newNVDIMMs(t, 1<<30)
	m.timeout = 8 * time.Minute
	guestRun(t, m, "^Test(OldContent|Leak|Used|Missing|Cycles)")
}

func TestSanity(t *testing.T) {
	m := base
	m.nvdimms = newNVDIMMs(t, 1<<30)
	m.timeout = 8 * time.Minute
	guestRun(t, m, "^TestSanity$")
}

// The second machine is new but for the NVDIMMs.
func TestReboot(t *testing.T) {
	m := base
	m.nvdimms = newNVDIMMs(t, 512<<20)
	guestRun(t, m, "^TestBeforeReboot$")
	guestRun(t, m, "^TestAfterReboot$")
}

func TestEADR(t *testing.T) {
	m := base
	m.nvdimms = newNVDIMMs(t, 512<<20)
	m.persistence = cpuCaches
	guestRun(t, m, "^TestEADR$")
}

func TestUnusableRegions(t *testing.T) {
	m := base
	m.nvdimms = newNVDIMMs(t, 512<<20)
	m.nvdimms[0].labelless = true
	m.nvdimms[1].unarmed = true
	guestRun(t, m, "^TestUnusableRegions$")
}

func TestVolumes(t *testing.T) {
	m := base
	m.nvdimms = newNVDIMMs(t, 1<<30)
	m.timeout = 8 * time.Minute
	guestRun(t, m, "^Test(Filesystems|RawBlock|Classes|Killed)")
}

// What a tenant wrote is in the memory until the volume is deleted, and then it
// is not.
func TestDeletionErases(t *testing.T) {
	const marker = "nvfs-csi-qemu-marker-6f1c0a52b7d94e83"
	m := base
	m.nvdimms = newNVDIMMs(t, 512<<20)
	found := func() bool {
		for _, n := range m.nvdimms {
			data, err := os.ReadFile(n.file)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(data, []byte(marker)) {
				return true
			}
		}
		return false
	}
	guestRun(t, m, "^TestMarkerIsWritten$")
	if !found() {
		t.Fatal("what was written to the volume is not in the memory, so that this test shows nothing")
	}
	guestRun(t, m, "^TestMarkerIsErased$")
	if found() {
		t.Error("the content of a deleted volume is still in the memory")
	}
}
