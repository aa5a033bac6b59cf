package mountd

import (
	"os"
	"path/filepath"
	"testing"
)

// A group may be removed by another mountd than the one that has made it, and
// the parent, which goes with the last one, counts memory again when it is
// made anew.
func TestCgroups(t *testing.T) {
	root := t.TempDir()
	must(t, os.WriteFile(filepath.Join(root, cgroupProcs), nil, 0o600))
	first, second := cgroups{root: root}, cgroups{root: root}
	for range 2 {
		g := first.open("vol-1")
		if g == nil {
			t.Fatal("no group")
		}
		parent := filepath.Dir(g.dir)
		if b, err := os.ReadFile(filepath.Join(parent, "cgroup.subtree_control")); err != nil || string(b) != "+memory" {
			t.Errorf("controllers %q, %v", b, err)
		}
		second.remove("vol-1")
		if _, err := os.Stat(g.dir); !os.IsNotExist(err) {
			t.Errorf("the group is left: %v", err)
		}
		must(t, os.RemoveAll(parent)) // a real one has no files that would be in the way
	}
	none := cgroups{root: t.TempDir()}
	if g := none.open("vol-1"); g != nil {
		t.Errorf("group %+v without a hierarchy", g)
	}
	none.remove("vol-1")
}
