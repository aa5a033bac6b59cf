package ndctl_test

import (
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/ndctltest"
)

// System on a tree of files and a tool that behaves. The same tests run in a
// QEMU guest on the kernel's sysfs, with ndctl(1).
func TestSystemConformance(t *testing.T) {
	if testing.Short() {
		t.Skip("the tool is this binary, which starts slowly under the race detector; runs without -short")
	}
	names := map[string]string{ndctltest.RegionA: "region0", ndctltest.RegionB: "region1"}
	ndctltest.Conformance(t, func(t *testing.T) ndctl.Manager {
		return ndctltest.Renamed{Manager: ndctl.NewFakeSystem(t, 2, ndctltest.RegionSize, ndctltest.RegionAlign), Names: names}
	})
}
