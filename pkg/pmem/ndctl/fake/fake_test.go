package fake

import (
	"context"
	"errors"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/ndctltest"
)

func newManager() *Manager {
	return New(
		ndctl.Region{Name: ndctltest.RegionA, NUMANode: 0, Size: ndctltest.RegionSize, Align: ndctltest.RegionAlign, Emulated: true},
		ndctl.Region{Name: ndctltest.RegionB, NUMANode: 1, Size: ndctltest.RegionSize, Align: ndctltest.RegionAlign, Emulated: true},
	)
}

func TestConformance(t *testing.T) {
	ndctltest.Conformance(t, func(*testing.T) ndctl.Manager { return newManager() })
}

func TestInjectedErrors(t *testing.T) {
	ctx, m, boom := context.Background(), newManager(), errors.New("boom")
	req := ndctl.CreateRequest{Name: "n", Region: ndctltest.RegionA, Mode: ndctl.DevDax, Size: 1}
	m.FailBefore(Create, boom)
	m.FailAfter(Create, boom)
	if _, err := m.Create(ctx, req); !errors.Is(err, boom) {
		t.Errorf("first Create: %v", err)
	}
	if _, err := m.Namespace(ctx, "n"); !errors.Is(err, ndctl.ErrNotFound) {
		t.Errorf("FailBefore left a namespace: %v", err)
	}
	if _, err := m.Create(ctx, req); !errors.Is(err, boom) {
		t.Errorf("second Create: %v", err)
	}
	if _, err := m.Namespace(ctx, "n"); err != nil {
		t.Errorf("FailAfter did not do its work: %v", err)
	}
	m.SetInUse("n", true)
	if err := m.Destroy(ctx, "n"); !errors.Is(err, ndctl.ErrBusy) {
		t.Errorf("Destroy in use: %v", err)
	}
	m.SetInUse("n", false)
	m.Lose("n")
	if ns, err := m.Namespace(ctx, "n"); !errors.Is(err, ndctl.ErrLost) || ns.Lost == "" {
		t.Errorf("lost namespace: %+v, %v", ns, err)
	}
	if err := m.Destroy(ctx, "n"); err != nil {
		t.Errorf("Destroy of a lost namespace: %v", err)
	}
}
