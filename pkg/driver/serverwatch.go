package driver

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

// watchInterval is how often the serving processes are looked at.
const watchInterval = 30 * time.Second

// serverWatch notices serving processes that were replaced or are gone. It
// only counts and reports; healing is the keeper's and NodeStageVolume's task.
type serverWatch struct {
	mu       sync.Mutex
	pids     map[string]int // of staged volumes, as last seen
	restarts int
	unserved map[string]string // staged volumes without a server, and why there is none
}

// run looks at the servers until ctx ends.
func (w *serverWatch) run(ctx context.Context, d *Driver) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		w.look(ctx, d)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (w *serverWatch) look(ctx context.Context, d *Driver) {
	all, err := d.records.list()
	if err != nil {
		klog.V(2).InfoS("Not all volumes are watched", "reason", err.Error())
	}
	pids, unserved := map[string]int{}, map[string]string{}
	for _, r := range all {
		if r.Staged == nil || r.kernel() || d.inflight.busy(r.ID) {
			continue
		}
		pid, err := serverPID(ctx, d, r.ID)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, mountd.ErrNotServed) {
			unserved[r.ID] = err.Error()
			klog.ErrorS(err, "A staged volume has no server", "volumeID", r.ID, "path", r.Staged.Path)
		}
		if err == nil {
			pids[r.ID] = pid
		}
	}
	w.update(pids, unserved)
}

func serverPID(ctx context.Context, d *Driver, id string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	status, err := d.nvfs.Status(ctx, id)
	return status.PID, err
}

func (w *serverWatch) update(pids map[string]int, unserved map[string]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, pid := range pids {
		if before, seen := w.pids[id]; seen && before != pid {
			w.restarts++
			klog.InfoS("The server of a volume was replaced", "volumeID", id, "pidBefore", before, "pid", pid)
		}
	}
	w.pids, w.unserved = pids, unserved
}

// counts returns how many servers were replaced since the start and how many
// staged volumes have none.
func (w *serverWatch) counts() (restarts, unserved int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.restarts, len(w.unserved)
}

// whyUnserved says why a staged volume had no server when it was last looked
// at; "" when it had one.
func (w *serverWatch) whyUnserved(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unserved[id]
}
