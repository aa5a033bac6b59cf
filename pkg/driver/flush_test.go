package driver_test

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// chooserNode is a node whose flush mode can be chosen in all three ways.
func chooserNode(t *testing.T) (n *node, annotation *atomic.Value) {
	t.Helper()
	n = prepareNode(t, ndctl.Region{Name: "r0", Size: gib, Emulated: true})
	annotation = &atomic.Value{}
	annotation.Store("")
	n.annotation = func() string { return annotation.Load().(string) }
	n.options.FlushModeFile = filepath.Join(n.options.StateDir, "flush-mode")
	return n, annotation
}

// flushOf stages a volume of the class and returns what its server was told.
func (n *node) flushOf(id string) string {
	n.t.Helper()
	n.ok(n.stage(id))
	flush := n.nvfs.Spec(id).Flush
	n.ok(n.unstage(id))
	return flush
}

func TestFlushModeOfTheNode(t *testing.T) {
	n, annotation := chooserNode(t)
	n.options.FlushMode = "clwb"
	n.start()
	auto, demanded := n.mustCreate("auto"), n.mustCreate("demanded", driver.KeyFlushMode, "clflush")
	want := func(flush string) {
		t.Helper()
		if got := n.flushOf(auto); got != flush {
			t.Errorf("flush mode of a volume that leaves it to the node: %s, want %s", got, flush)
		}
		if got := n.flushOf(demanded); got != "clflush" {
			t.Errorf("flush mode of a volume that demands one: %s", got)
		}
	}
	want("clwb")
	n.ok(os.WriteFile(n.options.FlushModeFile, []byte("nt\n"), 0o600))
	want("nt")
	annotation.Store("clflushopt")
	want("clflushopt")
	annotation.Store("auto")
	want("auto")
	annotation.Store("")
	n.ok(os.WriteFile(n.options.FlushModeFile, nil, 0o600))
	want("clwb")
}

// A choice that cannot be honoured is told, and no other mode takes its place.
func TestFlushModeOfTheNodeThatIsNotPossible(t *testing.T) {
	n, annotation := chooserNode(t)
	n.start()
	auto, demanded := n.mustCreate("auto"), n.mustCreate("demanded", driver.KeyFlushMode, "clwb")
	for _, wrong := range []string{"movdir64b", "fast"} {
		annotation.Store(wrong)
		n.wantCode(n.stage(auto), codes.FailedPrecondition, wrong, driver.FlushModeAnnotation)
		if flush := n.flushOf(demanded); flush != "clwb" {
			t.Errorf("a volume that demands a mode got %s", flush)
		}
		_, err := n.create("another", 62*mib)
		n.wantCode(err, codes.ResourceExhausted, wrong)
		capacity, err := n.controller.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
		n.ok(err)
		if capacity.AvailableCapacity != 0 {
			t.Errorf("%s: capacity of a class that no region can serve: %v", wrong, capacity)
		}
		health, err := n.node.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
		n.ok(err)
		if h := health.BackendHealth; len(h) != 1 || h[0].Reason != "FlushModeNotPossible" {
			t.Errorf("%s: health of the node: %v", wrong, h)
		}
	}
	annotation.Store("")
	n.ok(os.WriteFile(n.options.FlushModeFile, make([]byte, 5000), 0o600))
	n.wantCode(n.stage(auto), codes.FailedPrecondition, n.options.FlushModeFile)
	n.ok(os.Remove(n.options.FlushModeFile))
	n.ok(n.stage(auto))
}
