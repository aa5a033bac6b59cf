//go:build qemu

package guest

import (
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/ndctltest"
)

func TestConformance(t *testing.T) {
	names := map[string]string{ndctltest.RegionA: "region0", ndctltest.RegionB: "region1"}
	ndctltest.Conformance(t, func(t *testing.T) ndctl.Manager { return ndctltest.Renamed{Manager: emptySystem(t), Names: names} })
}
