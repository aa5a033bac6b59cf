package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The stress tests are part of the e2e tests in a short form. "make soak"
// builds them with the tag soak, which makes them long.

// scale is n, or long in a soak.
func scale(n, long int) int {
	if soak {
		return long
	}
	return n
}

// eachMode runs a test on a volume mounted in each of the ways, and checks the
// volume afterwards.
func eachMode(t *testing.T, size int64, run func(t *testing.T, v testVolume, mount func())) {
	t.Helper()
	for _, mode := range mountModes {
		t.Run(mode.name, func(t *testing.T) {
			v := newVolume(t, size)
			mount := func() { v.mount(t, mode.options) }
			mount()
			start := time.Now()
			run(t, v, mount)
			t.Logf("took %.1f s", time.Since(start).Seconds())
			v.unmount(t)
			v.check(t)
		})
	}
}

// seed makes the random numbers of a test: NVFS_E2E_SEED, or 1.
func seed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("NVFS_E2E_SEED")
	if text == "" {
		return 1
	}
	var n uint64
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatalf("NVFS_E2E_SEED=%q is no number", text)
	}
	return n
}

// mkdir makes a directory below the mount point.
func (v testVolume) mkdir(t *testing.T, elem ...string) string {
	t.Helper()
	dir := v.path(filepath.Join(elem...))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
