//go:build !nvfstools

package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

const (
	// calibrationBudget is how long a region is measured; calibrationTimeout
	// bounds all that is done for it, allocation of the memory included.
	calibrationBudget  = 2 * time.Second
	calibrationTimeout = 15 * time.Second
)

// calibrator measures once per node what the flush mode auto stands for in its
// regions.
type calibrator struct {
	file    string
	regions []ndctl.EmulatedRegion
	budget  time.Duration
	system  *ndctl.System // the machine's regions; nil with emulated ones
}

// newCalibrator takes regions as --emulate describes them.
func newCalibrator(file string, emulate []string) (*calibrator, error) {
	c := &calibrator{file: file, budget: calibrationBudget}
	for _, text := range emulate {
		region, err := ndctl.ParseEmulated(text)
		if err != nil {
			return nil, fmt.Errorf("--emulate: %w", err)
		}
		c.regions = append(c.regions, region)
	}
	return c, nil
}

// start calibrates in the background, as soon as ready is closed: nothing waits
// for it, and volumes that are mounted meanwhile use the default. The returned
// function ends it.
func (c *calibrator) start(ctx context.Context, ready <-chan struct{}) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-ready:
			c.run(ctx)
		case <-ctx.Done():
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// run calibrates one region after the other: side by side they would disturb
// each other. What cannot be measured keeps the default, and is told.
func (c *calibrator) run(ctx context.Context) {
	for _, region := range c.regions {
		if ctx.Err() != nil {
			return
		}
		if err := c.calibrate(ctx, region); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Calibration failed; flush mode auto uses the default", "region", region.Dir, "file", c.file)
		}
	}
	if c.system != nil {
		c.runSystem(ctx, c.system)
	}
}

func (c *calibrator) calibrate(ctx context.Context, region ndctl.EmulatedRegion) error {
	ctx, cancel := context.WithTimeout(ctx, calibrationTimeout)
	defer cancel()
	result, err := pmem.EnsureCalibration(ctx, c.file, pmem.CalibrateOptions{
		ScratchOptions: pmem.ScratchOptions{Path: region.Dir, Emulated: true, NUMANode: &region.NUMANode},
		Budget:         c.budget,
	})
	if err != nil {
		return err
	}
	klog.V(2).InfoS("Flush mode auto", "region", region.Dir, "kind", result.Kind, "numaNode", result.NUMANode,
		"strategy", result.Choice.String(), "measured", result.Time, "why", result.Why)
	return nil
}

// calibratedMounter tells the serving processes where the calibration is. They
// look when a volume is mounted, so that none waits for a measurement.
type calibratedMounter struct {
	mountd.Mounter
	file string
}

// Mount implements mountd.Mounter.
func (m calibratedMounter) Mount(ctx context.Context, spec mountd.Spec) error {
	spec.Calibration = m.file
	return m.Mounter.Mount(ctx, spec)
}
