package driver_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/fake"
)

// newFixedNode starts a driver over a region whose namespaces cannot be
// extended, as real ones.
func newFixedNode(t *testing.T) *node {
	t.Helper()
	n := prepareNode(t, ndctl.Region{Name: "r0", Size: gib, PersistenceDomain: ndctl.DomainMemoryController})
	n.start()
	return n
}

// sizes are the usable sizes of all namespaces.
func (n *node) sizes() (total uint64, names []string) {
	n.t.Helper()
	all, err := n.ns.Namespaces(n.t.Context())
	n.ok(err)
	for _, ns := range all {
		total += ns.Size
		names = append(names, ns.Name)
	}
	slices.Sort(names)
	return total, names
}

func (n *node) expand(id string, required int64) (int64, error) {
	response, err := n.node.NodeExpandVolume(n.t.Context(), expandRequest(n, id, required, 0))
	return response.GetCapacityBytes(), err
}

// TestExpandOntoFurtherNamespaces grows a volume twice, mounts it again after a
// restart of the driver, with its record and without, and deletes it.
func TestExpandOntoFurtherNamespaces(t *testing.T) {
	n := newFixedNode(t)
	id := n.mounted("pvc-1")
	for i, required := range []int64{100 * mib, 100 * mib, 200 * mib} {
		got, err := n.expand(id, required)
		n.ok(err)
		total, names := n.sizes()
		if got < required || uint64(got) != total || len(names) != []int{2, 2, 3}[i] {
			t.Fatalf("grown to %d: %d bytes, namespaces %v of %d", required, got, names, total)
		}
		n.restart()
	}
	_, names := n.sizes()
	if names[1] != id+"-1" && !strings.HasSuffix(names[1], "-1") {
		t.Errorf("namespaces %v", names)
	}
	if devices := n.nvfs.Spec(id).Devices; len(devices) != 2 {
		t.Errorf("the server has %v", devices)
	}
	if orphans, err := n.driver.Orphans(t.Context()); err != nil || len(orphans) != 0 {
		t.Errorf("orphans %v, %v", orphans, err)
	}
	for _, lost := range []bool{false, true} {
		n.ok(n.unpublish(id, "pod"))
		n.ok(n.unstage(id))
		if lost {
			n.ok(os.Remove(n.recordPath(id)))
		}
		n.ok(n.stage(id))
		n.ok(n.publish(id, "pod"))
		if devices := n.nvfs.Spec(id).Devices; len(devices) != 2 {
			t.Errorf("mounted again (record lost: %v) with devices %v", lost, devices)
		}
	}
	if from := n.volumes.ZeroedFrom(); len(from) != 0 {
		t.Errorf("erased from %v while it was in use", from)
	}
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.unstage(id))
	n.ok(n.delete(id))
	n.wantNothing()
	if from := n.volumes.ZeroedFrom(); !slices.Equal(from, []uint64{0, 0, 0}) {
		t.Errorf("erased from %v, want all three namespaces", from)
	}
}

// TestExpandIsInterrupted: whichever step fails, the retry finishes the growth
// with one further namespace, and deletion instead of the retry leaves nothing.
func TestExpandIsInterrupted(t *testing.T) {
	boom := errors.New("boom")
	for name, fail := range map[string]func(*node){
		"ahead of the namespace": func(n *node) { n.ns.FailBefore(fake.Create, boom) },
		"behind the namespace":   func(n *node) { n.ns.FailAfter(fake.Create, boom) },
		"growth":                 func(n *node) { n.nvfs.FailGrow(boom) },
	} {
		for _, again := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				n := newFixedNode(t)
				id := n.mounted("pvc-1")
				fail(n)
				_, err := n.expand(id, 100*mib)
				n.wantCode(err, codes.Internal, "boom")
				n.restart()
				if orphans, err := n.driver.Orphans(t.Context()); err != nil || len(orphans) != 0 {
					t.Errorf("orphans %v, %v", orphans, err)
				}
				if again {
					got, err := n.expand(id, 100*mib)
					n.ok(err)
					if total, names := n.sizes(); len(names) != 2 || uint64(got) != total || len(n.nvfs.Spec(id).Devices) != 1 {
						t.Errorf("%d bytes, namespaces %v of %d, devices %v", got, names, total, n.nvfs.Spec(id).Devices)
					}
				}
				n.ok(n.unpublish(id, "pod"))
				n.ok(n.unstage(id))
				n.ok(n.stage(id))
				n.ok(n.unstage(id))
				n.ok(n.delete(id))
				n.wantNothing()
			})
		}
	}
}

// TestFurtherNamespaceIsErasedFirst: memory keeps what was on it, and the server
// takes blank devices only. What it was told of is never erased.
func TestFurtherNamespaceIsErasedFirst(t *testing.T) {
	n := newFixedNode(t)
	id := n.mounted("pvc-1")
	n.ns.FailAfter(fake.Create, errors.New("boom"))
	if _, err := n.expand(id, 100*mib); err == nil {
		t.Fatal("no error")
	}
	all, err := n.ns.Namespaces(t.Context())
	n.ok(err)
	for _, ns := range all {
		if ns.Name != id {
			n.volumes.Put(ns.Device, driver.Found{Content: driver.ContentForeign, What: "what another tenant has left"})
		}
	}
	_, err = n.expand(id, 100*mib)
	n.ok(err)
	if from := n.volumes.ZeroedFrom(); !slices.Equal(from, []uint64{0}) {
		t.Errorf("erased from %v, want once", from)
	}
	for _, ns := range all {
		if ns.Name != id {
			n.volumes.Put(ns.Device, driver.Found{Content: driver.ContentForeign, What: "a device of the volume"})
		}
	}
	n.nvfs.FailGrow(errors.New("boom"))
	if _, err = n.expand(id, 100*mib); err == nil {
		t.Fatal("no error")
	}
	n.restart()
	_, err = n.expand(id, 100*mib)
	n.ok(err)
	if from := n.volumes.ZeroedFrom(); len(from) != 1 {
		t.Errorf("erased from %v: a part of the volume is gone", from)
	}
}

// TestFurtherNamespaceIsMissing: without it the volume is not mounted, and it
// can be deleted.
func TestFurtherNamespaceIsMissing(t *testing.T) {
	n := newFixedNode(t)
	id := n.mounted("pvc-1")
	_, err := n.expand(id, 100*mib)
	n.ok(err)
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.unstage(id))
	_, names := n.sizes()
	n.ns.Forget(names[1])
	n.wantCode(n.stage(id), codes.FailedPrecondition, "is lost")
	n.ok(n.delete(id))
	n.wantNothing()
}

func TestExpandOntoFurtherRefuses(t *testing.T) {
	n := newFixedNode(t)
	id := n.mounted("pvc-1")
	_, err := n.expand(id, 2*gib)
	n.wantCode(err, codes.OutOfRange, "no room")
	_, err = n.node.NodeExpandVolume(t.Context(), expandRequest(n, id, 100*mib, 101*mib))
	n.wantCode(err, codes.OutOfRange)
	if _, names := n.sizes(); len(names) != 1 {
		t.Errorf("namespaces %v", names)
	}
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.unstage(id))
	n.ok(n.delete(id))
	n.wantNothing()
}
