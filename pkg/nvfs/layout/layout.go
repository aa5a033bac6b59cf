// Package layout is the on-media format of NVFS: sizes, offsets, accessors
// and checksums. It holds no logic; docs/format.md is its specification.
//
// Everything is little-endian. A block is 4096 bytes and block numbers count
// from the start of the volume's address range, in which the devices of the
// volume lie side by side. Accessor types (Inode, ExtentNode, ...) are byte
// slices of the object's full size: getters work on mapped memory, setters
// only on staged copies.
package layout

import (
	"encoding/binary"
	"hash/crc32"
)

// Sizes of the format, in bytes unless the name says otherwise.
const (
	BlockShift = 12
	BlockSize  = 1 << BlockShift

	// HeaderBlocks are at the start of each device: superblock (or member
	// label) in block 0, journal slots from JournalBlock on (first device).
	HeaderBlocks = 1536
	JournalBlock = 512

	SlotSize     = 64 << 10
	SlotCount    = 64
	PayloadStart = 512
	PayloadMax   = SlotSize - PayloadStart

	// A bitmap is cut into chunks that carry their own checksum and count.
	ChunkSize   = 256
	ChunkWords  = 31
	ChunkBits   = ChunkWords * 64 // 1984
	ChunksBlock = BlockSize / ChunkSize
	BitmapBits  = ChunksBlock * ChunkBits // 31744

	// A group is what one bitmap block maps: 124 MiB, 62 times 2 MiB.
	GroupBlocks = BitmapBits

	InodeSize      = 512
	InodeBody      = 160
	InodeBodySize  = InodeSize - InodeBody // 352
	InodesPerBlock = BlockSize / InodeSize

	ExtentSize     = 24
	NodeHeader     = 64
	NodeExtents    = (BlockSize - NodeHeader) / ExtentSize // 168
	DirFanout      = 256
	DirFanoutBits  = 8
	DirEntryHeader = 20
	XattrPayload   = BlockSize - NodeHeader

	NameMax     = 255
	MaxDevices  = 16
	MinBlocks   = 16 << 20 / BlockSize // smallest volume: 16 MiB
	MinInodes   = 1024                 // smallest number of inodes in a group
	HugeBlocks  = 512                  // blocks in 2 MiB
	MaxXattrLen = 64 << 10             // largest value
	MaxXattrSet = 128 << 10            // all attributes of one inode together
)

// Offsets of a group's metadata, in blocks from its start.
const (
	GroupDescBlock   = 0
	GroupBlockBitmap = 1
	GroupInodeBitmap = 2
	GroupOrphans     = 3
	GroupInodeTable  = 4
)

// Version of the format and its feature words. A volume with an unknown
// incompat bit is refused, with an unknown ro-compat bit mounted read-only.
const (
	Version           = 1
	Magic             = 0x4d454d505346564e // "NVFSPMEM"
	MemberMagic       = 0x2042454d5346564e // "NVFSMEB "
	SupportedIncompat = 0
	SupportedROCompat = 0
)

// Magic numbers of blocks.
const (
	GroupMagic    = 0x4447564e // "NVGD"
	RecordMagic   = 0x524a564e // "NVJR"
	ExtentMagic   = 0x5845564e // "NVEX"
	DirLeafMagic  = 0x4c44564e // "NVDL"
	DirIndexMagic = 0x4e44564e // "NVDN"
	XattrMagic    = 0x4158564e // "NVXA"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seed derives the volume's checksum seed from its UUID, so that metadata of
// an earlier volume at the same place never verifies.
func Seed(uuid [16]byte) uint32 { return crc32.Update(0, castagnoli, uuid[:]) }

// Sum is the CRC32C of p, seeded with the volume's seed and the object's
// location (block number, inode number or slot), so that a block that landed
// in the wrong place does not verify.
func Sum(seed uint32, location uint64, p []byte) uint32 {
	return crc32.Update(seed+uint32(location)*0x9e3779b1+uint32(location>>32), castagnoli, p)
}

// Every checksummed object has its checksum in its first four bytes and the
// checksum covers the bytes from 4 on.

// Seal writes the checksum of the object p.
func Seal(seed uint32, location uint64, p []byte) {
	binary.LittleEndian.PutUint32(p, Sum(seed, location, p[4:]))
}

// Verify reports whether the checksum of the object p is right.
func Verify(seed uint32, location uint64, p []byte) bool {
	return binary.LittleEndian.Uint32(p) == Sum(seed, location, p[4:])
}

func le16(p []byte, o int) uint16     { return binary.LittleEndian.Uint16(p[o:]) }
func le32(p []byte, o int) uint32     { return binary.LittleEndian.Uint32(p[o:]) }
func le64(p []byte, o int) uint64     { return binary.LittleEndian.Uint64(p[o:]) }
func put16(p []byte, o int, v uint16) { binary.LittleEndian.PutUint16(p[o:], v) }
func put32(p []byte, o int, v uint32) { binary.LittleEndian.PutUint32(p[o:], v) }
func put64(p []byte, o int, v uint64) { binary.LittleEndian.PutUint64(p[o:], v) }

// GroupStart is the first block of group g. The arithmetic is the same on
// every device: a further device is placed so that its groups fall on it.
func GroupStart(g uint64) uint64 { return HeaderBlocks + g*GroupBlocks }

// GroupOf is the group of a block that lies in one.
func GroupOf(block uint64) uint64 { return (block - HeaderBlocks) / GroupBlocks }

// SlotOffset is the byte offset of journal slot i in the volume.
func SlotOffset(i int) uint64 { return JournalBlock*BlockSize + uint64(i)*SlotSize }

// InodeGroup and InodeIndex split an inode number; numbers start at 1.
func InodeGroup(ino uint64, perGroup uint32) uint64 { return (ino - 1) / uint64(perGroup) }

// InodeIndex is the position of ino in its group's inode table.
func InodeIndex(ino uint64, perGroup uint32) uint32 { return uint32((ino - 1) % uint64(perGroup)) }

// InodeOffset is the byte offset in the volume of inode ino.
func InodeOffset(ino uint64, perGroup uint32) uint64 {
	table := GroupStart(InodeGroup(ino, perGroup)) + GroupInodeTable
	return table*BlockSize + uint64(InodeIndex(ino, perGroup))*InodeSize
}

// InodeTableBlocks is the length of an inode table.
func InodeTableBlocks(inodes uint32) uint64 {
	return (uint64(inodes) + InodesPerBlock - 1) / InodesPerBlock
}
