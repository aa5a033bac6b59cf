package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
)

// TestBenchFS runs the groups of `bench fs` that are quick, as small as
// they can be, and wants a figure for each filesystem.
func TestBenchFS(t *testing.T) {
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"small": 1 << 10, "large": 1 << 20} {
		if err := os.WriteFile(filepath.Join(tree, name), make([]byte, size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	report, page := filepath.Join(dir, "fs.json"), filepath.Join(dir, "fs.html")
	mustNVFS(t, "bench", "fs", "--quick", "--only", "sync,direct,linear,directory,create,tree,fsck",
		"--filesystems", "nt/through,null", "--memory", memoryRoot, "--size", "128M", "--tree", tree, "--json", report, "--html", page,
		"--sync-writes", "50", "--file-size", "1M", "--random-size", "1M", "--random-requests", "50",
		"--toggle-names", "16", "--toggle-operations", "64", "--small-names", "16",
		"--large-names", "256", "--create-threads", "2", "--create-files", "8", "--fsck-copies", "1")
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		bench.Report
		Targets []bench.TargetResult `json:"targets"`
	}
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		for _, name := range r.Filesystems {
			cold := row.ID == "tree-grep-cold" || row.ID == "small-read-cold" || row.ID == "large-read-cold"
			if v, found := row.Median[name]; found == (cold && r.Kinds[name] == bench.KindFloor) || found && v <= 0 {
				t.Errorf("%s on %s (pinned %v): %v, %v", row.ID, name, row.Pinned, v, found)
			}
		}
	}
	if len(r.Rows) == 0 || len(r.Filesystems) != 2 {
		t.Errorf("%d rows on %v, want some on two filesystems", len(r.Rows), r.Filesystems)
	}
	if len(r.Checks) == 0 || r.Checks[0].Inodes == 0 || r.Checks[0].Seconds <= 0 {
		t.Errorf("checks %+v, want those of NVFS", r.Checks)
	}
	judged := 0
	for _, target := range r.Targets {
		if target.Outcome != bench.NotMeasured {
			judged++
		}
	}
	if judged == 0 {
		t.Error("no target was judged")
	}
	if info, err := os.Stat(page); err != nil || info.Size() == 0 {
		t.Errorf("the page: %v", err)
	}
}

func TestBenchFSRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, args := range [][]string{
		{"--filesystems", "zfs"}, {"--filesystems", "quick/through"}, {"--file-size", "none"}, {"--size", "64T"},
	} {
		if r := nvfs(t, append([]string{"bench", "fs", "--no-tree"}, args...)...); r.code == 0 {
			t.Errorf("bench fs %v: %s", args, r)
		}
	}
}
