package e2e

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// brokenInSuite are tests of go-fuse that fail on every filesystem of Linux, and
// that go-fuse itself leaves out.
var brokenInSuite = map[string]string{
	"FcntlFlockLocksFile": "it wants flock(2) to conflict with POSIX locks",
}

// TestPOSIXSuite runs the tests that go-fuse has for its own filesystems, on
// ext4 and on NVFS in each cache mode.
func TestPOSIXSuite(t *testing.T) {
	run := func(t *testing.T, mnt string) {
		for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
			if reason, broken := brokenInSuite[name]; broken {
				t.Logf("%s is left out: %s", name, reason)
				continue
			}
			t.Run(name, func(t *testing.T) {
				dir := filepath.Join(mnt, name)
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				posixtest.All[name](t, dir)
			})
		}
	}
	t.Run("ext4", func(t *testing.T) { run(t, mountExt4(t)) })
	eachMode(t, 512<<20, func(t *testing.T, v testVolume, _ func()) { run(t, v.mnt) })
}
