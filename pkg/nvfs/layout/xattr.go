package layout

// An attribute set is the concatenation of its entries: XattrHeader bytes,
// the full name, the value. Inline it lies at the end of the inode, external
// in a chain of attribute blocks; an inode has one or the other.
const XattrHeader = 8

// XattrEntry is an entry of an attribute set and all that follows it.
type XattrEntry []byte

// Whole reports whether the entry is complete.
func (x XattrEntry) Whole() bool {
	return len(x) >= XattrHeader && x[4] != 0 && uint64(len(x)) >= uint64(XattrHeader)+uint64(x[4])+uint64(le32(x, 0))
}

// Name, Value and Next split off the first entry, which must be Whole.
func (x XattrEntry) Name() []byte { return x[XattrHeader : XattrHeader+int(x[4])] }
func (x XattrEntry) Value() []byte {
	start := XattrHeader + int(x[4])
	return x[start : start+int(le32(x, 0))]
}
func (x XattrEntry) Next() XattrEntry { return x[XattrEntryLen(int(x[4]), int(le32(x, 0))):] }

// XattrEntryLen is the length of an entry.
func XattrEntryLen(name, value int) int { return XattrHeader + name + value }

// AppendXattr appends an entry to a set.
func AppendXattr(set, name, value []byte) []byte {
	var h [XattrHeader]byte
	put32(h[:], 0, uint32(len(value)))
	h[4] = uint8(len(name))
	set = append(set, h[:]...)
	set = append(set, name...)
	return append(set, value...)
}
