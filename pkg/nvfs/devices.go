package nvfs

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// Errors about the devices of a volume.
var (
	// ErrMissing says that a device of the volume was not given.
	ErrMissing = errors.New("a device of the volume is missing")
	// ErrForeign says that a device was given that is no part of the volume.
	ErrForeign = errors.New("not a device of this volume")
)

// OpenOptions are for OpenDevices.
type OpenOptions struct {
	pmem.Options
	// Damaged accepts a device whose label is destroyed, when what else it
	// holds proves its place: for a check, which can restore the label.
	Damaged bool
}

// growthReserve is the address space that a volume keeps for devices to come.
// It costs nothing but numbers.
const growthReserve = 1 << 40

// OpenDevices maps the devices of a volume side by side: first holds the
// superblock, and further are the others in any order. All of them are there
// or nothing stays open: one that is missing, of another volume, exchanged, cut
// or given twice is an error. Nothing is stored.
//
// A further device that is not in the device table, but is labelled for this
// volume or blank at its start, is left alone: a growth that was interrupted,
// or has not begun, leaves it so. The caller may give it to Grow again.
func OpenDevices(first string, further []string, opt OpenOptions) (*pmem.Mapping, error) {
	opt.Beside = further
	m, err := openReserved(first, further, opt.Options)
	if err != nil {
		return nil, err
	}
	if err := attachAll(m, further, opt.Damaged); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// openReserved maps the first device with address space for all others.
func openReserved(first string, further []string, opt pmem.Options) (*pmem.Mapping, error) {
	if opt.Reserve != 0 {
		return pmem.Open(first, opt)
	}
	sum := uint64(0)
	for _, path := range append([]string{first}, further...) {
		b, err := pmem.Probe(path)
		if err != nil {
			return nil, err
		}
		sum += b.Size
	}
	opt.Reserve = max(4*sum, sum+growthReserve)
	m, err := pmem.Open(first, opt)
	if errors.Is(err, unix.ENOMEM) { // a limit, or a CPU with little address space
		opt.Reserve = 0
		return pmem.Open(first, opt)
	}
	return m, err
}

// attachAll maps every further device in the place that the table gives it.
func attachAll(m *pmem.Mapping, further []string, damaged bool) error {
	sb, err := findSuperblock(m.Bytes(), m.Size())
	if err != nil {
		return nil // Mount and fsck say what is wrong, and what to do
	}
	a := assembly{mapping: m, sb: sb, paths: make([]string, len(sb.Devices)), damaged: damaged}
	for _, path := range further {
		if _, err := m.AttachAt(path, func(c *pmem.Candidate) (uint64, error) { return a.place(path, c) }); err != nil && !errors.Is(err, errUnused) {
			return err
		}
	}
	return a.missing()
}

// errUnused ends the attachment of a device that the volume does not use yet.
var errUnused = errors.New("not in use yet")

// assembly puts the devices of a volume together.
type assembly struct {
	mapping *pmem.Mapping
	sb      *layout.Superblock
	paths   []string // of the rows of the table that are placed
	damaged bool
}

// place finds the row of the device table that a device belongs to.
func (a *assembly) place(path string, c *pmem.Candidate) (uint64, error) {
	var head [layout.MemberSize]byte
	if _, err := c.ReadAt(head[:], 0); err != nil {
		return 0, err
	}
	row, err := a.rowOf(c, head[:])
	if err != nil {
		return 0, err
	}
	d := a.sb.Devices[row]
	if a.paths[row] != "" {
		return 0, fmt.Errorf("%w: it says that it is device %d of the volume, and so does %s: one is a copy of the other, leave it out", ErrForeign, row+1, a.paths[row])
	}
	if have := c.Backing.Size / layout.BlockSize; have < d.Blocks {
		return 0, fmt.Errorf("%w: device %d has %d blocks, the volume %d on it; restore the device to its full size", ErrTruncated, row+1, have, d.Blocks)
	}
	a.paths[row] = path
	return d.Base << layout.BlockShift, nil
}

func (a *assembly) rowOf(c *pmem.Candidate, head []byte) (int, error) {
	label, err := layout.DecodeMember(head)
	switch {
	case err == nil && label.Volume != a.sb.UUID:
		return 0, fmt.Errorf("%w: it is %s, the volume is %s: give the devices of one volume", ErrForeign, label, layout.FormatUUID(a.sb.UUID))
	case err == nil:
		row := slices.IndexFunc(a.sb.Devices, func(d layout.Device) bool { return d.UUID == label.UUID })
		switch {
		case row > 0 && label.Device == a.sb.Devices[row] && int(label.Index) == row:
			return row, nil
		case row > 0:
			return 0, fmt.Errorf("%w: its label is not what the device table says of device %d: run fsck", ErrForeign, row+1)
		}
		return 0, errUnused
	}
	row := a.proven(c)
	switch {
	case row > 0 && a.damaged:
		return row, nil
	case row == 0 && (bytes.Equal(head, make([]byte, len(head))) || errors.Is(err, layout.ErrMemberDamaged)):
		return 0, errUnused // blank, or a growth that had just begun
	case row > 0:
		return 0, fmt.Errorf("%w: the label of device %d is destroyed: fsck --repair with all devices restores it", ErrForeign, row+1)
	}
	if holdsVolume(c) {
		return 0, fmt.Errorf("%w: it holds a volume of its own or is the first device: give the first device first", ErrForeign)
	}
	return 0, fmt.Errorf("%w: it has no label of volume %s: give the devices that the volume was made of", ErrForeign, layout.FormatUUID(a.sb.UUID))
}

// proven is the row whose device this is by what else it holds: the copy of the
// label, or the descriptor of its first group. It is 0 when nothing proves it.
func (a *assembly) proven(c *pmem.Candidate) int {
	for row := 1; row < len(a.sb.Devices); row++ {
		if a.paths[row] == "" && (provenByCopy(a.sb, row, c) || provenByGroup(a.sb, row, c)) {
			return row
		}
	}
	return 0
}

func provenByCopy(sb *layout.Superblock, row int, c *pmem.Candidate) bool {
	var label [layout.MemberSize]byte
	if _, err := c.ReadAt(label[:], int64((sb.Devices[row].Blocks-1)<<layout.BlockShift)); err != nil {
		return false
	}
	m, err := layout.DecodeMember(label[:])
	return err == nil && *m == sb.Member(row)
}

func provenByGroup(sb *layout.Superblock, row int, c *pmem.Candidate) bool {
	var desc [layout.GroupDescSize]byte
	if _, err := c.ReadAt(desc[:], layout.HeaderBlocks<<layout.BlockShift); err != nil {
		return false
	}
	d, first := layout.GroupDesc(desc[:]), sb.Devices[row].FirstGroup
	return d.Magic() == layout.GroupMagic && d.Group() == first && layout.Verify(sb.Seed(), layout.GroupStart(uint64(first)), d)
}

func holdsVolume(c *pmem.Candidate) bool {
	var static [layout.StaticSize]byte
	if _, err := c.ReadAt(static[:], 0); err != nil {
		return false
	}
	_, err := layout.DecodeSuperblock(static[:])
	return err == nil
}

// missing names the devices of the table that were not given.
func (a *assembly) missing() error {
	for row := 1; row < len(a.sb.Devices); row++ {
		if a.paths[row] == "" {
			return missingError(a.sb, row)
		}
	}
	return nil
}

func missingError(sb *layout.Superblock, row int) error {
	return fmt.Errorf("%w: the volume spans %d devices, and device %d (UUID %s, %d bytes) is not there: give all of them, as in mount -o device=PATH2 PATH MOUNTPOINT or fsck PATH PATH2",
		ErrMissing, len(sb.Devices), row+1, layout.FormatUUID(sb.Devices[row].UUID), sb.Devices[row].Blocks<<layout.BlockShift)
}

// checkDevices makes sure that every device of the table is mapped in its place,
// whole and labelled for it. It stores nothing.
func checkDevices(space pmem.Space, sb *layout.Superblock) error {
	if have, d := space.Size()/layout.BlockSize, sb.Devices[0]; have < d.Blocks {
		return fmt.Errorf("%w: it has %d blocks, the volume %d; restore the device to its full size", ErrTruncated, have, d.Blocks)
	}
	parts, mem := pmem.PartsOf(space), space.Bytes()
	for row := 1; row < len(sb.Devices); row++ {
		d := sb.Devices[row]
		i := slices.IndexFunc(parts, func(p pmem.Part) bool { return p.Off == d.Base<<layout.BlockShift })
		if i < 0 || parts[i].End() > uint64(len(mem)) {
			return missingError(sb, row)
		}
		if have := parts[i].Len / layout.BlockSize; have < d.Blocks {
			return fmt.Errorf("%w: device %d has %d blocks, the volume %d on it; restore the device to its full size", ErrTruncated, row+1, have, d.Blocks)
		}
		m, err := layout.DecodeMember(mem[parts[i].Off:][:layout.MemberSize])
		switch {
		case err != nil:
			return fmt.Errorf("device %d: %w: fsck --repair with all devices restores it", row+1, err)
		case *m != sb.Member(row):
			return fmt.Errorf("%w: its label is not what the device table says of device %d: give the devices in question, or run fsck with all of them", ErrForeign, row+1)
		}
	}
	return nil
}
