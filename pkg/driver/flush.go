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
	return pmem.CheckMode(ndctl.BackingOf(region), region.Emulated, m)
}
