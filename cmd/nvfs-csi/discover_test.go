package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func runDiscover(t *testing.T, args ...string) string {
	t.Helper()
	cmd := newDiscoverCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestDiscoverWithoutRegions(t *testing.T) {
	out := runDiscover(t)
	for _, want := range []string{"flush modes of this CPU:", "no region was named", "--emulate"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q does not say %q", out, want)
		}
	}
	var d discovery
	if err := json.Unmarshal([]byte(runDiscover(t, "-o", "json")), &d); err != nil || d.Regions == nil || len(d.Regions) != 0 {
		t.Errorf("%+v, %v; want an empty list of regions", d, err)
	}
}

func TestDiscoverMakesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "region")
	out := runDiscover(t, "--emulate", "dir="+dir+",size=1Gi")
	if !strings.Contains(out, "region") || !strings.Contains(out, "no namespaces") {
		t.Errorf("output %q", out)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the region's directory was made: %v", err)
	}
}
