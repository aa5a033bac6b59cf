package pmem

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

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
