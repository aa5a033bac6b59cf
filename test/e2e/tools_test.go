package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFsckJSON wants a report that a program can read, clean or not.
func TestFsckJSON(t *testing.T) {
	v := newVolume(t, 64<<20)
	parse := func(r result) (problems, inodes int) {
		t.Helper()
		var report struct {
			Problems []json.RawMessage `json:"problems"`
			Totals   struct {
				Inodes int `json:"inodes"`
			} `json:"totals"`
		}
		if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
			t.Fatalf("%v in %s", err, r.stdout)
		}
		return len(report.Problems), report.Totals.Inodes
	}
	if problems, inodes := parse(mustNVFS(t, "fsck", "-n", "--json", v.device)); problems != 0 || inodes != 1 {
		t.Errorf("a fresh volume: %d problems, %d inodes", problems, inodes)
	}
	damage(t, v.device, 64<<20-4096, func(b []byte) { b[100] ^= 1 })
	r := nvfs(t, "fsck", "-n", "--json", "--threads", "1", v.device)
	if problems, _ := parse(r); r.code != 4 || problems == 0 {
		t.Errorf("a damaged volume: exit code %d, %d problems", r.code, problems)
	}
}

// TestMkfsOptions wants mkfs to do as it is told, and fsck to show it.
func TestMkfsOptions(t *testing.T) {
	const uuid = "0f5c1a5e-3f0a-4a52-9d5e-2f6f1d1f7c11"
	device := sparse(t, filepath.Join(memoryDir(t), "pmem"), 128<<20)
	r := mustNVFS(t, "mkfs", "--label", "scratch", "--uuid", uuid, "--size", "64M", device)
	if !strings.Contains(r.stdout, uuid) || !strings.Contains(r.stdout, "64 MiB") {
		t.Errorf("mkfs says %s", r.stdout)
	}
	r = mustNVFS(t, "fsck", "-n", "--json", device)
	if !strings.Contains(r.stdout, uuid) || !strings.Contains(r.stdout, `"label": "scratch"`) {
		t.Errorf("fsck says %s", r.stdout)
	}
	wantError(t, nvfs(t, "mkfs", "--force", "--uuid", "nonsense", device), 1, "nonsense")
	wantError(t, nvfs(t, "mkfs", "--force", "--size", "1G", device), 1, "larger")
	wantError(t, nvfs(t, "mkfs", "--force", "--size", "12X", device), 1, "12X")
	wantError(t, nvfs(t, "mkfs", "--force", "--label", strings.Repeat("l", 64), device), 1, "label")
	mustNVFS(t, "fsck", "-n", device) // unharmed
}

// TestNamespaceByName uses a namespace of an emulated region by its name, in
// each tool.
func TestNamespaceByName(t *testing.T) {
	d := newDriver(t)
	v := d.createVolume(t, "byname", 64<<20, nil)
	emulate := []string{"--emulate", d.regions[0], "--emulate", d.regions[1]}
	r := mustNVFS(t, append([]string{"discover", "-o", "json"}, emulate...)...)
	var found struct {
		FlushModes []string `json:"flushModes"`
		Regions    []struct {
			Name     string `json:"name"`
			NUMANode int    `json:"numaNode"`
			Emulated bool   `json:"emulated"`
		} `json:"regions"`
		Namespaces []struct {
			Name   string `json:"name"`
			Device string `json:"device"`
		} `json:"namespaces"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &found); err != nil {
		t.Fatal(err)
	}
	if len(found.Regions) != 2 || !found.Regions[1].Emulated || found.Regions[1].NUMANode != 1 || len(found.FlushModes) == 0 {
		t.Errorf("discover finds %+v", found)
	}
	if len(found.Namespaces) != 1 || found.Namespaces[0].Name != v.id {
		t.Fatalf("discover finds namespaces %+v, want %s", found.Namespaces, v.id)
	}
	mustNVFS(t, append([]string{"fsck", "-n", v.id}, emulate...)...)

	mnt := filepath.Join(d.dir, "mnt")
	if err := os.Mkdir(mnt, 0o700); err != nil {
		t.Fatal(err)
	}
	byName := testVolume{device: found.Namespaces[0].Device, mnt: mnt}
	mustNVFS(t, append([]string{"mount", v.id, mnt}, emulate...)...)
	writePayload(t, byName)
	wantPayload(t, byName)
	if err := v.stage(t); err == nil {
		t.Error("the driver staged a volume that is mounted by hand")
	}
	byName.unmount(t)
	v.up(t) // the same filesystem
	wantPayload(t, testVolume{mnt: v.target})
}
