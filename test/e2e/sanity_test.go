package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
)

// capabilityMissing is how the suite says why it skips a spec. Which
// capabilities the driver must claim is a test of the driver's own.
var capabilityMissing = regexp.MustCompile(`not (supported|enabled)`)

// TestSanity runs the CSI sanity suite against the driver as it is deployed:
// real namespaces, real mkfs, real mounts.
func TestSanity(t *testing.T) {
	// The suite asks for volumes of exactly the test size, and of twice that.
	d := newAlignedDriver(t, "2Mi")
	config := sanity.NewTestConfig()
	config.Address = d.endpoint()
	config.StagingPath = filepath.Join(d.dir, "kubelet/plugins/sanity/globalmount")
	config.TargetPath = filepath.Join(d.dir, "kubelet/pods/sanity/mount")
	for _, dir := range []string{filepath.Dir(config.StagingPath), filepath.Dir(config.TargetPath)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	config.TestVolumeSize = 64 << 20
	config.TestVolumeExpandSize = 128 << 20
	config.IdempotentCount = 2
	config.IDGen = &sanity.DefaultIDGenerator{}
	ginkgo.ReportAfterSuite("skipped specs", func(report types.Report) {
		for _, spec := range report.SpecReports {
			if spec.State == types.SpecStateSkipped && !capabilityMissing.MatchString(spec.Failure.Message) {
				t.Errorf("skipped for another reason than a capability that is not claimed: %s: %q", spec.FullText(), spec.Failure.Message)
			}
		}
	})
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
