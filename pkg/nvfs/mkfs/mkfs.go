// Package mkfs makes NVFS volumes and tells what is on a device.
package mkfs

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// DefaultBytesPerInode is the share of the volume, in bytes, for which one
// inode is made.
const DefaultBytesPerInode = 16 << 10

// Options of Format. The zero value makes a volume over the whole space.
type Options struct {
	Label         string
	UUID          [16]byte          // random when zero
	VolumeID      string            // the CSI volume id, if there is one
	Params        map[string]string // kept with the volume
	Size          uint64            // bytes to use; 0: all
	BytesPerInode uint64            // 0: DefaultBytesPerInode
	Now           time.Time         // zero: now
}

// ErrTooSmall says that no volume fits.
var ErrTooSmall = errors.New("too small for NVFS")

// Format makes an empty volume. It does not look at what the space holds:
// the caller has made sure that it may be overwritten (see Probe). The
// superblock is written last, so an interrupted Format leaves no volume.
func Format(space pmem.Space, opt Options) (*layout.Superblock, error) {
	sb, err := plan(space, &opt)
	if err != nil {
		return nil, err
	}
	f := formatter{p: space.NewPersister(), sb: sb, seed: sb.Seed(), now: opt.Now}
	d := sb.Devices[0]
	f.p.Zero(0, layout.BlockSize)
	f.p.Zero((d.Blocks-1)*layout.BlockSize, layout.BlockSize)
	if err := f.p.Fence(); err != nil {
		return nil, fmt.Errorf("mkfs: %w", err)
	}
	for i := range int(sb.Slots) { // headers, retire words and intents
		f.p.Zero(layout.SlotOffset(i), layout.PayloadStart)
	}
	for g := range d.Groups {
		layout.WriteGroup(f.p, f.seed, uint64(g), uint32(layout.GroupLen(d.Blocks, g)), sb.InodesPerGroup)
	}
	f.root()
	if err := f.p.Fence(); err != nil {
		return nil, fmt.Errorf("mkfs: %w", err)
	}
	return sb, f.superblock()
}

func plan(space pmem.Space, opt *Options) (*layout.Superblock, error) {
	size := space.Size()
	if opt.Size != 0 {
		if opt.Size > size {
			return nil, fmt.Errorf("mkfs: size %d is larger than the device, which has %d bytes", opt.Size, size)
		}
		size = opt.Size
	}
	blocks := size / layout.BlockSize
	if blocks < layout.MinBlocks {
		return nil, fmt.Errorf("mkfs: %w: %d bytes; at least %d are needed", ErrTooSmall, size, uint64(layout.MinBlocks*layout.BlockSize))
	}
	if opt.BytesPerInode == 0 {
		opt.BytesPerInode = DefaultBytesPerInode
	}
	if opt.BytesPerInode < layout.BlockSize || opt.BytesPerInode > 64<<20 {
		return nil, fmt.Errorf("mkfs: %d bytes per inode; %d to %d are possible", opt.BytesPerInode, layout.BlockSize, 64<<20)
	}
	if opt.Now.IsZero() {
		opt.Now = time.Now()
	}
	params, err := json.Marshal(opt.Params)
	if err != nil {
		return nil, fmt.Errorf("mkfs: volume parameters: %w", err)
	}
	group := layout.GroupLen(blocks, 0) * layout.BlockSize
	perGroup := uint32(group/opt.BytesPerInode) &^ (layout.InodesPerBlock - 1)
	sb := &layout.Superblock{
		UUID: opt.UUID, Label: opt.Label, VolumeID: opt.VolumeID, Created: opt.Now.Unix(),
		InodesPerGroup: min(max(perGroup, layout.MinInodes), layout.BitmapBits),
		Slots:          layout.SlotCount, Params: params,
	}
	if opt.UUID == ([16]byte{}) {
		mustRandom(sb.UUID[:])
		sb.UUID[6] = sb.UUID[6]&0x0f | 0x40 // version 4, RFC 9562
		sb.UUID[8] = sb.UUID[8]&0x3f | 0x80
	}
	mustRandom(sb.HashKey[:])
	d := layout.Device{UUID: sb.UUID, Blocks: blocks, Groups: layout.GroupsIn(blocks, sb.InodesPerGroup)}
	sb.Devices = []layout.Device{d}
	sb.Reserved = layout.ReservedBlocks(blocks)
	var probe [layout.StaticSize]byte
	if err := sb.Encode(probe[:]); err != nil {
		return nil, fmt.Errorf("mkfs: %w", err)
	}
	return sb, nil
}

func mustRandom(p []byte) {
	if _, err := rand.Read(p); err != nil {
		panic(err) // crypto/rand does not fail since Go 1.24
	}
}

type formatter struct {
	p    pmem.Persister
	sb   *layout.Superblock
	seed uint32
	now  time.Time
}

// root makes the root directory, inode 1 with generation 0.
func (f *formatter) root() {
	var buf [layout.InodeSize]byte
	n := layout.Inode(buf[:])
	n.SetMode(0040755)
	n.SetNlink(2)
	n.SetParent(1)
	n.SetFormat(layout.FormatDir)
	sec, nsec := f.now.Unix(), uint32(f.now.Nanosecond())
	n.SetAtime(sec, nsec)
	n.SetMtime(sec, nsec)
	n.SetCtime(sec, nsec)
	n.SetBtime(sec, nsec)
	layout.Seal(f.seed, 1, n)
	f.p.Copy(layout.InodeOffset(1, f.sb.InodesPerGroup), n)
}

// superblock writes the copy, then the original.
func (f *formatter) superblock() error {
	var block [layout.BlockSize]byte
	if err := f.sb.Encode(block[:]); err != nil {
		return fmt.Errorf("mkfs: %w", err)
	}
	f.p.Copy((f.sb.Devices[0].Blocks-1)*layout.BlockSize, block[:layout.StaticSize])
	if err := f.p.Fence(); err != nil {
		return fmt.Errorf("mkfs: %w", err)
	}
	d := layout.Dynamic(block[layout.DynamicOffset:])
	d.SetState(layout.StateClean)
	d.SetChangeTime(f.now.Unix())
	layout.Seal(f.seed, layout.DynamicLocation, d)
	f.p.Copy(0, block[:])
	if err := f.p.Fence(); err != nil {
		return fmt.Errorf("mkfs: %w", err)
	}
	return nil
}
