package e2e

import (
	"os"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
)

// TestSourceTree takes a real tree through copy, comparison, check, remount
// and removal.
func TestSourceTree(t *testing.T) {
	tree, err := bench.SourceTree(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v := newVolume(t, 1<<30)
	v.mount(t)
	fresh := freeSpace(t, v.mnt)

	copied := v.path("go")
	if _, err := bench.CopyTree(t.Context(), tree, copied); err != nil {
		t.Fatal(err)
	}
	if err := bench.DiffTree(t.Context(), tree.Dir, copied); err != nil {
		t.Fatalf("the copy differs: %v", err)
	}
	v.unmount(t)
	v.check(t)

	v.mount(t)
	if err := bench.DiffTree(t.Context(), tree.Dir, copied); err != nil {
		t.Errorf("after a remount the copy differs: %v", err)
	}
	if got, err := bench.ReadTree(copied); err != nil || got.Files != tree.Files || got.Bytes != tree.Bytes {
		t.Errorf("after a remount: %d files, %d bytes, error %v; want %d and %d", got.Files, got.Bytes, err, tree.Files, tree.Bytes)
	}
	if err := os.RemoveAll(copied); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the free space is that of the fresh volume", func() bool { return freeSpace(t, v.mnt) == fresh })
	v.unmount(t)
	v.check(t)

	v.mount(t)
	if got := freeSpace(t, v.mnt); got != fresh {
		t.Errorf("after a remount %+v is free, of the fresh volume %+v", got, fresh)
	}
}
