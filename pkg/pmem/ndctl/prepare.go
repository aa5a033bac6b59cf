package ndctl

import (
	"context"
	"errors"
	"fmt"
)

// Prepare writes namespace labels for a region that has none, so that it can
// be divided. Everything that was in the region is lost; the caller has asked.
// It is refused for a region that is prepared already, for one whose memory is
// in use, and when another region lies on the same NVDIMMs.
func (m *System) Prepare(ctx context.Context, region string) error {
	return m.change(ctx, func(ctx context.Context, c *changing) error { return c.prepare(ctx, region) })
}

func (c *changing) prepare(ctx context.Context, name string) error {
	s, err := c.readForChange(ctx)
	if err != nil {
		return err
	}
	region, ok := s.region(name)
	if !ok {
		return fmt.Errorf("%w: no region %q", ErrInvalid, name)
	}
	if err := c.mayPrepare(s, region); err != nil {
		return err
	}
	errs := []error{c.run(ctx, "disable-region", name)}
	for _, dimm := range region.dimms {
		errs = append(errs, c.run(ctx, "init-labels", "--force", dimm))
	}
	errs = append(errs, c.run(ctx, "enable-region", name))
	if s, err = c.readForChange(ctx); err != nil {
		return errors.Join(append(errs, err)...)
	}
	if region, ok = s.region(name); !ok || !region.Labels {
		errs = append(errs, fmt.Errorf("region %s has no labels after they were initialised: %s", name, region.Unusable))
		return errors.Join(errs...)
	}
	return nil
}

func (c *changing) mayPrepare(s snapshot, region sysRegion) error {
	switch {
	case region.Labels:
		return fmt.Errorf("%w: region %s has labels already; its namespaces are listed by nvfs-csi discover", ErrExists, region.Name)
	case region.ReadOnly || c.bus.unarmed(region.dimms) != "":
		return fmt.Errorf("%w: region %s: %s", ErrUnsupported, region.Name, region.Unusable)
	case len(region.dimms) == 0:
		return fmt.Errorf("%w: region %s: %s", ErrUnsupported, region.Name, c.bus.whyNoLabels(region))
	}
	for _, dimm := range region.dimms {
		if _, ok := c.bus.uint(dimm, "available_slots"); !ok {
			return fmt.Errorf("%w: region %s: %s", ErrUnsupported, region.Name, c.bus.whyNoLabels(region))
		}
	}
	for _, other := range s.regions {
		if other.Name != region.Name && share(other.dimms, region.dimms) {
			return fmt.Errorf("%w: region %s lies on the same NVDIMMs as %s, whose labels would be lost as well: use ndctl init-labels by hand", ErrUnsupported, other.Name, region.Name)
		}
	}
	for _, ns := range s.namespaces {
		if ns.Region != region.Name || ns.Lost != "" {
			continue
		}
		used, err := c.claimed(ns.Namespace)
		if err != nil {
			return err
		}
		if used || ns.InUse {
			return fmt.Errorf("%w: %s in region %s: unmount it or stop what uses it", ErrBusy, ns.Device, region.Name)
		}
	}
	return nil
}

func share(a, b []string) bool {
	for _, x := range a {
		for _, y := range b {
			if x == y {
				return true
			}
		}
	}
	return false
}
