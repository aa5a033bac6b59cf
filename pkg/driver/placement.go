package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

const (
	// defaultVolumeSize is what a volume without any size gets.
	defaultVolumeSize = 1 << 30
	// minimumVolumeSize is what an NVFS volume needs at least.
	minimumVolumeSize = layout.MinBlocks * layout.BlockSize
)

// sizeRange is what a caller wants; limit is 0 when there is none.
type sizeRange struct {
	required uint64
	limit    uint64
}

// String describes the range for people.
func (s sizeRange) String() string {
	if s.limit == 0 {
		return fmt.Sprintf("at least %d bytes", s.required)
	}
	return fmt.Sprintf("%d to %d bytes", s.required, s.limit)
}

// allows reports whether a volume of that usable size satisfies the caller.
func (s sizeRange) allows(size uint64) bool {
	return size >= s.required && (s.limit == 0 || size <= s.limit)
}

// candidateRegions returns the regions in which a volume with these parameters
// could be, in the order in which they are tried. When there is none the
// ResourceExhausted error, which lets the scheduler try another node, says
// what is against each region.
func (d *Driver) candidateRegions(ctx context.Context, p Params) ([]ndctl.Region, error) {
	all, err := d.namespaces.Regions(ctx)
	if err != nil {
		return nil, fmt.Errorf("regions of node %s: %w", d.options.NodeID, err)
	}
	var usable []ndctl.Region
	var against []error
	for _, r := range all {
		if err := d.checkRegion(p, r); err != nil {
			against = append(against, err)
			continue
		}
		usable = append(usable, r)
	}
	if len(usable) == 0 {
		if len(against) == 0 {
			against = append(against, errors.New("it has no persistent memory region"))
		}
		return nil, errorf(codes.ResourceExhausted, "node %s cannot hold the volume: %w", d.options.NodeID, joinReasons(against...))
	}
	orderRegions(usable, p.NUMAPolicy)
	return usable, nil
}

func (d *Driver) checkRegion(p Params, r ndctl.Region) error {
	switch {
	case r.Unusable != "":
		return fmt.Errorf("region %s is unusable: %s", r.Name, r.Unusable)
	case p.NUMANode != anyNUMANode && r.NUMANode != p.NUMANode:
		return fmt.Errorf("region %s is on NUMA node %d, %s=%d is asked for", r.Name, r.NUMANode, KeyNUMANode, p.NUMANode)
	}
	if err := d.checkKernelRegion(p, r); err != nil {
		return err
	}
	if p.kernel() {
		return nil // the kernel flushes
	}
	return d.checkFlushIn(p.FlushMode, r)
}

// orderRegions sorts by policy; regions that are equal in its eyes stay in
// order of name.
func orderRegions(regions []ndctl.Region, policy string) {
	switch policy {
	case PolicySpread:
		slices.SortStableFunc(regions, func(a, b ndctl.Region) int { return cmp.Compare(b.Available, a.Available) })
	case PolicyPack:
		slices.SortStableFunc(regions, func(a, b ndctl.Region) int { return cmp.Compare(a.Available, b.Available) })
	}
}

// usableSizeFor returns the usable size that a request for size bytes gets in
// the region.
func usableSizeFor(mode ndctl.Mode, size uint64, r ndctl.Region) (uint64, bool) {
	raw, ok := ndctl.RawSize(mode, size, r.Align)
	return ndctl.UsableSize(mode, raw), ok
}

// checkRounding returns nil when at least one region can offer a size within
// the range, however much is free there.
func checkRounding(mode ndctl.Mode, want sizeRange, regions []ndctl.Region) error {
	var offered []string
	for _, r := range regions {
		size, ok := usableSizeFor(mode, want.required, r)
		if ok && want.allows(size) {
			return nil
		}
		if ok {
			offered = append(offered, strconv.FormatUint(size, 10))
		}
	}
	if len(offered) == 0 {
		return errorf(codes.OutOfRange, "no volume of %s is possible: that is more than any region can have", want)
	}
	slices.Sort(offered)
	return errorf(codes.OutOfRange, "no volume of %s is possible: sizes are rounded up to the alignment of the region, and the next one is %s bytes; raise the limit",
		want, strings.Join(slices.Compact(offered), " or "))
}

// smallestVolume returns the usable size of the smallest volume that can be
// made in one of the regions, however much is free there.
func smallestVolume(mode ndctl.Mode, regions []ndctl.Region) uint64 {
	var smallest uint64
	for _, r := range regions {
		if size, ok := usableSizeFor(mode, minimumVolumeSize, r); ok && (smallest == 0 || size < smallest) {
			smallest = size
		}
	}
	return max(smallest, minimumVolumeSize)
}

// idleNamespaces returns the existing namespaces that a volume with
// provision=namespace could use, smallest first: devdax, nobody's and blank.
func (d *Driver) idleNamespaces(ctx context.Context, p Params, regions []ndctl.Region) ([]ndctl.Namespace, error) {
	all, err := d.namespaces.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	taken := map[string]bool{}
	records, err := d.records.list()
	if err != nil {
		return nil, err // a record that cannot be read may own any of them
	}
	for _, r := range records {
		for _, name := range r.namespaceNames() {
			taken[name] = true
		}
	}
	var idle []ndctl.Namespace
	for _, ns := range all {
		inRegion := slices.ContainsFunc(regions, func(r ndctl.Region) bool { return r.Name == ns.Region })
		if !inRegion || taken[ns.Name] || isOurID(ns.Name) || furtherPattern.MatchString(ns.Name) || ndctl.IsScratch(ns.Name) || ns.InUse || ns.Lost != "" || ns.Mode != p.namespaceMode() {
			continue
		}
		if found, err := d.volumes.Probe(ctx, ns.Device); err == nil && found.Content == ContentBlank {
			idle = append(idle, ns)
		}
	}
	slices.SortStableFunc(idle, func(a, b ndctl.Namespace) int { return cmp.Compare(a.Size, b.Size) })
	return idle, nil
}
