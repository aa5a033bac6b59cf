package nvfs

import (
	"fmt"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// Grow lets the volume use the whole first device after it became larger
// (the space must show the new size already). Files stay in use meanwhile.
// It returns the size in bytes. New groups are made first, invisibly; one
// record then lets the superblock, its copy and the last group show them.
func (fs *FS) Grow() (size uint64, err error) {
	fs.growMu.Lock()
	defer fs.growMu.Unlock()
	err = fs.guard("grow", func() error { size, err = fs.grow(); return err })
	if err != nil {
		fs.internal.Abort()
		return 0, fmt.Errorf("grow NVFS: %w", err)
	}
	return size, nil
}

func (fs *FS) grow() (uint64, error) {
	if fs.readOnly.Load() {
		return 0, errReadOnly
	}
	last := len(fs.sb.Devices) - 1
	if last != 0 {
		return 0, fmt.Errorf("the volume spans %d devices", last+1)
	}
	old := fs.sb.Devices[0]
	blocks := fs.space.Size() / layout.BlockSize
	if blocks <= old.Blocks {
		return old.Blocks * layout.BlockSize, nil
	}
	fs.waitTotals()
	sb := *fs.sb
	sb.Devices = []layout.Device{old}
	sb.Devices[0].Blocks = blocks
	sb.Devices[0].Groups = layout.GroupsIn(blocks, sb.InodesPerGroup)
	if err := fs.makeGroups(old, sb.Devices[0]); err != nil {
		return 0, err
	}
	if err := fs.commitGrowth(old, &sb); err != nil {
		return 0, err
	}
	return blocks * layout.BlockSize, nil
}

// makeGroups writes the metadata of groups that the old device had not.
func (fs *FS) makeGroups(old, now layout.Device) error {
	if old.Groups == now.Groups {
		return nil
	}
	p := fs.internal.p
	for g := old.Groups; g < now.Groups; g++ {
		layout.WriteGroup(p, fs.seed, uint64(now.FirstGroup+g), uint32(layout.GroupLen(now.Blocks, g)), fs.sb.InodesPerGroup)
	}
	return p.Fence()
}

// commitGrowth extends the last old group, moves the superblock copy and
// publishes the new geometry in one record.
func (fs *FS) commitGrowth(old layout.Device, sb *layout.Superblock) error {
	w, now := fs.internal, sb.Devices[0]
	w.Begin(&Request{})
	defer w.End()
	static := w.stage(0, layout.StaticSize, 0, sealWhole)
	if err := sb.Encode(static); err != nil {
		w.rollback()
		return err
	}
	tail := w.tx.alloc(layout.StaticSize)
	copy(tail, static)
	w.p.Copy((now.Blocks-1)<<layout.BlockShift, tail)
	w.tx.dirty = true

	g := fs.group(uint64(old.FirstGroup + old.Groups - 1))
	before := g.blocks.Load()
	after := max(before, uint32(layout.GroupLen(now.Blocks, old.Groups-1)))
	if after > before {
		d := layout.GroupDesc(w.stage(g.start<<layout.BlockShift, layout.GroupDescSize, g.start, sealWhole))
		d.SetBlocks(after)
		w.tx.frees = append(w.tx.frees, span{g.start + uint64(before), uint64(after - before)})
	}
	fs.verified.init(now.Base + now.Blocks)
	g.blocks.Store(after) // before others can allocate there
	if err := w.commit(); err != nil {
		g.blocks.Store(before)
		return err
	}
	fs.publishGroups(now, old.Groups)
	fs.sb.Devices[0] = now
	return nil
}

// publishGroups lets allocation use new groups.
func (fs *FS) publishGroups(d layout.Device, from uint32) {
	// Totals are complete, so all groups of the old table have been made.
	t := newGroupTable([]layout.Device{d}, fs.sb.InodesPerGroup, fs.groups.Load())
	blocks, inodes := t.totals()
	fs.totalBlocks.Store(blocks)
	fs.totalInodes.Store(inodes)
	fs.lookups.init(t.size() * uint64(fs.sb.InodesPerGroup))
	fs.groups.Store(t)
	for i := from; i < d.Groups; i++ {
		g := t.at(uint64(d.FirstGroup + i))
		g.mu.Lock()
		fs.loadGroup(g)
		g.mu.Unlock()
	}
}
