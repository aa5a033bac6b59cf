package fsck

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

func check(t testing.TB, mem []byte, opt Options) *Report {
	t.Helper()
	r, err := Check(context.Background(), memSpace(mem), opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func isInternal(err error) bool {
	var e *internalError
	return errors.As(err, &e)
}

func TestCleanImage(t *testing.T) {
	p := populate(t, true)
	r := check(t, p.mem, Options{Threads: 2})
	for _, x := range r.Problems {
		t.Error(x)
	}
	if r.ExitCode() != ExitClean || r.Total() != 0 {
		t.Errorf("exit code %d, %d problems", r.ExitCode(), r.Total())
	}
	names := 0
	for _, f := range p.nodes {
		names += len(f.names)
	}
	want := Totals{Groups: 2, Inodes: uint64(len(p.nodes)), InodesMax: 2 * testPerGroup, Orphans: 2, Names: uint64(names),
		Blocks: layout.GroupBlocks + 9000, BlocksUsed: p.next[0] + p.next[1]}
	for _, f := range p.nodes {
		want.Extents += uint64(len(f.extents))
		if f.mode&unix.S_IFMT == unix.S_IFDIR {
			want.Directories++
		}
	}
	if r.Totals != want {
		t.Errorf("totals %+v, want %+v", r.Totals, want)
	}
	if r.Label != "test" || !strings.HasPrefix(r.UUID, "aabb0000-0000-") {
		t.Errorf("label %q, UUID %q", r.Label, r.UUID)
	}
}

func TestEmptyImages(t *testing.T) {
	for _, blocks := range []uint64{layout.MinBlocks, layout.GroupBlocks, layout.HeaderBlocks + 1 + layout.GroupBlocks, layout.HeaderBlocks + 1 + 2*layout.GroupBlocks + 300} {
		im := newImage(t, blocks)
		im.write()
		r := check(t, im.mem, Options{})
		for _, x := range r.Problems {
			t.Errorf("%d blocks: %v", blocks, x)
		}
	}
}

// The number of threads changes nothing but the time.
func TestThreads(t *testing.T) {
	p := populate(t, true)
	p.inode(p.hard.ino).SetNlink(5)
	p.sealInode(p.hard.ino)
	p.node(p.tree.extents[0].Physical)[0]++
	p.node(p.dir.root)[100]++
	var first *Report
	for _, n := range []int{1, 2, 3, 16} {
		r := check(t, p.mem, Options{Threads: n})
		r.Seconds, r.Threads = 0, 0
		if first == nil {
			first = r
		}
		if !reflect.DeepEqual(r, first) {
			t.Errorf("%d threads: %+v\nwant %+v", n, r, first)
		}
	}
}

// object is a range of bytes that a checksum covers.
type object struct {
	what string
	off  uint64
	len  int
}

func sealedObjects(p *populated) []object {
	list := []object{
		{"superblock", 0, layout.StaticSize},
		{"dynamic half", layout.DynamicOffset, layout.StaticSize},
		{"superblock copy", (p.sb.Devices[0].Blocks - 1) * layout.BlockSize, layout.StaticSize},
	}
	for g := range p.next {
		start := layout.GroupStart(uint64(g))
		list = append(list, object{"group descriptor", start * layout.BlockSize, layout.GroupDescSize})
		for which := uint64(layout.GroupBlockBitmap); which <= layout.GroupOrphans; which++ {
			for i := range uint32(layout.ChunksBlock) {
				list = append(list, object{"bitmap", layout.ChunkOffset(start+which, i*layout.ChunkBits), layout.ChunkSize})
			}
		}
	}
	for ino := range p.nodes {
		list = append(list, object{"inode", layout.InodeOffset(ino, testPerGroup), layout.InodeSize})
	}
	for _, b := range p.blocks {
		n := p.node(b)
		what := map[uint32]string{layout.ExtentMagic: "extent node", layout.DirLeafMagic: "leaf",
			layout.DirIndexMagic: "index block", layout.XattrMagic: "attribute block"}[n.Magic()]
		list = append(list, object{what, b * layout.BlockSize, len(n.Covered())})
	}
	return list
}

// Every byte that a checksum covers is covered: of each kind of object two
// are tried byte by byte, the others here and there.
func TestEveryCoveredByteIsChecked(t *testing.T) {
	p := populate(t, true)
	whole := map[string]int{}
	for _, o := range sealedObjects(p) {
		step := 509
		if whole[o.what] < 2 && (o.what != "leaf" || whole[o.what] < 1) {
			step = 1
		}
		whole[o.what]++
		for i := int(o.off) % 7; i < o.len; i += step {
			flip := byte(1) << (i % 8)
			p.mem[o.off+uint64(i)] ^= flip
			r, err := Check(context.Background(), memSpace(p.mem), Options{Threads: 1})
			if err == nil && r.Total() == 0 {
				t.Fatalf("%s: a flip in byte %d goes unnoticed", o.what, i)
			}
			if err != nil && isInternal(err) {
				t.Fatal(err)
			}
			p.mem[o.off+uint64(i)] ^= flip
		}
	}
	for _, what := range []string{"superblock", "dynamic half", "superblock copy", "group descriptor", "bitmap", "inode", "extent node", "leaf", "index block", "attribute block"} {
		if whole[what] == 0 {
			t.Errorf("the image has no %s", what)
		}
	}
	if r := check(t, p.mem, Options{}); r.Total() != 0 {
		t.Fatal("the flips were not taken back")
	}
}

func TestBothSuperblocksGone(t *testing.T) {
	p := populate(t, true)
	p.mem[100]++
	p.block(p.sb.Devices[0].Blocks - 1)[100]++
	r, err := Check(context.Background(), memSpace(p.mem), Options{})
	if !errors.Is(err, ErrNoSuperblock) || r.ExitCode() != ExitCouldNot {
		t.Errorf("%v, exit code %d", err, r.ExitCode())
	}
	for _, n := range []int{0, 1, 4095, 1 << 20} {
		if _, err := Check(context.Background(), memSpace(make([]byte, n)), Options{}); !errors.Is(err, ErrNoSuperblock) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestUnknownFeatures(t *testing.T) {
	for _, edit := range []func(*layout.Superblock){
		func(s *layout.Superblock) { s.Incompat = 1 },
		func(s *layout.Superblock) { s.ROCompat = 1 },
	} {
		im := newImage(t, layout.MinBlocks)
		edit(im.sb)
		im.write()
		if r, err := Check(context.Background(), memSpace(im.mem), Options{}); err == nil {
			t.Errorf("%+v", r)
		}
	}
}

func TestCancelled(t *testing.T) {
	p := populate(t, true)
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	cancel(why)
	if r, err := Check(ctx, memSpace(p.mem), Options{}); !errors.Is(err, why) || r != nil {
		t.Errorf("%v, %v", r, err)
	}
}

func TestReportIsJSON(t *testing.T) {
	p := populate(t, true)
	p.inode(p.hard.ino).SetNlink(5)
	p.sealInode(p.hard.ino)
	r := check(t, p.mem, Options{})
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(&back, r) {
		t.Errorf("%+v\nwant %+v", back, r)
	}
	if b, _ := json.Marshal(check(t, populate(t, true).mem, Options{})); !bytes.Contains(b, []byte(`"problems":[]`)) {
		t.Errorf("a clean report has no empty list: %s", b)
	}
}

func TestProblemsAreLimited(t *testing.T) {
	p := populate(t, true)
	for _, e := range p.wide.names {
		p.inode(e.ino).SetNlink(7)
		p.sealInode(e.ino)
	}
	p.inode(p.inline.ino)[0]++
	r := check(t, p.mem, Options{MaxProblems: 16})
	if len(r.Problems) > 16 || r.Counts[InodeNlink] != 200 || r.Counts[InodeChecksum] != 1 {
		t.Errorf("%d problems kept, counts %v", len(r.Problems), r.Counts)
	}
	if !hasCode(r, InodeChecksum) {
		t.Error("a flood of one code hides another")
	}
	if len(r.Notes) == 0 || !strings.Contains(r.Notes[len(r.Notes)-1], "more problems") {
		t.Errorf("notes %q do not say that problems are missing", r.Notes)
	}
}

func hasCode(r *Report, code Code) bool {
	for _, p := range r.Problems {
		if p.Code == code {
			return true
		}
	}
	return false
}

func TestPaths(t *testing.T) {
	p := populate(t, true)
	for _, f := range []*file{p.inline, p.holes, p.chain[4], p.nodes[p.wide.names[77].ino]} {
		p.inode(f.ino).SetMtime(1, 1<<30)
		p.sealInode(f.ino)
	}
	want := map[uint64]string{p.inline.ino: "/dir/inline", p.holes.ino: "/dir/sub/holes", p.chain[4].ino: "/level 0/level 1/level 2/level 3/level 4",
		p.wide.names[77].ino: "/wide/" + p.wide.names[77].name}
	r := check(t, p.mem, Options{})
	if len(r.Problems) != len(want) {
		t.Fatalf("problems: %v", r.Problems)
	}
	for _, x := range r.Problems {
		if x.Path != want[x.Ino] {
			t.Errorf("inode %d: path %q, want %q", x.Ino, x.Path, want[x.Ino])
		}
	}
}

// fileSpace is a mapping of a file.
type fileSpace struct {
	memSpace
	size uint64
}

func (s fileSpace) Size() uint64 { return s.size }

// What cannot be read is a problem, and the rest is checked all the same.
func TestUnreadable(t *testing.T) {
	p := populate(t, true)
	p.inode(p.inline.ino).SetMtime(1, 1<<30)
	p.sealInode(p.inline.ino)
	path := filepath.Join(t.TempDir(), "image")
	cut := layout.GroupStart(1) * layout.BlockSize
	if err := os.WriteFile(path, p.mem[:cut], 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, len(p.mem), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	r, err := Check(context.Background(), fileSpace{b, uint64(len(b))}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Counts[Unreadable] == 0 || r.ExitCode() != ExitErrors {
		t.Errorf("counts %v", r.Counts)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, p.mem, 0o600); err != nil {
		t.Fatal(err)
	}
	// Now all but one page of the second group's inodes.
	hole := (layout.GroupStart(1) + layout.GroupInodeTable + 2) * layout.BlockSize
	if err := unix.Mprotect(b[hole:hole+layout.BlockSize], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	r, err = Check(context.Background(), fileSpace{b, uint64(len(b))}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Counts[Unreadable] < layout.InodesPerBlock || !hasCode(r, InodeTime) {
		t.Errorf("counts %v", r.Counts)
	}
	for _, x := range r.Problems {
		if x.Code == Unreadable && x.Block != hole/layout.BlockSize {
			t.Errorf("%v names block %d, not %d", x, x.Block, hole/layout.BlockSize)
		}
	}
}
