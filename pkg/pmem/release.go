package pmem

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A backing is handed from one process to the next: the successor maps it while
// the other one still uses it, and locks it when that has let go.

// Lock takes the locks of a mapping that was opened with Options.Unlocked, and
// maps what the backing has grown by since. ErrInUse when another process still
// has one of them; then the mapping is only good for Close.
func (m *Mapping) Lock() error {
	m.mu.Lock()
	for _, d := range m.devices {
		if d.file == nil {
			continue
		}
		if err := lockBacking(d.file, d.backing.Path, m.readOnly); err != nil {
			m.mu.Unlock()
			return err
		}
	}
	m.mu.Unlock()
	_, err := m.Extend()
	return err
}

// lockBacking locks an open backing for as long as it is open or mapped.
func lockBacking(f *os.File, path string, readOnly bool) error {
	lock := unix.LOCK_EX
	if readOnly {
		lock = unix.LOCK_SH
	}
	err := unix.Flock(int(f.Fd()), lock|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("%s is served or being checked: unmount the volume or let the check end (fuser -v %s shows by whom): %w", path, path, ErrInUse)
	case err != nil:
		return fmt.Errorf("lock %s: %w", path, err)
	}
	return nil
}

// Release gives up the locks and leaves all else to the end of the process,
// which is near: unmapping takes the longer the more has been touched, and a
// successor that waits for the locks need not wait for that. Nothing may use
// the mapping any more, as after Close.
func (m *Mapping) Release() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	for _, d := range m.devices {
		if d.file == nil {
			continue
		}
		// The mapping keeps the file open, and with that an flock(2) that is
		// not given up.
		if e := unix.Flock(int(d.file.Fd()), unix.LOCK_UN); e != nil {
			err = errors.Join(err, fmt.Errorf("unlock %s: %w", d.backing.Path, e))
		}
	}
	return err
}
