//go:build qemu

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// Memory keeps its content over destroy and create. An ext4 of yesterday at the
// same offset must be seen for what it is, and neither mounted nor kept.
func TestOldContentIsNotMistakenForNew(t *testing.T) {
	ctx := limit(t, 3*time.Minute)
	m := emptySystem(t)
	req := ndctl.CreateRequest{Name: "old", Region: "region0", Mode: ndctl.DevDax, Size: 62 * mib}
	ns := create(ctx, t, m, req)
	command(ctx, t, tools, "mkfs", "--force", "old") // there may be something older still
	if err := m.Destroy(ctx, "old"); err != nil {
		t.Fatal(err)
	}
	again := create(ctx, t, m, req)
	if again.UUID == ns.UUID {
		t.Error("the new namespace has the UUID of the old one")
	}
	out, err := exec.CommandContext(ctx, tools, "mkfs", "old").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "would be destroyed") {
		t.Errorf("mkfs over an old volume: %v, %s; the kernel is known to keep the content", err, out)
	}
}

// A creation that failed leaves a namespace that takes space; it is listed with
// a reason, and can be destroyed.
func TestLeakOfAFailedCreationIsReported(t *testing.T) {
	ctx := limit(t, 3*time.Minute)
	m := emptySystem(t)
	if out, err := exec.CommandContext(ctx, "ndctl", "create-namespace", "--region=region0", "--mode=sector", "--size=16M", "--name=leaked").CombinedOutput(); err == nil {
		t.Fatalf("a sector namespace of 16 MiB was made, which this kernel did not do: %s", out)
	}
	if ns, err := m.Namespace(ctx, "leaked"); !errors.Is(err, ndctl.ErrLost) || ns.Raw != 16*mib {
		t.Errorf("Namespace = %+v, %v; want ErrLost", ns, err)
	}
	found := false
	for _, ns := range discover(ctx, t).Namespaces {
		found = found || ns.Name == "leaked" && strings.Contains(ns.Remark, "ndctl enable-namespace")
	}
	if !found {
		t.Error("discover does not report it")
	}
	if err := m.Destroy(ctx, "leaked"); err != nil {
		t.Error(err)
	}
	wantNoneLeft(t, m)
}

func wantNoneLeft(t *testing.T, m *ndctl.System) {
	t.Helper()
	ctx := limit(t, callTimeout)
	if left, err := m.Namespaces(ctx); err != nil || len(left) != 0 {
		t.Errorf("left: %+v, %v", left, err)
	}
	regions, err := m.Regions(ctx)
	for _, r := range regions {
		if r.Available != r.Size || r.LargestExtent != r.Size {
			t.Errorf("region %+v is not empty", r)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// The kernel would let go of a mounted namespace only with an error, and of a
// devdax namespace under its users without one.
func TestUsedNamespaceIsNotDestroyed(t *testing.T) {
	ctx := limit(t, 3*time.Minute)
	m := emptySystem(t)
	ns := create(ctx, t, m, ndctl.CreateRequest{Name: "used", Region: "region0", Mode: ndctl.FSDax, Size: 60 * mib})
	command(ctx, t, "mkfs.ext4", "-q", "-b", "4096", ns.Device)
	dir := t.TempDir()
	command(ctx, t, "mount", "-o", "dax", ns.Device, dir)
	if err := m.Destroy(ctx, "used"); !errors.Is(err, ndctl.ErrBusy) {
		t.Errorf("Destroy of a mounted namespace: %v, want ErrBusy", err)
	}
	if ns, err := m.Namespace(ctx, "used"); err != nil || !ns.InUse {
		t.Errorf("mounted namespace: %+v, %v", ns, err)
	}
	command(ctx, t, "umount", dir)
	if err := m.Destroy(ctx, "used"); err != nil {
		t.Error(err)
	}
}

// The mapping of /dev/pmemN is page cache, where no flush instruction makes
// anything durable.
func TestBlockDeviceUnderNVFSTakesMsyncOnly(t *testing.T) {
	ctx := limit(t, 3*time.Minute)
	m := emptySystem(t)
	ns := create(ctx, t, m, ndctl.CreateRequest{Name: "block", Region: "region0", Mode: ndctl.FSDax, Size: 28 * mib})
	command(ctx, t, tools, "mkfs", "--force", ns.Device)
	dir := t.TempDir()
	out, err := exec.CommandContext(ctx, tools, "mount", "-o", "flush=clwb", ns.Device, dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "possible: msync") || !strings.Contains(string(out), "devdax") {
		t.Errorf("flush=clwb on %s: %v, %s", ns.Device, err, out)
	}
	mountNVFS(ctx, t, ns.Device, dir, "flush=auto")
	command(ctx, t, "umount", dir)
}

// A write to a device node that is missing would make a regular file in /dev.
func TestMissingDeviceNodeIsReported(t *testing.T) {
	ctx := limit(t, 3*time.Minute)
	m := emptySystem(t)
	ns := create(ctx, t, m, ndctl.CreateRequest{Name: "gone", Region: "region0", Mode: ndctl.DevDax, Size: 14 * mib})
	if err := os.Rename(ns.Device, ns.Device+"-away"); err != nil {
		t.Fatal(err)
	}
	if lost, err := m.Namespace(ctx, "gone"); !errors.Is(err, ndctl.ErrLost) || !strings.Contains(lost.Lost, "mount the host's /dev") {
		t.Errorf("Namespace = %+v, %v", lost, err)
	}
	if out, err := exec.CommandContext(ctx, tools, "mkfs", ns.Device).CombinedOutput(); err == nil {
		t.Errorf("mkfs made a volume on a device that is not there: %s", out)
	}
	if _, err := os.Stat(ns.Device); err == nil {
		t.Error("something made a file in /dev")
	}
	if err := os.WriteFile(ns.Device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if lost, err := m.Namespace(ctx, "gone"); !errors.Is(err, ndctl.ErrLost) || !strings.Contains(lost.Lost, "is not the device") {
		t.Errorf("a file in the place of the node: %+v, %v", lost, err)
	}
	if err := os.Rename(ns.Device+"-away", ns.Device); err != nil {
		t.Fatal(err)
	}
}

// 100 cycles by four callers leave the regions and the label areas as they were.
func TestCyclesLeakNothing(t *testing.T) {
	m := emptySystem(t)
	slots := labelSlots(t)
	ctx := limit(t, 8*time.Minute)
	var g errgroup.Group
	for caller := range 4 {
		g.Go(func() error {
			mode := []ndctl.Mode{ndctl.DevDax, ndctl.FSDax, ndctl.Sector, ndctl.DevDax}[caller]
			for i := range 25 {
				req := ndctl.CreateRequest{Name: fmt.Sprintf("cycle-%d-%d", caller, i), Region: fmt.Sprintf("region%d", caller%2), Mode: mode, Size: uint64(10+7*caller) * mib}
				ns, err := m.Create(ctx, req)
				if err != nil {
					return fmt.Errorf("%s: %w", req.Name, err)
				}
				if ns.Name != req.Name || ns.Mode != mode || ns.Region != req.Region {
					return fmt.Errorf("asked for %+v, got %+v", req, ns)
				}
				if err := m.Destroy(ctx, req.Name); err != nil {
					return fmt.Errorf("%s: %w", req.Name, err)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	wantNoneLeft(t, m)
	if now := labelSlots(t); now != slots {
		t.Errorf("free label slots: %s before, %s after", slots, now)
	}
}

func labelSlots(t *testing.T) string {
	t.Helper()
	var all bytes.Buffer
	for _, dimm := range []string{"nmem0", "nmem1"} {
		text, err := os.ReadFile("/sys/bus/nd/devices/" + dimm + "/available_slots")
		if err != nil {
			t.Fatal(err)
		}
		all.Write(bytes.TrimSpace(text))
		all.WriteByte(' ')
	}
	return all.String()
}
