package pmem

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/klauspost/cpuid/v2"
)

// CPUModel identifies the model of this machine's CPU: calibrations of another
// do not hold.
var CPUModel = sync.OnceValue(func() string {
	// What arm64 has in place of a name.
	if midr, err := os.ReadFile("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1"); err == nil {
		return fmt.Sprintf("%s midr %s", runtime.GOARCH, strings.TrimSpace(string(midr)))
	}
	name := runtime.GOARCH
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, found := strings.Cut(string(info), "model name"); found {
			line, _, _ := strings.Cut(rest, "\n")
			name = strings.TrimLeft(line, "\t :")
		}
	}
	return fmt.Sprintf("%s (family %d model %d stepping %d)", name, cpuid.CPU.Family, cpuid.CPU.Model, cpuid.CPU.Stepping)
})
