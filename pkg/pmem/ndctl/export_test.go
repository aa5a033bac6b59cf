package ndctl

import "testing"

// NewFakeSystem returns a System over files and a tool that are this test's own.
func NewFakeSystem(t *testing.T, regions int, size, align uint64) *System {
	return newFakeTree(t, regions, size, align).system(t.TempDir())
}
