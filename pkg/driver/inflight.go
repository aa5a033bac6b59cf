package driver

import (
	"sync"

	"google.golang.org/grpc/codes"
)

// inflight admits one operation per volume at a time. Who comes second is
// turned away rather than queued: the orchestrator retries, and a queue would
// only hide an operation that hangs.
type inflight struct {
	mu  sync.Mutex
	ops map[string]string // volume ID -> operation
}

// begin returns the function that ends the operation, or an Aborted error.
func (f *inflight) begin(volumeID, operation string) (end func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if running, busy := f.ops[volumeID]; busy {
		return nil, errorf(codes.Aborted, "%s of volume %s has to wait: %s is still running", operation, volumeID, running)
	}
	if f.ops == nil {
		f.ops = map[string]string{}
	}
	f.ops[volumeID] = operation
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.ops, volumeID)
	}, nil
}

// busy reports whether an operation on the volume is running.
func (f *inflight) busy(volumeID string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, busy := f.ops[volumeID]
	return busy
}
