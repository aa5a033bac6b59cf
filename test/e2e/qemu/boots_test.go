//go:build qemu

package qemu

import (
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
