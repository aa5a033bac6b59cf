package ndctl

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"k8s.io/klog/v2"
)

// createAttempts bounds how often a namespace is made anew because the kernel
// left less of it usable than expected.
const createAttempts = 3

// Create implements Manager.
func (m *System) Create(ctx context.Context, req CreateRequest) (Namespace, error) {
	if err := ValidName(req.Name); err != nil {
		return Namespace{}, err
	}
	if req.Size == 0 || UsableSize(req.Mode, 1<<40) == 0 {
		return Namespace{}, fmt.Errorf("%w: size %d, mode %q; want a size above 0 and one of devdax, fsdax and sector", ErrInvalid, req.Size, req.Mode)
	}
	var created Namespace
	err := m.change(ctx, func(ctx context.Context, c *changing) (err error) {
		created, err = c.create(ctx, req)
		return err
	})
	if err != nil {
		return Namespace{}, err // created may still be written to
	}
	return created, nil
}

func (c *changing) create(ctx context.Context, req CreateRequest) (Namespace, error) {
	s, err := c.readForChange(ctx)
	if err != nil {
		return Namespace{}, err
	}
	if _, err := s.find(req.Name); !errors.Is(err, ErrNotFound) {
		if err == nil {
			err = fmt.Errorf("%w: %q", ErrExists, req.Name)
		}
		return Namespace{}, err
	}
	if err := c.intents.pending(req.Name); err != nil {
		return Namespace{}, err
	}
	region, ok := s.region(req.Region)
	if !ok {
		return Namespace{}, fmt.Errorf("%w: no region %q", ErrInvalid, req.Region)
	}
	if region.Unusable != "" {
		return Namespace{}, fmt.Errorf("%w: region %s: %s", ErrUnsupported, region.Name, region.Unusable)
	}
	raw, ok := RawSize(req.Mode, req.Size, region.Align)
	for range createAttempts {
		if !ok || raw > region.LargestExtent {
			return Namespace{}, &NoSpaceError{Region: region.Name, Want: req.Size, Largest: UsableSize(req.Mode, region.LargestExtent)}
		}
		ns, err := c.createOfSize(ctx, req, region, raw)
		if err != nil || ns.Size >= req.Size {
			return ns, err
		}
		if err := c.destroy(ctx, ns.Name); err != nil {
			return Namespace{}, err
		}
		raw += region.Align
	}
	return Namespace{}, fmt.Errorf("namespace %s: %d bytes of region %s do not offer %d", req.Name, raw, region.Name, req.Size)
}

// createOfSize makes a namespace that takes raw bytes, and reads it back.
func (c *changing) createOfSize(ctx context.Context, req CreateRequest, region sysRegion, raw uint64) (Namespace, error) {
	id := uuid.NewString()
	i := intent{Action: creating, Name: req.Name, UUID: id, Mode: req.Mode, Region: region.Name}
	if err := c.intents.save(i); err != nil {
		return Namespace{}, err
	}
	// The UUID is what tells this namespace from one that somebody else makes
	// at the same time, whose name ndctl has been seen to mix up with ours.
	toolErr := c.run(ctx, createArguments(req, region, raw, id)...)
	s, err := c.readForChange(ctx)
	if err != nil {
		return Namespace{}, errors.Join(err, toolErr) // the intent stays
	}
	ns, there := s.byUUID(id)
	if there && i.finished(ns.Namespace) {
		if toolErr != nil {
			klog.InfoS("ndctl reported a failure but made the namespace", "namespace", req.Name, "error", toolErr.Error())
		}
		return ns.Namespace, c.intents.remove(req.Name)
	}
	if there {
		if err := c.remove(ctx, ns); err != nil {
			return Namespace{}, errors.Join(fmt.Errorf("create namespace %s: %s", req.Name, describeHalf(ns)), toolErr, err)
		}
	}
	if err := c.intents.remove(req.Name); err != nil {
		return Namespace{}, errors.Join(err, toolErr)
	}
	if toolErr == nil {
		toolErr = errors.New("ndctl reported success but made nothing; dmesg may say why")
	}
	return Namespace{}, errors.Join(fmt.Errorf("create namespace %s of %d bytes in region %s: %w", req.Name, raw, region.Name, toolErr), c.lostSpace(ctx, region))
}

func describeHalf(ns sysNamespace) string {
	return fmt.Sprintf("it became %q of mode %s with %d usable bytes (%s)", ns.Name, ns.Mode, ns.Size, ns.Lost)
}

func createArguments(req CreateRequest, region sysRegion, raw uint64, id string) []string {
	args := []string{"create-namespace", "--no-autolabel", "--region=" + region.Name, "--mode=" + string(req.Mode),
		"--size=" + strconv.FormatUint(raw, 10), "--name=" + req.Name, "--uuid=" + id}
	switch req.Mode {
	case DevDax:
		// Page structures in DRAM: with 2 MiB pages the kernel shares most of
		// them, and every byte of the namespace is the volume's.
		args = append(args, "--map=mem", "--align=2M")
	case FSDax:
		args = append(args, "--map=dev", "--align=2M")
	case Sector:
		args = append(args, "--sector-size=4096")
	}
	return args
}

// lostSpace returns an error when the region has less room than before a
// creation that failed and left nothing that could be removed.
func (c *changing) lostSpace(ctx context.Context, before sysRegion) error {
	s, err := c.readForChange(ctx)
	if err != nil {
		return err
	}
	if now, ok := s.region(before.Name); ok && now.Available < before.Available {
		return fmt.Errorf("region %s has lost %d bytes to the failed creation: ndctl list -Ni shows what took them, destroy it by hand", before.Name, before.Available-now.Available)
	}
	return nil
}
