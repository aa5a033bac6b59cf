//go:build qemu

package guest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// What the second boot must find is written to the volume itself: nothing else
// of the guest outlives it.
type remembered struct {
	UUID    string
	Size    uint64
	Content [32]byte
}

// TestBeforeReboot leaves the namespaces b (NVFS) and c, and the hole that a
// left, so that the kernel numbers them anew.
func TestBeforeReboot(t *testing.T) {
	t.Setenv(keepMarker, "1")
	ctx := limit(t, 3*time.Minute)
	m := emptySystem(t)
	for _, name := range []string{"a", "b", "c"} {
		create(ctx, t, m, ndctl.CreateRequest{Name: name, Region: "region0", Mode: ndctl.DevDax, Size: 62 * mib})
	}
	b, err := m.Namespace(ctx, "b")
	if err != nil {
		t.Fatal(err)
	}
	command(ctx, t, "nvfs-csi", "mkfs", "b")
	dir := t.TempDir()
	mountNVFS(ctx, t, "b", dir, "flush=clwb")
	note := remembered{UUID: b.UUID, Size: b.Size, Content: writeFile(t, filepath.Join(dir, "content"), 4*mib)}
	data, err := json.Marshal(note)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "note"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	command(ctx, t, "umount", dir)
	if err := m.Destroy(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if b.Device != "/dev/dax0.1" {
		t.Logf("namespace b was %s, so that this test may show less than it could", b.Device)
	}
}

func TestAfterReboot(t *testing.T) {
	ctx := limit(t, 3*time.Minute)
	m, err := ndctl.NewSystem(ctx, stateDir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.Namespace(ctx, "b")
	if err != nil {
		t.Fatal(err)
	}
	if b.Device == "/dev/dax0.1" {
		t.Errorf("namespace b is still %s: the kernel was expected to number it anew", b.Device)
	}
	dir := t.TempDir()
	mountNVFS(ctx, t, "b", dir, "flush=clwb")
	data, err := os.ReadFile(filepath.Join(dir, "note"))
	if err != nil {
		t.Fatal(err)
	}
	var note remembered
	if err := json.Unmarshal(data, &note); err != nil {
		t.Fatal(err)
	}
	if b.UUID != note.UUID || b.Size != note.Size {
		t.Errorf("b is %+v, was %+v", b, note)
	}
	if got := sumFile(t, filepath.Join(dir, "content")); got != note.Content {
		t.Error("the content has changed over the reboot")
	}
	command(ctx, t, "umount", dir)
	command(ctx, t, "nvfs-csi", "fsck", "-n", "b")
	if c, err := m.Namespace(ctx, "c"); err != nil || c.Region != "region0" {
		t.Errorf("c: %+v, %v", c, err)
	}
}
