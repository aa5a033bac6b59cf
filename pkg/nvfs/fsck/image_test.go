package fsck

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/dchest/siphash"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// memSpace is a Space that nothing can be stored to: a check that writes
// panics.
type memSpace []byte

func (s memSpace) Bytes() []byte                { return s }
func (s memSpace) Size() uint64                 { return uint64(len(s)) }
func (s memSpace) ReadOnly() bool               { return true }
func (s memSpace) NewPersister() pmem.Persister { panic("a check must not write") }

// image is a volume that the tests make, with an implementation of the format
// of their own.
type image struct {
	mem     []byte
	sb      *layout.Superblock
	seed    uint32
	fanout  int // most entries of an extent node
	inLeaf  int // most names of a leaf
	nodes   map[uint64]*file
	nextIno []uint64 // index to use next, by group
	next    []uint64 // block to use next, by group
	blocks  []uint64 // every tree block, in the order of making
	orphans []uint64
}

// file is an inode to be written.
type file struct {
	ino     uint64
	mode    uint32
	gen     uint32
	nlink   uint32
	parent  uint64
	size    uint64
	inline  []byte
	extents []layout.Extent
	names   []dirName
	set     []byte // attributes
	outside bool   // store them in blocks
	subdirs uint32
	blocks  uint64
	root    uint64 // of a directory, once written
}

type dirName struct {
	key  uint64
	name string
	ino  uint64
	typ  uint8
}

const testPerGroup = 1024

var testHashKey = [16]byte{1, 2, 3}

// zeroMemory is fresh memory until the test ends: an image is large and almost
// all of it is never touched.
func zeroMemory(t testing.TB, size uint64) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func newImage(t testing.TB, blocks uint64) *image {
	t.Helper()
	im := &image{mem: zeroMemory(t, blocks*layout.BlockSize), fanout: layout.NodeExtents, inLeaf: 1 << 10, nodes: map[uint64]*file{}}
	im.sb = &layout.Superblock{UUID: [16]byte{0xaa, 0xbb}, Label: "test", HashKey: testHashKey, InodesPerGroup: testPerGroup,
		Slots: 4, Reserved: 10,
		Devices: []layout.Device{{Blocks: blocks, Groups: layout.GroupsIn(blocks, testPerGroup)}}}
	im.seed = im.sb.Seed()
	for range im.sb.Devices[0].Groups {
		im.nextIno = append(im.nextIno, 0)
		im.next = append(im.next, layout.GroupInodeTable+layout.InodeTableBlocks(testPerGroup))
	}
	for i := range layout.InodeTableBlocks(testPerGroup) * layout.BlockSize { // never used inodes hold garbage
		im.mem[(layout.GroupStart(0)+layout.GroupInodeTable)*layout.BlockSize+i] = byte(i * 37)
	}
	root := im.newFile(0, unix.S_IFDIR|0o755)
	root.parent, root.gen, root.nlink = root.ino, 0, 2
	return im
}

func (im *image) newFile(group int, mode uint32) *file {
	ino := uint64(group)*testPerGroup + im.nextIno[group] + 1
	im.nextIno[group]++
	f := &file{ino: ino, mode: mode, gen: uint32(ino) + 100}
	im.nodes[ino] = f
	return f
}

// alloc takes n blocks in a row.
func (im *image) alloc(group int, n uint64) uint64 {
	b := im.next[group]
	im.next[group] += n
	return layout.GroupStart(uint64(group)) + b
}

func (im *image) allocNode(group int) uint64 {
	b := im.alloc(group, 1)
	im.blocks = append(im.blocks, b)
	return b
}

func (im *image) key(name string) uint64 {
	return layout.KeyOf(siphash.Hash(binary.LittleEndian.Uint64(im.sb.HashKey[:]), binary.LittleEndian.Uint64(im.sb.HashKey[8:]), []byte(name)))
}

// deepNames are names whose keys share their first 16 bits. Finding them takes
// a while, and all images have the same hash key.
var deepNames = sync.OnceValue(func() []string {
	var list []string
	im := image{sb: &layout.Superblock{HashKey: testHashKey}}
	for i := 0; len(list) < 9; i++ {
		if name := "f" + strconv.Itoa(i); im.key(name)>>(layout.KeyBits-16) == 0x1234 {
			list = append(list, name)
		}
	}
	return list
})

func (im *image) link(dir *file, name string, f *file) {
	dir.names = append(dir.names, dirName{im.key(name), name, f.ino, uint8(f.mode >> 12)})
	if f.mode&unix.S_IFMT == unix.S_IFDIR {
		f.nlink, f.parent = 2, dir.ino
		dir.subdirs++
		return
	}
	f.nlink++
	f.parent = dir.ino
}

func (im *image) root() *file { return im.nodes[1] }

func (im *image) mkdir(dir *file, name string) *file {
	f := im.newFile(im.groupOf(dir), unix.S_IFDIR|0o755)
	im.link(dir, name, f)
	return f
}

func (im *image) mkfile(dir *file, name string, mode uint32, inline string) *file {
	f := im.newFile(im.groupOf(dir), mode)
	f.inline, f.size = []byte(inline), uint64(len(inline))
	im.link(dir, name, f)
	return f
}

func (im *image) groupOf(f *file) int { return int(layout.InodeGroup(f.ino, testPerGroup)) }

// extend appends an extent of n blocks behind a hole of gap blocks.
func (im *image) extend(f *file, group int, gap, n uint64, flags uint32) {
	at := gap
	if k := len(f.extents); k > 0 {
		at += f.extents[k-1].End()
	}
	f.extents = append(f.extents, layout.Extent{Logical: at, Physical: im.alloc(group, n), Len: uint32(n), Flags: flags})
	f.blocks += n
	if flags == 0 {
		f.size = (at+n)*layout.BlockSize - 100
	}
}

func (im *image) xattr(f *file, name string, value int) {
	f.set = layout.AppendXattr(f.set, []byte(name), make([]byte, value))
}

// write puts everything that was made into memory.
func (im *image) write() {
	inos := make([]uint64, 0, len(im.nodes))
	for ino := range im.nodes {
		inos = append(inos, ino)
	}
	slices.Sort(inos)
	for _, ino := range inos {
		im.writeInode(im.nodes[ino])
	}
	for g := range im.next {
		im.writeGroup(uint64(g))
	}
	block := im.block(0)
	if err := im.sb.Encode(block); err != nil {
		panic(err)
	}
	copy(im.block(im.sb.Devices[0].Blocks-1), block[:layout.StaticSize])
	im.setState(layout.StateClean)
}

func (im *image) setState(state uint32) {
	d := layout.Dynamic(im.block(0)[layout.DynamicOffset:][:layout.StaticSize])
	d.SetState(state)
	layout.Seal(im.seed, layout.DynamicLocation, d)
}

func (im *image) block(b uint64) []byte {
	return im.mem[b*layout.BlockSize : (b+1)*layout.BlockSize : (b+1)*layout.BlockSize]
}

func (im *image) writeGroup(g uint64) {
	start := layout.GroupStart(g)
	blocks := uint32(layout.GroupLen(im.sb.Devices[0].Blocks, uint32(g)))
	d := layout.GroupDesc(im.block(start)[:layout.GroupDescSize])
	d.Init(uint32(g), blocks, testPerGroup)
	layout.Seal(im.seed, start, d)
	for which := layout.GroupBlockBitmap; which <= layout.GroupOrphans; which++ {
		for i := range uint32(layout.BitmapBits) {
			c := im.chunk(start+uint64(which), i)
			var v bool
			switch which {
			case layout.GroupBlockBitmap:
				v = i >= blocks || uint64(i) < im.next[g]
			case layout.GroupInodeBitmap:
				v = i >= testPerGroup || uint64(i) < im.nextIno[g]
			case layout.GroupOrphans:
				v = i < testPerGroup && slices.Contains(im.orphans, g*testPerGroup+uint64(i)+1)
			}
			c.SetBit(i%layout.ChunkBits, v)
		}
		for i := uint32(0); i < layout.BitmapBits; i += layout.ChunkBits {
			im.sealChunk(start+uint64(which), i)
		}
	}
}

func (im *image) chunk(block uint64, bit uint32) layout.Chunk {
	off := layout.ChunkOffset(block, bit)
	return layout.Chunk(im.mem[off : off+layout.ChunkSize])
}

// sealChunk counts and seals the chunk that holds bit.
func (im *image) sealChunk(block uint64, bit uint32) {
	c := im.chunk(block, bit)
	n := c.Ones()
	if (block-layout.GroupStart(layout.GroupOf(block)))%layout.GroupBlocks != layout.GroupOrphans {
		n = layout.ChunkBits - n
	}
	c.SetCount(n)
	layout.Seal(im.seed, layout.ChunkLocation(layout.ChunkOffset(block, bit)), c)
}

func (im *image) inode(ino uint64) layout.Inode {
	off := layout.InodeOffset(ino, testPerGroup)
	return layout.Inode(im.mem[off : off+layout.InodeSize])
}

func (im *image) sealInode(ino uint64) { layout.Seal(im.seed, ino, im.inode(ino)) }

// node is a tree block.
func (im *image) node(b uint64) layout.Node { return layout.Node(im.block(b)) }

func (im *image) sealNode(b uint64) { layout.Seal(im.seed, b, im.node(b).Covered()) }

func (im *image) writeInode(f *file) {
	n := im.inode(f.ino)
	clear(n)
	n.SetMode(f.mode)
	n.SetGeneration(f.gen)
	n.SetNlink(f.nlink)
	n.SetSize(f.size)
	n.SetParent(f.parent)
	n.SetMtime(1700000000, 999999999)
	im.writeXattrs(f, n)
	switch f.mode & unix.S_IFMT {
	case unix.S_IFDIR:
		n.SetFormat(layout.FormatDir)
		if f.nlink != 0 {
			n.SetNlink(f.subdirs + 2)
		}
		n.SetEntries(uint64(len(f.names)))
		im.writeDir(f)
		n.SetDirRoot(f.root)
	case unix.S_IFREG, unix.S_IFLNK:
		if f.extents == nil {
			n.SetFormat(layout.FormatInline)
			copy(n.Body(), f.inline)
		} else {
			n.SetFormat(layout.FormatExtents)
			im.writeExtents(f, n)
		}
	}
	n.SetBlocks(f.blocks)
	im.sealInode(f.ino)
}

func (im *image) writeXattrs(f *file, n layout.Inode) {
	if len(f.set) == 0 {
		return
	}
	if !f.outside {
		n.SetXattrInline(uint16(len(f.set)))
		copy(n.XattrBody(), f.set)
		return
	}
	var blocks []uint64
	for i := 0; i < len(f.set); i += layout.XattrPayload {
		blocks = append(blocks, im.allocNode(im.groupOf(f)))
	}
	for i, b := range blocks {
		x := im.node(b)
		x.InitNode(layout.XattrMagic, f.ino, uint16(i))
		x.SetLength(uint32(copy(x.Payload(), f.set[i*layout.XattrPayload:])))
		if i+1 < len(blocks) {
			x.SetNext(blocks[i+1])
		}
		im.sealNode(b)
	}
	n.SetXattrBlock(blocks[0])
	f.blocks += uint64(len(blocks))
}

func (im *image) writeExtents(f *file, n layout.Inode) {
	list, depth := f.extents, 0
	for len(list) > min(im.fanout, n.RootExtents()) {
		depth++
		var up []layout.Extent
		for part := range slices.Chunk(list, im.fanout) {
			b := im.allocNode(im.groupOf(f))
			f.blocks++
			x := im.node(b)
			x.InitNode(layout.ExtentMagic, f.ino, uint16(depth))
			for i, e := range part {
				layout.PutExtent(x.Payload(), i, e)
			}
			x.SetCount(uint16(len(part)))
			im.sealNode(b)
			up = append(up, layout.Extent{Logical: part[0].Logical, Physical: b})
		}
		list = up
	}
	for i, e := range list {
		layout.PutExtent(n.Body(), i, e)
	}
	n.SetExtentDepth(uint8(depth))
	n.SetExtentCount(uint16(len(list)))
}

func (im *image) writeDir(f *file) {
	slices.SortFunc(f.names, func(a, b dirName) int {
		if a.key != b.key {
			return int(a.key>>32) - int(b.key>>32) | 1
		}
		return 0
	})
	if len(f.names) == 0 {
		return
	}
	if im.fits(f.names) {
		f.root = im.writeLeaf(f, f.names, 0, 0)
		return
	}
	f.root = im.writeIndex(f, f.names, 0, 0)
}

func (im *image) fits(names []dirName) bool {
	size := 0
	for _, n := range names {
		size += layout.DirEntryLen(len(n.name))
	}
	return len(names) <= im.inLeaf && size <= layout.BlockSize-layout.NodeHeader
}

func (im *image) writeLeaf(f *file, names []dirName, depth int, prefix uint64) uint64 {
	b := im.allocNode(im.groupOf(f))
	f.blocks++
	x := im.node(b)
	x.InitNode(layout.DirLeafMagic, f.ino, uint16(depth))
	x.SetPrefix(prefix)
	x.SetCount(uint16(len(names)))
	p, pos := x.Payload(), 0
	for i, n := range names {
		e := layout.DirEntry(p[pos:])
		e.SetIno(n.ino)
		e.SetKey(n.key)
		e.SetType(n.typ)
		e.SetName([]byte(n.name))
		size := layout.DirEntryLen(len(n.name))
		if rest := len(p) - pos - size; rest < layout.DirEntryMin || i == len(names)-1 && i%2 == 1 {
			size += rest // slack behind the last name instead of a free entry
		}
		e.SetRecLen(uint16(size))
		pos += size
	}
	if pos < len(p) {
		layout.DirEntry(p[pos:]).SetRecLen(uint16(len(p) - pos))
	}
	im.sealNode(b)
	return b
}

func (im *image) writeIndex(f *file, names []dirName, level int, prefix uint64) uint64 {
	b := im.allocNode(im.groupOf(f))
	f.blocks++
	x := im.node(b)
	x.InitNode(layout.DirIndexMagic, f.ino, uint16(level))
	x.SetPrefix(prefix)
	im.fillSlots(f, x, names, level, prefix, 0, layout.DirFanout)
	used := 0
	for i := range layout.DirFanout {
		if x.Slot(i) != 0 {
			used++
		}
	}
	x.SetCount(uint16(used))
	im.sealNode(b)
	return b
}

// fillSlots lays names out in the run slots from slot on.
func (im *image) fillSlots(f *file, x layout.Node, names []dirName, level int, prefix uint64, slot, run int) {
	var mine []dirName
	for _, n := range names {
		if s := layout.KeySlot(n.key, uint16(level)); s >= slot && s < slot+run {
			mine = append(mine, n)
		}
	}
	if len(mine) == 0 {
		return
	}
	bits := 0
	for 1<<bits < run {
		bits++
	}
	child := (prefix<<8 | uint64(slot)) >> bits
	var b uint64
	switch {
	case im.fits(mine):
		b = im.writeLeaf(f, mine, 8*(level+1)-bits, child)
	case run == 1:
		b = im.writeIndex(f, mine, level+1, child)
	default:
		im.fillSlots(f, x, mine, level, prefix, slot, run/2)
		im.fillSlots(f, x, mine, level, prefix, slot+run/2, run/2)
		return
	}
	for i := slot; i < slot+run; i++ {
		x.SetSlot(i, b)
	}
}

// The files of the populated image that tests refer to.
type populated struct {
	*image
	dir, sub, wide, deep, orphanDir *file
	inline, big, tree, holes        *file
	link, longLink, hard, fifo      *file
	inlineX, outsideX, orphan       *file
	chain                           []*file // directories below each other
}

// populatedBlocks is the size of the populated image: two groups, the second
// smaller.
const populatedBlocks = layout.HeaderBlocks + 1 + layout.GroupBlocks + 9000

// populate makes an image with every structure of the format.
func populate(t testing.TB, write bool) *populated {
	t.Helper()
	return populateWith(t, write, 200, 300)
}

// populateWith does so with so many files in directory "wide", and so many
// links of the file "hard".
func populateWith(t testing.TB, write bool, wide, links int) *populated {
	t.Helper()
	im := newImage(t, populatedBlocks)
	im.fanout, im.inLeaf = 3, 6
	p := &populated{image: im}
	root := im.root()
	p.dir = im.mkdir(root, "dir")
	p.sub = im.mkdir(p.dir, "sub")
	im.mkdir(root, "empty")
	p.inline = im.mkfile(p.dir, "inline", unix.S_IFREG|0o644, "hello")
	im.mkfile(p.dir, "empty file", unix.S_IFREG|0o644, "")
	p.big = im.mkfile(p.dir, "big", unix.S_IFREG|0o644, "")
	im.extend(p.big, 1, 0, 600, 0)
	im.extend(p.big, 0, 0, 10, layout.ExtentUnwritten)
	p.tree = im.mkfile(p.dir, "tree", unix.S_IFREG|0o644, "")
	for i := range uint64(20) {
		im.extend(p.tree, 0, i%3, 1+i%2, uint32(i%4/3))
	}
	im.extend(p.tree, 0, 1, 1, 0)
	im.extend(p.tree, 0, 5, 4, layout.ExtentUnwritten) // beyond the end of file
	p.holes = im.mkfile(p.sub, "holes", unix.S_IFREG|0o600, "")
	im.extend(p.holes, 0, 1<<40, 2, 0)
	p.link = im.mkfile(p.dir, "link", unix.S_IFLNK|0o777, "target")
	p.longLink = im.mkfile(p.dir, "long link", unix.S_IFLNK|0o777, "")
	im.extend(p.longLink, 0, 0, 1, 0)
	p.longLink.size = 1000
	p.hard = im.mkfile(p.dir, "hard", unix.S_IFREG, "x")
	for i := range links { // 300 are more than the compact count of names holds
		im.link(p.sub, fmt.Sprintf("hard %d", i), p.hard)
	}
	p.fifo = im.mkfile(p.dir, "fifo", unix.S_IFIFO|0o644, "")
	im.mkfile(p.dir, "device", unix.S_IFCHR|0o644, "")
	im.mkfile(p.dir, "socket", unix.S_IFSOCK|0o644, "")
	p.inlineX = im.mkfile(p.dir, "inline attributes", unix.S_IFREG, "data")
	im.xattr(p.inlineX, "user.a", 20)
	im.xattr(p.inlineX, "user.b", 0)
	p.outsideX = im.mkfile(p.dir, "outside attributes", unix.S_IFREG, "data")
	p.outsideX.outside = true
	im.xattr(p.outsideX, "user.a", 6000)
	for i := range 60 {
		im.xattr(p.outsideX, fmt.Sprintf("user.%d", i), i)
	}
	p.wide = im.mkdir(root, "wide")
	for i := range wide {
		f := im.newFile(1, unix.S_IFREG)
		im.link(p.wide, fmt.Sprintf("file %d %0*d", i, i%200+1, i), f)
	}
	p.deep = im.mkdir(root, "deep")
	for _, name := range deepNames() {
		im.link(p.deep, name, im.newFile(1, unix.S_IFREG))
	}
	p.deep.names[3].key |= 5 // as if names of the same hash were there before it
	d := root
	for i := range 5 {
		d = im.mkdir(d, fmt.Sprintf("level %d", i))
		p.chain = append(p.chain, d)
	}
	p.orphan = im.newFile(1, unix.S_IFREG|0o600)
	im.extend(p.orphan, 1, 0, 3, 0)
	p.orphanDir = im.newFile(1, unix.S_IFDIR)
	p.orphanDir.parent = p.dir.ino
	im.orphans = []uint64{p.orphan.ino, p.orphanDir.ino}
	if write {
		im.write()
	}
	return p
}
