package nvfs

import (
	"sync/atomic"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// groupTable has the groups of a volume by number. A group is made when it is
// asked for first, so that a mount costs the same for any number of them.
type groupTable struct {
	devices        []layout.Device
	inodesPerGroup uint32
	slots          []atomic.Pointer[group]
}

// newGroupTable returns the table of a volume on devices, which it keeps. It
// goes on with the groups of old, the table that it replaces; nil is none. All
// groups of old have been made: one made there later would be a second one.
func newGroupTable(devices []layout.Device, inodesPerGroup uint32, old *groupTable) *groupTable {
	last := devices[len(devices)-1]
	t := &groupTable{devices: devices, inodesPerGroup: inodesPerGroup,
		slots: make([]atomic.Pointer[group], last.FirstGroup+last.Groups)}
	if old != nil {
		for n := range old.slots {
			t.slots[n].Store(old.slots[n].Load())
		}
	}
	return t
}

// size is the number of group numbers, those between devices included.
func (t *groupTable) size() uint64 { return uint64(len(t.slots)) }

// at returns the group of a number, or nil when there is none: beyond the
// volume or between two devices.
func (t *groupTable) at(n uint64) *group {
	if n >= uint64(len(t.slots)) {
		return nil
	}
	slot := &t.slots[n]
	g := slot.Load()
	if g != nil {
		return g
	}
	d := t.device(n)
	if d == nil {
		return nil
	}
	slot.CompareAndSwap(nil, newGroup(n, d.Blocks, uint32(n)-d.FirstGroup, t.inodesPerGroup))
	return slot.Load()
}

// made returns the group of a number below size if it was asked for before.
func (t *groupTable) made(n uint64) *group { return t.slots[n].Load() }

func (t *groupTable) device(n uint64) *layout.Device {
	for i := range t.devices {
		d := &t.devices[i]
		if first := uint64(d.FirstGroup); n >= first && n < first+uint64(d.Groups) {
			return d
		}
	}
	return nil
}

// totals returns how many data blocks and inodes all groups have.
func (t *groupTable) totals() (blocks, inodes int64) {
	meta := uint64(groupMeta(t.inodesPerGroup))
	for _, d := range t.devices {
		n := uint64(d.Groups)
		// All groups of a device are full but the last.
		blocks += int64((n-1)*layout.GroupBlocks + layout.GroupLen(d.Blocks, d.Groups-1) - n*meta)
		inodes += int64(n * uint64(t.inodesPerGroup))
	}
	return blocks, inodes
}
