package layout

import (
	"bytes"
	"errors"
	"fmt"
)

// The superblock is block 0 of the first device: a static half, copied to
// the last block of that device, and a dynamic half, each with its checksum.
const (
	StaticSize    = 2048
	DynamicOffset = 2048

	sbMagic      = 8
	sbVersion    = 16
	sbBlockSize  = 20
	sbCompat     = 24
	sbROCompat   = 32
	sbIncompat   = 40
	sbUUID       = 48
	sbLabel      = 64
	sbLabelLen   = 64
	sbVolumeID   = 128
	sbVolumeLen  = 128
	sbCreated    = 256
	sbHashKey    = 272
	sbGroup      = 288
	sbInodes     = 292
	sbInodeSize  = 296
	sbSlots      = 300
	sbSlotSize   = 304
	sbDevices    = 308
	sbReserved   = 312
	sbJournal    = 320
	sbDevTable   = 512
	sbDevSize    = 64
	sbParams     = 1536
	MaxParamsLen = StaticSize - sbParams - 2

	dyState      = 4
	dyErrors     = 8
	dyMounts     = 16
	dyMountTime  = 24
	dyChangeTime = 32
)

// Volume states in the dynamic half.
const (
	StateClean   = 1
	StateMounted = 2
)

// Error flags in the dynamic half; they stay until a repair clears them.
const ErrorCorruption = 1

// Device is a row of the device table. Base is the block at which the device
// is placed in the volume's address range; FirstGroup*GroupBlocks == Base.
type Device struct {
	UUID       [16]byte
	Base       uint64
	Blocks     uint64 // whole device, header and tail included
	FirstGroup uint32
	Groups     uint32
}

// Superblock is the decoded static half.
type Superblock struct {
	Compat, ROCompat, Incompat uint64
	UUID                       [16]byte
	Label                      string
	VolumeID                   string
	Created                    int64    // seconds since 1970
	HashKey                    [16]byte // of the directory hash
	InodesPerGroup             uint32
	Slots                      uint32
	Reserved                   uint64 // blocks that ordinary allocation leaves free
	Devices                    []Device
	Params                     []byte // JSON of the volume's parameters
}

// Seed is the checksum seed of the volume.
func (s *Superblock) Seed() uint32 { return Seed(s.UUID) }

// Encode writes the static half, checksum included, into p[:StaticSize].
func (s *Superblock) Encode(p []byte) error {
	if len(s.Label) > sbLabelLen {
		return fmt.Errorf("label of %d bytes; at most %d", len(s.Label), sbLabelLen)
	}
	if len(s.VolumeID) > sbVolumeLen {
		return fmt.Errorf("volume id of %d bytes; at most %d", len(s.VolumeID), sbVolumeLen)
	}
	if len(s.Params) > MaxParamsLen {
		return fmt.Errorf("volume parameters of %d bytes; at most %d", len(s.Params), MaxParamsLen)
	}
	if len(s.Devices) == 0 || len(s.Devices) > MaxDevices {
		return fmt.Errorf("%d devices; 1 to %d are possible", len(s.Devices), MaxDevices)
	}
	p = p[:StaticSize]
	clear(p)
	put64(p, sbMagic, Magic)
	put32(p, sbVersion, Version)
	put32(p, sbBlockSize, BlockSize)
	put64(p, sbCompat, s.Compat)
	put64(p, sbROCompat, s.ROCompat)
	put64(p, sbIncompat, s.Incompat)
	copy(p[sbUUID:], s.UUID[:])
	copy(p[sbLabel:sbLabel+sbLabelLen], s.Label)
	copy(p[sbVolumeID:sbVolumeID+sbVolumeLen], s.VolumeID)
	put64(p, sbCreated, uint64(s.Created))
	copy(p[sbHashKey:], s.HashKey[:])
	put32(p, sbGroup, GroupBlocks)
	put32(p, sbInodes, s.InodesPerGroup)
	put32(p, sbInodeSize, InodeSize)
	put32(p, sbSlots, s.Slots)
	put32(p, sbSlotSize, SlotSize)
	put32(p, sbDevices, uint32(len(s.Devices)))
	put64(p, sbReserved, s.Reserved)
	put64(p, sbJournal, JournalBlock)
	for i, d := range s.Devices {
		r := p[sbDevTable+i*sbDevSize:]
		copy(r, d.UUID[:])
		put64(r, 16, d.Base)
		put64(r, 24, d.Blocks)
		put32(r, 32, d.FirstGroup)
		put32(r, 36, d.Groups)
	}
	put16(p, sbParams, uint16(len(s.Params)))
	copy(p[sbParams+2:], s.Params)
	Seal(Seed(s.UUID), 0, p)
	return nil
}

// Errors of DecodeSuperblock.
var (
	ErrNotNVFS   = errors.New("no NVFS superblock")
	ErrChecksum  = errors.New("superblock checksum is wrong")
	ErrVersion   = errors.New("unknown format version")
	ErrIncompat  = errors.New("unknown incompatible features")
	ErrNonsense  = errors.New("superblock contradicts itself")
	errDevTables = fmt.Errorf("%w: device table", ErrNonsense)
)

// DecodeSuperblock checks and decodes the static half in p. It trusts
// nothing: every geometry that it returns is within the format's bounds.
func DecodeSuperblock(p []byte) (*Superblock, error) {
	if len(p) < StaticSize {
		return nil, ErrNotNVFS
	}
	switch le64(p, sbMagic) {
	case Magic:
	case MemberMagic:
		return nil, memberError(p)
	default:
		return nil, ErrNotNVFS
	}
	p = p[:StaticSize]
	s := &Superblock{}
	copy(s.UUID[:], p[sbUUID:])
	if !Verify(Seed(s.UUID), 0, p) {
		return nil, ErrChecksum
	}
	if v := le32(p, sbVersion); v != Version {
		return nil, fmt.Errorf("%w %d; this program knows %d", ErrVersion, v, Version)
	}
	s.Compat, s.ROCompat, s.Incompat = le64(p, sbCompat), le64(p, sbROCompat), le64(p, sbIncompat)
	if s.Incompat&^uint64(SupportedIncompat) != 0 {
		return nil, fmt.Errorf("%w %#x; use a newer version", ErrIncompat, s.Incompat)
	}
	s.Label = cstring(p[sbLabel : sbLabel+sbLabelLen])
	s.VolumeID = cstring(p[sbVolumeID : sbVolumeID+sbVolumeLen])
	s.Created = int64(le64(p, sbCreated))
	copy(s.HashKey[:], p[sbHashKey:])
	s.InodesPerGroup = le32(p, sbInodes)
	s.Slots = le32(p, sbSlots)
	s.Reserved = le64(p, sbReserved)
	n := int(le16(p, sbParams))
	switch {
	case le32(p, sbBlockSize) != BlockSize, le32(p, sbGroup) != GroupBlocks,
		le32(p, sbInodeSize) != InodeSize, le32(p, sbSlotSize) != SlotSize,
		le64(p, sbJournal) != JournalBlock,
		s.Slots == 0, s.Slots > SlotCount,
		s.InodesPerGroup == 0, s.InodesPerGroup > BitmapBits,
		n > MaxParamsLen:
		return nil, ErrNonsense
	}
	s.Params = append([]byte(nil), p[sbParams+2:sbParams+2+n]...)
	if err := s.decodeDevices(p); err != nil {
		return nil, err
	}
	return s, nil
}

// JournalKey is what the journal is read with, the checksum seed and the number
// of slots, of a static half that need not verify: a crash in the middle of a
// growth tears it, but never in these fields, which no record changes. ok is
// false when p is no static half.
func JournalKey(p []byte) (seed uint32, slots int, ok bool) {
	if len(p) < StaticSize || le64(p, sbMagic) != Magic || le32(p, sbSlots) == 0 || le32(p, sbSlots) > SlotCount {
		return 0, 0, false
	}
	return Seed([16]byte(p[sbUUID : sbUUID+16])), int(le32(p, sbSlots)), true
}

const (
	maxDeviceBlocks = 1 << 40
	maxInodes       = 1<<36 - 1 // the high bits of a node identifier are a generation
)

func (s *Superblock) decodeDevices(p []byte) error {
	n := le32(p, sbDevices)
	if n == 0 || n > MaxDevices {
		return errDevTables
	}
	next := uint64(0) // first block after the previous device
	for i := range int(n) {
		r := p[sbDevTable+i*sbDevSize:]
		d := Device{Base: le64(r, 16), Blocks: le64(r, 24), FirstGroup: le32(r, 32), Groups: le32(r, 36)}
		copy(d.UUID[:], r)
		want := uint64(d.FirstGroup) * GroupBlocks
		switch {
		case d.Base != want, d.Base < next, d.Blocks < MinBlocks, d.Blocks > maxDeviceBlocks,
			d.Groups != GroupsIn(d.Blocks, s.InodesPerGroup), d.Groups == 0,
			i == 0 && d.Base != 0, s.hasDevice(d.UUID),
			(uint64(d.FirstGroup)+uint64(d.Groups))*uint64(s.InodesPerGroup) > maxInodes:
			return errDevTables
		}
		next = d.Base + d.Blocks
		s.Devices = append(s.Devices, d)
	}
	return nil
}

func (s *Superblock) hasDevice(uuid [16]byte) bool {
	for _, d := range s.Devices {
		if d.UUID == uuid {
			return true
		}
	}
	return false
}

// MinGroupBlocks is the smallest last group that is made: its metadata plus
// 64 data blocks.
func MinGroupBlocks(inodesPerGroup uint32) uint64 {
	return GroupInodeTable + InodeTableBlocks(inodesPerGroup) + 64
}

// GroupsIn is the number of groups on a device of that many blocks. Its last
// block is kept for the superblock copy.
func GroupsIn(blocks uint64, inodesPerGroup uint32) uint32 {
	if blocks < HeaderBlocks+1 {
		return 0
	}
	space := blocks - HeaderBlocks - 1
	n := space / GroupBlocks
	if space%GroupBlocks >= MinGroupBlocks(inodesPerGroup) {
		n++
	}
	return uint32(n)
}

// GroupLen is the number of blocks of group index g (counted on its device)
// of a device of that many blocks. Every group has the volume's number of
// inodes, so that the last one can grow.
func GroupLen(blocks uint64, g uint32) uint64 {
	return min(blocks-HeaderBlocks-1-uint64(g)*GroupBlocks, GroupBlocks)
}

func cstring(p []byte) string {
	if i := bytes.IndexByte(p, 0); i >= 0 {
		p = p[:i]
	}
	return string(p)
}

// Dynamic is the dynamic half of the superblock: StaticSize bytes from
// DynamicOffset on.
type Dynamic []byte

// State is StateClean or StateMounted.
func (d Dynamic) State() uint32 { return le32(d, dyState) }

// Errors are the error flags.
func (d Dynamic) Errors() uint64 { return le64(d, dyErrors) }

// Mounts counts the mounts.
func (d Dynamic) Mounts() uint64 { return le64(d, dyMounts) }

// SetState sets the volume's state.
func (d Dynamic) SetState(v uint32) { put32(d, dyState, v) }

// SetErrors sets the error flags.
func (d Dynamic) SetErrors(v uint64) { put64(d, dyErrors, v) }

// SetMounts sets the mount count.
func (d Dynamic) SetMounts(v uint64) { put64(d, dyMounts, v) }

// SetMountTime sets the time of the last mount, in seconds since 1970.
func (d Dynamic) SetMountTime(v int64) { put64(d, dyMountTime, uint64(v)) }

// SetChangeTime sets the time of the last change of this half.
func (d Dynamic) SetChangeTime(v int64) { put64(d, dyChangeTime, uint64(v)) }

// Location of the dynamic half for its checksum.
const DynamicLocation = 1<<63 + 1
