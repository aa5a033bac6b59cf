package drivertest

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// SanityConfig says how to run the CSI sanity suite.
type SanityConfig struct {
	// Dir is where staging and target paths are made.
	Dir string
	// VolumeSize must be a usable size that needs no rounding: the suite asks
	// for volumes of exactly that size, and of twice as much.
	VolumeSize int64
	ExpandSize int64
	Parameters map[string]string
}

// notOffered are the reasons with which the suite skips what the driver does
// not claim to do. Any other skip is a failure: it would hide a test.
var notOffered = []string{
	"Snapshot not supported", "ListSnapshots not supported", "GetSnapshot not supported", "CreateSnapshot not supported", "DeleteSnapshot not supported",
	"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported",
	"Volume Cloning not supported",
	"Modify volume not supported", "Modify Volume not supported", "ControllerModifyVolume not supported",
	"ControllerExpandVolume not supported",
	"ControllerPublishVolume not supported", "ControllerPublishVolume.readonly field not supported", "Controller Publish, UnpublishVolume not supported", "ControllerUnpublishVolume not supported",
	"testnodevolumeattachlimit not enabled",
	"GroupControllerService not supported", "DeleteVolumeGroupSnapshot not supported", "GetVolumeGroupSnapshot not supported", "CreateVolumeGroupSnapshot not supported",
}

// RunSanity runs the CSI sanity suite against a driver that is made of options
// and deps and served in this process. A test binary can do that only once.
func RunSanity(t *testing.T, options driver.Options, deps driver.Deps, config SanityConfig) {
	t.Helper()
	d, err := driver.New(options, deps)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- d.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("driver: %v", err)
		}
	}()

	sanityConfig := sanity.NewTestConfig()
	sanityConfig.Address = options.Endpoint
	sanityConfig.StagingPath = filepath.Join(config.Dir, "staging")
	sanityConfig.TargetPath = filepath.Join(config.Dir, "target")
	sanityConfig.TestVolumeSize = config.VolumeSize
	sanityConfig.TestVolumeExpandSize = config.ExpandSize
	sanityConfig.TestVolumeParameters = config.Parameters
	sanityConfig.IdempotentCount = 3
	ginkgo.ReportAfterSuite("no spec is skipped without a reason", func(report types.Report) {
		for _, spec := range report.SpecReports {
			if spec.State == types.SpecStateSkipped && !skipIsFine(spec.Failure.Message) {
				t.Errorf("skipped: %s: %q", spec.FullText(), spec.Failure.Message)
			}
		}
	})
	sanity.Test(t, sanityConfig)
}

func skipIsFine(message string) bool {
	for _, reason := range notOffered {
		if strings.Contains(message, reason) {
			return true
		}
	}
	return false
}
