//go:build !nvfstools

package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// scratchNamespaceSize is what a real region is measured on, in bytes: a
// namespace that exists for that long only.
const scratchNamespaceSize = 62 << 20

// runSystem calibrates the machine's regions: one of each NUMA node, because
// that and the CPU are what a measurement holds for.
func (c *calibrator) runSystem(ctx context.Context, m *ndctl.System) {
	regions, err := m.Regions(ctx)
	if err != nil {
		klog.ErrorS(err, "Calibration failed; flush mode auto uses the default", "file", c.file)
		return
	}
	for _, region := range regions {
		if ctx.Err() != nil {
			return
		}
		if region.Unusable != "" {
			continue
		}
		if known, err := pmem.LoadCalibration(c.file, ndctl.BackingOf(region)); err == nil && known.Measured && known.NUMANode == region.NUMANode {
			klog.V(2).InfoS("Flush mode auto", "region", region.Name, "numaNode", region.NUMANode, "strategy", known.Choice.String(), "measured", known.Time)
			continue
		}
		if err := c.calibrateRegion(ctx, m, region); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Calibration failed; flush mode auto uses the default", "region", region.Name, "file", c.file)
		}
	}
}

// calibrateRegion measures on a namespace of its own. One that an earlier
// attempt has left is used and removed.
func (c *calibrator) calibrateRegion(ctx context.Context, m *ndctl.System, region ndctl.Region) (err error) {
	name := ndctl.ScratchName(region.Name)
	ns, err := m.Create(ctx, ndctl.CreateRequest{Name: name, Region: region.Name, Mode: ndctl.DevDax, Size: scratchNamespaceSize})
	if errors.Is(err, ndctl.ErrExists) {
		ns, err = m.Namespace(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("namespace to measure on: %w", err)
	}
	defer func() { err = errors.Join(err, m.Destroy(context.WithoutCancel(ctx), name)) }()
	// The memory still holds what was there before, and gets nobody's data now.
	if err := zeroDevice(ctx, ns.Device, 0, func(uint64) {}); err != nil {
		return err
	}
	result, err := pmem.EnsureCalibration(ctx, c.file, pmem.CalibrateOptions{
		ScratchOptions: pmem.ScratchOptions{Path: ns.Device, Scratch: ns.Device, NUMANode: &region.NUMANode},
		Budget:         c.budget,
	})
	if err != nil {
		return err
	}
	klog.V(2).InfoS("Flush mode auto", "region", region.Name, "numaNode", result.NUMANode, "strategy", result.Choice.String(), "measured", result.Time, "why", result.Why)
	return nil
}
