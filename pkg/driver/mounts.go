package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"k8s.io/mount-utils"
)

// statfsTimeout bounds a look into a mounted filesystem: longer than a server
// needs to be restarted, shorter than what the kubelet waits for a call.
const statfsTimeout = 5 * time.Second

// mounts looks at and changes the mount table. Whether something is mounted is
// read from the table alone: a path below a dead or hanging server is never
// touched for that.
type mounts struct {
	table  mount.Interface
	statfs func(path string, buf *unix.Statfs_t) error

	mu      sync.Mutex
	pending map[string]*statfsCall
}

type statfsCall struct {
	done chan struct{}
	buf  unix.Statfs_t
	err  error
}

// mountState is what is found at a path.
type mountState string

const (
	notMounted mountState = "not mounted"
	mountLive  mountState = "live"
	mountDead  mountState = "dead" // its server is gone for good
	mountSick  mountState = "sick" // it fails or hangs, and may recover
)

// resolve makes path comparable with the mount table. Links are followed up to
// the parent only; the last element may be a dead mount.
func resolve(path string) (string, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(path)), nil
}

// at returns what is mounted at path, the topmost last.
func (m *mounts) at(path string) ([]mount.MountPoint, error) {
	real, err := resolve(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := m.table.List()
	if err != nil {
		return nil, fmt.Errorf("mount table: %w", err)
	}
	var here []mount.MountPoint
	for _, mp := range all {
		if mp.Path == real {
			here = append(here, mp)
		}
	}
	return here, nil
}

// inspect says what is mounted topmost at path and how it is. The error says
// why a mount is not live.
func (m *mounts) inspect(ctx context.Context, path string) (mount.MountPoint, mountState, error) {
	stack, err := m.at(path)
	if err != nil || len(stack) == 0 {
		return mount.MountPoint{}, notMounted, err
	}
	top := stack[len(stack)-1]
	_, err = m.stat(ctx, path)
	switch {
	case err == nil:
		return top, mountLive, nil
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNABORTED):
		return top, mountDead, err
	}
	return top, mountSick, err
}

// stat is statfs(2), bounded in time. A call that hangs stays behind, one per
// path at most, until the kernel lets it go; later callers wait for it.
func (m *mounts) stat(ctx context.Context, path string) (unix.Statfs_t, error) {
	call := m.startStat(path)
	timeout := time.NewTimer(statfsTimeout)
	defer timeout.Stop()
	select {
	case <-call.done:
		return call.buf, call.err
	case <-timeout.C:
		return unix.Statfs_t{}, errorf(codes.DeadlineExceeded, "the filesystem at %s does not answer within %s; its server may be restarting", path, statfsTimeout)
	case <-ctx.Done():
		return unix.Statfs_t{}, ctx.Err()
	}
}

func (m *mounts) startStat(path string) *statfsCall {
	m.mu.Lock()
	defer m.mu.Unlock()
	if call, ok := m.pending[path]; ok {
		return call
	}
	call := &statfsCall{done: make(chan struct{})}
	if m.pending == nil {
		m.pending = map[string]*statfsCall{}
	}
	m.pending[path] = call
	go func() {
		if err := m.statfs(path, &call.buf); err != nil {
			call.err = &os.PathError{Op: "statfs", Path: path, Err: err}
		}
		m.mu.Lock()
		delete(m.pending, path)
		m.mu.Unlock()
		close(call.done)
	}()
	return call
}

// clear unmounts everything at path, dead mounts stacked on each other
// included. An unmount that fails is an error: what is still mounted there
// would hide the next mount.
func (m *mounts) clear(path string) error {
	stack, err := m.at(path)
	if err != nil {
		return err
	}
	for len(stack) > 0 {
		if err := m.table.Unmount(path); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
		rest, err := m.at(path)
		if err != nil {
			return err
		}
		if len(rest) >= len(stack) {
			return fmt.Errorf("unmount %s reported success, but %d mounts are still there", path, len(rest))
		}
		stack = rest
	}
	return nil
}

// remove unmounts everything at path and removes the empty directory or file
// below. What is not empty is not removed.
func (m *mounts) remove(path string) error {
	if err := m.clear(path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the mount point: %w", err)
	}
	return nil
}
