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
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		value, found := strings.CutPrefix(scan.Text(), "RssAnon:")
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("parse RssAnon of process %d: %w", pid, err)
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("process %d has no RssAnon: %w", pid, scan.Err())
}
