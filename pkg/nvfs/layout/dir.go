package layout

// Directory keys have KeyBits bits: the keyed hash of the name with its low
// KeyIndexBits replaced by an index that tells names of equal hash apart.
// Index blocks at level l select by the DirFanoutBits bits below the top
// l*DirFanoutBits; several neighbouring slots share a leaf whose Depth is
// smaller than the index block's reach.
const (
	KeyBits      = 62
	KeyIndexBits = 3
	KeyIndexMask = 1<<KeyIndexBits - 1
	MaxDirLevel  = 6 // deepest level of an index block
)

// KeyOf makes a key of a 64-bit hash, with index 0.
func KeyOf(hash uint64) uint64 { return hash >> (64 - KeyBits) &^ KeyIndexMask }

// KeySlot is the slot of key in an index block at that level.
func KeySlot(key uint64, level uint16) int {
	return int(key >> (KeyBits - DirFanoutBits*(int(level)+1)) & (DirFanout - 1))
}

// DirEntry is an entry of a directory leaf: DirEntryHeader bytes, then the
// name, padded to 8 bytes. Entries tile the payload of the leaf; one with
// inode number 0 is free space.
type DirEntry []byte

// The fields of an entry.
func (e DirEntry) Ino() uint64    { return le64(e, 0) }
func (e DirEntry) Key() uint64    { return le64(e, 8) }
func (e DirEntry) RecLen() uint16 { return le16(e, 16) }
func (e DirEntry) NameLen() uint8 { return e[18] }
func (e DirEntry) Type() uint8    { return e[19] } // mode >> 12
func (e DirEntry) Name() []byte   { return e[DirEntryHeader : DirEntryHeader+int(e.NameLen())] }

// Their setters. SetName also clears the padding.
func (e DirEntry) SetIno(v uint64)    { put64(e, 0, v) }
func (e DirEntry) SetKey(v uint64)    { put64(e, 8, v) }
func (e DirEntry) SetRecLen(v uint16) { put16(e, 16, v) }
func (e DirEntry) SetType(v uint8)    { e[19] = v }
func (e DirEntry) SetName(name []byte) {
	e[18] = uint8(len(name))
	n := copy(e[DirEntryHeader:], name)
	clear(e[DirEntryHeader+n : DirEntryLen(len(name))])
}

// DirEntryLen is the space that a name of n bytes takes.
func DirEntryLen(n int) int { return (DirEntryHeader + n + 7) &^ 7 }

// DirEntryMin is the smallest entry; less free space cannot be described.
const DirEntryMin = 24

// DirEntryAt returns the entry at pos of a leaf's payload, nil when it is
// malformed: its lengths do not fit. Whether its name is legal is another
// question.
func DirEntryAt(payload []byte, pos int) DirEntry {
	if pos+DirEntryMin > len(payload) {
		return nil
	}
	e := DirEntry(payload[pos:])
	n := int(e.RecLen())
	if n < DirEntryMin || n%8 != 0 || n > len(e) {
		return nil
	}
	if e.Ino() != 0 && DirEntryLen(int(e.NameLen())) > n {
		return nil
	}
	return e[:n]
}
