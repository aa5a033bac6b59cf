package driver

import (
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// checkFlush returns nil when namespaces of the region and this CPU can honour
// the flush mode, and otherwise an error that says what they can.
func checkFlush(mode string, region ndctl.Region) error {
	m, err := pmem.ParseMode(mode)
	if err != nil {
		return err
	}
	backing := pmem.Backing{Path: "region " + region.Name, Kind: pmem.KindDevDax, NUMANode: region.NUMANode,
		Domain: pmem.PersistenceDomain(region.PersistenceDomain)}
	if region.Emulated {
		backing.Kind, backing.Volatile = pmem.KindTmpfs, true
	}
	return pmem.CheckMode(backing, region.Emulated, m)
}
