package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

const (
	// eraseCheckpoint is after how many erased bytes the record is written.
	eraseCheckpoint = 1 << 30
	// maxErasures is how many volumes are erased at a time: one saturates the
	// memory of a region, two serve regions on different NUMA nodes.
	maxErasures = 2
)

// eraser erases and destroys deleted volumes in the background. It outlives
// the calls that ask for it and ends with the driver.
type eraser struct {
	driver *Driver
	ctx    context.Context
	cancel context.CancelFunc
	slots  chan struct{}

	mu   sync.Mutex
	jobs map[string]*eraseJob
	wg   sync.WaitGroup
}

// eraseJob is one volume; err is set before done is closed.
type eraseJob struct {
	done chan struct{}
	err  error
}

func (e *eraser) init(d *Driver) {
	e.driver = d
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.slots = make(chan struct{}, maxErasures)
	e.jobs = map[string]*eraseJob{}
}

// stop interrupts all erasures and waits for their ends.
func (e *eraser) stop() {
	e.cancel()
	e.wg.Wait()
}

// start erases a volume in phaseDeleting, or returns the job that already
// does. From here on the record belongs to the job.
func (e *eraser) start(r *record) *eraseJob {
	e.mu.Lock()
	defer e.mu.Unlock()
	if job, running := e.jobs[r.ID]; running {
		return job
	}
	job := &eraseJob{done: make(chan struct{})}
	e.jobs[r.ID] = job
	e.wg.Go(func() {
		job.err = e.run(r)
		e.mu.Lock()
		delete(e.jobs, r.ID)
		e.mu.Unlock()
		close(job.done)
	})
	return job
}

func (e *eraser) run(r *record) error {
	select {
	case e.slots <- struct{}{}:
	case <-e.ctx.Done():
		return e.ctx.Err()
	}
	defer func() { <-e.slots }()
	if err := e.driver.erase(e.ctx, r); err != nil {
		klog.ErrorS(err, "Erasing a deleted volume failed; it is tried again at the next DeleteVolume or restart", "volumeID", r.ID)
		return err
	}
	klog.V(2).InfoS("Deleted volume", "volumeID", r.ID, "region", r.Region)
	return nil
}

// wait returns the result of a job, or Aborted when that takes longer than the
// caller or the options allow.
func (e *eraser) wait(ctx context.Context, r *record, job *eraseJob, limit time.Duration) error {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-job.done:
		if job.err != nil {
			return errorf(codes.Aborted, "volume %s is not deleted yet: %w", r.ID, job.err)
		}
		return nil
	case <-timeout.C:
	case <-ctx.Done():
	}
	return errorf(codes.Aborted, "volume %s is being erased; ask again", r.ID)
}

// erase overwrites the volume as its parameters say, gives the namespace back
// and removes the record, in this order.
func (d *Driver) erase(ctx context.Context, r *record) error {
	params, err := r.params()
	if err != nil {
		return err
	}
	keep := params.Provision == ProvisionNamespace
	if err := d.wantRegion(ctx, r); err != nil {
		return err
	}
	if err := d.eraseFurther(ctx, r, params.EraseOnDelete || keep); err != nil {
		return err
	}
	ns, err := d.namespaces.Namespace(ctx, r.Namespace)
	switch {
	case errors.Is(err, ndctl.ErrNotFound):
		return d.forget(r.ID) // done before a crash, or the memory is gone
	case errors.Is(err, ndctl.ErrLost):
		klog.InfoS("Nothing to erase", "volumeID", r.ID, "reason", err.Error())
	case err != nil:
		return err
	case !r.owns(ns):
		klog.InfoS("The namespace of a deleted volume was replaced and is left alone", "volumeID", r.ID, "namespace", ns.Name, "uuid", ns.UUID)
		return d.forget(r.ID)
	case ns.InUse:
		return fmt.Errorf("%w: %s", ndctl.ErrBusy, ns.Device)
	case params.EraseOnDelete || keep:
		if err := d.zero(ctx, r, ns); err != nil {
			return err
		}
	}
	if !keep {
		if err := d.namespaces.Destroy(ctx, r.Namespace); err != nil && !errors.Is(err, ndctl.ErrNotFound) {
			return err
		}
	}
	return d.forget(r.ID)
}

// zero overwrites the device from where the record says that an earlier
// attempt came to.
func (d *Driver) zero(ctx context.Context, r *record, ns ndctl.Namespace) error {
	var saveErr error
	err := d.volumes.Zero(ctx, ns.Device, r.Erased, func(to uint64) {
		if saveErr != nil || to < r.Erased+eraseCheckpoint && to < ns.Size {
			return
		}
		r.Erased = to
		saveErr = d.records.save(r)
	})
	if err := joinReasons(err, saveErr); err != nil {
		return fmt.Errorf("erase %s: %w", ns.Device, err)
	}
	return nil
}
