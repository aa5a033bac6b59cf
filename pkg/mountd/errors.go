package mountd

import (
	"errors"
	"fmt"
)

var (
	// ErrNotServed means that no process serves the volume.
	ErrNotServed = errors.New("the volume is not mounted")
	// ErrInUse means that a process serves the volume already.
	ErrInUse = errors.New("the volume is in use")
	// ErrBusy means that the mount has users: open files, working
	// directories, or further mounts of it.
	ErrBusy = errors.New("the mount is busy")
)

// ServeError is why a serving process gave up before it answered.
type ServeError struct {
	VolumeID string
	Text     string // of the process itself
}

func (e *ServeError) Error() string {
	return fmt.Sprintf("volume %s cannot be served: %s", e.VolumeID, e.Text)
}
