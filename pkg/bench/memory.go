package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Memory is a directory of emulated persistent memory: a tmpfs of its own. It
// is made of 2 MiB pages where the kernel has them, because that is how a
// devdax device is mapped; with the 4 KiB pages of an ordinary tmpfs, filling a
// mapping for the first time would measure page faults.
type Memory struct {
	Dir  string
	Huge bool // 2 MiB pages
}

// hugeOption makes a tmpfs take huge pages, whatever the system's default is.
const hugeOption = ",huge=always"

// NewMemory makes a directory below parent and mounts a tmpfs on it that may
// take up to size bytes. It needs root.
func NewMemory(parent, pattern string, size int64, huge bool) (*Memory, error) {
	dir, err := os.MkdirTemp(parent, pattern)
	if err != nil {
		return nil, err
	}
	m := &Memory{Dir: dir, Huge: huge}
	err = m.mount(size)
	if errors.Is(err, unix.EINVAL) && huge { // a kernel without
		m.Huge = false
		err = m.mount(size)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mount a tmpfs at %s: %w", dir, err), os.Remove(dir))
	}
	return m, nil
}

func (m *Memory) mount(size int64) error {
	return unix.Mount("nvfs-memory", m.Dir, "tmpfs", 0, tmpfsOptions(size, m.Huge))
}

func tmpfsOptions(size int64, huge bool) string {
	options := fmt.Sprintf("size=%d,mode=0700", size)
	if huge {
		options += hugeOption
	}
	return options
}

// Close unmounts the memory and removes the directory. Whatever is mounted
// below it must be gone.
func (m *Memory) Close() error {
	err := unix.Unmount(m.Dir, 0)
	// A process that has ended for all who look keeps its files until its
	// memory is taken apart; so does a loop device that is given back.
	for end := time.Now().Add(busyWait); err == unix.EBUSY && time.Now().Before(end); {
		time.Sleep(busyPoll)
		err = unix.Unmount(m.Dir, 0)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", m.Dir, err)
	}
	return os.Remove(m.Dir)
}

// busyWait bounds how long Close waits for users of the memory.
const (
	busyWait = 10 * time.Second
	busyPoll = 10 * time.Millisecond
)

// TmpFS is a tmpfs: what memory itself can do behind the same VFS. It is the
// one filesystem that gets its memory while it is measured.
type TmpFS struct {
	Huge bool // 2 MiB pages; an ordinary tmpfs such as /dev/shm has 4 KiB
}

// Name implements Filesystem.
func (f TmpFS) Name() string {
	if f.Huge {
		return "tmpfs 2M"
	}
	return "tmpfs"
}

// Kind implements Filesystem.
func (TmpFS) Kind() Kind { return KindMemory }

// Mount implements Filesystem.
func (f TmpFS) Mount(_ context.Context, dir string, size int64) (*Mounted, error) {
	m, err := NewMemory(dir, "tmpfs-", size, f.Huge)
	if err != nil {
		return nil, err
	}
	return &Mounted{Name: f.Name(), Dir: m.Dir, detach: func(context.Context) error { return m.Close() }}, nil
}
