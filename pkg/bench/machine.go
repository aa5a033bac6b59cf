package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what a result depends on.
type Machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	// PageSize and Memory are in bytes.
	PageSize int   `json:"pageSize"`
	Memory   int64 `json:"memory"`
}

// String is the machine in one line.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d CPUs, %s, pages of %s, Linux %s, %s", m.CPU, m.CPUs,
		FormatSize(m.Memory), FormatSize(int64(m.PageSize)), m.Kernel, m.Go)
}

// ThisMachine describes the machine this runs on. What cannot be found out is
// "unknown".
func ThisMachine() Machine {
	m := Machine{CPU: "unknown CPU", CPUs: runtime.NumCPU(), Kernel: "unknown", Go: runtime.Version(), PageSize: os.Getpagesize()}
	if total, err := procField("/proc/meminfo", "MemTotal"); err == nil {
		m.Memory = total
	}
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

// loadAverage is that of the last minute; 0 when the kernel does not say.
func loadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return load
}
