//go:build qemu

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
	"github.com/nvfs-csi/nvfs-csi/test/e2e/qemu/guestjob"
)

// keepMarker is set by a test whose namespaces the next boot shall find.
const keepMarker = "NVFS_QEMU_KEEP"

// stateDir is where managers keep their locks, on a tmpfs of the guest.
const stateDir = "/var/lib/nvfs-csi"

// tools is the program with the commands that administrators use. It is nvfs-csi
// without what the CSI driver needs, and starts in half the time, which in a guest
// is seconds.
const tools = "nvfs"

func TestMain(m *testing.M) {
	if os.Getenv(guestjob.Marker) == "" {
		fmt.Fprintln(os.Stderr, "e2e/qemu/guest: these tests destroy namespaces and run in a guest only: make e2e-qemu")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// limit is the context of one test; a guest is 10 to 30 times slower than its
// host.
func limit(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// emptySystem returns a manager of the guest's regions, which have labels and
// no namespaces.
func emptySystem(t *testing.T) *ndctl.System {
	t.Helper()
	ctx := limit(t, 2*time.Minute)
	m, err := ndctl.NewSystem(ctx, stateDir)
	if err != nil {
		t.Fatal(err)
	}
	regions, err := m.Regions(ctx)
	if err != nil || len(regions) != 2 {
		t.Fatalf("regions of the guest: %+v, %v; want two", regions, err)
	}
	for _, r := range regions {
		if r.Labels {
			continue
		}
		if err := m.Prepare(ctx, r.Name); err != nil {
			t.Fatal(err)
		}
	}
	destroyAll(ctx, t, m)
	t.Cleanup(func() {
		if !t.Failed() && os.Getenv(keepMarker) == "" {
			destroyAll(context.WithoutCancel(ctx), t, m)
		}
	})
	return m
}

func destroyAll(ctx context.Context, t *testing.T, m ndctl.Manager) {
	t.Helper()
	all, err := m.Namespaces(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range all {
		if err := m.Destroy(ctx, ns.Name); err != nil && !errors.Is(err, ndctl.ErrNotFound) {
			t.Fatalf("%+v: %v", ns, err)
		}
	}
}

func create(ctx context.Context, t *testing.T, m ndctl.Manager, req ndctl.CreateRequest) ndctl.Namespace {
	t.Helper()
	ns, err := m.Create(ctx, req)
	if err != nil {
		t.Fatalf("Create(%+v): %v", req, err)
	}
	return ns
}

// command runs a program of the guest and returns what it printed.
func command(ctx context.Context, t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
