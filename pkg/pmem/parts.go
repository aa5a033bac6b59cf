package pmem

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"

	"golang.org/x/sys/unix"
)

// Part is where a device of a Space lies in its Bytes. Both are bytes.
type Part struct{ Off, Len uint64 }

// End is the first byte behind the part.
func (p Part) End() uint64 { return p.Off + p.Len }

// PartsOf returns the parts of a Space in order of their offsets. A Space
// without a method Parts has one device.
func PartsOf(s Space) []Part {
	if m, ok := s.(interface{ Parts() []Part }); ok {
		return m.Parts()
	}
	return []Part{{0, s.Size()}}
}

// ErrAttached says that a device is a part of the mapping already.
var ErrAttached = errors.New("it is given twice")

// Candidate is a device that is open and locked, and waits for its place.
type Candidate struct {
	Backing Backing
	mem     []byte // mapped for reading, elsewhere than its place
	file    *os.File
}

// Size is the length of the device in bytes.
func (c *Candidate) Size() uint64 { return c.Backing.Size }

// NextData is the function of that name on the device.
func (c *Candidate) NextData(off uint64) (start, end uint64, err error) {
	return NextData(c.file, off, c.Backing.Size)
}

// ReadAt copies bytes out of the device. Memory that cannot be read is an
// error.
func (c *Candidate) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 || uint64(off) > uint64(len(c.mem)) || len(p) > len(c.mem)-int(off) {
		return 0, fmt.Errorf("%s: no %d bytes at %d, it has %d", c.Backing.Path, len(p), off, len(c.mem))
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			n, err = 0, fmt.Errorf("%s cannot be read at %d: %v", c.Backing.Path, off, v)
		}
	}()
	return copy(p, c.mem[off:]), nil
}

// Parts lists the devices of the mapping, the first one first.
func (m *Mapping) Parts() []Part { return slices.Clone(*m.parts.Load()) }

// setDevices publishes the devices, sorted by their offsets. m.mu is held, or
// m is not in use yet.
func (m *Mapping) setDevices(devices []device) {
	slices.SortFunc(devices, func(a, b device) int {
		if a.off < b.off {
			return -1
		}
		return 1
	})
	m.devices = devices
	parts := make([]Part, 0, len(devices))
	for _, d := range devices {
		parts = append(parts, Part{d.off, d.end - d.off})
	}
	m.parts.Store(&parts)
}

// Attach maps a further device or file at offset off of Bytes, locks it, and
// returns its size. See AttachAt.
func (m *Mapping) Attach(path string, off uint64) (uint64, error) {
	part, err := m.AttachAt(path, func(*Candidate) (uint64, error) { return off, nil })
	if err != nil {
		return 0, err
	}
	return part.Len, nil
}

// AttachAt locks a further device or file and maps it where place says, which
// may look at it first. It must honour the strategy of the mapping. Size and
// Extend go on to speak of the first device only. Use of what is mapped already
// is not disturbed. A device that is a part already gives that part and
// ErrAttached.
func (m *Mapping) AttachAt(path string, place func(*Candidate) (off uint64, err error)) (Part, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if part, err := m.checkNew(path); err != nil {
		return part, err
	}
	f, b, err := openLocked(path, m.readOnly)
	if err != nil {
		return Part{}, err
	}
	part, err := m.attach(f, b, place)
	if err != nil {
		return Part{}, errors.Join(fmt.Errorf("attach %s: %w", path, err), f.Close())
	}
	return part, nil
}

// checkNew refuses a path of a device that is attached. Its lock would do so as
// well, but not when the mapping is read-only, nor with the right reason.
func (m *Mapping) checkNew(path string) (Part, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Part{}, pathError(path, err)
	}
	for _, d := range m.devices {
		if d.file == nil {
			continue
		}
		other, err := d.file.Stat()
		if err != nil {
			return Part{}, fmt.Errorf("look at %s: %w", d.backing.Path, err)
		}
		if os.SameFile(info, other) || sameDevice(info, other) {
			return Part{d.off, d.end - d.off}, fmt.Errorf("%s: %w: it is %s", path, ErrAttached, d.backing.Path)
		}
	}
	return Part{}, nil
}

// sameDevice reports whether two device nodes are of one device.
func sameDevice(a, b os.FileInfo) bool {
	const kinds = os.ModeDevice | os.ModeCharDevice
	return a.Mode()&os.ModeDevice != 0 && a.Mode()&kinds == b.Mode()&kinds && charDevice(a) == charDevice(b)
}

func (m *Mapping) attach(f *os.File, b Backing, place func(*Candidate) (uint64, error)) (Part, error) {
	if err := m.honours(b); err != nil {
		return Part{}, err
	}
	off, err := m.placeOf(f, b, place)
	if err != nil {
		return Part{}, err
	}
	if off%b.Align != 0 {
		return Part{}, fmt.Errorf("offset %d is not a multiple of %d", off, b.Align)
	}
	end := off + b.Size
	if end < off {
		return Part{}, fmt.Errorf("offset %d is out of range", off)
	}
	if err := m.checkFree(off, end); err != nil {
		return Part{}, err
	}
	if err := m.mapFile(f, b, off, 0, b.Size); err != nil {
		return Part{}, errors.Join(err, reserveAgain(m.mem[off:end]))
	}
	m.setDevices(append(slices.Clone(m.devices), device{file: f, backing: b, off: off, end: end}))
	return Part{off, b.Size}, nil
}

// honours refuses a backing on which the strategy of the mapping would lose
// data.
func (m *Mapping) honours(b Backing) error {
	// Memory that is volatile although the first device is not would lose a
	// part of the volume.
	if b.Volatile && !m.emulated {
		return fmt.Errorf("it is volatile memory and %s is not", m.backing.Path)
	}
	for _, mode := range []Mode{m.strategy.Small, m.strategy.Bulk} {
		if err := CheckMode(b, m.emulated, mode); err != nil {
			return err
		}
	}
	return nil
}

// placeOf maps a device for reading while place looks at it.
func (m *Mapping) placeOf(f *os.File, b Backing, place func(*Candidate) (uint64, error)) (uint64, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, int(b.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("map it: %w", err)
	}
	off, err := place(&Candidate{Backing: b, mem: mem, file: f})
	return off, errors.Join(err, unix.Munmap(mem))
}

// Detach gives up the further device at offset off, which nothing may use any
// more.
func (m *Mapping) Detach(off uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.devices, func(d device) bool { return d.off == off && off != 0 })
	if i < 0 {
		return fmt.Errorf("no further device is attached at %d", off)
	}
	d := m.devices[i]
	m.setDevices(slices.Delete(slices.Clone(m.devices), i, i+1))
	return errors.Join(reserveAgain(m.mem[d.off:d.end]), d.file.Close())
}

// CommonModes returns the modes that make stores durable on all of the
// backings and that this CPU can do, best guess first.
func CommonModes(backings []Backing, emulated bool) []Mode {
	var modes []Mode
	for _, mode := range CPUModes() {
		if !slices.ContainsFunc(backings, func(b Backing) bool { return CheckMode(b, emulated, mode) != nil }) {
			modes = append(modes, mode)
		}
	}
	return modes
}

// settleBeside makes the strategy one that the devices which are to be attached
// can honour as well.
func (m *Mapping) settleBeside(opts Options) error {
	all := []Backing{m.backing}
	for _, path := range opts.Beside {
		b, err := Probe(path)
		if err != nil {
			return err
		}
		all = append(all, b)
	}
	common := CommonModes(all, m.emulated)
	suits := func(s Strategy) bool { return slices.Contains(common, s.Small) && slices.Contains(common, s.Bulk) }
	if suits(m.strategy) {
		return nil
	}
	if m.mode == Auto && opts.Strategy == nil {
		for _, b := range all {
			if s, why := DefaultStrategy(b, m.emulated); suits(s) {
				m.strategy, m.why = s, why+" (of "+b.Path+", which allows the least)"
				return nil
			}
		}
	}
	return fmt.Errorf("flush mode %s is not possible on all devices of the volume; possible on all are %v: "+
		"use devices of one kind, one of these modes, or declare them emulated", m.mode, common)
}
