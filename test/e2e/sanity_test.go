package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
)

// TestSanity runs the CSI sanity suite against the driver as it is deployed:
// real namespaces, real mkfs, real mounts.
func TestSanity(t *testing.T) {
	d := newDriver(t)
	config := sanity.NewTestConfig()
	config.Address = d.endpoint()
	config.StagingPath = filepath.Join(d.dir, "kubelet/plugins/sanity/globalmount")
	config.TargetPath = filepath.Join(d.dir, "kubelet/pods/sanity/mount")
	for _, dir := range []string{filepath.Dir(config.StagingPath), filepath.Dir(config.TargetPath)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	config.TestVolumeSize = 96 << 20
	config.TestVolumeExpandSize = 192 << 20
	config.IdempotentCount = 2
	config.IDGen = &sanity.DefaultIDGenerator{}
	sanity.Test(t, config)
	if left := mountsBelow(t, d.dir); len(left) != 0 {
		t.Errorf("left mounted: %v", left)
	}
	if left := serversOf(t, d.dir); len(left) != 0 {
		t.Errorf("left running: %v", left)
	}
	if left, err := filepath.Glob(filepath.Join(d.dir, "region*", "*.pmem")); err != nil || len(left) != 0 {
		t.Errorf("left namespaces: %v, %v", left, err)
	}
}
