package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	if err == unix.EBUSY {
		if users := usersOf(m.Dir); len(users) > 0 {
			return fmt.Errorf("unmount %s, which is used by %s: %w", m.Dir, strings.Join(users, ", "), err)
		}
		// Only the kernel is left, and lets go of it when it gets round to that.
		err = unix.Unmount(m.Dir, unix.MNT_DETACH)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", m.Dir, err)
	}
	return os.Remove(m.Dir)
}

// usersOf lists the processes, as far as can be seen, that have a file below
// dir open or mapped, or are in there.
func usersOf(dir string) []string {
	var users []string
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range processes {
		uses := false
		links, _ := filepath.Glob(proc + "/fd/*")
		for _, link := range append(links, proc+"/cwd", proc+"/root") {
			target, err := os.Readlink(link)
			uses = uses || err == nil && strings.HasPrefix(target+"/", dir+"/")
		}
		maps, _ := os.ReadFile(proc + "/maps")
		if uses || strings.Contains(string(maps), dir+"/") {
			line, _ := os.ReadFile(proc + "/cmdline")
			users = append(users, fmt.Sprintf("process %s (%s)", filepath.Base(proc), strings.Join(strings.FieldsFunc(string(line), func(r rune) bool { return r == 0 }), " ")))
		}
	}
	return users
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
