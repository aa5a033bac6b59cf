package nvfs

import (
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// Grow lets the volume use the whole first device after it became larger
// (the space must show the new size already). Files stay in use meanwhile.
// It returns the size of the volume in bytes. New groups are made first,
// invisibly; one record then lets the superblock, its copy and the last group
// show them. A volume of several devices grows by further devices only.
func (fs *FS) Grow() (size uint64, err error) {
	return fs.growing(fs.grow)
}

// GrowOnto lets the volume use a further device, which the space shows at part
// already; PlaceDevice says where that must be. The caller has made sure that
// what the device holds may be overwritten. uuid is that of the device, random
// when zero. Files stay in use meanwhile. It returns the size of the volume in
// bytes. An error leaves the device out of the volume, unless the volume turned
// read-only by it.
func (fs *FS) GrowOnto(part pmem.Part, uuid [16]byte) (size uint64, err error) {
	return fs.growing(func() error { return fs.growOnto(part, uuid) })
}

func (fs *FS) growing(step func() error) (uint64, error) {
	fs.growMu.Lock()
	defer fs.growMu.Unlock()
	err := fs.guard("grow", func() error {
		if fs.readOnly.Load() {
			return errReadOnly
		}
		return step()
	})
	if err != nil {
		fs.internal.Abort()
		return 0, fmt.Errorf("grow NVFS: %w", err)
	}
	return volumeSize(fs.sb), nil
}

// SizeBytes is the size of the volume: of all its devices, as far as it uses
// them.
func (fs *FS) SizeBytes() uint64 { return volumeSize(fs.Superblock()) }

func volumeSize(sb *layout.Superblock) uint64 {
	blocks := uint64(0)
	for _, d := range sb.Devices {
		blocks += d.Blocks
	}
	return blocks << layout.BlockShift
}

func (fs *FS) grow() error {
	old := fs.sb.Devices[0]
	blocks := fs.space.Size() / layout.BlockSize
	if len(fs.sb.Devices) > 1 || blocks <= old.Blocks {
		return nil
	}
	if err := fs.checkStatic(); err != nil {
		return err
	}
	fs.waitTotals()
	sb := *fs.sb
	sb.Devices = []layout.Device{old}
	sb.Devices[0].Blocks = blocks
	sb.Devices[0].Groups = layout.GroupsIn(blocks, sb.InodesPerGroup)
	if err := fs.makeGroups(sb.Devices[0], old.Groups); err != nil {
		return err
	}
	return fs.commitGrowth(&sb, &old)
}

// checkStatic makes sure that the superblock in block 0 is good, and so is its
// copy, before the copy is stored to: one of both must be good at any moment.
func (fs *FS) checkStatic() error {
	if _, err := layout.DecodeSuperblock(fs.mem[:layout.StaticSize]); err != nil {
		return fmt.Errorf("%w: block 0: %w; fsck can restore it from its copy", fs.damaged(true, "superblock in block 0: %v", err), err)
	}
	return fs.refreshCopy()
}

// makeGroups writes the metadata of the groups of a device from a number on,
// counted on the device.
func (fs *FS) makeGroups(d layout.Device, from uint32) error {
	if from == d.Groups {
		return nil
	}
	p := fs.internal.p
	for g := from; g < d.Groups; g++ {
		layout.WriteGroup(p, fs.seed, uint64(d.FirstGroup+g), uint32(layout.GroupLen(d.Blocks, g)), fs.sb.InodesPerGroup)
	}
	return p.Fence()
}

// commitGrowth publishes a new device table in one record. old is the first
// device when it is that which has grown, else nil: then the last row is new.
func (fs *FS) commitGrowth(sb *layout.Superblock, old *layout.Device) error {
	w := fs.internal
	w.Begin(&Request{})
	defer w.End()
	static := w.stage(0, layout.StaticSize, 0, sealWhole)
	if err := sb.Encode(static); err != nil {
		w.rollback()
		return err
	}
	tail := w.tx.alloc(layout.StaticSize)
	copy(tail, static)
	w.p.Copy((sb.Devices[0].Blocks-1)<<layout.BlockShift, tail)
	w.tx.dirty = true

	now := sb.Devices[len(sb.Devices)-1]
	fs.verified.init(now.Base + now.Blocks)
	published := uint32(0)
	undo := func() {}
	if old != nil {
		published = old.Groups
		undo = fs.extendLastGroup(now, *old)
	}
	if err := w.commit(); err != nil {
		undo()
		return err
	}
	fs.publishGroups(sb.Devices, published)
	fs.sb.Devices = sb.Devices
	return nil
}

// extendLastGroup stages the growth of the last group that the first device had,
// which the next commit makes happen; undo is for when it fails.
func (fs *FS) extendLastGroup(now, old layout.Device) (undo func()) {
	w := fs.internal
	g := fs.group(uint64(old.FirstGroup + old.Groups - 1))
	before := g.blocks.Load()
	after := max(before, uint32(layout.GroupLen(now.Blocks, old.Groups-1)))
	if after > before {
		d := layout.GroupDesc(w.stage(g.start<<layout.BlockShift, layout.GroupDescSize, g.start, sealWhole))
		d.SetBlocks(after)
		w.tx.frees = append(w.tx.frees, span{g.start + uint64(before), uint64(after - before)})
	}
	g.blocks.Store(after) // before others can allocate there
	return func() { g.blocks.Store(before) }
}

// publishGroups lets allocation use the groups of the last device from a number
// on, counted on the device. All earlier groups have been made: see waitTotals.
func (fs *FS) publishGroups(devices []layout.Device, from uint32) {
	t := newGroupTable(slices.Clone(devices), fs.sb.InodesPerGroup, fs.groups.Load())
	fs.lookups.init(t.size() * uint64(fs.sb.InodesPerGroup))
	fs.groups.Store(t)
	blocks, inodes := t.totals()
	fs.totalBlocks.Store(blocks)
	fs.totalInodes.Store(inodes)
	d := devices[len(devices)-1]
	for i := from; i < d.Groups; i++ {
		g := t.at(uint64(d.FirstGroup + i))
		g.mu.Lock()
		fs.loadGroup(g)
		g.mu.Unlock()
	}
}

// PlaceDevice returns where in the space the next device must be mapped: at the
// first byte behind the last one that suits both the groups and the alignment
// of its mapping, a power of 2.
func (fs *FS) PlaceDevice(align uint64) uint64 {
	sb := fs.Superblock()
	last := sb.Devices[len(sb.Devices)-1]
	const groupBytes = layout.GroupBlocks << layout.BlockShift
	off := ((last.Base+last.Blocks)<<layout.BlockShift + groupBytes - 1) / groupBytes * groupBytes
	for align > 1 && off%align != 0 {
		off += groupBytes
	}
	return off
}

// growOnto makes a device part of the volume. Nothing refers to what it stores
// there until the record is committed; until then the device says by its label
// which volume it was meant for, so that it can be given again.
func (fs *FS) growOnto(part pmem.Part, uuid [16]byte) error {
	sb := *fs.sb
	d, err := fs.newDevice(part, uuid)
	if err != nil {
		return err
	}
	sb.Devices = append(append([]layout.Device(nil), fs.sb.Devices...), d)
	if err := sb.Encode(make([]byte, layout.StaticSize)); err != nil {
		return err
	}
	if err := fs.checkStatic(); err != nil {
		return err
	}
	fs.waitTotals()
	if err := fs.label(sb.Member(len(sb.Devices) - 1)); err != nil {
		return err
	}
	if err := fs.makeGroups(d, 0); err != nil {
		return err
	}
	return fs.commitGrowth(&sb, nil)
}

// newDevice is the row of the device table for a device at part.
func (fs *FS) newDevice(part pmem.Part, uuid [16]byte) (layout.Device, error) {
	last := fs.sb.Devices[len(fs.sb.Devices)-1]
	base, blocks := part.Off>>layout.BlockShift, part.Len>>layout.BlockShift
	d := layout.Device{UUID: uuid, Base: base, Blocks: blocks, FirstGroup: uint32(base / layout.GroupBlocks), Groups: layout.GroupsIn(blocks, fs.sb.InodesPerGroup)}
	switch {
	case len(fs.sb.Devices) == layout.MaxDevices:
		return d, fmt.Errorf("the volume has %d devices, more are not possible: copy the data to a new, larger volume", layout.MaxDevices)
	case blocks < layout.MinBlocks || d.Groups == 0:
		return d, fmt.Errorf("the device has %d bytes, at least %d are needed: give a larger one", part.Len, fs.leastDevice())
	case part.Off%(layout.GroupBlocks<<layout.BlockShift) != 0 || base < last.Base+last.Blocks || part.End() > uint64(len(fs.mem)):
		return d, fmt.Errorf("a device cannot lie at byte %d of the volume", part.Off)
	}
	if uuid == ([16]byte{}) {
		if _, err := rand.Read(d.UUID[:]); err != nil {
			return d, err
		}
		d.UUID[6] = d.UUID[6]&0x0f | 0x40 // version 4, RFC 9562
		d.UUID[8] = d.UUID[8]&0x3f | 0x80
	}
	return d, nil
}

func (fs *FS) leastDevice() uint64 {
	return max(layout.MinBlocks, layout.HeaderBlocks+1+layout.MinGroupBlocks(fs.sb.InodesPerGroup)) << layout.BlockShift
}

// label stores the label of a device and its copy. The magic number comes
// first, alone: from then on the device is not blank, and a crash leaves a
// label, or a copy, that says what it is. Of a label that is there already one
// of both stays whole.
func (fs *FS) label(m layout.Member) error {
	p, start := fs.internal.p, m.Base<<layout.BlockShift
	var label [layout.MemberSize]byte
	m.Encode(label[:])
	const magic = 8 // offset
	p.Store64(start+magic, layout.MemberMagic)
	p.Flush(start+magic, 8)
	if err := p.Fence(); err != nil {
		return err
	}
	for _, off := range []uint64{start + (m.Blocks-1)<<layout.BlockShift, start} {
		p.Copy(off, label[:])
		if err := p.Fence(); err != nil {
			return err
		}
	}
	return nil
}
