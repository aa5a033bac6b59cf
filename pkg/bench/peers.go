package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// LoopFS is a filesystem of the kernel on a loop device over a file on the
// same tmpfs that the NVFS volumes of a run lie on.
type LoopFS struct {
	Type string // ext4, xfs
}

// mkfsQuiet are the options that make mkfs silent and willing to write to a
// file.
var mkfsQuiet = map[string][]string{
	"ext4": {"-q", "-F"},
	"xfs":  {"-q", "-f"},
}

// Name implements Filesystem.
func (l LoopFS) Name() string { return l.Type }

// Mount implements Filesystem. It needs root and the filesystem's mkfs.
func (l LoopFS) Mount(ctx context.Context, dir string, size int64) (*Mounted, error) {
	options, known := mkfsQuiet[l.Type]
	if !known {
		return nil, fmt.Errorf("no loop filesystem of type %q", l.Type)
	}
	image, mnt := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	ok := false
	defer func() {
		if !ok {
			os.Remove(image)
			os.Remove(mnt)
		}
	}()
	if err := createImage(ctx, image, size); err != nil {
		return nil, err
	}
	if err := os.Mkdir(mnt, 0o700); err != nil {
		return nil, err
	}
	if err := run(ctx, "mkfs."+l.Type, append(options, image)...); err != nil {
		return nil, err
	}
	// mount(8) attaches the loop device so that umount detaches it.
	if err := run(ctx, "mount", "-t", l.Type, "-o", "loop", image, mnt); err != nil {
		return nil, err
	}
	ok = true
	return &Mounted{Name: l.Name(), Dir: mnt, unmount: func(ctx context.Context) error {
		if err := run(ctx, "umount", mnt); err != nil {
			return err
		}
		return errors.Join(os.Remove(image), os.Remove(mnt))
	}}, nil
}

// createImage makes a file of zeroes that has all of its memory: persistent
// memory is there from the start, so the time in which a virtual machine gets
// memory from its host is not to be measured.
func createImage(ctx context.Context, name string, size int64) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zeroes := make([]byte, 1<<20)
	for left := size; left > 0 && err == nil; left -= int64(len(zeroes)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err = f.Write(zeroes[:min(left, int64(len(zeroes)))])
	}
	return err
}

func createSparse(name string, size int64) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// run executes a program; its error carries what the program said.
func run(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
}
