//go:build qemu

package qemu

import "testing"

func TestSmoke(t *testing.T) {
	m := base
	m.nvdimms = newNVDIMMs(t, 512<<20)
	guestRun(t, m, "^TestSmoke$")
}
