package bench

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// RSSAnon is the anonymous memory a process has in DRAM, in bytes: what it
// needs besides its mapping of the persistent memory.
func RSSAnon(pid int) (int64, error) {
	return procField(fmt.Sprintf("/proc/%d/status", pid), "RssAnon")
}

// AvailableMemory is how much memory programs can still take, in bytes.
func AvailableMemory() (int64, error) { return procField("/proc/meminfo", "MemAvailable") }

// procField reads a line such as "RssAnon:  123 kB" and returns bytes.
func procField(file, field string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		value, found := strings.CutPrefix(scan.Text(), field+":")
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s in %s: %w", field, file, err)
		}
		return kib << 10, nil
	}
	if err := scan.Err(); err != nil {
		return 0, fmt.Errorf("read %s: %w", file, err)
	}
	return 0, fmt.Errorf("%s has no field %s", file, field)
}
