//go:build qemu

package guest

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// On a platform whose CPU caches survive a power cut, and only there, eadr is a
// flush mode.
func TestEADR(t *testing.T) {
	ctx := limit(t, 3*time.Minute)
	m := emptySystem(t)
	for _, r := range discover(ctx, t).Regions {
		if r.PersistenceDomain != ndctl.DomainCPUCache || !slices.Contains(r.FlushModes, "eadr") {
			t.Errorf("region %+v", r)
		}
	}
	create(ctx, t, m, ndctl.CreateRequest{Name: "vol", Region: "region0", Mode: ndctl.DevDax, Size: 62 * mib})
	command(ctx, t, tools, "mkfs", "vol")
	dir := t.TempDir()
	mountNVFS(ctx, t, "vol", dir, "flush=eadr")
	want := writeFile(t, dir+"/file", mib)
	command(ctx, t, "umount", dir)
	mountNVFS(ctx, t, "vol", dir, "flush=eadr")
	if sumFile(t, dir+"/file") != want {
		t.Error("the file has changed")
	}
	command(ctx, t, "umount", dir)
}

// region0 has an NVDIMM without room for labels, region1 one that is not armed.
func TestUnusableRegions(t *testing.T) {
	ctx := limit(t, 3*time.Minute)
	d := discover(ctx, t)
	if len(d.Regions) != 2 || len(d.DIMMs) != 2 {
		t.Fatalf("discover: %+v", d)
	}
	for i, want := range []string{"nmem0 has no room for labels", "nmem1 is not armed"} {
		if r := d.Regions[i]; !strings.Contains(r.Remark, want) || r.LargestExtent != 0 {
			t.Errorf("%s: %+v, want %q", r.Name, r, want)
		}
	}
	if !slices.ContainsFunc(d.DIMMs, func(m ndctl.DIMM) bool { return strings.Contains(m.FlagError, "not armed") }) {
		t.Errorf("NVDIMMs: %+v", d.DIMMs)
	}
	m, err := ndctl.NewSystem(ctx, stateDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range d.Regions {
		if _, err := m.Create(ctx, ndctl.CreateRequest{Name: "x", Region: r.Name, Mode: ndctl.DevDax, Size: mib}); !errors.Is(err, ndctl.ErrUnsupported) {
			t.Errorf("Create in %s: %v, want ErrUnsupported", r.Name, err)
		}
		out, err := exec.CommandContext(ctx, tools, "discover", "--prepare", r.Name, "--yes", "--state-dir", stateDir).CombinedOutput()
		if err == nil {
			t.Errorf("--prepare %s: %s", r.Name, out)
		}
	}
	// The one namespace of a region without labels can be used as it is.
	command(ctx, t, "ndctl", "create-namespace", "--force", "--reconfig=namespace0.0", "--mode=devdax", "--map=mem")
	all, err := m.Namespaces(ctx)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(ns ndctl.Namespace) bool { return ns.Region == "region0" })
	if i < 0 || all[i].Mode != ndctl.DevDax || all[i].Name == "" || all[i].Lost != "" {
		t.Fatalf("namespaces %+v", all)
	}
	if err := m.Destroy(ctx, all[i].Name); !errors.Is(err, ndctl.ErrUnsupported) {
		t.Errorf("Destroy of the namespace that fills its region: %v", err)
	}
	command(ctx, t, tools, "mkfs", "--force", all[i].Name)
	command(ctx, t, tools, "fsck", "-n", all[i].Name)
}
