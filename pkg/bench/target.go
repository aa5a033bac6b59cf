package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// A Filesystem can be made on memory and mounted, to be measured.
type Filesystem interface {
	// Name stands in the results.
	Name() string
	// Mount makes a fresh filesystem of size bytes on memory below dir,
	// an existing empty directory on a tmpfs, and mounts it below dir too.
	// Nothing is left behind when it fails.
	Mount(ctx context.Context, dir string, size int64) (*Mounted, error)
}

// Mounted is a filesystem to be measured.
type Mounted struct {
	Name string
	Dir  string // where files can be created
	// ServerPID is the process that serves it; 0 when the kernel does.
	ServerPID int
	// Note says what the name does not: the flush mode in force.
	Note string

	unmount func(ctx context.Context) error
}

// Unmount unmounts the filesystem and frees its memory. It is idempotent.
func (m *Mounted) Unmount(ctx context.Context) error {
	if m.unmount == nil {
		return nil
	}
	err := m.unmount(ctx)
	if err == nil {
		m.unmount = nil
	}
	return err
}

// MountAll mounts each filesystem in a directory of its own below dir. On an
// error everything is unmounted again.
func MountAll(ctx context.Context, dir string, size int64, all []Filesystem) ([]*Mounted, error) {
	var mounted []*Mounted
	for i, fs := range all {
		sub := filepath.Join(dir, fmt.Sprintf("fs%d", i))
		if err := os.Mkdir(sub, 0o700); err != nil {
			return nil, errors.Join(err, UnmountAll(context.WithoutCancel(ctx), mounted))
		}
		m, err := fs.Mount(ctx, sub, size)
		if err != nil {
			err = fmt.Errorf("mount %s: %w", fs.Name(), err)
			return nil, errors.Join(err, UnmountAll(context.WithoutCancel(ctx), mounted))
		}
		mounted = append(mounted, m)
	}
	return mounted, nil
}

// UnmountAll unmounts in reverse order, all of them even after an error.
func UnmountAll(ctx context.Context, mounted []*Mounted) error {
	var errs []error
	for i := len(mounted) - 1; i >= 0; i-- {
		if err := mounted[i].Unmount(ctx); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", mounted[i].Name, err))
		}
	}
	return errors.Join(errs...)
}
