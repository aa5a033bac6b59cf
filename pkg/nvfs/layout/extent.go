package layout

// Extent flags.
const ExtentUnwritten = 1 // allocated, reads as zeros

// Extent maps Len blocks of a file from block Logical on to the volume's
// blocks from Physical on. In an index node only Logical and Physical (the
// child node) are used.
type Extent struct {
	Logical  uint64
	Physical uint64
	Len      uint32
	Flags    uint32
}

// Unwritten reports whether the extent reads as zeros.
func (e Extent) Unwritten() bool { return e.Flags&ExtentUnwritten != 0 }

// End is the first logical block after the extent.
func (e Extent) End() uint64 { return e.Logical + uint64(e.Len) }

// GetExtent decodes the i-th extent of the array p.
func GetExtent(p []byte, i int) Extent {
	p = p[i*ExtentSize:]
	return Extent{Logical: le64(p, 0), Physical: le64(p, 8), Len: le32(p, 16), Flags: le32(p, 20)}
}

// PutExtent encodes e as the i-th of the array p.
func PutExtent(p []byte, i int, e Extent) {
	p = p[i*ExtentSize:]
	put64(p, 0, e.Logical)
	put64(p, 8, e.Physical)
	put32(p, 16, e.Len)
	put32(p, 20, e.Flags)
}

// Node is the common header of tree blocks: extent nodes, directory leaves
// and index blocks, attribute blocks. Location: the block number. Owner is
// the inode number, so that a block tells whose it is.
type Node []byte

// Magic says what kind of block it is.
func (n Node) Magic() uint32 { return le32(n, 4) }

// Owner is the inode number of the owner.
func (n Node) Owner() uint64 { return le64(n, 8) }

// Depth is: of an extent node its height (1: holds extents); of a directory
// leaf the number of key bits that it and its path share; of a directory
// index block its level (0 at the root); of an attribute block its index.
func (n Node) Depth() uint16 { return le16(n, 16) }

// Count is the number of extents, names, or used slots.
func (n Node) Count() uint16 { return le16(n, 18) }

// Length is the number of payload bytes of an attribute block.
func (n Node) Length() uint32 { return le32(n, 20) }

// Next is the next attribute block, or 0.
func (n Node) Next() uint64 { return le64(n, 24) }

// Prefix is the key prefix (the high Depth bits of KeyBits) of a directory
// leaf, or of an index block the bits above its level.
func (n Node) Prefix() uint64 { return le64(n, 32) }

// InitNode clears the header and sets kind and owner.
func (n Node) InitNode(magic uint32, owner uint64, depth uint16) {
	clear(n[:NodeHeader])
	put32(n, 4, magic)
	put64(n, 8, owner)
	put16(n, 16, depth)
}

// SetDepth and its siblings change a field.
func (n Node) SetDepth(v uint16)  { put16(n, 16, v) }
func (n Node) SetCount(v uint16)  { put16(n, 18, v) }
func (n Node) SetLength(v uint32) { put32(n, 20, v) }
func (n Node) SetNext(v uint64)   { put64(n, 24, v) }
func (n Node) SetPrefix(v uint64) { put64(n, 32, v) }

// Payload is what follows the header.
func (n Node) Payload() []byte { return n[NodeHeader:] }

// Covered is the part of the block that its checksum covers: extent nodes
// and attribute blocks only as far as they are used. A count that cannot be
// is taken as the maximum, so that Covered never exceeds the block.
func (n Node) Covered() []byte {
	switch n.Magic() {
	case ExtentMagic:
		return n[:NodeHeader+min(int(n.Count()), NodeExtents)*ExtentSize]
	case DirIndexMagic:
		return n[:NodeHeader+DirFanout*8]
	case XattrMagic:
		return n[:NodeHeader+min(int(n.Length()), XattrPayload)]
	}
	return n[:BlockSize]
}

// Slot is the i-th pointer of a directory index block.
func (n Node) Slot(i int) uint64 { return le64(n, NodeHeader+8*i) }

// SetSlot stores the i-th pointer.
func (n Node) SetSlot(i int, v uint64) { put64(n, NodeHeader+8*i, v) }
