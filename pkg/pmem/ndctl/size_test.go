package ndctl_test

import (
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

func TestUsableSizeAgreesWithAKernel(t *testing.T) {
	if got := ndctl.UsableSize(ndctl.FSDax, 256*mib); got != 250*mib {
		t.Errorf("fsdax of 256 MiB offers %d, a 6.1 kernel 250 MiB", got)
	}
	if got := ndctl.UsableSize(ndctl.Sector, 128*mib); got < 1268*mib/10 || got > 1269*mib/10 {
		t.Errorf("sector of 128 MiB offers %d, a 6.1 kernel 126.8 MiB", got)
	}
	if got := ndctl.UsableSize(ndctl.DevDax, 2*mib); got != 0 {
		t.Errorf("devdax of 2 MiB offers %d", got)
	}
	if got := ndctl.UsableSize("raw", 256*mib); got != 0 {
		t.Errorf("unknown mode offers %d", got)
	}
}

func TestRawSizeIsTheSmallestThatFits(t *testing.T) {
	for _, mode := range []ndctl.Mode{ndctl.DevDax, ndctl.FSDax, ndctl.Sector} {
		for _, align := range []uint64{2 * mib, 16 * mib, 1 << 30} {
			for _, usable := range []uint64{0, 1, 4096, 14 * mib, 126 * mib, 1<<30 + 1, 3 << 40} {
				raw, ok := ndctl.RawSize(mode, usable, align)
				if !ok || raw%align != 0 || raw == 0 || ndctl.UsableSize(mode, raw) < usable {
					t.Errorf("%s %d aligned to %d: raw %d, %v", mode, usable, align, raw, ok)
				}
				if raw > align && ndctl.UsableSize(mode, raw-align) >= usable {
					t.Errorf("%s %d aligned to %d: raw %d, one unit less would do", mode, usable, align, raw)
				}
			}
		}
		if _, ok := ndctl.RawSize(mode, 1<<64-1, mib); ok {
			t.Errorf("%s: an impossible size has a raw size", mode)
		}
	}
}
