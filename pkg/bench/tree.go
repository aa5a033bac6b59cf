package bench

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Tree is a directory tree used as data.
type Tree struct {
	Dir   string
	Files int   // regular files
	Bytes int64 // of the regular files
}

// SourceTree is the machine's Go source tree: real files of all sizes that
// are there wherever this project is built.
func SourceTree(ctx context.Context) (Tree, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return Tree{}, fmt.Errorf("find the Go source tree (go env GOROOT): %w", err)
	}
	return ReadTree(strings.TrimSpace(string(out)))
}

// ReadTree counts a tree. A symbolic link at its root is followed.
func ReadTree(dir string) (Tree, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return Tree{}, err
	}
	t := Tree{Dir: dir}
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		t.Files++
		t.Bytes += info.Size()
		return nil
	})
	return t, err
}

// CopyTree copies a tree with cp -a to dst, which must not exist, makes it
// durable, and returns how long both took.
func CopyTree(ctx context.Context, src Tree, dst string) (time.Duration, error) {
	begin := time.Now()
	if err := run(ctx, "cp", "-a", src.Dir, dst); err != nil {
		return 0, err
	}
	if err := syncFilesystem(dst); err != nil {
		return 0, err
	}
	return time.Since(begin), nil
}

// syncFilesystem makes all of the filesystem durable that dir lies on.
func syncFilesystem(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// DiffTree compares two trees with diff -r and returns an error that names
// the first differences.
func DiffTree(ctx context.Context, a, b string) error {
	return run(ctx, "diff", "-r", "--no-dereference", a, b)
}
