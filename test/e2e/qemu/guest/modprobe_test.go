//go:build qemu

package guest

import (
	"path/filepath"
	"strings"
	"testing"
)

// The package of ndctl has modprobe run a program that unlocks NVDIMMs before
// libnvdimm is inserted. There is nothing to unlock in a guest, where it only
// prints errors; so the root image must not have it, wherever packages put it.
func TestModprobeRunsNoHook(t *testing.T) {
	for _, dir := range []string{"/etc", "/run", "/lib", "/usr/lib", "/usr/local/lib"} {
		hooks, err := filepath.Glob(dir + "/modprobe.d/nvdimm-security*")
		if err != nil || len(hooks) > 0 {
			t.Errorf("hooks of modprobe: %v, %v", hooks, err)
		}
	}
	steps := command(limit(t, callTimeout), t, "modprobe", "--show-depends", "nd_pmem")
	if !strings.Contains(steps, "libnvdimm") {
		t.Errorf("libnvdimm is not among what modprobe would insert: %s", steps)
	}
	for _, step := range strings.Split(strings.TrimSpace(steps), "\n") {
		if !strings.HasPrefix(step, "insmod ") && !strings.HasPrefix(step, "builtin ") {
			t.Errorf("modprobe would run %q", step)
		}
	}
}
