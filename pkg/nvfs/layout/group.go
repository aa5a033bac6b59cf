package layout

import "math/bits"

// GroupDescSize is the size of a group descriptor.
const GroupDescSize = 64

// GroupDesc is a group descriptor, at the start of the group's first block.
// It changes only when the group grows. Location: the block number.
type GroupDesc []byte

// Magic of the descriptor.
func (g GroupDesc) Magic() uint32 { return le32(g, 4) }

// Group is the group's number.
func (g GroupDesc) Group() uint32 { return le32(g, 8) }

// Blocks is the number of blocks in the group, metadata included.
func (g GroupDesc) Blocks() uint32 { return le32(g, 12) }

// Inodes is the number of inodes in the group.
func (g GroupDesc) Inodes() uint32 { return le32(g, 16) }

// Init writes all fields but the checksum.
func (g GroupDesc) Init(group, blocks, inodes uint32) {
	clear(g[:GroupDescSize])
	put32(g, 4, GroupMagic)
	put32(g, 8, group)
	put32(g, 12, blocks)
	put32(g, 16, inodes)
}

// SetBlocks changes the number of blocks.
func (g GroupDesc) SetBlocks(v uint32) { put32(g, 12, v) }

// Chunk is a bitmap chunk of ChunkSize bytes: checksum, count, 31 words.
// Count is the number of clear bits in block and inode bitmaps and of set
// bits in the orphan bitmap. Bits past the end of the group are set in block
// and inode bitmaps. Location: byte offset of the chunk / ChunkSize.
type Chunk []byte

// Count is the stored count.
func (c Chunk) Count() uint32 { return le32(c, 4) }

// SetCount stores the count.
func (c Chunk) SetCount(v uint32) { put32(c, 4, v) }

// Word is the i-th of the chunk's words of bits.
func (c Chunk) Word(i int) uint64 { return le64(c, 8+8*i) }

// SetWord stores the i-th word.
func (c Chunk) SetWord(i int, v uint64) { put64(c, 8+8*i, v) }

// Ones counts the set bits.
func (c Chunk) Ones() uint32 {
	n := 0
	for i := range ChunkWords {
		n += bits.OnesCount64(c.Word(i))
	}
	return uint32(n)
}

// Bit is bit i of the chunk.
func (c Chunk) Bit(i uint32) bool { return c.Word(int(i/64))>>(i%64)&1 == 1 }

// SetBit sets bit i to v.
func (c Chunk) SetBit(i uint32, v bool) {
	w := c.Word(int(i / 64))
	if v {
		w |= 1 << (i % 64)
	} else {
		w &^= 1 << (i % 64)
	}
	c.SetWord(int(i/64), w)
}

// ChunkOffset is the byte offset in the volume of the chunk that holds bit
// `bit` of the bitmap in block `block`.
func ChunkOffset(block uint64, bit uint32) uint64 {
	return block*BlockSize + uint64(bit/ChunkBits)*ChunkSize
}

// ChunkLocation is the checksum location of the chunk at byte offset off.
func ChunkLocation(off uint64) uint64 { return off / ChunkSize }

// ReservedBlocks is the reserve that mkfs gives a volume: what its extent
// nodes can come to when every other block is preallocated and the others are
// written, 84 extents in a node that a split has left half full; at least
// what all workers need at a time to punch holes. The largest volumes, which
// are seldom that full of fragments, get 16 MiB.
func ReservedBlocks(blocks uint64) uint64 {
	const least, most = 64, 4096
	return min(max(blocks/(NodeExtents/2), least), most)
}
