package pmem

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NextData returns the first range at or behind off of the open file or device
// f, of size bytes, that may hold anything but zeros: what lies between off and
// start reads as zero. start is size when nothing follows. Where the kernel does
// not tell, that is everything from off on. It moves the offset of f.
func NextData(f *os.File, off, size uint64) (start, end uint64, err error) {
	if off >= size {
		return size, size, nil
	}
	info, err := f.Stat()
	if err != nil {
		return 0, 0, fmt.Errorf("look for data at byte %d: %w", off, err)
	}
	if !info.Mode().IsRegular() {
		return off, size, nil
	}
	fd := int(f.Fd())
	first, err := unix.Seek(fd, int64(off), unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL):
		return off, size, nil
	case err != nil:
		return 0, 0, fmt.Errorf("look for data at byte %d: %w", off, err)
	}
	last, err := unix.Seek(fd, first, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, fmt.Errorf("look for the end of the data at byte %d: %w", first, err)
	}
	return min(uint64(first), size), min(uint64(last), size), nil
}

// NextData is the function of that name on the first device. Whoever reads
// only such ranges allocates no memory for the holes of a file on tmpfs.
func (m *Mapping) NextData(off uint64) (start, end uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	size := m.Size()
	if len(m.devices) == 0 || m.devices[0].file == nil {
		return min(off, size), size, nil
	}
	start, end, err = NextData(m.devices[0].file, off, size)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", m.backing.Path, err)
	}
	return start, end, nil
}
