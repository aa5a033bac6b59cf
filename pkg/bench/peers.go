package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// LoopFS is a filesystem of the kernel on a loop device over a file on the
// same tmpfs that the NVFS volumes of a run lie on.
type LoopFS struct {
	Type string // ext2, ext4, xfs, btrfs
}

// loopTypes are the options that make mkfs silent and willing to write to a
// file. ext2 and ext4 get as many inodes as NVFS, one for 16 KiB, and write all
// of their tables at once, not in the background of a measurement.
var loopTypes = map[string][]string{
	"ext2":  {"-q", "-F", "-i", "16384", "-E", "lazy_itable_init=0"},
	"ext4":  {"-q", "-F", "-i", "16384", "-E", "lazy_itable_init=0,lazy_journal_init=0"},
	"xfs":   {"-q", "-f"},
	"btrfs": {"-q", "-f"},
}

// loopPackages are the Debian packages of mkfs.
var loopPackages = map[string]string{"ext2": "e2fsprogs", "ext4": "e2fsprogs", "xfs": "xfsprogs", "btrfs": "btrfs-progs"}

// Name implements Filesystem.
func (l LoopFS) Name() string { return l.Type }

// Kind implements Filesystem.
func (LoopFS) Kind() Kind { return KindKernel }

// Missing says why this machine cannot mount such a filesystem, and what
// helps; "" when it can.
func (l LoopFS) Missing(ctx context.Context) string {
	mkfs := "mkfs." + l.Type
	if _, err := exec.LookPath(mkfs); err != nil {
		return fmt.Sprintf("%s is not installed: apt-get install %s", mkfs, loopPackages[l.Type])
	}
	if kernelHas(l.Type) {
		return ""
	}
	// The module may not have been needed yet.
	if err := run(ctx, "modprobe", l.Type); err != nil || !kernelHas(l.Type) {
		return fmt.Sprintf("this kernel has no %s: /proc/filesystems does not list it and modprobe %s did not help", l.Type, l.Type)
	}
	return ""
}

func kernelHas(fstype string) bool {
	known, err := os.ReadFile("/proc/filesystems")
	return err == nil && slices.Contains(strings.Fields(string(known)), fstype)
}

// Mount implements Filesystem. It needs root and the filesystem's mkfs.
func (l LoopFS) Mount(ctx context.Context, dir string, size int64) (*Mounted, error) {
	options, known := loopTypes[l.Type]
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
	if err := run(ctx, "mkfs."+l.Type, append(slices.Clone(options), image)...); err != nil {
		return nil, err
	}
	// mount(8) attaches the loop device so that umount detaches it.
	mount := func(ctx context.Context, _ *Mounted) error {
		return run(ctx, "mount", "-t", l.Type, "-o", "loop", image, mnt)
	}
	if err := mount(ctx, nil); err != nil {
		return nil, err
	}
	ok = true
	return &Mounted{Name: l.Name(), Dir: mnt, image: image, attach: mount,
		detach: func(ctx context.Context) error { return run(ctx, "umount", mnt) },
		remove: func() error { return errors.Join(os.Remove(image), os.Remove(mnt)) },
	}, nil
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
