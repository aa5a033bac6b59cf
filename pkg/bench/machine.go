package bench

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what a result depends on.
type Machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// String is the machine in one line.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d CPUs, Linux %s, %s", m.CPU, m.CPUs, m.Kernel, m.Go)
}

// ThisMachine describes the machine this runs on. What cannot be found out is
// "unknown".
func ThisMachine() Machine {
	m := Machine{CPU: "unknown CPU", CPUs: runtime.NumCPU(), Kernel: "unknown", Go: runtime.Version()}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, found := strings.Cut(string(info), "model name"); found {
			line, _, _ := strings.Cut(rest, "\n")
			m.CPU = strings.TrimSpace(strings.TrimLeft(line, "\t :"))
		}
	}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		m.Kernel = unix.ByteSliceToString(uts.Release[:])
	}
	return m
}
