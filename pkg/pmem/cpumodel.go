package pmem

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
)

// CPUModel identifies the model of this machine's CPU: calibrations of another
// do not hold.
var CPUModel = sync.OnceValue(func() string {
	// What arm64 has in place of a name.
	if midr, err := os.ReadFile("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1"); err == nil {
		return fmt.Sprintf("%s midr %s", runtime.GOARCH, strings.TrimSpace(string(midr)))
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	return modelIn(string(info))
})

// modelIn returns the model of the first CPU in /proc/cpuinfo.
func modelIn(info string) string {
	first, _, _ := strings.Cut(info, "\n\n")
	fields := map[string]string{"model name": runtime.GOARCH}
	for line := range strings.Lines(first) {
		if key, value, found := strings.Cut(line, ":"); found {
			fields[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return fmt.Sprintf("%s (family %s model %s stepping %s)", fields["model name"], fields["cpu family"], fields["model"], fields["stepping"])
}
