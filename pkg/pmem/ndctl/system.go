package ndctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// changeTimeout is the hard limit of one command that changes something. The
// kernel clears the page structures of a new fsdax namespace, which takes
// minutes for terabytes.
const changeTimeout = 5 * time.Minute

// System is a Manager of the machine's real regions. It reads sysfs afresh in
// every call and runs ndctl(1) for changes, whose result it reads back: exit
// codes are not trusted, and numbers such as namespace0.1 are used within one
// change only, because they are given anew at a boot.
//
// Several processes may manage the same machine if they share lockDir. Changes
// by others (an administrator's ndctl) are noticed, not prevented.
type System struct {
	bus     ndBus
	tool    tool
	lockDir string
	intents intents
	mu      chan struct{} // held, by one token, around every change
	reading chan struct{} // held, by one token, while sysfs is read

	// What is asked of devices themselves, and what else exists in tests.
	findUsers func([]sysNamespace) error
	claimed   func(Namespace) (bool, error)
}

var _ Manager = (*System)(nil)

// NewSystem returns a manager that serialises its changes by a lock file in
// lockDir and keeps there what it needs to finish changes that a crash
// interrupted. What is left of such changes is finished now.
func NewSystem(ctx context.Context, lockDir string) (*System, error) {
	m := newSystem(systemBus, tool{path: "ndctl", timeout: changeTimeout}, lockDir)
	if err := makeDir(lockDir); err != nil {
		return nil, err
	}
	return m, m.change(ctx, func(context.Context, *changing) error { return nil })
}

// ViewSystem is NewSystem for whoever only looks: nothing is made, and nothing
// repaired. Its changes fail.
func ViewSystem() *System {
	return newSystem(systemBus, tool{path: "ndctl", timeout: changeTimeout}, "")
}

func newSystem(bus ndBus, t tool, lockDir string) *System {
	m := &System{bus: bus, tool: t, lockDir: lockDir, mu: make(chan struct{}, 1), reading: make(chan struct{}, 1),
		findUsers: bus.findUsers, claimed: deviceClaimed}
	if lockDir != "" {
		m.intents = intents(filepath.Join(lockDir, "ndctl-intents"))
	}
	return m
}

// snapshot is the state of the machine at one time.
type snapshot struct {
	regions    []sysRegion
	namespaces []sysNamespace
	intents    []intent
}

// read reads the state. The kernel answers when it has finished probing, which
// on a sick module may be never: then the one goroutine that waits for it stays
// behind, and every later call ends with its context.
func (m *System) read(ctx context.Context) (snapshot, error) {
	select {
	case m.reading <- struct{}{}:
	case <-ctx.Done():
		return snapshot{}, fmt.Errorf("the kernel does not answer about its NVDIMMs, see dmesg: %w", ctx.Err())
	}
	type result struct {
		snapshot
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-m.reading }()
		s, err := m.readNow()
		done <- result{s, err}
	}()
	select {
	case r := <-done:
		return r.snapshot, errors.Join(r.err, ctx.Err())
	case <-ctx.Done():
		return snapshot{}, ctx.Err()
	}
}

func (m *System) readNow() (s snapshot, err error) {
	before, err := m.intents.list()
	if err != nil {
		return s, err
	}
	if s.regions, err = m.bus.regions(); err != nil {
		return s, fmt.Errorf("regions in %s: %w", m.bus.devices, err)
	}
	if s.namespaces, err = m.bus.namespaces(s.regions); err != nil {
		return s, fmt.Errorf("namespaces in %s: %w", m.bus.devices, err)
	}
	after, err := m.intents.list()
	// What was begun or finished while sysfs was read may have been seen half.
	s.intents = append(before, after...)
	return s, errors.Join(err, m.findUsers(s.namespaces))
}

// changingNow reports whether the namespace is being created or destroyed.
func (s snapshot) changingNow(ns Namespace) bool {
	return slices.ContainsFunc(s.intents, func(i intent) bool { return i.concerns(ns) })
}

// find returns the namespace of that name; the error is ErrNotFound, or
// ErrInvalid when there are several.
func (s snapshot) find(name string) (sysNamespace, error) {
	var found []sysNamespace
	for _, ns := range s.namespaces {
		if ns.Name == name && name != "" {
			found = append(found, ns)
		}
	}
	switch len(found) {
	case 0:
		return sysNamespace{}, fmt.Errorf("%w: %q", ErrNotFound, name)
	case 1:
		return found[0], nil
	}
	return sysNamespace{}, fmt.Errorf("%w: %d namespaces have the name %q (UUIDs %s and %s): names must be unique; rename one with ndctl disable-namespace and its alt_name in sysfs",
		ErrInvalid, len(found), name, found[0].UUID, found[1].UUID)
}

func (s snapshot) byUUID(uuid string) (sysNamespace, bool) {
	for _, ns := range s.namespaces {
		if ns.UUID == uuid {
			return ns, true
		}
	}
	return sysNamespace{}, false
}

func (s snapshot) region(name string) (sysRegion, bool) {
	for _, r := range s.regions {
		if r.Name == name {
			return r, true
		}
	}
	return sysRegion{}, false
}

// Regions implements Manager.
func (m *System) Regions(ctx context.Context) ([]Region, error) {
	s, err := m.read(ctx)
	if err != nil {
		return nil, err
	}
	var regions []Region
	for _, r := range s.regions {
		regions = append(regions, r.Region)
	}
	slices.SortFunc(regions, func(a, b Region) int { return strings.Compare(a.Name, b.Name) })
	return regions, nil
}

// Namespaces implements Manager. Namespaces that are being created or
// destroyed are not listed.
func (m *System) Namespaces(ctx context.Context) ([]Namespace, error) {
	s, err := m.read(ctx)
	if err != nil {
		return nil, err
	}
	var all []Namespace
	for _, ns := range s.namespaces {
		if !s.changingNow(ns.Namespace) {
			all = append(all, ns.Namespace)
		}
	}
	slices.SortFunc(all, func(a, b Namespace) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Namespace implements Manager.
func (m *System) Namespace(ctx context.Context, name string) (Namespace, error) {
	s, err := m.read(ctx)
	if err != nil {
		return Namespace{}, err
	}
	ns, err := s.find(name)
	switch {
	case err != nil:
		return Namespace{}, err
	case s.changingNow(ns.Namespace):
		return Namespace{}, fmt.Errorf("%w: %q is being created or destroyed", ErrNotFound, name)
	case ns.Lost != "":
		return ns.Namespace, fmt.Errorf("%w: namespace %s: %s", ErrLost, name, ns.Lost)
	}
	return ns.Namespace, nil
}

// Extend implements Manager: the kernel does not resize a namespace that is
// enabled.
func (m *System) Extend(ctx context.Context, name string, size uint64) (Namespace, error) {
	ns, err := m.Namespace(ctx, name)
	if err != nil {
		return ns, err
	}
	if ns.Size >= size {
		return ns, nil
	}
	return ns, fmt.Errorf("%w: the kernel does not grow a namespace in place", ErrUnsupported)
}

// changing is what a change works with while it holds the locks.
type changing struct {
	*System
	held []*os.File
}

// run runs ndctl. Its exit code says too little; the caller reads back.
func (c *changing) run(ctx context.Context, args ...string) error {
	_, err := c.tool.run(ctx, c.held, args...)
	return err
}

// change runs f alone on this host, after what an interrupted change left has
// been repaired. Once begun it is not stopped when ctx ends, which could leave
// half a namespace: it goes on in the background, and its result is seen by
// whoever asks again.
func (m *System) change(ctx context.Context, f func(context.Context, *changing) error) error {
	if m.lockDir == "" {
		return fmt.Errorf("%w: this command only looks", ErrUnsupported)
	}
	select {
	case m.mu <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	lock, err := lockOne(ctx, filepath.Join(m.lockDir, lockFile))
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		<-m.mu
		if lock != nil {
			err = errors.Join(err, lock.Close())
		}
		return err
	}
	done := make(chan error, 1)
	go func() {
		err := m.repairAndRun(context.WithoutCancel(ctx), &changing{m, []*os.File{lock}}, f)
		err = errors.Join(err, lock.Close())
		<-m.mu
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the change goes on in the background, ask again: %w", ctx.Err())
	}
}

func (m *System) repairAndRun(ctx context.Context, c *changing, f func(context.Context, *changing) error) error {
	if err := c.repair(ctx); err != nil {
		return err
	}
	return f(ctx, c)
}

// repair finishes or undoes what the intents say was begun. Nearly always there
// are none, and reading the state, which takes long, is spared.
func (c *changing) repair(ctx context.Context) error {
	all, err := c.intents.list()
	if err != nil || len(all) == 0 {
		return err
	}
	s, err := c.readForChange(ctx)
	if err != nil {
		return err
	}
	for _, i := range all {
		ns, there := s.byUUID(i.UUID)
		if _, known := s.region(i.Region); !there && !known && i.Region != "" {
			// After a boot the kernel may not have found it yet, and what was left
			// half done may be there later.
			klog.V(2).InfoS("An interrupted change of a namespace waits for its region", "action", i.Action, "namespace", i.Name, "region", i.Region)
			continue
		}
		if there && !i.finished(ns.Namespace) {
			klog.InfoS("Removing what an interrupted change of a namespace left", "action", i.Action, "namespace", i.Name, "uuid", i.UUID)
			err := c.remove(ctx, ns)
			if err != nil && !errors.Is(err, ErrBusy) {
				// The next change tries again; others must not wait for it.
				klog.ErrorS(err, "What an interrupted change left cannot be removed yet", "namespace", i.Name, "uuid", i.UUID, "now", ns.dev)
				continue
			}
		}
		if err := c.intents.remove(i.Name); err != nil {
			return err
		}
	}
	return nil
}

// readForChange is read with a limit of its own.
func (c *changing) readForChange(ctx context.Context) (snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, c.tool.timeout)
	defer cancel()
	return c.read(ctx)
}
