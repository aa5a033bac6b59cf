//go:build qemu

package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

const mib = 1 << 20

// A devdax namespace on a fresh machine, from the labels to a verified file.
func TestSmoke(t *testing.T) {
	ctx := limit(t, 2*time.Minute)
	prepareByCommand(ctx, t)
	m := emptySystem(t)
	ns := create(ctx, t, m, ndctl.CreateRequest{Name: "smoke", Region: "region1", Mode: ndctl.DevDax, Size: 100 * mib})
	if ns.NUMANode != 1 || ns.Size < 100*mib || !strings.HasPrefix(ns.Device, "/dev/dax") {
		t.Errorf("created %+v", ns)
	}
	command(ctx, t, tools, "mkfs", "smoke")
	dir := t.TempDir()
	mountNVFS(ctx, t, "smoke", dir, "flush=clwb")
	want := writeFile(t, filepath.Join(dir, "file"), 4*mib)
	if err := m.Destroy(ctx, "smoke"); err == nil {
		t.Error("a namespace was destroyed while it was served")
	}
	command(ctx, t, "umount", dir)
	command(ctx, t, tools, "fsck", "-n", "smoke")
	mountNVFS(ctx, t, "smoke", dir, "flush=nt,ro")
	if got := sumFile(t, filepath.Join(dir, "file")); got != want {
		t.Error("the file has changed over an unmount")
	}
	command(ctx, t, "umount", dir)
}

// prepareByCommand gives both regions labels with the command that an
// administrator uses, after discover has told to.
func prepareByCommand(ctx context.Context, t *testing.T) {
	t.Helper()
	before := discover(ctx, t)
	for _, r := range before.Regions {
		if !strings.Contains(r.Unusable, "nvfs-csi discover --prepare "+r.Name) {
			t.Fatalf("discover does not tell how to make %s usable: %+v", r.Name, r)
		}
		command(ctx, t, tools, "discover", "--prepare", r.Name, "--yes", "--state-dir", stateDir)
	}
	after := discover(ctx, t)
	for i, r := range after.Regions {
		if r.Unusable != "" || !r.Labels || r.NUMANode != i || r.PersistenceDomain != ndctl.DomainMemoryController || r.LargestExtent != r.Size {
			t.Errorf("prepared region %+v", r)
		}
		if modes := strings.Join(r.FlushModes, " "); !strings.Contains(modes, "clwb") || strings.Contains(modes, "eadr") || strings.Contains(modes, "msync") {
			t.Errorf("flush modes of %s: %s", r.Name, modes)
		}
	}
	if len(after.Regions) != 2 || len(after.Namespaces) != 0 || len(after.Problems) != 0 || len(after.DIMMs) != 2 {
		t.Errorf("discover: %+v", after)
	}
}

// discovered is what discover -o json prints, as far as tests look at it.
type discovered struct {
	Regions []struct {
		ndctl.Region
		FlushModes []string `json:"flushModes"`
		Remark     string   `json:"remark"`
	} `json:"regions"`
	Namespaces []struct {
		ndctl.Namespace
		Content string `json:"content"`
		Remark  string `json:"remark"`
	} `json:"namespaces"`
	DIMMs    []ndctl.DIMM `json:"dimms"`
	Problems []string     `json:"problems"`
}

func discover(ctx context.Context, t *testing.T) discovered {
	t.Helper()
	var d discovered
	if err := json.Unmarshal([]byte(command(ctx, t, tools, "discover", "-o", "json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func mountNVFS(ctx context.Context, t *testing.T, path, dir, options string) {
	t.Helper()
	command(ctx, t, tools, "mount", "-o", options, path, dir)
}

// writeFile writes size bytes that no two calls share and returns their sum.
func writeFile(t *testing.T, path string, size int) [32]byte {
	t.Helper()
	block := []byte(time.Now().String() + path)
	data := bytes.Repeat(block, size/len(block)+1)[:size]
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(data)
}

func sumFile(t *testing.T, path string) [32]byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(data)
}
