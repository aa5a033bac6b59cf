// Package fake is a namespace manager in memory, for the tests of whatever
// uses one. Errors can be injected before and after each change, in-use marks
// set, and backings lost.
package fake

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/google/uuid"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/internal/extent"
)

// Op names a method of the manager.
type Op string

// The methods that errors can be injected into.
const (
	Regions    Op = "Regions"
	Namespaces Op = "Namespaces"
	Namespace  Op = "Namespace"
	Create     Op = "Create"
	Destroy    Op = "Destroy"
	Extend     Op = "Extend"
)

// Manager implements ndctl.Manager. It is safe for concurrent use.
type Manager struct {
	mu         sync.Mutex
	regions    map[string]ndctl.Region
	namespaces map[string]*namespace
	before     map[Op][]error
	after      map[Op][]error
	calls      map[Op]int
	hidden     bool
}

type namespace struct {
	ndctl.Namespace
	extent extent.Extent
}

var _ ndctl.Manager = (*Manager)(nil)

// New returns a manager of the given regions, which are empty. Their
// Available and LargestExtent are computed and need not be given; Align is
// ndctl.DefaultAlign when 0.
func New(regions ...ndctl.Region) *Manager {
	m := &Manager{regions: map[string]ndctl.Region{}, namespaces: map[string]*namespace{},
		before: map[Op][]error{}, after: map[Op][]error{}, calls: map[Op]int{}}
	for _, r := range regions {
		if r.Align == 0 {
			r.Align = ndctl.DefaultAlign
		}
		m.regions[r.Name] = r
	}
	return m
}

// FailBefore lets the next call of op, after those already queued, fail with
// err and change nothing.
func (m *Manager) FailBefore(op Op, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before[op] = append(m.before[op], err)
}

// FailAfter lets the next call of op do its work and then fail with err, like
// a call whose answer was lost.
func (m *Manager) FailAfter(op Op, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.after[op] = append(m.after[op], err)
}

// Calls returns how often op was called.
func (m *Manager) Calls(op Op) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[op]
}

// SetInUse marks a namespace as served by somebody, or not.
func (m *Manager) SetInUse(name string, inUse bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.namespaces[name].InUse = inUse
}

// Lose takes the backing of a namespace away.
func (m *Manager) Lose(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.namespaces[name].Lost = "the memory of " + name + " was taken away"
}

// Forget removes a namespace without a trace, like a reboot removes what was
// in a tmpfs.
func (m *Manager) Forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.namespaces, name)
}

// Hide lets all regions and namespaces look as if they were not there, like
// before the kernel has found them; Show ends that.
func (m *Manager) Hide() { m.setHidden(true) }

// Show ends Hide.
func (m *Manager) Show() { m.setHidden(false) }

func (m *Manager) setHidden(hidden bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hidden = hidden
}

// Poison says how many bytes of a namespace, and of its region, cannot be read.
func (m *Manager) Poison(name string, bytes uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.namespaces[name]
	n.BadBytes = bytes
	r := m.regions[n.Region]
	r.BadBytes = bytes
	m.regions[n.Region] = r
}

// enter counts the call and returns the error injected before op.
func (m *Manager) enter(ctx context.Context, op Op) error {
	m.calls[op]++
	if err := pop(m.before, op); err != nil {
		return err
	}
	return ctx.Err()
}

func pop(queue map[Op][]error, op Op) error {
	if len(queue[op]) == 0 {
		return nil
	}
	err := queue[op][0]
	queue[op] = queue[op][1:]
	return err
}

// Regions implements ndctl.Manager.
func (m *Manager) Regions(ctx context.Context) ([]ndctl.Region, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.enter(ctx, Regions); err != nil {
		return nil, err
	}
	var all []ndctl.Region
	for _, r := range m.regions {
		if m.hidden {
			break
		}
		holes := m.holes(r)
		r.Available, r.LargestExtent = extent.Total(holes), extent.Largest(holes)
		all = append(all, r)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all, pop(m.after, Regions)
}

// Namespaces implements ndctl.Manager.
func (m *Manager) Namespaces(ctx context.Context) ([]ndctl.Namespace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.enter(ctx, Namespaces); err != nil {
		return nil, err
	}
	var all []ndctl.Namespace
	for _, n := range m.namespaces {
		if m.hidden {
			break
		}
		all = append(all, n.Namespace)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all, pop(m.after, Namespaces)
}

// Namespace implements ndctl.Manager.
func (m *Manager) Namespace(ctx context.Context, name string) (ndctl.Namespace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.enter(ctx, Namespace); err != nil {
		return ndctl.Namespace{}, err
	}
	n, err := m.find(name)
	if n == nil {
		return ndctl.Namespace{}, err
	}
	return n.Namespace, errors.Join(err, pop(m.after, Namespace))
}

// Create implements ndctl.Manager.
func (m *Manager) Create(ctx context.Context, req ndctl.CreateRequest) (ndctl.Namespace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.enter(ctx, Create); err != nil {
		return ndctl.Namespace{}, err
	}
	if err := ndctl.ValidName(req.Name); err != nil {
		return ndctl.Namespace{}, err
	}
	if m.namespaces[req.Name] != nil {
		return ndctl.Namespace{}, fmt.Errorf("%w: %q", ndctl.ErrExists, req.Name)
	}
	n, err := m.place(req)
	if err != nil {
		return ndctl.Namespace{}, err
	}
	m.namespaces[req.Name] = n
	if err := pop(m.after, Create); err != nil {
		return ndctl.Namespace{}, err
	}
	return n.Namespace, nil
}

func (m *Manager) place(req ndctl.CreateRequest) (*namespace, error) {
	r, ok := m.regions[req.Region]
	if !ok || req.Size == 0 || ndctl.UsableSize(req.Mode, 1<<40) == 0 {
		return nil, fmt.Errorf("%w: region %q, size %d, mode %q", ndctl.ErrInvalid, req.Region, req.Size, req.Mode)
	}
	if r.Unusable != "" {
		return nil, fmt.Errorf("%w: region %s: %s", ndctl.ErrUnsupported, r.Name, r.Unusable)
	}
	holes := m.holes(r)
	noSpace := &ndctl.NoSpaceError{Region: r.Name, Want: req.Size, Largest: ndctl.UsableSize(req.Mode, extent.Largest(holes))}
	raw, ok := ndctl.RawSize(req.Mode, req.Size, r.Align)
	if !ok {
		return nil, noSpace
	}
	offset, ok := extent.BestFit(holes, raw)
	if !ok {
		return nil, noSpace
	}
	return &namespace{
		Namespace: ndctl.Namespace{Name: req.Name, UUID: uuid.NewString(), Region: r.Name, NUMANode: r.NUMANode,
			Mode: req.Mode, Size: ndctl.UsableSize(req.Mode, raw), Raw: raw, Device: "/dev/fake/" + req.Name, Emulated: r.Emulated},
		extent: extent.Extent{Offset: offset, Length: raw},
	}, nil
}

// Destroy implements ndctl.Manager.
func (m *Manager) Destroy(ctx context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.enter(ctx, Destroy); err != nil {
		return err
	}
	n, err := m.find(name)
	if n == nil {
		return err
	}
	if n.InUse {
		return fmt.Errorf("%w: %q", ndctl.ErrBusy, name)
	}
	delete(m.namespaces, name)
	return pop(m.after, Destroy)
}

// Extend implements ndctl.Manager.
func (m *Manager) Extend(ctx context.Context, name string, size uint64) (ndctl.Namespace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.enter(ctx, Extend); err != nil {
		return ndctl.Namespace{}, err
	}
	n, err := m.find(name)
	if err != nil {
		return ndctl.Namespace{}, err
	}
	if n.Size < size {
		if err := m.extend(n, size); err != nil {
			return ndctl.Namespace{}, err
		}
	}
	return n.Namespace, pop(m.after, Extend)
}

func (m *Manager) extend(n *namespace, size uint64) error {
	r := m.regions[n.Region]
	if r.Unusable != "" || !r.Emulated {
		return fmt.Errorf("%w: region %s", ndctl.ErrUnsupported, r.Name)
	}
	room := n.Raw
	for _, hole := range m.holes(r) {
		if hole.Offset == n.extent.End() {
			room += hole.Length
		}
	}
	raw, ok := ndctl.RawSize(n.Mode, size, r.Align)
	if !ok || raw > room {
		return &ndctl.NoSpaceError{Region: r.Name, Want: size, Largest: ndctl.UsableSize(n.Mode, room)}
	}
	n.Raw, n.extent.Length, n.Size = raw, raw, ndctl.UsableSize(n.Mode, raw)
	return nil
}

// find returns nil and ErrNotFound, or the namespace with nil or ErrLost.
func (m *Manager) find(name string) (*namespace, error) {
	n := m.namespaces[name]
	switch {
	case n == nil || m.hidden:
		return nil, fmt.Errorf("%w: %q", ndctl.ErrNotFound, name)
	case n.Lost != "":
		return n, fmt.Errorf("%w: %s", ndctl.ErrLost, n.Lost)
	}
	return n, nil
}

func (m *Manager) holes(r ndctl.Region) []extent.Extent {
	if r.Unusable != "" {
		return nil
	}
	var used []extent.Extent
	for _, n := range m.namespaces {
		if n.Region == r.Name {
			used = append(used, n.extent)
		}
	}
	return extent.Holes(r.Size, r.Align, used)
}
