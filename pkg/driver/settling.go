package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// After a boot the driver may run before the kernel has found all NVDIMMs, loaded
// their modules and made the device nodes. What its records speak of and what is
// not there is then waited for: neither is it taken for lost, nor a volume for
// deleted because its namespace cannot be seen.

// settleInterval is how often is looked whether the memory is there. The kernel
// has no single event that says so.
const settleInterval = time.Second

// settling says what is waited for. Its methods are safe for concurrent use.
type settling struct {
	mu      sync.Mutex
	waiting string // what is missing; "" when nothing is waited for
	done    chan struct{}
}

func (s *settling) init() { s.done = make(chan struct{}) }

// missing returns what is waited for; "" when nothing is.
func (s *settling) missing() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

func (s *settling) set(missing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = missing
}

// memoryLateError says that something is not there yet, which is no proof that
// it is gone.
type memoryLateError struct{ missing string }

func (e *memoryLateError) Error() string {
	return "persistent memory of this node is not there yet, it is waited for: " + e.missing + ". Try again; nvfs-csi discover and dmesg say more"
}

// settled returns nil, or an Unavailable error while memory is waited for.
func (d *Driver) settled() error {
	missing := d.settling.missing()
	if missing == "" {
		return nil
	}
	return &codedError{code: codes.Unavailable, err: &memoryLateError{missing}}
}

// Settled is closed when the memory that the driver waits for after its start is
// there, or has been given up.
func (d *Driver) Settled() <-chan struct{} { return d.settling.done }

// settle waits until the memory is there, at most until the time that the
// options allow, and then goes on with what an earlier driver began.
func (d *Driver) settle(ctx context.Context) {
	start := time.Now()
	tick := time.NewTicker(settleInterval)
	defer tick.Stop()
	logged := ""
	for missing := d.settling.missing(); missing != ""; missing = d.missingMemory(ctx) {
		if time.Since(start) >= d.options.SettleTimeout {
			klog.ErrorS(nil, "Persistent memory is missing and not waited for any longer; volumes on it are reported as lost", "missing", missing, "waited", d.options.SettleTimeout)
			break
		}
		if missing != logged {
			klog.InfoS("Waiting for persistent memory", "missing", missing, "limit", d.options.SettleTimeout)
			logged = missing
		}
		d.settling.set(missing)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	if logged != "" {
		klog.InfoS("Ready after the wait for persistent memory", "waited", time.Since(start).Round(time.Millisecond))
	}
	d.settling.set("")
	close(d.settling.done)
	if err := d.resume(); err != nil {
		klog.ErrorS(err, "Some volumes cannot be resumed")
	}
}

// missingMemory says what is not there that should be; "" when all is.
func (d *Driver) missingMemory(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	regions, err := d.namespaces.Regions(ctx)
	if err != nil {
		return err.Error()
	}
	if len(regions) == 0 {
		return "any persistent memory region"
	}
	namespaces, err := d.namespaces.Namespaces(ctx)
	if err != nil {
		return err.Error()
	}
	// A record that cannot be read is reported elsewhere.
	records, _ := d.records.list()
	var missing []string
	for _, r := range records {
		missing = append(missing, r.missing(regions, namespaces)...)
	}
	return strings.Join(missing, ", ")
}

// missing lists what the volume needs and does not have. What a deletion or a
// creation has to find is not known, beyond the region that it is in.
func (r *record) missing(regions []ndctl.Region, namespaces []ndctl.Namespace) []string {
	if r.Phase != phaseReady {
		if !slices.ContainsFunc(regions, func(region ndctl.Region) bool { return region.Name == r.Region }) {
			return []string{fmt.Sprintf("region %s of volume %s", r.Region, r.ID)}
		}
		return nil
	}
	names := []string{r.Namespace}
	for _, f := range r.Further {
		if f.Ready {
			names = append(names, f.Namespace)
		}
	}
	var missing []string
	for _, name := range names {
		i := slices.IndexFunc(namespaces, func(ns ndctl.Namespace) bool { return ns.Name == name })
		switch {
		case i < 0:
			missing = append(missing, "namespace "+name)
		case namespaces[i].Lost != "":
			missing = append(missing, fmt.Sprintf("namespace %s (%s)", name, namespaces[i].Lost))
		}
	}
	return missing
}

// wantRegion refuses to take a namespace for gone while its whole region is: the
// memory may come back, with the volume's content.
func (d *Driver) wantRegion(ctx context.Context, r *record) error {
	if _, err := d.namespaces.Namespace(ctx, r.Namespace); !errors.Is(err, ndctl.ErrNotFound) {
		return nil // what it is, whoever needs it sees
	}
	regions, err := d.namespaces.Regions(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(regions, func(region ndctl.Region) bool { return region.Name == r.Region }) {
		return nil
	}
	return failedPrecondition("volume %s cannot be erased: region %s is not there. If its memory has been removed for good, remove %s", r.ID, r.Region, d.records.path(r.ID))
}
