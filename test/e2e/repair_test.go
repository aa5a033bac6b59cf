package e2e

import (
	"os"
	"strings"
	"testing"
)

// TestRepair takes a volume with a damaged root directory through check,
// repair and mount: what was in the root is in lost+found.
func TestRepair(t *testing.T) {
	v := newVolume(t, 64<<20)
	v.mount(t)
	if err := os.Mkdir(v.path("dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(v.path("dir", "f"), []byte(payload), 0o600); err != nil {
		t.Fatal(err)
	}
	v.unmount(t)
	image, err := os.ReadFile(v.device)
	if err != nil {
		t.Fatal(err)
	}
	// A leaf begins with checksum, magic and owner.
	leaf := int64(strings.Index(string(image), "NVDL\x01\x00\x00\x00\x00\x00\x00\x00")) - 4
	if leaf < 0 || leaf%4096 != 0 {
		t.Fatalf("the leaf of the root is at %d", leaf)
	}
	damage(t, v.device, leaf, func(b []byte) { b[100] ^= 1 })
	for _, step := range []struct {
		flag string
		code int
	}{{"-n", 4}, {"--repair", 1}, {"-n", 0}, {"--repair", 0}} {
		if r := nvfs(t, "fsck", step.flag, v.device); r.code != step.code {
			t.Fatalf("fsck %s: want exit code %d: %s", step.flag, step.code, r)
		}
	}
	v.mount(t)
	list, err := os.ReadDir(v.path("lost+found"))
	if err != nil || len(list) != 1 {
		t.Fatalf("lost+found has %v, %v", list, err)
	}
	if got, err := os.ReadFile(v.path("lost+found", list[0].Name(), "f")); err != nil || string(got) != payload {
		t.Errorf("read %q, %v; want %q", got, err, payload)
	}
}
