package layout

// Data formats of an inode.
const (
	FormatNone    = 0 // special files
	FormatInline  = 1 // file data or symlink target in the body
	FormatExtents = 2 // extent tree
	FormatDir     = 3 // hash tree of directory blocks
)

// Inode is an inode of InodeSize bytes. Location of its checksum: the inode
// number. The body (InodeBodySize bytes from InodeBody on) holds, from its
// start, inline data, or the root of the extent tree, or the root pointer of
// the directory; the last XattrInline bytes hold the inline attribute set.
// A free inode keeps only its generation.
type Inode []byte

// The getters, in the order of the fields. Mode is st_mode.
func (n Inode) Mode() uint32        { return le32(n, 4) }
func (n Inode) Generation() uint32  { return le32(n, 8) }
func (n Inode) Nlink() uint32       { return le32(n, 12) }
func (n Inode) UID() uint32         { return le32(n, 16) }
func (n Inode) GID() uint32         { return le32(n, 20) }
func (n Inode) Size() uint64        { return le64(n, 24) }
func (n Inode) Blocks() uint64      { return le64(n, 32) } // blocks owned: data, tree nodes, xattr blocks
func (n Inode) AtimeSec() int64     { return int64(le64(n, 40)) }
func (n Inode) MtimeSec() int64     { return int64(le64(n, 48)) }
func (n Inode) CtimeSec() int64     { return int64(le64(n, 56)) }
func (n Inode) BtimeSec() int64     { return int64(le64(n, 64)) }
func (n Inode) AtimeNsec() uint32   { return le32(n, 72) }
func (n Inode) MtimeNsec() uint32   { return le32(n, 76) }
func (n Inode) CtimeNsec() uint32   { return le32(n, 80) }
func (n Inode) BtimeNsec() uint32   { return le32(n, 84) }
func (n Inode) Parent() uint64      { return le64(n, 88) } // inode number; exact for directories, a hint for others
func (n Inode) Flags() uint32       { return le32(n, 96) }
func (n Inode) Rdev() uint32        { return le32(n, 100) }
func (n Inode) Format() uint8       { return n[104] }
func (n Inode) ExtentDepth() uint8  { return n[105] } // 0: the body holds extents, else index entries
func (n Inode) ExtentCount() uint16 { return le16(n, 106) }
func (n Inode) XattrInline() uint16 { return le16(n, 108) } // bytes of inline attribute set
func (n Inode) ProjectID() uint32   { return le32(n, 112) }
func (n Inode) XattrBlock() uint64  { return le64(n, 120) } // first block of the external attribute set, or 0
func (n Inode) Entries() uint64     { return le64(n, 128) } // names in a directory
func (n Inode) Changes() uint64     { return le64(n, 136) }
func (n Inode) DirRoot() uint64     { return le64(n, InodeBody) }

// The setters.
func (n Inode) SetMode(v uint32)        { put32(n, 4, v) }
func (n Inode) SetGeneration(v uint32)  { put32(n, 8, v) }
func (n Inode) SetNlink(v uint32)       { put32(n, 12, v) }
func (n Inode) SetUID(v uint32)         { put32(n, 16, v) }
func (n Inode) SetGID(v uint32)         { put32(n, 20, v) }
func (n Inode) SetSize(v uint64)        { put64(n, 24, v) }
func (n Inode) SetBlocks(v uint64)      { put64(n, 32, v) }
func (n Inode) SetParent(v uint64)      { put64(n, 88, v) }
func (n Inode) SetFlags(v uint32)       { put32(n, 96, v) }
func (n Inode) SetRdev(v uint32)        { put32(n, 100, v) }
func (n Inode) SetFormat(v uint8)       { n[104] = v }
func (n Inode) SetExtentDepth(v uint8)  { n[105] = v }
func (n Inode) SetExtentCount(v uint16) { put16(n, 106, v) }
func (n Inode) SetXattrInline(v uint16) { put16(n, 108, v) }
func (n Inode) SetXattrBlock(v uint64)  { put64(n, 120, v) }
func (n Inode) SetEntries(v uint64)     { put64(n, 128, v) }
func (n Inode) SetChanges(v uint64)     { put64(n, 136, v) }
func (n Inode) SetDirRoot(v uint64)     { put64(n, InodeBody, v) }

// SetAtime and its siblings store a time.
func (n Inode) SetAtime(sec int64, nsec uint32) { put64(n, 40, uint64(sec)); put32(n, 72, nsec) }
func (n Inode) SetMtime(sec int64, nsec uint32) { put64(n, 48, uint64(sec)); put32(n, 76, nsec) }
func (n Inode) SetCtime(sec int64, nsec uint32) { put64(n, 56, uint64(sec)); put32(n, 80, nsec) }
func (n Inode) SetBtime(sec int64, nsec uint32) { put64(n, 64, uint64(sec)); put32(n, 84, nsec) }

// BodyRoom is the number of body bytes that the inline attribute set leaves.
func (n Inode) BodyRoom() int { return InodeBodySize - int(n.XattrInline()) }

// Body is the part of the body before the inline attribute set.
func (n Inode) Body() []byte { return n[InodeBody : InodeBody+n.BodyRoom()] }

// XattrBody is the inline attribute set.
func (n Inode) XattrBody() []byte { return n[InodeSize-int(n.XattrInline()) : InodeSize] }

// RootExtents is the number of extents that the body has room for.
func (n Inode) RootExtents() int { return n.BodyRoom() / ExtentSize }
