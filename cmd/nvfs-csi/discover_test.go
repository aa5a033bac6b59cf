package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
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

// What there is without --emulate depends on the machine; the output does not.
func TestDiscoverOfTheMachine(t *testing.T) {
	if out := runDiscover(t); !strings.Contains(out, "flush modes of this CPU:") {
		t.Errorf("output %q", out)
	}
	var d discovery
	if err := json.Unmarshal([]byte(runDiscover(t, "-o", "json")), &d); err != nil || d.Regions == nil || d.Namespaces == nil || d.DIMMs == nil || d.Problems == nil {
		t.Errorf("%+v, %v; want lists, not null", d, err)
	}
	if len(d.Regions) == 0 && len(d.Problems) == 0 {
		t.Error("no region, and no reason why")
	}
}

func TestPrepareIsForRealRegions(t *testing.T) {
	cmd := newDiscoverCommand()
	cmd.SetArgs([]string{"--prepare", "region", "--emulate", "dir=" + filepath.Join(t.TempDir(), "region") + ",size=1Gi", "--state-dir", t.TempDir()})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "needs no labels") {
		t.Errorf("prepare of an emulated region: %v", err)
	}
}

func TestRemarks(t *testing.T) {
	if d := describeRegion(ndctl.Region{Name: "r", Unusable: "why, and what to do"}); !strings.Contains(d.Remark, "unusable: why, and what to do") {
		t.Errorf("%q", d.Remark)
	}
	if d := describeRegion(ndctl.Region{Name: "r", PersistenceDomain: ndctl.DomainMemoryController, Available: 2, LargestExtent: 1, BadBytes: 512}); !strings.Contains(d.Remark, "fragmented") || !strings.Contains(d.Remark, "512 bytes") || slices.Contains(d.FlushModes, pmem.EADR) {
		t.Errorf("%+v", d)
	}
	for mode, want := range map[ndctl.Mode]string{ndctl.Raw: "--mode=devdax", ndctl.Sector: "namespaceMode=sector", ndctl.DevDax: ""} {
		if d := describeNamespace(t.Context(), ndctl.Namespace{Name: "n", Mode: mode, Device: "/nosuch"}); !strings.Contains(d.Remark, want) || d.Content == "" {
			t.Errorf("%s: %+v", mode, d)
		}
	}
	for _, test := range []struct {
		ns      ndctl.Namespace
		content string
		want    string
	}{
		{ndctl.Namespace{Mode: ndctl.DevDax, Device: "/dev/dax0.0"}, "ext4", "daxio --zero --output=/dev/dax0.0"},
		{ndctl.Namespace{Mode: ndctl.FSDax, Device: "/dev/pmem0"}, "ext4", "blkdiscard --zeroout /dev/pmem0"},
		{ndctl.Namespace{Mode: ndctl.FSDax, InUse: true}, "ext4", "in use"},
		{ndctl.Namespace{Mode: ndctl.DevDax}, "blank at both ends", ""},
		{ndctl.Namespace{Name: "nvfs-pvc-1", Mode: ndctl.DevDax}, "NVFS volume nvfs-pvc-1", ""},
	} {
		if got := whyNotIdle(test.ns, test.content); !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%+v with %s: %q, want %q", test.ns, test.content, got, test.want)
		}
	}
	if d := describeNamespace(t.Context(), ndctl.Namespace{Name: "n", Mode: ndctl.DevDax, Lost: "gone", BadBytes: 512}); d.Remark != "unusable: gone; 512 bytes cannot be read (poison)" {
		t.Errorf("%q", d.Remark)
	}
	if got := dimmRemark(ndctl.DIMM{Health: "fatal", Dirty: true, FlagError: "not armed"}); got != "not armed; its last shutdown was dirty: what was in flight is lost; replace it: save the data first" {
		t.Errorf("%q", got)
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
