package fsck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

const (
	blockSize   = layout.BlockSize
	bitmapWords = layout.BitmapBits / 64
)

// volume is a read-only view of a volume with its journal replayed.
type volume struct {
	mem     []byte
	size    uint64 // of the first device
	parts   []pmem.Part
	overlay map[uint64][]byte // blocks that replayed records change; nil when none
	sb      *layout.Superblock
	seed    uint32
	key0    uint64
	key1    uint64
	groups  []group // of all devices, in order
	first   []int   // index in groups of each device's first

	truncating map[uint64]bool // inodes that a truncate intent stands for
	records    uint64          // replayed
	clean      bool            // state before the replay
}

// open finds the superblock that tells how to replay the journal.
func (c *checker) open(space pmem.Space) error {
	size, mem := space.Size(), space.Bytes()
	if size < layout.MinBlocks*blockSize || uint64(len(mem)) < size {
		return fmt.Errorf("%w: %d bytes are less than the smallest volume", ErrNoSuperblock, min(size, uint64(len(mem))))
	}
	v := &volume{mem: mem, size: size, parts: pmem.PartsOf(space)}
	sb, err := nvfs.FindSuperblock(mem, size)
	switch {
	case err == nil:
	case errors.Is(err, layout.ErrVersion), errors.Is(err, layout.ErrIncompat), errors.Is(err, layout.ErrMember):
		return err
	default:
		if sb = scanForCopy(mem, size); sb == nil {
			return fmt.Errorf("%w: in block 0: %w; nor is there one copy of it on the device", ErrNoSuperblock, err)
		}
	}
	c.volume = v
	v.seed = sb.Seed()
	return c.adopt(sb)
}

// adopt makes sb the volume's superblock.
func (c *checker) adopt(sb *layout.Superblock) error {
	if bad := sb.ROCompat &^ uint64(layout.SupportedROCompat); bad != 0 {
		return fmt.Errorf("volume has features %#x that this version cannot check; use a newer one", bad)
	}
	c.sb = sb
	if err := c.checkParts(); err != nil {
		c.found.add(Problem{Code: Geometry}, "%v", err)
		return errEnough
	}
	c.key0, c.key1 = binary.LittleEndian.Uint64(sb.HashKey[:]), binary.LittleEndian.Uint64(sb.HashKey[8:])
	c.buildGroups()
	return nil
}

func (v *volume) buildGroups() {
	total := 0
	v.first = v.first[:0]
	for _, d := range v.sb.Devices {
		v.first = append(v.first, total)
		total += int(d.Groups)
	}
	v.groups = make([]group, total)
	meta := layout.GroupInodeTable + uint32(layout.InodeTableBlocks(v.sb.InodesPerGroup))
	for k, d := range v.sb.Devices {
		for i := range d.Groups {
			g := &v.groups[v.first[k]+int(i)]
			g.num = uint64(d.FirstGroup) + uint64(i)
			g.start = layout.GroupStart(g.num)
			g.blocks = uint32(layout.GroupLen(d.Blocks, i))
			g.inodes, g.meta = v.sb.InodesPerGroup, meta
		}
	}
}

// groupAt returns the group of that number, or nil.
func (v *volume) groupAt(num uint64) *group {
	for i := range v.sb.Devices {
		d := &v.sb.Devices[i]
		if num >= uint64(d.FirstGroup) && num < uint64(d.FirstGroup)+uint64(d.Groups) {
			return &v.groups[v.first[i]+int(num-uint64(d.FirstGroup))]
		}
	}
	return nil
}

// groupOf returns the group that block lies in, or nil.
func (v *volume) groupOf(block uint64) *group {
	if block < layout.HeaderBlocks {
		return nil
	}
	g := v.groupAt(layout.GroupOf(block))
	if g == nil || block >= g.start+uint64(g.blocks) {
		return nil
	}
	return g
}

// block returns the content of a block, which must lie in a device.
func (v *volume) block(b uint64) []byte {
	if v.overlay != nil {
		if p, ok := v.overlay[b]; ok {
			return p
		}
	}
	return v.mem[b*blockSize : (b+1)*blockSize : (b+1)*blockSize]
}

// inDevice reports whether blocks [b, end) lie in one device.
func (v *volume) inDevice(b, end uint64) bool {
	for _, d := range v.sb.Devices {
		if b >= d.Base && end <= d.Base+d.Blocks {
			return true
		}
	}
	return false
}

// inode returns inode number ino, not verified; nil when there is no such
// inode or it is not in use.
func (v *volume) inode(ino uint64) layout.Inode {
	if ino == 0 {
		return nil
	}
	perGroup := uint64(v.sb.InodesPerGroup)
	g := v.groupAt((ino - 1) / perGroup)
	if g == nil {
		return nil
	}
	index := uint32((ino - 1) % perGroup)
	if index >= g.inodes || !g.inUse(v, index) {
		return nil
	}
	return v.inodeIn(g, index)
}

func (v *volume) inodeIn(g *group, index uint32) layout.Inode {
	p := v.block(g.start + layout.GroupInodeTable + uint64(index/layout.InodesPerBlock))
	off := index % layout.InodesPerBlock * layout.InodeSize
	return layout.Inode(p[off : off+layout.InodeSize : off+layout.InodeSize])
}

func (v *volume) ino(g *group, index uint32) uint64 {
	return g.num*uint64(v.sb.InodesPerGroup) + uint64(index) + 1
}

// offsetOf is the offset in the volume of an address in the mapping.
func (v *volume) offsetOf(addr uintptr) (uint64, bool) {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(v.mem)))
	if addr < start || addr-start >= uintptr(len(v.mem)) {
		return 0, false
	}
	return uint64(addr - start), true
}

// checkSuperblocks checks the superblock as the replayed journal left it.
func (w *worker) checkSuperblocks() error {
	primary := w.block(0)[:layout.StaticSize]
	switch sb, err := layout.DecodeSuperblock(primary); {
	case err != nil:
		w.found.add(Problem{Code: Superblock}, "the superblock in block 0 is damaged (%v); its copy at the end of the device was used", err)
	default:
		if err := w.adopt(sb); err != nil {
			return err
		}
		w.checkCopy(primary, sb.Devices[0].Blocks-1)
	}
	w.checkDynamic()
	total := uint64(0)
	for i := range w.groups {
		total += uint64(w.groups[i].blocks)
	}
	if w.sb.Reserved >= total {
		w.found.add(Problem{Code: Geometry}, "%d blocks are reserved, of %d", w.sb.Reserved, total)
	}
	return nil
}

// checkCopy compares the superblock with its copy. A crash in the middle of a
// growth can cost the copy, which the next mount makes again.
func (w *worker) checkCopy(primary []byte, block uint64) {
	switch same := bytes.Equal(primary, w.block(block)[:layout.StaticSize]); {
	case same:
	case w.clean:
		w.found.add(Problem{Code: SuperblockCopy, Block: block}, "the copy of the superblock in the last block differs from it")
	default:
		w.found.note("the copy of the superblock in block %d differs from it; the next mount writes it anew", block)
	}
}

func (w *worker) checkDynamic() {
	d := layout.Dynamic(w.block(0)[layout.DynamicOffset:][:layout.StaticSize])
	switch {
	case !layout.Verify(w.seed, layout.DynamicLocation, d):
		w.found.add(Problem{Code: SuperblockDynamic}, "the checksum of the dynamic half is wrong")
	case d.State() != layout.StateClean && d.State() != layout.StateMounted:
		w.found.add(Problem{Code: SuperblockDynamic}, "state %d is unknown", d.State())
	case d.Errors() != 0:
		w.found.add(Problem{Code: ErrorFlag}, "error flags %#x are set: damage was met while the volume was mounted", d.Errors())
	}
}
