// Package numatest makes machines with NUMA nodes for tests.
package numatest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Sysfs makes a tree like that of sysfs: the CPUs of each NUMA node as a list,
// "" for none, and the distances from each node to all, as far as they are
// given.
func Sysfs(t *testing.T, cpus []string, distances ...string) string {
	t.Helper()
	sys := t.TempDir()
	for i, list := range cpus {
		dir := filepath.Join(sys, "devices/system/node", fmt.Sprintf("node%d", i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		files := map[string]string{"cpulist": list}
		if i < len(distances) {
			files["distance"] = distances[i]
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return sys
}
