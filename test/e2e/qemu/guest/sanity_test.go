//go:build qemu

package guest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
)

// The CSI sanity suite on real namespaces.
func TestSanity(t *testing.T) {
	m := emptySystem(t)
	d := startDriver(t)
	config := sanity.NewTestConfig()
	config.Address = d.endpoint()
	config.StagingPath = filepath.Join(d.dir, "plugins/sanity")
	config.TargetPath = filepath.Join(d.dir, "pods/sanity")
	for _, dir := range []string{filepath.Dir(config.StagingPath), filepath.Dir(config.TargetPath)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	// Exactly what a devdax namespace of 64 MiB offers: some specs set it as
	// the limit as well.
	config.TestVolumeSize = 62 * mib
	config.TestVolumeExpandSize = 120 * mib
	config.IdempotentCount = 1
	config.IDGen = &sanity.DefaultIDGenerator{}
	sanity.Test(t, config)
	if left, err := m.Namespaces(limit(t, callTimeout)); err != nil || len(left) != 0 {
		t.Errorf("left: %+v, %v", left, err)
	}
}
