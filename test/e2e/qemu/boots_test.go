//go:build qemu

package qemu

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/ndctltest"
)

// A boot takes longer than many a test, so tests that need the same machine share
// a guest. Guests run two at a time (go test -parallel 2), the longest first.

// From fresh NVDIMMs to namespaces in every state: the real regions do what the
// emulated ones and the fake do.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	m := base
	m.nvdimms = newNVDIMMs(t, ndctltest.RegionSize)
	m.timeout = 12 * time.Minute
	guestRun(t, m, "^TestSmoke$", "^Test(Conformance|OldContent|Leak|Used|BlockDevice|Missing|Modprobe|Cycles)")
}

func TestVolumes(t *testing.T) {
	t.Parallel()
	m := base
	m.nvdimms = newNVDIMMs(t, 1<<30)
	m.timeout = 12 * time.Minute
	guestRun(t, m, "^Test(Filesystems|RawBlock|OldExt4|Classes|Policies|Existing|RecordOf|FlushMode|Killed)")
}

func TestSanity(t *testing.T) {
	t.Parallel()
	m := base
	m.nvdimms = newNVDIMMs(t, 1<<30)
	m.timeout = 12 * time.Minute
	guestRun(t, m, "^TestSanity$")
}

// The server of a volume dies on a kernel that may be too old to let another one
// go on.
func TestSurvival(t *testing.T) {
	t.Parallel()
	m := base
	m.nvdimms = newNVDIMMs(t, ndctltest.RegionSize)
	m.timeout = 8 * time.Minute
	guestRun(t, m, "^TestServer(Dies|IsExchanged)")
}

// The second machine is new but for the NVDIMMs and the disk with the driver's
// records. What a tenant wrote is in the memory until the volume is deleted, and
// then it is not.
func TestReboot(t *testing.T) {
	t.Parallel()
	const marker = "nvfs-csi-qemu-marker-6f1c0a52b7d94e83"
	m := base
	m.nvdimms = newNVDIMMs(t, 512<<20)
	m.state = newState(t)
	m.timeout = 8 * time.Minute
	guestRun(t, m, "^TestBeforeReboot")
	if !inMemory(t, m, marker) {
		t.Error("what was written to the volume is not in the memory, so that the search for it shows nothing")
	}
	m.modules = otherModules
	guestRun(t, m, "^TestLateMemory$", "^TestAfterReboot")
	if inMemory(t, m, marker) {
		t.Error("the content of a deleted volume is still in the memory")
	}
}

// inMemory reports whether the text is anywhere in the machine's NVDIMMs.
func inMemory(t *testing.T, m machine, text string) bool {
	t.Helper()
	return slices.ContainsFunc(m.nvdimms, func(n nvdimm) bool {
		data, err := os.ReadFile(n.file)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(data, []byte(text))
	})
}

// The kernel's nfit_test stands in for a platform with errors in its memory.
func TestPoison(t *testing.T) {
	t.Parallel()
	m := base
	order, err := m.images.nfitTestOrder()
	if err != nil {
		t.Fatal(err)
	}
	m.modules = slices.Concat(order, otherModules)
	m.timeout = 8 * time.Minute
	guestRun(t, m, "^TestPoison")
}

func TestEADR(t *testing.T) {
	t.Parallel()
	m := base
	m.nvdimms = newNVDIMMs(t, ndctltest.RegionSize)
	m.persistence = cpuCaches
	guestRun(t, m, "^TestEADR$")
}

func TestUnusableRegions(t *testing.T) {
	t.Parallel()
	m := base
	m.nvdimms = newNVDIMMs(t, ndctltest.RegionSize)
	m.nvdimms[0].labelless = true
	m.nvdimms[1].unarmed = true
	guestRun(t, m, "^TestUnusableRegions$")
}
