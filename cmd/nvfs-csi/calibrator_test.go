package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// newTestCalibrator has two regions of the same kind of memory on two NUMA
// nodes.
func newTestCalibrator(t *testing.T) *calibrator {
	t.Helper()
	memory, err := os.MkdirTemp("/dev/shm", "nvfs-calibrator-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(memory) })
	var regions []string
	for numa := range 2 {
		dir := filepath.Join(memory, fmt.Sprint("region", numa))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		regions = append(regions, fmt.Sprintf("dir=%s,numa=%d,size=1Gi", dir, numa))
	}
	c, err := newCalibrator(filepath.Join(t.TempDir(), "calibration.json"), regions)
	if err != nil {
		t.Fatal(err)
	}
	c.budget = 20 * time.Millisecond
	return c
}

func TestCalibratorMeasuresEachNodeOnce(t *testing.T) {
	c := newTestCalibrator(t)
	c.run(t.Context())
	var measured [2]time.Time
	for numa := range measured {
		got, err := pmem.LoadCalibration(c.file, pmem.Backing{Kind: pmem.KindTmpfs, NUMANode: numa})
		if err != nil || got.NUMANode != numa || !got.Measured {
			t.Fatalf("node %d: %+v, %v", numa, got, err)
		}
		measured[numa] = got.Time
	}
	c.run(t.Context())
	for numa, want := range measured {
		if got, err := pmem.LoadCalibration(c.file, pmem.Backing{Kind: pmem.KindTmpfs, NUMANode: numa}); err != nil || !got.Time.Equal(want) {
			t.Errorf("node %d was measured again: %v, %v", numa, got.Time, err)
		}
	}
}

// TestCalibratorStops: the end of the driver does not wait for the measurement.
func TestCalibratorStops(t *testing.T) {
	c := newTestCalibrator(t)
	c.budget = time.Hour
	ready := make(chan struct{})
	close(ready)
	c.start(t.Context(), ready)()
	c.start(t.Context(), make(chan struct{}))()
	if _, err := os.Stat(c.file); err == nil {
		t.Error("an unfinished measurement was saved")
	}
}

// specMounter remembers what is mounted.
type specMounter struct {
	mountd.Mounter
	spec mountd.Spec
}

func (m *specMounter) Mount(_ context.Context, spec mountd.Spec) error {
	m.spec = spec
	return nil
}

func TestCalibratedMounterNamesTheFile(t *testing.T) {
	var inner specMounter
	if err := (calibratedMounter{&inner, "/calibration"}).Mount(t.Context(), mountd.Spec{VolumeID: "v"}); err != nil {
		t.Fatal(err)
	}
	if inner.spec.Calibration != "/calibration" || inner.spec.VolumeID != "v" {
		t.Errorf("mounted %+v", inner.spec)
	}
}
