package ndctl

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"
)

// Destroy implements Manager.
func (m *System) Destroy(ctx context.Context, name string) error {
	return m.change(ctx, func(ctx context.Context, c *changing) error { return c.destroy(ctx, name) })
}

func (c *changing) destroy(ctx context.Context, name string) error {
	s, err := c.readForChange(ctx)
	if err != nil {
		return err
	}
	ns, err := s.find(name)
	if err != nil {
		return err
	}
	used := ns.InUse
	if !used && ns.Lost == "" {
		if used, err = c.claimed(ns.Namespace); err != nil {
			return err
		}
	}
	if used {
		return fmt.Errorf("%w: %q (%s)", ErrBusy, name, ns.Device)
	}
	if r, ok := s.region(ns.Region); ok && !r.Labels {
		return fmt.Errorf("%w: namespace %s fills a region without labels and cannot be destroyed", ErrUnsupported, name)
	}
	if err := c.intents.save(intent{Action: destroying, Name: name, UUID: ns.UUID, Mode: ns.Mode, Region: ns.Region}); err != nil {
		return err
	}
	err = c.remove(ctx, ns)
	if errors.Is(err, ErrBusy) {
		// Untouched: the intent must not let it be destroyed later, when the
		// caller may have changed their mind.
		return errors.Join(err, c.intents.remove(name))
	}
	if err != nil {
		return err
	}
	return c.intents.remove(name)
}

// remove destroys a namespace and reads back that it is gone; ErrBusy when
// somebody came to use it.
func (c *changing) remove(ctx context.Context, ns sysNamespace) error {
	toolErr := c.run(ctx, "destroy-namespace", "--force", ns.dev)
	s, err := c.readForChange(ctx)
	if err != nil {
		return errors.Join(err, toolErr)
	}
	left, there := s.byUUID(ns.UUID)
	switch {
	case !there:
		if toolErr != nil {
			klog.InfoS("ndctl reported a failure but destroyed the namespace", "namespace", ns.Name, "error", toolErr.Error())
		}
		return nil
	case left.InUse:
		return errors.Join(fmt.Errorf("%w: %q (%s)", ErrBusy, ns.Name, left.Device), toolErr)
	case toolErr == nil:
		return fmt.Errorf("namespace %q is still there after ndctl reported that it was destroyed", ns.Name)
	}
	return fmt.Errorf("destroy namespace %q: %w", ns.Name, toolErr)
}
