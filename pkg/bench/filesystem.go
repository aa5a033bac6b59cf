package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Kind says what a filesystem is to a comparison.
type Kind string

// The kinds.
const (
	KindNVFS   Kind = "nvfs"
	KindFloor  Kind = "floor"  // FUSE without a filesystem behind it
	KindKernel Kind = "kernel" // on a loop device
	KindMemory Kind = "memory" // a tmpfs
)

// A Filesystem can be made on memory and mounted, to be measured.
type Filesystem interface {
	// Name stands in the results.
	Name() string
	Kind() Kind
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

	image string // what it lies on
	// attach mounts it again after detach; nil when its contents do not
	// survive that.
	attach func(ctx context.Context, m *Mounted) error
	detach func(ctx context.Context) error
	remove func() error // frees what is left after detach
	state  mountState
}

type mountState int

const (
	stateMounted mountState = iota
	stateDetached
	stateRemoved
)

// Unmount unmounts the filesystem and frees its memory. It is idempotent.
func (m *Mounted) Unmount(ctx context.Context) error {
	if err := m.unmountOnly(ctx); err != nil {
		return err
	}
	if m.state == stateRemoved {
		return nil
	}
	if m.remove != nil {
		if err := m.remove(); err != nil {
			return err
		}
	}
	m.state = stateRemoved
	return nil
}

// unmountOnly unmounts and keeps the contents where they survive.
func (m *Mounted) unmountOnly(ctx context.Context) error {
	if m.state != stateMounted {
		return nil
	}
	if m.detach != nil {
		if err := m.detach(ctx); err != nil {
			return err
		}
	}
	m.state, m.ServerPID = stateDetached, 0
	return nil
}

// CanRemount tells whether Remount keeps the contents.
func (m *Mounted) CanRemount() bool { return m.attach != nil }

// Remount unmounts and mounts again, so that no cache of the kernel knows the
// contents any more. ServerPID may be another one afterwards.
func (m *Mounted) Remount(ctx context.Context) error {
	if !m.CanRemount() {
		return fmt.Errorf("%s does not survive an umount", m.Name)
	}
	if err := m.unmountOnly(ctx); err != nil {
		return err
	}
	if err := m.attach(ctx, m); err != nil {
		return fmt.Errorf("mount %s again: %w", m.Name, err)
	}
	m.state = stateMounted
	return nil
}

// MountAll mounts each filesystem in a directory of its own below dir. On an
// error everything is unmounted again.
func MountAll(ctx context.Context, dir string, size int64, all []Filesystem) ([]*Mounted, error) {
	var mounted []*Mounted
	for i, fs := range all {
		m, err := mountBelow(ctx, filepath.Join(dir, fmt.Sprintf("fs%d", i)), size, fs)
		if err != nil {
			return nil, errors.Join(err, UnmountAll(context.WithoutCancel(ctx), mounted))
		}
		mounted = append(mounted, m)
	}
	return mounted, nil
}

// mountBelow makes dir and mounts fs in it.
func mountBelow(ctx context.Context, dir string, size int64, fs Filesystem) (*Mounted, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	m, err := fs.Mount(ctx, dir, size)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", fs.Name(), err)
	}
	return m, nil
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
