package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	regions := regionFlags{emulate: []string{"dir=" + filepath.Join(dir, "region") + ",numa=1,size=256Mi"}}
	m, err := regions.manager("")
	if err != nil {
		t.Fatal(err)
	}
	ns, err := m.Create(t.Context(), ndctl.CreateRequest{Name: "vol", Region: "region", Mode: ndctl.DevDax, Size: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, name := range []string{"vol", "plain"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	for arg, want := range map[string]backing{
		"vol":       {path: ns.Device, emulated: true, numaNode: 1}, // the namespace comes first
		"./vol":     {path: filepath.Join(dir, "vol"), numaNode: -1},
		"plain":     {path: filepath.Join(dir, "plain"), numaNode: -1},
		"/dev/null": {path: "/dev/null", numaNode: -1},
	} {
		if got, err := regions.resolve(t.Context(), arg); err != nil || got != want {
			t.Errorf("resolve(%q) = %+v, %v; want %+v", arg, got, err, want)
		}
	}
	_, err = regions.resolve(t.Context(), "nosuch")
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "discover") {
		t.Errorf("resolve(nosuch): %v, want a hint at discover", err)
	}
}

func TestResolveWithoutRegions(t *testing.T) {
	var none regionFlags
	if _, err := none.resolve(t.Context(), "nosuch"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
	dir := filepath.Join(t.TempDir(), "region")
	region := regionFlags{emulate: []string{"dir=" + dir + ",size=4Gi"}}
	if _, err := region.resolve(t.Context(), "nosuch"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a look made the region's directory: %v", err)
	}
	unsized := regionFlags{emulate: []string{"dir=" + dir}}
	if _, err := unsized.resolve(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "has no size") {
		t.Errorf("got %v, want a demand for a size", err)
	}
	bad := regionFlags{emulate: []string{"size=4Gi"}}
	if _, err := bad.resolve(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "--emulate") {
		t.Errorf("got %v, want an error about --emulate", err)
	}
}
