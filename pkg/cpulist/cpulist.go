// Package cpulist reads the lists of CPUs that the kernel shows in sysfs.
package cpulist

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Parse parses the kernel's list format, such as 0-3,8,10-11; "" is no CPU.
func Parse(s string) ([]int, error) {
	var cpus []int
	if s == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		first, err := strconv.ParseUint(lo, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("CPU list %q: %w", s, err)
		}
		last := first
		if isRange {
			if last, err = strconv.ParseUint(hi, 10, 16); err != nil {
				return nil, fmt.Errorf("CPU list %q: %w", s, err)
			}
		}
		for ; first <= last; first++ {
			cpus = append(cpus, int(first))
		}
	}
	return cpus, nil
}

// Read parses the list in a file.
func Read(path string) ([]int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("list of CPUs: %w", err)
	}
	cpus, err := Parse(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cpus, nil
}
