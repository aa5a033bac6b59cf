package fsck

import (
	"bufio"
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// damage is a way to break one invariant. before edits what is to be written,
// after what was.
type damage struct {
	name   string
	code   Code
	before func(p *populated)
	after  func(p *populated)
	more   []Code // broken too
}

// editInode changes an inode and seals it.
func editInode(pick func(p *populated) *file, edit func(n layout.Inode)) func(p *populated) {
	return func(p *populated) {
		ino := pick(p).ino
		edit(p.inode(ino))
		p.sealInode(ino)
	}
}

// editNode changes a tree block and seals it.
func editNode(pick func(p *populated) uint64, edit func(n layout.Node)) func(p *populated) {
	return func(p *populated) {
		b := pick(p)
		edit(p.node(b))
		p.sealNode(b)
	}
}

// editEntry changes the entry of a name and seals its leaf.
func editEntry(pick func(p *populated) (*file, string), edit func(p *populated, e layout.DirEntry)) func(p *populated) {
	return func(p *populated) {
		dir, name := pick(p)
		b, e := p.findEntry(dir.root, name)
		edit(p, e)
		p.sealNode(b)
	}
}

func (im *image) findEntry(block uint64, name string) (uint64, layout.DirEntry) {
	n := im.node(block)
	if n.Magic() == layout.DirIndexMagic {
		key := im.key(name)
		return im.findEntry(n.Slot(layout.KeySlot(key, n.Depth())), name)
	}
	for pos := 0; ; {
		e := layout.DirEntry(n.Payload()[pos:])
		if e.Ino() != 0 && string(e.Name()) == name {
			return block, e
		}
		pos += int(e.RecLen())
	}
}

func (im *image) setBit(block uint64, bit uint32, v bool) {
	im.chunk(block, bit).SetBit(bit%layout.ChunkBits, v)
	im.sealChunk(block, bit)
}

func groupBitmap(g, which uint64) uint64 { return layout.GroupStart(g) + which }

func wideRoot(p *populated) uint64 { return p.wide.root }
func treeRoot(p *populated) uint64 { return layout.GetExtent(p.inode(p.tree.ino).Body(), 0).Physical }
func treeLeaf(p *populated) uint64 {
	return layout.GetExtent(p.node(treeRoot(p)).Payload(), 1).Physical
}
func subLeaf(p *populated) uint64   { return p.findLeaf(p.sub, "holes") }
func xattrHead(p *populated) uint64 { return p.inode(p.outsideX.ino).XattrBlock() }
func inDir(name string) func(p *populated) (*file, string) {
	return func(p *populated) (*file, string) { return p.dir, name }
}

func (p *populated) findLeaf(dir *file, name string) uint64 {
	b, _ := p.findEntry(dir.root, name)
	return b
}

func firstUsedSlot(n layout.Node) int {
	for i := range layout.DirFanout {
		if n.Slot(i) != 0 {
			return i
		}
	}
	return -1
}

func (p *populated) setIntent(kind uint32, node uint64) {
	off := layout.SlotOffset(1) + layout.RecIntent
	t := layout.Intent(p.mem[off : off+layout.IntentSize])
	t.Set(kind, node, 0, 0, 0)
	layout.Seal(p.seed, layout.IntentLocation+1, t)
	p.setState(layout.StateMounted)
}

func (f *file) node() uint64 { return uint64(f.gen)<<36 | f.ino }

func editSuperblock(edit func(sb *layout.Superblock)) func(p *populated) {
	return func(p *populated) { edit(p.sb) }
}

func editDynamic(off int, v uint32) func(p *populated) {
	return func(p *populated) {
		d := p.block(0)[layout.DynamicOffset:][:layout.StaticSize]
		binary.LittleEndian.PutUint32(d[off:], v)
		layout.Seal(p.seed, layout.DynamicLocation, d)
	}
}

func editDescriptor(edit func(d layout.GroupDesc)) func(p *populated) {
	return func(p *populated) {
		start := layout.GroupStart(1)
		d := layout.GroupDesc(p.block(start)[:layout.GroupDescSize])
		edit(d)
		layout.Seal(p.seed, start, d)
	}
}

var (
	ofInline = func(p *populated) *file { return p.inline }
	ofTree   = func(p *populated) *file { return p.tree }
	ofDir    = func(p *populated) *file { return p.dir }
	ofSub    = func(p *populated) *file { return p.sub }
	ofFifo   = func(p *populated) *file { return p.fifo }
	ofLink   = func(p *populated) *file { return p.link }
	ofBig    = func(p *populated) *file { return p.big }
	ofRoot   = func(p *populated) *file { return p.root() }
	ofOutX   = func(p *populated) *file { return p.outsideX }
	ofInX    = func(p *populated) *file { return p.inlineX }
)

var damages = []damage{
	{name: "primary superblock", code: Superblock, after: func(p *populated) { p.mem[300]++ }},
	{name: "primary superblock gone", code: Superblock, after: func(p *populated) { clear(p.mem[:layout.StaticSize]) }},
	{name: "copy of the superblock", code: SuperblockCopy, after: func(p *populated) {
		q := p.block(p.sb.Devices[0].Blocks - 1)
		sb := *p.sb
		sb.Label = "other"
		_ = sb.Encode(q)
	}},
	{name: "dynamic half", code: SuperblockDynamic, after: func(p *populated) { p.mem[layout.DynamicOffset+9]++ }},
	{name: "state", code: SuperblockDynamic, after: editDynamic(4, 3)},
	{name: "error flag", code: ErrorFlag, after: editDynamic(8, layout.ErrorCorruption)},
	{name: "reserve", code: Geometry, before: editSuperblock(func(sb *layout.Superblock) { sb.Reserved = 1 << 30 })},

	{name: "descriptor checksum", code: GroupDescriptor, after: func(p *populated) { p.block(layout.GroupStart(1))[20]++ }},
	{name: "descriptor magic", code: GroupDescriptor, after: editDescriptor(func(d layout.GroupDesc) { d[4]++ })},
	{name: "descriptor number", code: GroupDescriptor, after: editDescriptor(func(d layout.GroupDesc) { d.Init(0, d.Blocks(), d.Inodes()) })},
	{name: "descriptor blocks", code: GroupDescriptor, after: editDescriptor(func(d layout.GroupDesc) { d.SetBlocks(d.Blocks() - 1) })},
	{name: "descriptor inodes", code: GroupDescriptor, after: editDescriptor(func(d layout.GroupDesc) { d.Init(1, d.Blocks(), d.Inodes()-8) })},
	{name: "bitmap checksum", code: BitmapChecksum, after: func(p *populated) { p.chunk(groupBitmap(0, layout.GroupBlockBitmap), 0)[100]++ }},
	{name: "last bitmap chunk", code: BitmapChecksum, after: func(p *populated) { p.chunk(groupBitmap(1, layout.GroupOrphans), 31743)[0]++ }},
	{name: "bitmap count", code: BitmapCount, after: func(p *populated) {
		b := groupBitmap(0, layout.GroupInodeBitmap)
		c := p.chunk(b, 0)
		c.SetCount(c.Count() + 1)
		layout.Seal(p.seed, layout.ChunkLocation(layout.ChunkOffset(b, 0)), c)
	}},
	{name: "block bitmap tail", code: BitmapTail, after: func(p *populated) { p.setBit(groupBitmap(1, layout.GroupBlockBitmap), 31743, false) }},
	{name: "inode bitmap tail", code: BitmapTail, after: func(p *populated) { p.setBit(groupBitmap(0, layout.GroupInodeBitmap), testPerGroup, false) }},
	{name: "orphan bitmap tail", code: BitmapTail, after: func(p *populated) { p.setBit(groupBitmap(0, layout.GroupOrphans), 31743, true) }},

	{name: "leaked block", code: BlockLeaked, after: func(p *populated) { p.setBit(groupBitmap(0, layout.GroupBlockBitmap), 20000, true) }},
	{name: "data block marked free", code: BlockFree, after: func(p *populated) {
		p.setBit(groupBitmap(1, layout.GroupBlockBitmap), uint32(p.big.extents[0].Physical-layout.GroupStart(1))+77, false)
	}},
	{name: "directory block marked free", code: BlockFree, after: func(p *populated) {
		p.setBit(groupBitmap(0, layout.GroupBlockBitmap), uint32(p.dir.root-layout.GroupStart(0)), false)
	}},
	{name: "inode table marked free", code: BlockFree, after: func(p *populated) { p.setBit(groupBitmap(0, layout.GroupBlockBitmap), 5, false) }},
	{name: "shared data block", code: BlockShared, more: []Code{BlockLeaked}, before: func(p *populated) {
		p.big.extents[1].Physical = p.big.extents[0].Physical + 590
	}},
	{name: "file shares a directory's block", code: BlockShared, after: func(p *populated) {
		n := p.inode(p.big.ino)
		e := layout.GetExtent(n.Body(), 1)
		e.Physical, e.Len = p.dir.root, 1
		layout.PutExtent(n.Body(), 1, e)
		p.sealInode(p.big.ino)
	}, more: []Code{BlockLeaked, InodeBlocks}},
	{name: "extent in metadata", code: BlockRange, more: []Code{BlockLeaked}, before: func(p *populated) { p.big.extents[1].Physical = layout.GroupStart(0) + 2 }},
	{name: "extent in the journal", code: BlockRange, more: []Code{BlockLeaked}, before: func(p *populated) { p.big.extents[1].Physical = 600 }},
	{name: "extent across groups", code: BlockRange, more: []Code{BlockLeaked}, before: func(p *populated) { p.big.extents[1].Physical = layout.GroupStart(1) - 5 }},
	{name: "extent off the device", code: BlockRange, more: []Code{BlockLeaked}, before: func(p *populated) { p.big.extents[1].Physical = 1 << 60 }},
	{name: "extent at the end of numbers", code: BlockRange, more: []Code{BlockLeaked}, before: func(p *populated) { p.big.extents[1].Physical = ^uint64(0) }},
	{name: "directory root off the device", code: BlockRange, more: []Code{BlockLeaked, InodeUnreachable, InodeNlink},
		after: editInode(ofSub, func(n layout.Inode) { n.SetDirRoot(1 << 50) })},

	{name: "inode checksum", code: InodeChecksum, after: func(p *populated) { p.inode(p.inline.ino)[200]++ }},
	{name: "inode of another place", code: InodeChecksum, more: []Code{DirType}, after: func(p *populated) { copy(p.inode(p.inline.ino), p.inode(p.fifo.ino)) }},
	{name: "mode", code: InodeMode, after: editInode(ofFifo, func(n layout.Inode) { n.SetMode(0o030644) }), more: []Code{DirType}},
	{name: "free inode in use", code: InodeMode, after: editInode(ofFifo, func(n layout.Inode) { n.SetMode(0) }), more: []Code{DirType}},
	{name: "format of a file", code: InodeFormat, after: editInode(ofInline, func(n layout.Inode) { n.SetFormat(layout.FormatDir) })},
	{name: "format of a directory", code: InodeFormat, more: []Code{BlockLeaked, InodeUnreachable, InodeNlink},
		after: editInode(ofSub, func(n layout.Inode) { n.SetFormat(layout.FormatInline) })},
	{name: "format of a fifo", code: InodeFormat, after: editInode(ofFifo, func(n layout.Inode) { n.SetFormat(layout.FormatInline) })},
	{name: "inline attributes too long", code: InodeFormat, after: editInode(ofInline, func(n layout.Inode) { n.SetXattrInline(353) })},
	{name: "no room for the root pointer", code: InodeFormat, more: []Code{BlockLeaked, InodeUnreachable, InodeNlink, XattrSet},
		after: editInode(ofSub, func(n layout.Inode) { n.SetXattrInline(350) })},
	{name: "too many root extents", code: InodeFormat, more: []Code{BlockLeaked}, after: editInode(ofBig, func(n layout.Inode) { n.SetExtentCount(15) })},
	{name: "extent tree too high", code: InodeFormat, more: []Code{BlockLeaked}, after: editInode(ofTree, func(n layout.Inode) { n.SetExtentDepth(9) })},
	{name: "no root entries", code: InodeFormat, more: []Code{BlockLeaked}, after: editInode(ofTree, func(n layout.Inode) { n.SetExtentCount(0) })},
	{name: "inline data too long", code: InodeSize, after: editInode(ofInline, func(n layout.Inode) { n.SetSize(353) })},
	{name: "inline data over attributes", code: InodeSize, after: editInode(ofInX, func(n layout.Inode) { n.SetSize(340) })},
	{name: "size of a target", code: InodeSize, after: editInode(ofLink, func(n layout.Inode) { n.SetSize(0) })},
	{name: "long target", code: InodeSize, before: func(p *populated) { p.longLink.size = 4096 }},
	{name: "size of a fifo", code: InodeSize, after: editInode(ofFifo, func(n layout.Inode) { n.SetSize(1) })},
	{name: "negative size", code: InodeSize, more: []Code{BlockLeaked}, after: editInode(ofBig, func(n layout.Inode) { n.SetSize(1 << 63) })},
	{name: "blocks of a file", code: InodeBlocks, after: editInode(ofTree, func(n layout.Inode) { n.SetBlocks(n.Blocks() + 1) })},
	{name: "blocks of a directory", code: InodeBlocks, after: editInode(ofDir, func(n layout.Inode) { n.SetBlocks(n.Blocks() - 1) })},
	{name: "blocks of an inline file", code: InodeBlocks, after: editInode(ofInline, func(n layout.Inode) { n.SetBlocks(1) })},
	{name: "nanoseconds", code: InodeTime, after: editInode(ofInline, func(n layout.Inode) { n.SetBtime(1, 1e9) })},
	{name: "links of a file", code: InodeNlink, after: editInode(func(p *populated) *file { return p.hard }, func(n layout.Inode) { n.SetNlink(300) })},
	{name: "links of a directory", code: InodeNlink, after: editInode(ofDir, func(n layout.Inode) { n.SetNlink(2) })},
	{name: "file without a name", code: InodeUnreachable, before: func(p *populated) { p.sub.names = p.sub.names[1:] }},
	{name: "directory without a name", code: InodeUnreachable, before: func(p *populated) { p.dir.names = p.dir.names[1:]; p.dir.subdirs-- }},

	{name: "orphan not marked", code: Orphan, before: func(p *populated) { p.orphans = p.orphans[1:] }},
	{name: "file marked as an orphan", code: Orphan, before: func(p *populated) { p.orphans = append(p.orphans, p.inline.ino) }},
	{name: "free inode marked as an orphan", code: Orphan, before: func(p *populated) { p.orphans = append(p.orphans, 1000) }},
	{name: "orphan with a name", code: Orphan, before: func(p *populated) {
		p.dir.names = append(p.dir.names, dirName{p.key("o"), "o", p.orphan.ino, unix.S_IFREG >> 12})
	}},
	{name: "orphan directory with names", code: Orphan, before: func(p *populated) {
		p.orphanDir.names = []dirName{{p.key("o"), "o", p.inline.ino, unix.S_IFREG >> 12}}
		p.inline.nlink++
	}},
	{name: "orphan directory with a name", code: Orphan, more: []Code{InodeNlink}, before: func(p *populated) {
		p.dir.names = append(p.dir.names, dirName{p.key("o"), "o", p.orphanDir.ino, unix.S_IFDIR >> 12})
	}},
	{name: "root is a file", code: Root, more: []Code{BlockLeaked, InodeUnreachable, DirLoop}, after: editInode(ofRoot, func(n layout.Inode) {
		n.SetMode(unix.S_IFREG | 0o755)
		n.SetFormat(layout.FormatInline)
		n.SetBlocks(0)
	})},
	{name: "generation of the root", code: Root, after: editInode(ofRoot, func(n layout.Inode) { n.SetGeneration(1) })},
	{name: "parent of the root", code: Root, after: editInode(ofRoot, func(n layout.Inode) { n.SetParent(2) })},
	{name: "root has a name", code: Root, more: []Code{InodeNlink}, before: func(p *populated) {
		p.sub.names = append(p.sub.names, dirName{p.key("root"), "root", 1, unix.S_IFDIR >> 12})
	}},
	{name: "root not in use", code: Root, more: []Code{BlockLeaked, InodeUnreachable, DirLoop},
		after: func(p *populated) { p.setBit(groupBitmap(0, layout.GroupInodeBitmap), 0, false) }},

	{name: "extents overlap", code: ExtentOrder, before: func(p *populated) { p.big.extents[1].Logical -= 3 }},
	{name: "empty extent", code: ExtentOrder, more: []Code{BlockLeaked}, before: func(p *populated) { p.big.extents[1].Len = 0 }},
	{name: "extent at the end of files", code: ExtentOrder, before: func(p *populated) { p.big.extents[1].Logical = 1<<51 - 5 }},
	{name: "extent before its index entry", code: ExtentOrder, after: editNode(treeLeaf, func(n layout.Node) {
		e := layout.GetExtent(n.Payload(), 0)
		e.Logical = 0
		layout.PutExtent(n.Payload(), 0, e)
	})},
	{name: "index entries out of order", code: ExtentOrder, more: []Code{BlockLeaked}, after: editNode(treeRoot, func(n layout.Node) {
		a, b := layout.GetExtent(n.Payload(), 0), layout.GetExtent(n.Payload(), 1)
		layout.PutExtent(n.Payload(), 0, b)
		layout.PutExtent(n.Payload(), 1, a)
	})},
	{name: "blocks behind the end of file", code: ExtentEOF, after: editInode(ofBig, func(n layout.Inode) { n.SetSize(599 * layout.BlockSize) })},
	{name: "extent flags", code: ExtentFlags, before: func(p *populated) { p.big.extents[1].Flags = 2 | layout.ExtentUnwritten }},
	{name: "extent node checksum", code: ExtentNode, more: []Code{BlockLeaked}, after: func(p *populated) { p.node(treeLeaf(p))[70]++ }},
	{name: "extent node height", code: ExtentNode, more: []Code{BlockLeaked}, after: editNode(treeLeaf, func(n layout.Node) { n.SetDepth(2) })},
	{name: "extent node owner", code: ExtentNode, more: []Code{BlockLeaked},
		after: editNode(treeLeaf, func(n layout.Node) { binary.LittleEndian.PutUint64(n[8:], 77) })},
	{name: "extent node empty", code: ExtentNode, more: []Code{BlockLeaked}, after: editNode(treeLeaf, func(n layout.Node) { n.SetCount(0) })},
	{name: "extent node overfull", code: ExtentNode, more: []Code{BlockLeaked}, after: editNode(treeLeaf, func(n layout.Node) { n.SetCount(169) })},
	{name: "extent tree loops", code: BlockShared, more: []Code{BlockLeaked}, after: editNode(treeRoot, func(n layout.Node) {
		e := layout.GetExtent(n.Payload(), 1)
		e.Physical = layout.GetExtent(n.Payload(), 0).Physical
		layout.PutExtent(n.Payload(), 1, e)
	})},

	{name: "leaf checksum", code: DirBlock, more: []Code{BlockLeaked, InodeUnreachable, InodeNlink}, after: func(p *populated) { p.node(subLeaf(p))[4000]++ }},
	{name: "leaf owner", code: DirBlock, more: []Code{BlockLeaked, InodeUnreachable, InodeNlink},
		after: editNode(subLeaf, func(n layout.Node) { binary.LittleEndian.PutUint64(n[8:], 77) })},
	{name: "directory block magic", code: DirBlock, more: []Code{BlockLeaked, InodeUnreachable, InodeNlink},
		after: editNode(subLeaf, func(n layout.Node) { binary.LittleEndian.PutUint32(n[4:], layout.XattrMagic) })},
	{name: "leaf prefix", code: DirTree, after: editNode(subLeaf, func(n layout.Node) { n.SetPrefix(n.Prefix() + 1) })},
	{name: "leaf depth", code: DirTree, after: editNode(subLeaf, func(n layout.Node) { n.SetDepth(n.Depth() + 1) })},
	{name: "leaf depth of 9 bits", code: DirTree, after: editNode(subLeaf, func(n layout.Node) { n.SetDepth(9) })},
	{name: "leaf depth of many bits", code: DirTree, after: editNode(subLeaf, func(n layout.Node) { n.SetDepth(65535) })},
	{name: "index level", code: DirTree, more: []Code{BlockLeaked, InodeUnreachable}, after: editNode(wideRoot, func(n layout.Node) { n.SetDepth(1) })},
	{name: "index prefix", code: DirTree, more: []Code{BlockLeaked, InodeUnreachable}, after: editNode(wideRoot, func(n layout.Node) { n.SetPrefix(1) })},
	{name: "index count", code: DirTree, after: editNode(wideRoot, func(n layout.Node) { n.SetCount(n.Count() - 1) })},
	{name: "a slot of a run lost", code: DirTree, more: []Code{BlockShared}, after: editNode(wideRoot, func(n layout.Node) {
		for i := 1; i < layout.DirFanout; i++ {
			if n.Slot(i) != 0 && n.Slot(i) == n.Slot(i-1) {
				n.SetSlot(i, 0)
				n.SetCount(n.Count() - 1)
				return
			}
		}
		panic("no leaf has two slots")
	})},
	{name: "index block loops", code: BlockShared, more: []Code{BlockLeaked, InodeUnreachable}, after: func(p *populated) {
		n := p.node(p.wide.root)
		i := firstUsedSlot(n)
		for child := n.Slot(i); n.Slot(i) == child; i++ {
			n.SetSlot(i, p.wide.root)
		}
		p.sealNode(p.wide.root)
	}},
	{name: "entry length", code: DirEntries, more: []Code{InodeUnreachable}, after: editEntry(inDir("inline"), func(_ *populated, e layout.DirEntry) { e.SetRecLen(28) })},
	{name: "entry length 0", code: DirEntries, more: []Code{InodeUnreachable}, after: editEntry(inDir("inline"), func(_ *populated, e layout.DirEntry) { e.SetRecLen(0) })},
	{name: "entry behind the block", code: DirEntries, more: []Code{InodeUnreachable}, after: editEntry(inDir("inline"), func(_ *populated, e layout.DirEntry) { e.SetRecLen(8192) })},
	{name: "name longer than the entry", code: DirEntries, more: []Code{InodeUnreachable}, after: editEntry(inDir("inline"), func(_ *populated, e layout.DirEntry) { e[18] = 200 })},
	{name: "names of a leaf", code: DirEntries, after: editNode(subLeaf, func(n layout.Node) { n.SetCount(n.Count() + 1) })},
	{name: "name with a slash", code: DirName, before: func(p *populated) { p.link2(p.dir, "a/b", p.inline) }},
	{name: "name with a zero byte", code: DirName, before: func(p *populated) { p.link2(p.dir, "a\x00b", p.inline) }},
	{name: "name .", code: DirName, before: func(p *populated) { p.link2(p.dir, ".", p.inline) }},
	{name: "name ..", code: DirName, before: func(p *populated) { p.link2(p.dir, "..", p.inline) }},
	{name: "no name", code: DirName, before: func(p *populated) { p.link2(p.dir, "", p.inline) }},
	{name: "key", code: DirKey, after: editEntry(inDir("inline"), func(_ *populated, e layout.DirEntry) { e.SetKey(e.Key() + 8) })},
	{name: "name in a wrong leaf", code: DirKey, after: func(p *populated) {
		// Two names of different leaves change places.
		a := p.wide.names[0]
		for _, b := range p.wide.names[1:] {
			la, ea := p.findEntry(p.wide.root, a.name)
			lb, eb := p.findEntry(p.wide.root, b.name)
			if la == lb || len(ea.Name()) != len(a.name) || int(ea.RecLen()) < layout.DirEntryLen(len(b.name)) || int(eb.RecLen()) < layout.DirEntryLen(len(a.name)) {
				continue
			}
			ea.SetName([]byte(b.name))
			ea.SetKey(b.key)
			ea.SetIno(b.ino)
			eb.SetName([]byte(a.name))
			eb.SetKey(a.key)
			eb.SetIno(a.ino)
			p.sealNode(la)
			p.sealNode(lb)
			return
		}
		panic("no two names fit")
	}},
	{name: "a name twice", code: DirDuplicate, before: func(p *populated) {
		p.link2(p.dir, "twice", p.inline)
		p.dir.names[len(p.dir.names)-1].key |= 1
		p.link2(p.dir, "twice", p.fifo)
	}},
	{name: "a key twice", code: DirDuplicate, more: []Code{DirKey}, before: func(p *populated) {
		p.link2(p.dir, "one", p.inline)
		p.link2(p.dir, "other", p.fifo)
		p.dir.names[len(p.dir.names)-1].key = p.key("one")
	}},
	{name: "entries of a directory", code: DirCount, after: editInode(ofDir, func(n layout.Inode) { n.SetEntries(3) })},
	{name: "name of a free inode", code: DirDangling, before: func(p *populated) {
		p.dir.names = append(p.dir.names, dirName{p.key("d"), "d", 900, unix.S_IFREG >> 12})
	}},
	{name: "name of an inode that cannot be", code: DirDangling, before: func(p *populated) {
		p.dir.names = append(p.dir.names, dirName{p.key("d"), "d", 1 << 60, unix.S_IFDIR >> 12})
		p.dir.subdirs++
	}},
	{name: "type of an entry", code: DirType, after: editEntry(inDir("inline"), func(_ *populated, e layout.DirEntry) { e.SetType(unix.S_IFIFO >> 12) })},
	{name: "parent", code: DirParent, after: editInode(ofSub, func(n layout.Inode) { n.SetParent(1) })},
	{name: "parent that cannot be", code: DirParent, more: []Code{DirLoop}, after: editInode(ofSub, func(n layout.Inode) { n.SetParent(1 << 63) })},
	{name: "directory with two names", code: DirNamedTwice, before: func(p *populated) {
		p.dir.names = append(p.dir.names, dirName{p.key("again"), "again", p.sub.ino, unix.S_IFDIR >> 12})
		p.dir.subdirs++
	}},
	{name: "directories in a circle", code: DirLoop, before: func(p *populated) {
		// The root names level 0, 0 names 1, ... 4. Level 1 moves below 4.
		l0, l1, l4 := p.chain[0], p.chain[1], p.chain[4]
		l0.names, l0.subdirs = nil, 0
		p.image.link(l4, "level 1", l1)
	}},
	{name: "directory that is its own parent", code: DirLoop, before: func(p *populated) {
		l0, l1 := p.chain[0], p.chain[1]
		l0.names, l0.subdirs = nil, 0
		p.image.link(l1, "self", l1)
	}},

	{name: "attribute set cut off", code: XattrSet, after: editInode(ofInX, func(n layout.Inode) { n.SetXattrInline(n.XattrInline() - 1) })},
	{name: "attributes inline and outside", code: XattrSet, after: editInode(ofOutX, func(n layout.Inode) {
		n.SetXattrInline(uint16(copy(n[layout.InodeSize-14:], layout.AppendXattr(nil, []byte("user.x"), nil))))
	})},
	{name: "an attribute twice", code: XattrSet, before: func(p *populated) { p.xattr(p.inlineX, "user.a", 1) }},
	{name: "an attribute twice among many", code: XattrSet, before: func(p *populated) { p.xattr(p.outsideX, "user.59", 1) }},
	{name: "an early attribute twice among many", code: XattrSet, before: func(p *populated) { p.xattr(p.outsideX, "user.a", 1) }},
	{name: "attribute name with a zero byte", code: XattrSet, before: func(p *populated) { p.xattr(p.inlineX, "user.\x00", 1) }},
	{name: "ACL of no known version", code: XattrSet, before: func(p *populated) { p.xattr(p.inlineX, "system.posix_acl_access", 12) }},
	{name: "ACL with half an entry", code: XattrSet, before: func(p *populated) { p.xattr(p.outsideX, "system.posix_acl_access", 7) }},
	{name: "attribute value too long", code: XattrSet, before: func(p *populated) { p.xattr(p.outsideX, "user.long", 65537) }},
	{name: "too many attributes", code: XattrSet, more: []Code{BlockLeaked}, before: func(p *populated) {
		p.xattr(p.outsideX, "user.long", 65536)
		p.xattr(p.outsideX, "user.longer", 65536)
	}},
	{name: "capability not flagged", code: XattrSet, before: func(p *populated) { p.xattr(p.inlineX, "security.capability", 20) }},
	{name: "capability flagged without cause", code: XattrSet, after: editInode(ofInX, func(n layout.Inode) { n.SetFlags(1) })},
	{name: "capability flagged without attributes", code: XattrSet, after: editInode(ofInline, func(n layout.Inode) { n.SetFlags(1) })},
	{name: "attribute block checksum", code: XattrBlock, more: []Code{BlockLeaked}, after: func(p *populated) { p.node(xattrHead(p))[100]++ }},
	{name: "attribute block index", code: XattrBlock, more: []Code{BlockLeaked}, after: editNode(xattrHead, func(n layout.Node) { n.SetDepth(1) })},
	{name: "attribute block length", code: XattrBlock, more: []Code{BlockLeaked}, after: editNode(xattrHead, func(n layout.Node) { n.SetLength(layout.XattrPayload + 1) })},
	{name: "attribute block empty", code: XattrBlock, more: []Code{BlockLeaked}, after: editNode(xattrHead, func(n layout.Node) { n.SetLength(0) })},
	{name: "attribute chain loops", code: BlockShared, more: []Code{BlockLeaked}, after: func(p *populated) {
		b := xattrHead(p)
		p.node(b).SetNext(b)
		p.sealNode(b)
	}},

	{name: "intent checksum", code: Intent, after: func(p *populated) {
		p.setIntent(layout.IntentPunch, p.inline.node())
		p.mem[layout.SlotOffset(1)+layout.RecIntent+20]++
	}},
	{name: "intent kind", code: Intent, after: func(p *populated) { p.setIntent(99, p.inline.node()) }},
	{name: "intent for a free inode", code: Intent, after: func(p *populated) { p.setIntent(layout.IntentPunch, 900) }},
	{name: "intent for an old generation", code: Intent, after: func(p *populated) { p.setIntent(layout.IntentPunch, p.inline.node()+1<<36) }},
	{name: "intent on a clean volume", code: JournalClean, after: func(p *populated) {
		p.setIntent(layout.IntentPunch, p.inline.node())
		p.setState(layout.StateClean)
	}},
}

// link2 adds a name that may be illegal.
func (p *populated) link2(dir *file, name string, f *file) {
	dir.names = append(dir.names, dirName{p.key(name), name, f.ino, uint8(f.mode >> 12)})
	f.nlink++
}

func TestEachRule(t *testing.T) {
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			p := populate(t, false)
			if d.before != nil {
				d.before(p)
			}
			p.write()
			if d.after != nil {
				d.after(p)
			}
			r := check(t, p.mem, Options{Threads: 2})
			allowed := map[Code]bool{d.code: true}
			for _, c := range d.more {
				allowed[c] = true
			}
			if !hasCode(r, d.code) {
				t.Errorf("%s is not reported", d.code)
			}
			for _, x := range r.Problems {
				if !allowed[x.Code] {
					t.Errorf("not expected: %v", x)
				}
			}
			if r.ExitCode() != ExitErrors {
				t.Errorf("exit code %d", r.ExitCode())
			}
		})
	}
}

// Every code is tried by a damage, and is what the format's document lists.
func TestCodesAreTestedAndDocumented(t *testing.T) {
	tested := map[Code]bool{
		JournalRecord: true, JournalRetire: true, // journal_test.go
		Unreadable:  true, // TestUnreadable
		DeviceLabel: true, // devices_test.go
	}
	for _, d := range damages {
		tested[d.code] = true
	}
	for _, c := range codes {
		if !tested[c] {
			t.Errorf("no test breaks the rule %s", c)
		}
	}
	f, err := os.Open("../../../docs/format.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var listed []Code
	inTable := false
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		switch {
		case strings.Contains(line, "<!-- invariants -->"):
			inTable = true
		case strings.HasPrefix(line, "## "):
			inTable = false
		case inTable && strings.HasPrefix(line, "| ") && strings.Contains(line, "`"):
			cell := strings.Split(line, "|")[2]
			listed = append(listed, Code(strings.Trim(strings.TrimSpace(cell), "`")))
		}
	}
	if len(listed) != len(codes) {
		t.Errorf("%d codes are documented, %d exist", len(listed), len(codes))
	}
	for i := range min(len(listed), len(codes)) {
		if listed[i] != codes[i] {
			t.Errorf("rule %d: %s in the document, %s in the code", i+1, listed[i], codes[i])
		}
	}
}
