package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// Trees are copies of one tree in memory: all of it, and parts of it, so that
// reading the source never waits for a disk.
type Trees struct {
	All          Tree
	Small, Large Tree // parts of All, by the size of the files
}

// largeFile is where large files begin, in bytes.
const largeFile = 256 << 10

// StageTrees copies src to dir, which it makes, small and large files apart.
// Symbolic links count as small files; other special files are left out.
func StageTrees(ctx context.Context, src, dir string) (*Trees, error) {
	src, err := filepath.EvalSymlinks(src)
	if err != nil {
		return nil, err
	}
	small, large := filepath.Join(dir, "small"), filepath.Join(dir, "large")
	for _, d := range []string{small, large} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	err = filepath.WalkDir(src, func(name string, d fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		rel, err := filepath.Rel(src, name)
		if err != nil {
			return err
		}
		return stageEntry(name, d, filepath.Join(small, rel), filepath.Join(large, rel))
	})
	if err != nil {
		return nil, fmt.Errorf("copy %s to memory: %w", src, err)
	}
	t := &Trees{}
	for d, tree := range map[string]*Tree{dir: &t.All, small: &t.Small, large: &t.Large} {
		if *tree, err = ReadTree(d); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func stageEntry(name string, d fs.DirEntry, small, large string) error {
	switch {
	case d.IsDir():
		return os.MkdirAll(small, 0o755)
	case d.Type() == fs.ModeSymlink:
		target, err := os.Readlink(name)
		if err != nil {
			return err
		}
		return os.Symlink(target, small)
	case !d.Type().IsRegular():
		return nil
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	if info.Size() < largeFile {
		return copyFile(name, small, info.Mode())
	}
	if err := os.MkdirAll(filepath.Dir(large), 0o755); err != nil {
		return err
	}
	return copyFile(name, large, info.Mode())
}

func copyFile(from, to string, mode fs.FileMode) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode.Perm()|0o200)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}

// searchTree reads all of a tree with grep -rF, for what is nowhere in it.
func searchTree(ctx context.Context, dir string) error {
	// Not spelled out, so that a source tree that holds this file has no match.
	pattern := "no" + "such" + "word" + "anywhere"
	err := run(ctx, "grep", "-rF", pattern, dir)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil
	}
	if err == nil {
		return fmt.Errorf("grep -rF %s %s found it", pattern, dir)
	}
	return err
}
