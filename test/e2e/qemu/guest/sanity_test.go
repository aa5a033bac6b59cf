//go:build qemu

package guest

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
)

// capabilityMissing matches the reasons with which the suite skips what a driver
// does not claim to do. Any other skip would hide a test.
var capabilityMissing = regexp.MustCompile(`not (supported|enabled)`)

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
	ginkgo.ReportAfterSuite("no spec is skipped without a reason", func(report types.Report) {
		for _, spec := range report.SpecReports {
			if spec.State == types.SpecStateSkipped && !capabilityMissing.MatchString(spec.Failure.Message) {
				t.Errorf("skipped: %s: %q", spec.FullText(), spec.Failure.Message)
			}
		}
	})
	sanity.Test(t, config)
	if left, err := m.Namespaces(limit(t, callTimeout)); err != nil || len(left) != 0 {
		t.Errorf("left: %+v, %v", left, err)
	}
}
