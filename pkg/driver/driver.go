package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/numa"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// Deps are what the driver works with. All but the functions are required.
type Deps struct {
	Namespaces ndctl.Manager
	NVFS       mountd.Mounter
	Volumes    VolumeFormatter
	Mount      mount.Interface
	// Kernel makes ext4 and xfs; without it only NVFS is offered.
	Kernel KernelFilesystems
	// CheckFlush returns nil when namespaces of the region can honour the
	// flush mode, else an error that says what they can. nil asks the CPU and
	// the kind of region.
	CheckFlush func(mode string, region ndctl.Region) error
	// FlushAnnotation returns the node's annotation FlushModeAnnotation as it
	// was last seen, "" for none. nil: the driver runs without an API server.
	FlushAnnotation func() string
	// PodResources asks the kubelet what CPUs pods have; nil: nobody knows.
	PodResources PodResources
	// CPUs is the topology of the machine; numa.System when empty.
	CPUs numa.Topology
	// Statfs is statfs(2) when nil.
	Statfs func(path string, buf *unix.Statfs_t) error
	// Ping makes the server of the mount at a path answer; mountd.Ping when
	// nil.
	Ping func(path string) error
}

func (d *Deps) validate() error {
	for name, missing := range map[string]bool{"Namespaces": d.Namespaces == nil, "NVFS": d.NVFS == nil, "Volumes": d.Volumes == nil, "Mount": d.Mount == nil} {
		if missing {
			return fmt.Errorf("dependency %s is missing", name)
		}
	}
	return nil
}

// Driver is the driver of one node. Its methods are safe for concurrent use.
type Driver struct {
	options         Options
	namespaces      ndctl.Manager
	nvfs            mountd.Mounter
	volumes         VolumeFormatter
	kernel          KernelFilesystems
	mounts          *mounts
	checkFlush      func(mode string, region ndctl.Region) error
	flushAnnotation func() string
	podResources    PodResources
	cpus            numa.Topology
	records         *records
	inflight        inflight
	eraser          eraser
	servers         serverWatch
	settling        settling
	metrics         *driverMetrics
	unlock          func() error
	closeOnce       sync.Once
	closeErr        error
}

// New returns a driver that owns options.StateDir until Close, which Run calls.
func New(options Options, deps Deps) (*Driver, error) {
	if err := errors.Join(options.Validate(), deps.validate()); err != nil {
		return nil, err
	}
	records, err := openRecords(options.StateDir)
	if err != nil {
		return nil, err
	}
	unlock, err := lockStateDir(options.StateDir)
	if err != nil {
		return nil, err
	}
	d := &Driver{
		options:         options,
		namespaces:      deps.Namespaces,
		nvfs:            deps.NVFS,
		volumes:         deps.Volumes,
		kernel:          deps.Kernel,
		mounts:          &mounts{table: deps.Mount, statfs: deps.Statfs, ping: deps.Ping},
		checkFlush:      deps.CheckFlush,
		flushAnnotation: deps.FlushAnnotation,
		podResources:    deps.PodResources,
		cpus:            deps.CPUs,
		records:         records,
		unlock:          unlock,
	}
	if d.cpus == "" {
		d.cpus = numa.System
	}
	if d.mounts.statfs == nil {
		d.mounts.statfs = unix.Statfs
	}
	if d.mounts.ping == nil {
		d.mounts.ping = mountd.Ping
	}
	if d.checkFlush == nil {
		d.checkFlush = checkFlush
	}
	d.eraser.init(d)
	d.settling.init()
	d.metrics = newMetrics(d)
	d.metrics.registry.MustRegister(localityMetrics{d})
	return d, nil
}

// Close ends what runs in the background and gives the state directory up. An
// erasure that is interrupted goes on with the next driver.
func (d *Driver) Close() error {
	d.closeOnce.Do(func() {
		d.eraser.stop()
		d.closeErr = d.unlock()
	})
	return d.closeErr
}

// Run serves until ctx ends, finishes the calls that are running, and closes
// the driver. It resumes erasures that an earlier driver began, as soon as the
// node's memory is there.
func (d *Driver) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var background sync.WaitGroup
	if d.options.SettleTimeout > 0 {
		d.settling.set(d.missingMemory(ctx))
	}
	if d.settled() == nil {
		d.settle(ctx)
	} else {
		background.Go(func() { d.settle(ctx) })
	}
	background.Go(func() { d.servers.run(ctx, d) })
	err := d.serve(ctx)
	cancel()
	background.Wait()
	return errors.Join(err, d.Close())
}

// resume goes on with the erasures that were interrupted.
func (d *Driver) resume() error {
	all, err := d.records.list()
	for _, r := range all {
		if r.Phase == phaseDeleting {
			d.eraser.start(r)
		}
	}
	return err
}
