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

// answerTimeout bounds a question to a mounted filesystem: longer than a server
// needs to be restarted, shorter than what the kubelet waits for a call.
const answerTimeout = 5 * time.Second

// mounts looks at and changes the mount table. Whether something is mounted is
// read from the table alone: a path below a dead or hanging server is never
// touched for that.
type mounts struct {
	table  mount.Interface
	statfs func(path string, buf *unix.Statfs_t) error
	ping   func(path string) error

	mu      sync.Mutex
	pending map[question]*call
}

// question is what a mounted filesystem is asked. Whether it lives is not
// found out by statfs(2), which waits until the whole volume has been counted.
type question struct {
	op   string // opPing or opStatfs
	path string
}

const (
	opPing   = "ping"
	opStatfs = "statfs"
)

type call struct {
	done chan struct{}
	buf  unix.Statfs_t // of opStatfs
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
	_, err = m.ask(ctx, question{opPing, path})
	switch {
	case err == nil:
		return top, mountLive, nil
	case hasNoServer(err):
		return top, mountDead, err
	}
	return top, mountSick, err
}

// hasNoServer reports whether err is that of a mount whose server is gone for
// good.
func hasNoServer(err error) bool {
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
}

// stat is statfs(2), bounded in time.
func (m *mounts) stat(ctx context.Context, path string) (unix.Statfs_t, error) {
	return m.ask(ctx, question{opStatfs, path})
}

// ask waits for an answer, bounded in time. A call that hangs stays behind, one
// per question at most, until the kernel lets it go; later callers wait for it.
func (m *mounts) ask(ctx context.Context, q question) (unix.Statfs_t, error) {
	call := m.start(q)
	timeout := time.NewTimer(answerTimeout)
	defer timeout.Stop()
	select {
	case <-call.done:
		return call.buf, call.err
	case <-timeout.C:
		return unix.Statfs_t{}, errorf(codes.DeadlineExceeded, "the filesystem at %s does not answer %s within %s; its server may be restarting, or still counting what is on the volume", q.path, q.op, answerTimeout)
	case <-ctx.Done():
		return unix.Statfs_t{}, ctx.Err()
	}
}

func (m *mounts) start(q question) *call {
	m.mu.Lock()
	defer m.mu.Unlock()
	if running, ok := m.pending[q]; ok {
		return running
	}
	c := &call{done: make(chan struct{})}
	if m.pending == nil {
		m.pending = map[question]*call{}
	}
	m.pending[q] = c
	go func() {
		if err := m.put(q, &c.buf); err != nil {
			c.err = &os.PathError{Op: q.op, Path: q.path, Err: err}
		}
		m.mu.Lock()
		delete(m.pending, q)
		m.mu.Unlock()
		close(c.done)
	}()
	return c
}

// put asks the kernel.
func (m *mounts) put(q question, buf *unix.Statfs_t) error {
	if q.op == opPing {
		return m.ping(q.path)
	}
	return m.statfs(q.path, buf)
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
