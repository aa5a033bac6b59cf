package fsck

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// mediaVolume is a populated volume that the engine has worked on, so that its
// journal has records, and what is on it.
type mediaVolume struct {
	*populated
	before map[string]string // what each path is
}

func newMediaVolume(t testing.TB) *mediaVolume {
	t.Helper()
	v := workedOn(t, filled(t))
	if len(v.before) < 500 {
		t.Fatalf("%d paths only", len(v.before))
	}
	return v
}

// newSmallMediaVolume is one with fewer names, so that each byte of its
// metadata can be tried.
func newSmallMediaVolume(t testing.TB) *mediaVolume {
	t.Helper()
	return workedOn(t, filledWith(t, 20, 10))
}

func workedOn(t testing.TB, p *populated) *mediaVolume {
	t.Helper()
	v := &mediaVolume{populated: p, before: map[string]string{}}
	fs, err := nvfs.Mount(&storeSpace{memSpace: v.mem}, nvfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := fs.NewWorker()
	if err != nil {
		t.Fatal(err)
	}
	if err := workOn(w, "made"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := fs.Unmount(); err != nil {
		t.Fatal(err)
	}
	for _, f := range tree(t, v.mem) {
		for _, path := range f.paths {
			v.before[path] = f.what
		}
	}
	return v
}

// workOn does a bit of everything that takes and gives space, and returns the
// first error.
func workOn(w *nvfs.Worker, name string) error {
	var d, f, l nvfs.Attr
	var first error
	did := func(err error) {
		if first == nil {
			first = err
		}
	}
	did(w.Mkdir(nvfs.RootID, []byte(name), &nvfs.CreateArgs{Mode: 0o755}, &d))
	did(w.Mknod(d.ID, []byte("file"), &nvfs.CreateArgs{Mode: unix.S_IFREG | 0o644}, &f))
	_, err := w.Write(f.ID, 3000, make([]byte, 50000), 0)
	did(err)
	did(w.SetXattr(f.ID, []byte("user.x"), make([]byte, 5000), 0))
	did(w.Link(f.ID, nvfs.RootID, []byte(name+" link"), &l))
	did(w.Rename(nvfs.RootID, []byte(name+" link"), d.ID, []byte("moved"), 0))
	did(w.SetAttr(f.ID, &nvfs.SetAttr{Valid: nvfs.SetSize, Size: 10000}, &f))
	for _, id := range []nvfs.NodeID{d.ID, f.ID, l.ID} {
		w.Forget(id, 1)
	}
	return first
}

// damageErrors are what an operation may answer on a damaged volume.
var damageErrors = []syscall.Errno{unix.EIO, unix.ESTALE, unix.ENOENT, unix.EROFS, unix.ENOSPC, unix.EEXIST}

// mount uses the damaged volume: each operation gives an error or, where exact
// is set, what was there before.
func (v *mediaVolume) mount(t testing.TB, name string, exact bool) {
	t.Helper()
	s := &storeSpace{memSpace: v.mem}
	defer s.revert()
	fs, err := nvfs.Mount(s, nvfs.Options{})
	if err != nil {
		return
	}
	w, err := fs.NewWorker()
	if err != nil {
		t.Fatal(err)
	}
	x := lenientWalk{v: v, t: t, name: name, exact: exact, treeWalk: treeWalk{w: w, buf: make([]byte, 70000)}, budget: 3000}
	x.visit(nvfs.RootID, "/", 0)
	if err := workOn(w, "more"); err != nil && !slices.Contains(damageErrors, nvfs.Errno(err)) {
		t.Errorf("%s: %v", name, err)
	}
	w.Close()
	_ = fs.Unmount() // damage may keep it from being marked clean
}

// lenientWalk walks a damaged volume.
type lenientWalk struct {
	treeWalk
	v      *mediaVolume
	t      testing.TB
	name   string
	exact  bool
	budget int // names: a directory may contain itself
}

func (x *lenientWalk) allowed(path string, err error) {
	if !slices.Contains(damageErrors, nvfs.Errno(err)) {
		x.t.Errorf("%s: %s: %v", x.name, path, err)
	}
}

func (x *lenientWalk) visit(id nvfs.NodeID, path string, depth int) {
	var names []string
	err := x.w.ReadDir(id, 2, func(e *nvfs.DirEntry) bool {
		names = append(names, string(e.Name))
		x.budget--
		return x.budget > 0
	})
	if err != nil {
		x.allowed(path, err)
	}
	for _, name := range names {
		var c nvfs.Attr
		if err := x.w.Lookup(id, []byte(name), &c); err != nil {
			x.allowed(path+name, err)
			continue
		}
		child := path + name
		if c.Mode&unix.S_IFMT == unix.S_IFDIR {
			child += "/"
		}
		what, err := x.describe(&c)
		switch {
		case err != nil:
			x.allowed(child, err)
		case x.exact && what != x.v.before[child]:
			x.t.Errorf("%s: %s is %s, was %s", x.name, child, what, x.v.before[child])
		}
		if c.Mode&unix.S_IFMT == unix.S_IFDIR && depth < 20 && x.budget > 0 {
			x.visit(c.ID, child, depth+1)
		}
		x.w.Forget(c.ID, 1)
	}
}

// flip is a byte to be damaged.
type flip struct {
	what    string
	at      uint64
	covered bool // by a checksum
}

// flips lists the bytes of the volume's metadata.
func (v *mediaVolume) flips() []flip {
	var list []flip
	add := func(what string, off, n uint64, covered bool) {
		for i := range n {
			list = append(list, flip{what, off + i, covered})
		}
	}
	for _, o := range sealedObjects(v.populated) {
		// The engine has released the orphans.
		free := o.what == "inode" && slices.Contains(v.orphans, owner(v.populated, o))
		add(o.what, o.off, uint64(o.len), !free)
	}
	slices.SortFunc(list, func(a, b flip) int { return cmp.Compare(a.at, b.at) })
	for i := range int(v.sb.Slots) {
		add("journal", layout.SlotOffset(i), 2048, false)
	}
	for _, b := range v.blocks {
		n := uint64(len(v.node(b).Covered()))
		add("rest of a tree block", b*layout.BlockSize+n, layout.BlockSize-n, false)
	}
	return list
}

// flipEvery is which share of the flips is tried: NVFS_FLIP_EVERY, 1 for all
// of them (many minutes), or what takes some seconds.
func flipEvery(t *testing.T) int {
	t.Helper()
	text := os.Getenv("NVFS_FLIP_EVERY")
	if text == "" {
		return 311
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("NVFS_FLIP_EVERY=%q is no number from 1 on", text)
	}
	return n
}

// With any byte of the metadata damaged, every operation gives an error or
// what was there; the check finds the damage if a checksum covers the byte,
// and the repair leaves a volume that it calls clean.
func TestFlips(t *testing.T) {
	every := flipEvery(t)
	for state, last := range map[string]uint64{"retired": 0, "unretired": 1} {
		t.Run("last record "+state, func(t *testing.T) {
			t.Parallel()
			v := newSmallMediaVolume(t)
			v.setLastRetired(last)
			v.tryFlips(t, every, int(last)*every/2)
		})
	}
}

// tryFlips tries one of every so many flips.
func (v *mediaVolume) tryFlips(t *testing.T, every, first int) {
	t.Helper()
	tried, all := 0, v.flips()
	for i := first; i < len(all) && !t.Failed(); i += every {
		f := all[i]
		f.covered = f.covered && !v.replayed(f.at)
		bit := byte(1) << (i / every % 8)
		if i/every%3 == 0 {
			bit = byte(i/every*37) | 1
		}
		v.mem[f.at] ^= bit
		v.tryFlip(t, fmt.Sprintf("%s, byte %d ^ %#x", f.what, f.at, bit), f)
		v.mem[f.at] ^= bit
		tried++
	}
	t.Logf("%d of %d flips", tried, len(all))
}

// replayed reports whether replay of the last record stores over a byte, so
// that damage to it is of no consequence.
func (v *mediaVolume) replayed(at uint64) bool {
	slot, seq := v.lastSlot()
	r := layout.Record(v.mem[slot:][:layout.SlotSize])
	if retired, ok := r.Retired(v.seed); !ok || retired >= seq {
		return false
	}
	for pos := uint32(0); pos < r.Length(); {
		p, next := r.PatchAt(pos)
		if at >= p.Off && at < p.Off+uint64(len(p.Data)) {
			return true
		}
		pos = next
	}
	return false
}

// lastSlot is the offset of the slot with the last record, and its number.
func (v *mediaVolume) lastSlot() (off, seq uint64) {
	for i := range int(v.sb.Slots) {
		at := layout.SlotOffset(i)
		if r := layout.Record(v.mem[at:][:layout.SlotSize]); r.Valid(v.seed) && r.Seq() > seq {
			off, seq = at, r.Seq()
		}
	}
	return off, seq
}

// setLastRetired lets the last record, which marks the volume clean, be the
// one before number back: the volume is then as a crash leaves it.
func (v *mediaVolume) setLastRetired(back uint64) {
	slot, seq := v.lastSlot()
	binary.LittleEndian.PutUint64(v.mem[slot+layout.RecRetire:], layout.RetireWord(v.seed, seq-back))
}

func (v *mediaVolume) tryFlip(t *testing.T, name string, f flip) {
	t.Helper()
	r, err := Check(context.Background(), memSpace(v.mem), Options{Threads: 1})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if f.covered && r.Total() == 0 {
		t.Errorf("%s: the check does not find it", name)
	}
	v.mount(t, name, true)
	v.mustRepair(t, name)
}

func (v *mediaVolume) mustRepair(t testing.TB, name string) {
	t.Helper()
	s := &storeSpace{memSpace: v.mem}
	defer s.revert()
	r, err := Repair(context.Background(), s, Options{Threads: 1, Now: repairTime})
	if err != nil || r.Total() != 0 {
		t.Errorf("%s: the repair leaves %v, %+v", name, err, r)
	}
}

// Ranges of noise, zeros and ones anywhere in the metadata: no more is lost
// than an error, and the repair ends with a clean volume.
func TestDamagedRanges(t *testing.T) {
	v := newMediaVolume(t)
	r := rand.New(rand.NewPCG(5, 6))
	all := v.flips()
	for round := range 200 {
		f := all[r.IntN(len(all))]
		n := min(uint64(1)<<r.IntN(17), uint64(len(v.mem))-f.at)
		old := append([]byte(nil), v.mem[f.at:f.at+n]...)
		kind := r.IntN(3)
		for i := range n {
			v.mem[f.at+i] = []byte{0, 0xff, byte(r.Uint32())}[kind]
		}
		name := fmt.Sprintf("round %d: %d bytes at %d (%s), kind %d", round, n, f.at, f.what, kind)
		v.mount(t, name, false)
		v.mustRepair(t, name)
		copy(v.mem[f.at:], old)
		if t.Failed() {
			t.FailNow()
		}
	}
}

// A device that has become shorter is refused, at whatever length, and left
// alone.
func TestTruncatedDevice(t *testing.T) {
	v := newMediaVolume(t)
	for n := uint64(0); n < uint64(len(v.mem)); n += uint64(len(v.mem))/40 + 4096*3 {
		s := &storeSpace{memSpace: v.mem[:n&^4095]}
		if _, err := nvfs.Mount(s, nvfs.Options{}); err == nil {
			t.Errorf("%d bytes: mounted", n)
		}
		if r, err := Repair(context.Background(), s, Options{}); err == nil && r.ExitCode() != ExitErrors || s.fences != 0 {
			t.Errorf("%d bytes: %v, %+v, %d fences", n, err, r, s.fences)
		}
	}
}

// FuzzMount mounts and walks a volume that is damaged in up to some places,
// checksums made right again or not, and repairs it.
func FuzzMount(f *testing.F) {
	m := newMediaVolume(f)
	v := &vandal{p: m.populated}
	v.fill()
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	f.Fuzz(func(t *testing.T, in []byte) {
		defer v.takeBack()
		for ; len(in) >= 10 && len(v.undo) < 20; in = in[10:] {
			value := uint64(binary.LittleEndian.Uint32(in[5:]))
			if in[9]&1 == 0 {
				value = v.words[value%uint64(len(v.words))]
			}
			v.damage(uint32(binary.LittleEndian.Uint16(in)), uint32(binary.LittleEndian.Uint16(in[2:])), value, in[4], in[9]&2 == 0)
		}
		m.mount(t, "fuzz", false)
		s := &storeSpace{memSpace: m.mem}
		defer s.revert()
		r, err := Repair(context.Background(), s, Options{Threads: 1, Now: repairTime})
		if err != nil && isInternal(err) || err == nil && r.Total() > r.Counts[Geometry] {
			t.Errorf("the repair leaves %v, %+v", err, r)
		}
	})
}
