package fsck

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// sharing is a volume on which blocks belong to several owners.
type sharing struct {
	name  string
	free  int // blocks that are left free; less than 0: all
	build func(p *populated)
	after func(p *populated)
	// lost says of a block of a file that it becomes a hole; nil: none does.
	lost func(p *populated, ino, logical uint64) bool
	gone func(p *populated) []uint64 // inodes that are given up
}

// sharer makes a file in the root with an extent of n blocks at physical, and
// more of its own before and behind it.
func (p *populated) sharer(name string, before uint64, physical, n, behind uint64) *file {
	f := p.mkfile(p.root(), name, unix.S_IFREG|0o644, "")
	if before > 0 {
		p.extend(f, 1, 0, before, 0)
	}
	p.shareAt(f, physical, n, 0)
	if behind > 0 {
		p.extend(f, 1, 0, behind, 0)
	}
	return f
}

// shareAt appends an extent at physical.
func (p *populated) shareAt(f *file, physical, n uint64, flags uint32) {
	at := uint64(0)
	if k := len(f.extents); k > 0 {
		at = f.extents[k-1].End()
	}
	f.extents = append(f.extents, layout.Extent{Logical: at, Physical: physical, Len: uint32(n), Flags: flags})
	f.blocks += n
	if flags == 0 {
		f.size = (at + n) * layout.BlockSize
	}
}

// overlapping makes a file with an extent that begins in blocks of its own and
// ends in those of another, or the other way round.
func (p *populated) overlapping(name string, f *file, own, shared uint64, behind bool) *file {
	x := p.mkfile(p.root(), name, unix.S_IFREG|0o644, "")
	start := p.alloc(1, own+shared) // own blocks, then those that f gets
	if behind {
		f.extents = append(f.extents, layout.Extent{Logical: 1 << 20, Physical: start, Len: uint32(shared)})
	} else {
		f.extents = append(f.extents, layout.Extent{Logical: 1 << 20, Physical: start + own, Len: uint32(shared)})
	}
	f.size, f.blocks = (1<<20+shared)*layout.BlockSize, f.blocks+shared
	p.shareAt(x, start, own+shared, 0)
	return x
}

func secondHalf(p *populated) uint64 { return p.big.extents[0].Physical + 300 }

// fragmented makes a file of n extents of two blocks, of which the last is
// shared in its first block.
func (p *populated) fragmented(name string, n int) *file {
	f := p.mkfile(p.root(), name, unix.S_IFREG|0o644, "")
	between := p.mkfile(p.root(), name+" between", unix.S_IFREG|0o644, "")
	for range n - 1 { // no two of one file are neighbours
		p.extend(f, 1, 1, 2, 0)
		p.extend(between, 1, 0, 1, 0)
	}
	start := p.alloc(1, 3)
	p.big.extents = append(p.big.extents, layout.Extent{Logical: 1 << 20, Physical: start + 1, Len: 1, Flags: 0})
	p.big.size, p.big.blocks = (1<<20+1)*layout.BlockSize, p.big.blocks+1
	p.shareAt(f, start, 3, 0) // one of its own, a shared one, one of its own
	return f
}

var sharings = []sharing{
	{name: "a whole extent", free: -1, build: func(p *populated) { p.sharer("x", 0, secondHalf(p), 4, 0) }},
	{name: "in the middle of a file", free: -1, build: func(p *populated) { p.sharer("x", 3, secondHalf(p), 70, 2) }},
	{name: "many blocks", free: -1, build: func(p *populated) { p.sharer("x", 1, p.big.extents[0].Physical, 600, 1) }},
	{name: "an extent that begins with its own", free: -1, build: func(p *populated) { p.overlapping("x", p.big, 5, 3, false) }},
	{name: "an extent that ends with its own", free: -1, build: func(p *populated) { p.overlapping("x", p.big, 5, 3, true) }},
	{name: "three owners", free: -1, build: func(p *populated) {
		p.sharer("x", 1, secondHalf(p), 10, 1)
		p.sharer("y", 2, secondHalf(p)+5, 10, 0)
		p.sharer("z", 0, secondHalf(p)+2, 6, 3)
	}},
	{name: "a file with itself", free: -1, build: func(p *populated) {
		x := p.sharer("x", 9, secondHalf(p), 2, 0)
		p.shareAt(x, x.extents[0].Physical+4, 3, 0)
	}},
	{name: "unwritten blocks", free: -1, build: func(p *populated) {
		x := p.mkfile(p.root(), "x", unix.S_IFREG, "")
		p.shareAt(x, secondHalf(p), 3, layout.ExtentUnwritten)
		p.sharer("y", 0, p.big.extents[1].Physical, 2, 0) // unwritten of big
	}},
	{name: "a leaf", free: -1, after: over(func(p *populated) uint64 { return p.dir.root })},
	{name: "an index block", free: -1, after: over(wideRoot)},
	{name: "an attribute block", free: -1, after: over(xattrHead)},
	{name: "an extent node", free: -1, after: over(treeLeaf)},
	{name: "its own extent node", free: -1, build: func(p *populated) { p.fanout = 3; p.fragmented("x", 40) }, after: func(p *populated) {
		x := p.byName("x")
		leaf := layout.GetExtent(p.node(layout.GetExtent(p.inode(x.ino).Body(), 0).Physical).Payload(), 0).Physical
		for p.node(leaf).Depth() > 1 {
			leaf = layout.GetExtent(p.node(leaf).Payload(), 0).Physical
		}
		e := layout.GetExtent(p.node(leaf).Payload(), 0)
		p.moved(x, e.Logical, leaf)
		e.Physical, e.Len = leaf, 1
		layout.PutExtent(p.node(leaf).Payload(), 0, e)
		p.sealNode(leaf)
	}},
	{name: "a full root", free: -1, build: fullRoot},
	{name: "a full node", free: -1, build: func(p *populated) { p.fanout = layout.NodeExtents; p.fragmented("x", layout.NodeExtents) }},
	{name: "a tree of nodes that are full", free: -1, build: func(p *populated) {
		p.fanout = layout.NodeExtents
		p.fragmented("x", 15*layout.NodeExtents)
	}},
	{name: "a node of a high tree", free: -1, build: func(p *populated) { p.fanout = 3; p.fragmented("x", 60) }},
	{name: "a symbolic link", free: -1, build: func(p *populated) {
		x := p.mkfile(p.root(), "x", unix.S_IFLNK|0o777, "")
		p.shareAt(x, p.longLink.extents[0].Physical, 1, 0)
		x.size = 900
	}},
	{name: "no block is free", free: 0, build: func(p *populated) { p.sharer("x", 3, secondHalf(p), 7, 2) },
		lost: func(p *populated, ino, logical uint64) bool {
			return ino == p.byName("x").ino && logical >= 3 && logical < 10
		}},
	{name: "three blocks are free", free: 3, build: func(p *populated) { p.sharer("x", 3, secondHalf(p), 7, 2) },
		lost: func(p *populated, ino, logical uint64) bool {
			return ino == p.byName("x").ino && logical >= 6 && logical < 10
		}},
	{name: "one block for a copy and a node", free: 1,
		build: fullRoot,
		lost: func(p *populated, ino, logical uint64) bool {
			return ino == p.byName("x").ino && logical == p.byName("x").extents[13].Logical+1
		}},
	{name: "no block for a node", free: 0, build: fullRoot,
		lost: func(p *populated, ino, logical uint64) bool {
			return ino == p.byName("x").ino && logical >= p.byName("x").extents[13].Logical+1
		}},
	{name: "no block for a symbolic link", free: 0, build: func(p *populated) {
		x := p.mkfile(p.root(), "x", unix.S_IFLNK|0o777, "")
		p.shareAt(x, p.longLink.extents[0].Physical, 1, 0)
		x.size = 900
	}, gone: func(p *populated) []uint64 { return []uint64{p.byName("x").ino} }},
}

// fullRoot makes a file whose inode holds as many extents as it can.
func fullRoot(p *populated) {
	p.fanout = layout.NodeExtents
	p.fragmented("x", layout.InodeBodySize/layout.ExtentSize)
}

// over lets the second extent of the file "big" lie on a block.
func over(block func(p *populated) uint64) func(p *populated) {
	return func(p *populated) {
		n, b := p.inode(p.big.ino), block(p)
		e := layout.GetExtent(n.Body(), 1)
		e.Physical, e.Len, e.Flags = b, 1, 0
		layout.PutExtent(n.Body(), 1, e)
		n.SetSize((e.Logical + 1) * layout.BlockSize)
		p.sealInode(p.big.ino)
		p.big.extents[1], p.big.size = e, n.Size()
	}
}

// moved notes that block logical of a file lies at physical.
func (p *populated) moved(f *file, logical, physical uint64) {
	for i := range f.extents {
		if e := &f.extents[i]; e.Logical == logical {
			e.Physical, e.Len = physical, 1
		}
	}
}

func (p *populated) byName(name string) *file {
	for _, n := range p.root().names {
		if n.name == name {
			return p.nodes[n.ino]
		}
	}
	panic(name)
}

// make writes the volume, with content in its data blocks.
func (s *sharing) make(t testing.TB) *populated {
	p := populate(t, false)
	if s.build != nil {
		s.build(p)
	}
	if s.free >= 0 { // all that is free but so many blocks goes to a file
		hog := p.mkfile(p.root(), "hog", unix.S_IFREG, "")
		trial := populate(t, false)
		if s.build != nil {
			s.build(trial)
		}
		trial.mkfile(trial.root(), "hog", unix.S_IFREG, "")
		trial.write() // tells how many blocks the trees take
		for g, keep := range []uint64{0, uint64(s.free)} {
			p.extend(hog, g, 0, layout.GroupLen(p.sb.Devices[0].Blocks, uint32(g))-trial.next[g]-keep, layout.ExtentUnwritten)
		}
	}
	p.write()
	p.fill()
	if s.after != nil {
		s.after(p)
	}
	return p
}

// contents is what each block of each file holds, by the extents as they were
// made.
type contents map[uint64]map[uint64][]byte

var zeroBlock = make([]byte, layout.BlockSize)

func (p *populated) contents() contents {
	c := contents{}
	for ino, f := range p.nodes {
		c[ino] = map[uint64][]byte{}
		for _, e := range f.extents {
			for k := range uint64(e.Len) {
				c[ino][e.Logical+k] = zeroBlock
				if !e.Unwritten() {
					c[ino][e.Logical+k] = bytes.Clone(p.block(e.Physical + k))
				}
			}
		}
	}
	return c
}

// compareContents reads all files with the engine.
func (s *sharing) compareContents(t *testing.T, p *populated, v *storeSpace, want contents) {
	t.Helper()
	fs, err := nvfs.Mount(v, nvfs.Options{ReadOnly: true}) // which replays records even so
	if err != nil {
		t.Fatal(err)
	}
	defer fs.Unmount()
	w, err := fs.NewWorker()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var gone []uint64
	if s.gone != nil {
		gone = s.gone(p)
	}
	buf := make([]byte, layout.BlockSize)
	for ino, blocks := range want {
		f := p.nodes[ino]
		if f.nlink == 0 || f.mode&unix.S_IFMT != unix.S_IFREG && f.mode&unix.S_IFMT != unix.S_IFLNK {
			continue
		}
		if n := p.inode(ino); slices.Contains(gone, ino) != (n.Mode() == 0) {
			t.Errorf("inode %d has mode %o", ino, n.Mode())
		}
		if f.mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		for logical, block := range blocks {
			if logical*layout.BlockSize >= f.size {
				continue
			}
			n, err := w.Read(nvfs.NodeID(f.node()), logical*layout.BlockSize, buf)
			lost := s.lost != nil && s.lost(p, ino, logical)
			if lost {
				block = zeroBlock
			}
			if err != nil || !bytes.Equal(buf[:n], block[:n]) || n == 0 {
				t.Errorf("inode %d, block %d (lost: %v): %v, %x, want %x", ino, logical, lost, err, buf[:16], block[:16])
				return
			}
		}
	}
}

// repaired repairs the volume and returns the words that it has stored to.
func (s *storeSpace) repaired(t *testing.T) map[uint64]uint64 {
	t.Helper()
	if _, err := Repair(context.Background(), s, Options{Threads: 2, Now: repairTime}); err != nil {
		t.Fatal(err)
	}
	words := map[uint64]uint64{}
	for _, w := range s.history {
		words[w.off] = binary.LittleEndian.Uint64(s.memSpace[w.off:])
	}
	return words
}

// Whoever loses blocks that another owner keeps gets a copy of them, or a hole
// if there is no space. The keeper, and everybody else, keeps all.
func TestSharedBlocksAreCopied(t *testing.T) {
	for _, s := range sharings {
		t.Run(s.name, func(t *testing.T) {
			p := s.make(t)
			if r := check(t, p.mem, Options{}); r.Counts[BlockShared] == 0 {
				t.Fatalf("nothing is shared: %v", r.Problems)
			}
			want := p.contents()
			v := &storeSpace{memSpace: p.mem}
			first := v.repaired(t)
			v.revert()
			if second := v.repaired(t); !maps.Equal(first, second) {
				t.Error("the same volume was repaired in another way")
			}
			v.revert()
			r := repair(t, p.mem)
			mustBeRepaired(t, r, p.mem)
			s.compareContents(t, p, v, want)
			copied, hole := 0, 0
			for _, x := range r.Repairs {
				if x.Code != BlockShared {
					continue
				}
				copied += strings.Count(x.Text, "copied to")
				hole += strings.Count(x.Text, "became a hole")
			}
			wantHole := s.lost != nil || s.gone != nil
			if hole > 0 != wantHole || copied == 0 && !wantHole {
				t.Errorf("%d copies and %d holes are reported: %v", copied, hole, r.Repairs)
			}
		})
	}
}

// The report names both owners.
func TestKeeperIsNamed(t *testing.T) {
	for _, c := range []struct {
		damage func(p *populated)
		keeper func(p *populated) uint64
	}{
		{over(func(p *populated) uint64 { return p.dir.root }), func(p *populated) uint64 { return p.dir.ino }},
		{over(func(p *populated) uint64 { return p.tree.extents[0].Physical }), func(p *populated) uint64 { return p.big.ino }},
	} {
		p := populate(t, true)
		c.damage(p)
		r := repair(t, p.mem)
		loser := p.big.ino
		if c.keeper(p) == loser {
			loser = p.tree.ino
		}
		want := fmt.Sprintf("which inode %d keeps", c.keeper(p))
		if !slices.ContainsFunc(r.Repairs, func(x Problem) bool {
			return x.Code == BlockShared && x.Ino == loser && strings.Contains(x.Text, want)
		}) {
			t.Errorf("no repair of inode %d says %q: %v", loser, want, r.Repairs)
		}
	}
}

// A block that cannot be read cannot be copied: the loser gets a hole there,
// and copies of the others.
func TestUnreadableSharedBlock(t *testing.T) {
	s := sharing{free: -1, build: func(p *populated) { p.sharer("x", 0, secondHalf(p), 100, 1) },
		lost: func(p *populated, ino, logical uint64) bool { return ino == p.byName("x").ino && logical == 37 }}
	p := s.make(t)
	want := p.contents()
	bad := p.block(secondHalf(p) + 37)
	if err := unix.Mprotect(bad, unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	r, err := Repair(context.Background(), &storeSpace{memSpace: p.mem}, Options{Now: repairTime})
	if merr := unix.Mprotect(bad, unix.PROT_READ|unix.PROT_WRITE); merr != nil {
		t.Fatal(merr)
	}
	if err != nil {
		t.Fatal(err)
	}
	mustBeRepaired(t, r, p.mem)
	s.compareContents(t, p, &storeSpace{memSpace: p.mem}, want)
	if !slices.ContainsFunc(r.Repairs, func(x Problem) bool { return strings.Contains(x.Text, "cannot be read") }) {
		t.Errorf("the repairs do not say why: %v", r.Repairs)
	}
}

// A tree block says whose it is, so who else refers to it loses nothing: a
// directory finds its leaves, and attributes are those of their owner alone.
func TestSharedTreeBlocksStayWithTheirOwner(t *testing.T) {
	p := filled(t)
	before := tree(t, p.mem)
	p.inode(p.sub.ino).SetDirRoot(p.deep.root)
	p.sealInode(p.sub.ino)
	n := p.inode(p.inline.ino)
	n.SetXattrBlock(xattrHead(p))
	p.sealInode(p.inline.ino)
	r := repair(t, p.mem)
	mustBeRepaired(t, r, p.mem)
	after := tree(t, p.mem)
	for ino, b := range before {
		a := after[ino]
		if a == nil || a.what != b.what || !slices.Equal(a.paths, b.paths) {
			t.Errorf("inode %d was %v, is %v", ino, b, a)
		}
	}
	if !slices.ContainsFunc(r.Repairs, func(x Problem) bool { return x.Code == XattrBlock && x.Ino == p.inline.ino }) {
		t.Errorf("nothing is said of the attributes: %v", r.Repairs)
	}
}

// Interrupted at any fence, and completed by the next repair, nobody has lost
// anything that an undisturbed repair would have kept.
func TestInterruptedCopies(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	tried := 0
	for _, s := range sharings {
		t.Run(s.name, func(t *testing.T) { tried += s.interrupt(t, r) })
	}
	t.Logf("%d interruptions", tried)
}

func (s *sharing) interrupt(t *testing.T, r *rand.Rand) (tried int) {
	p := s.make(t)
	want := p.contents()
	v := &storeSpace{memSpace: p.mem}
	before, err := Check(context.Background(), v, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(context.Background(), v, Options{Now: repairTime}); err != nil {
		t.Fatal(err)
	}
	fences := v.fences
	for at := 1 + r.IntN(2); at <= fences; at += 1 + fences/8 {
		v.revert()
		share := []int{0, 1, 2}[tried%3]
		v.stopAt, v.keep = at, func(uint64) bool { return r.IntN(2) < share }
		if _, err := Repair(context.Background(), v, Options{Now: repairTime}); err != nil && !isInternal(err) {
			t.Fatal(err)
		}
		v.stopAt = 0 // not reached, when the mount at the end released orphans in another order
		tried++
		where := fmt.Sprintf("interrupted at fence %d of %d, %d of 2 kept", at, fences, share)
		noWorse(t, where, before, v)
		done, err := Repair(context.Background(), v, Options{Now: repairTime})
		if err != nil || done.Total() != 0 {
			t.Fatalf("%s: %v, %+v", where, err, done)
		}
		s.compareContents(t, p, v, want)
		if t.Failed() {
			t.Fatalf("%s: %v", where, done.Repairs)
		}
	}
	return tried
}
