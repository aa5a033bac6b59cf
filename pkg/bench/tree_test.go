package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCopyAndDiffTree(t *testing.T) {
	src := filepath.Join(t.TempDir(), "src")
	if err := os.MkdirAll(filepath.Join(src, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"a": "12345", "sub/b": "678"} {
		if err := os.WriteFile(filepath.Join(src, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(src, "dangling")); err != nil {
		t.Fatal(err)
	}
	tree, err := ReadTree(src)
	if err != nil {
		t.Fatal(err)
	}
	if tree.Files != 2 || tree.Bytes != 8 {
		t.Errorf("counted %d files, %d bytes; want 2 and 8", tree.Files, tree.Bytes)
	}

	dst := filepath.Join(t.TempDir(), "dst")
	if _, err := CopyTree(t.Context(), tree, dst); err != nil {
		t.Fatal(err)
	}
	if err := DiffTree(t.Context(), src, dst); err != nil {
		t.Errorf("the copy differs: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dst, "sub/b"), []byte("xxx"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := DiffTree(t.Context(), src, dst); err == nil || !strings.Contains(err.Error(), "sub/b") {
		t.Errorf("got %v, want the name of the file that differs", err)
	}
}
