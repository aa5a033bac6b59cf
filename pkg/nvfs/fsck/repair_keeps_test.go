package fsck

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// found is what a walk with the engine says of an inode: its paths, and what
// it is.
type found struct {
	paths []string
	what  string
}

// tree walks a volume with the engine. Any error fails the test.
func tree(t testing.TB, mem []byte) map[uint64]*found {
	t.Helper()
	fs, err := nvfs.Mount(&storeSpace{memSpace: mem}, nvfs.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := fs.Unmount(); err != nil || fs.Health() != "" {
			t.Errorf("unmount: %v; health: %s", err, fs.Health())
		}
	}()
	w, err := fs.NewWorker()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	x := treeWalk{t: t, w: w, all: map[uint64]*found{}, buf: make([]byte, 70000)}
	var root nvfs.Attr
	if err := w.GetAttr(nvfs.RootID, &root); err != nil {
		t.Fatal(err)
	}
	x.visit("/", &root)
	return x.all
}

type treeWalk struct {
	t   testing.TB
	w   *nvfs.Worker
	all map[uint64]*found
	buf []byte
}

func (x *treeWalk) visit(path string, a *nvfs.Attr) {
	f := x.all[a.ID.Ino()]
	if f == nil {
		what, err := x.describe(a)
		if err != nil {
			x.t.Fatalf("%s: %v", path, err)
		}
		f = &found{what: what}
		x.all[a.ID.Ino()] = f
	}
	f.paths = append(f.paths, path)
	if a.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	var names []string
	if err := x.w.ReadDir(a.ID, 2, func(e *nvfs.DirEntry) bool { names = append(names, string(e.Name)); return true }); err != nil {
		x.t.Fatalf("%s: %v", path, err)
	}
	for _, name := range names {
		var c nvfs.Attr
		if err := x.w.Lookup(a.ID, []byte(name), &c); err != nil {
			x.t.Fatalf("%s%s: %v", path, name, err)
		}
		child := path + name
		if c.Mode&unix.S_IFMT == unix.S_IFDIR {
			child += "/"
		}
		x.visit(child, &c)
	}
}

// describe tells type and mode, the size of what is no directory, and a sum
// over the attributes and over the start and the end of the content.
func (x *treeWalk) describe(a *nvfs.Attr) (string, error) {
	size := a.Size
	if a.Mode&unix.S_IFMT == unix.S_IFDIR {
		size = 0
	}
	h := fnv.New64a()
	if err := x.sumXattrs(h, a); err != nil {
		return "", err
	}
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		n, err := x.w.Readlink(a.ID, x.buf)
		if err != nil {
			return "", err
		}
		h.Write(x.buf[:n])
	case unix.S_IFREG:
		for _, off := range []uint64{0, size - min(size, 9000)} {
			n, err := x.w.Read(a.ID, off, x.buf)
			if err != nil {
				return "", err
			}
			h.Write(x.buf[:n])
		}
	}
	return fmt.Sprintf("mode %o, size %d, %x", a.Mode, size, h.Sum(nil)), nil
}

func (x *treeWalk) sumXattrs(h io.Writer, a *nvfs.Attr) error {
	n, err := x.w.ListXattr(a.ID, x.buf)
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(string(x.buf[:n]), "\x00") {
		if name == "" {
			continue
		}
		n, err := x.w.GetXattr(a.ID, []byte(name), x.buf)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s=%x;", name, x.buf[:n])
	}
	return nil
}

// filled is the populated image with content in its data blocks.
func filled(t testing.TB) *populated {
	return filledWith(t, 200, 300)
}

func filledWith(t testing.TB, wide, links int) *populated {
	p := populateWith(t, true, wide, links)
	p.fill()
	return p
}

// fill puts content into the data blocks, each block another.
func (p *populated) fill() {
	for _, f := range p.nodes {
		for _, e := range f.extents {
			if e.Unwritten() {
				continue
			}
			for b := range uint64(e.Len) {
				for i := uint64(0); i < layout.BlockSize; i += 8 {
					binary.LittleEndian.PutUint64(p.block(e.Physical + b)[i:], e.Physical+b+i<<40)
				}
			}
		}
	}
	t0 := p.block(p.longLink.extents[0].Physical)
	for i := range t0 {
		t0[i] = 'a' + byte(i%20)
	}
}

// owner is the inode whose object o is; 0 for what belongs to all.
func owner(p *populated, o object) uint64 {
	switch o.what {
	case "inode":
		for ino := range p.nodes {
			if layout.InodeOffset(ino, testPerGroup) == o.off {
				return ino
			}
		}
	case "extent node", "leaf", "index block", "attribute block":
		return p.node(o.off / layout.BlockSize).Owner()
	}
	return 0
}

// One damaged object costs at most what it holds: every other inode keeps
// its content and attributes, and a path; all paths, where the object is no
// part of a directory.
func TestRepairKeepsTheRest(t *testing.T) {
	p := filled(t)
	before := tree(t, p.mem)
	objects := sealedObjects(p)
	slices.SortFunc(objects, func(a, b object) int { return int(a.off>>4) - int(b.off>>4) })
	for i, o := range objects {
		at := o.off + 4 + uint64(i*131)%uint64(o.len-4)
		who := owner(p, o)
		s := &storeSpace{memSpace: p.mem}
		p.mem[at] ^= 0x40
		r, err := Repair(context.Background(), s, Options{Now: repairTime})
		if err != nil || r.ExitCode() != ExitRepaired {
			t.Fatalf("%s of inode %d, byte %d: %v, %+v", o.what, who, at-o.off, err, r)
		}
		compareTrees(t, fmt.Sprintf("%s of inode %d, byte %d", o.what, who, at-o.off), p, before, tree(t, p.mem), o, who)
		s.revert()
		p.mem[at] ^= 0x40
	}
}

func compareTrees(t *testing.T, name string, p *populated, before, after map[uint64]*found, o object, who uint64) {
	t.Helper()
	dir := p.nodes[who] != nil && p.nodes[who].mode&unix.S_IFMT == unix.S_IFDIR
	for ino, b := range before {
		a := after[ino]
		switch {
		case ino == who:
			if a == nil && o.what != "inode" {
				t.Errorf("%s: it is gone: %v", name, b.paths)
			}
		case a == nil:
			t.Errorf("%s: inode %d is gone: %v", name, ino, b.paths)
		case a.what != b.what:
			t.Errorf("%s: inode %d %v was %s, is %s", name, ino, b.paths, b.what, a.what)
		case !dir && !slices.Equal(a.paths, b.paths):
			t.Errorf("%s: inode %d was %v, is %v", name, ino, b.paths, a.paths)
		}
	}
	if o.what == "index block" || who == 1 && o.what == "inode" {
		for ino, b := range before {
			if a := after[ino]; a == nil || !slices.Equal(a.paths, b.paths) {
				t.Errorf("%s: inode %d was %v, is %v: its leaf is intact", name, ino, b.paths, a)
			}
		}
	}
}

// lost+found takes any number of names, more than once, and next to a file of
// that name.
func TestLostAndFound(t *testing.T) {
	p := populate(t, false)
	lost := p.mkdir(p.root(), "lost")
	for range 700 {
		p.image.link(lost, fmt.Sprintf("name %d", len(lost.names)), p.newFile(1, unix.S_IFREG|0o600))
	}
	p.mkfile(p.root(), lostName, unix.S_IFREG|0o600, "in the way")
	p.write()
	p.inode(lost.ino)[50]++
	r := repair(t, p.mem)
	mustBeRepaired(t, r, p.mem)
	if r.Repaired[InodeUnreachable] != 700 {
		t.Errorf("%d inodes were found without a name", r.Repaired[InodeUnreachable])
	}
	all := tree(t, p.mem)
	for _, n := range lost.names {
		if f := all[n.ino]; f == nil || !slices.Equal(f.paths, []string{fmt.Sprintf("/lost+found.1/#%d", n.ino)}) {
			t.Fatalf("inode %d: %v", n.ino, f)
		}
	}
	p.inode(p.dir.ino)[50]++ // again, and with subdirectories
	mustBeRepaired(t, repair(t, p.mem), p.mem)
	all = tree(t, p.mem)
	for _, n := range p.dir.names {
		if f := all[n.ino]; f == nil || !strings.HasPrefix(f.paths[0], fmt.Sprintf("/lost+found.1/#%d", n.ino)) && n.ino != p.hard.ino {
			t.Errorf("inode %d: %v", n.ino, f)
		}
	}
}

// A volume that is smaller than its device has its copy of the superblock
// somewhere within.
func TestCopyIsFoundWithinTheDevice(t *testing.T) {
	p := populate(t, true)
	clear(p.mem[:layout.StaticSize])
	mem := zeroMemory(t, uint64(len(p.mem)+50*layout.BlockSize))
	copy(mem, p.mem)
	if r := check(t, mem, Options{}); r.Counts[Superblock] != 1 || r.Total() != 1 {
		t.Errorf("problems %v", r.Problems)
	}
	mustBeRepaired(t, repair(t, mem), mem)
	// Two of them are none: one may be a forgery.
	clear(mem[:layout.StaticSize])
	sb := *p.sb
	sb.Devices = slices.Clone(p.sb.Devices)
	sb.Devices[0].Blocks -= 7
	if err := sb.Encode(mem[(sb.Devices[0].Blocks-1)*layout.BlockSize:]); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(context.Background(), memSpace(mem), Options{}); err == nil {
		t.Error("one of two copies was taken")
	}
}

func TestRepairNeedsToStore(t *testing.T) {
	p := populate(t, true)
	p.mem[300]++
	if _, err := Repair(context.Background(), memSpace(p.mem), Options{}); err == nil {
		t.Error("a read-only volume was repaired")
	}
}

// What cannot be repaired is reported, and the volume not touched.
func TestTooSmallDeviceIsLeft(t *testing.T) {
	p := populate(t, true)
	s := &storeSpace{memSpace: memSpace(p.mem[:len(p.mem)-100*layout.BlockSize])}
	r, err := Repair(context.Background(), s, Options{})
	if err != nil || r.ExitCode() != ExitErrors || s.fences != 0 {
		t.Errorf("%v, %+v, %d fences", err, r, s.fences)
	}
}
