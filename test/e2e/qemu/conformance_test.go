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
