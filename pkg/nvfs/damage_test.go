package nvfs_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// damageBase is a populated, unmounted volume and where its metadata is.
type damageBase struct {
	*record.Space
	mem      []byte
	seed     uint32
	perGroup uint32
	pages    []uint64          // with metadata
	lines    map[string]string // of the dump, by path
}

func newDamageBase(t *testing.T) *damageBase {
	t.Helper()
	b := &damageBase{Space: newSpace(16 << 20)}
	b.mem = b.Bytes()
	sb, err := mkfs.Format(b, mkfs.Options{BytesPerInode: 16384, UUID: [16]byte{1, 2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	sb.HashKey = [16]byte{4, 5, 6} // so that a seed gives the same volume each time
	if err := sb.Encode(b.mem); err != nil {
		t.Fatal(err)
	}
	b.seed, b.perGroup = sb.Seed(), sb.InodesPerGroup
	m := mount(t, b, nil)
	if err := prepareTree(m); err != nil {
		t.Fatal(err)
	}
	for i := range 400 { // a directory with an index block
		if _, err := m.create(m.id("many"), fmt.Sprintf("more-%d", i), unix.S_IFREG|0600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(400) { // extent nodes
		if err := m.write("holes", (100+i*2)*pageSize, data('h', 100)); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.SetXattr(m.id("page"), []byte("user.big"), data('b', 30_000), 0); err != nil {
		t.Fatal(err)
	}
	dump, err := m.dump()
	if err != nil {
		t.Fatal(err)
	}
	b.lines = map[string]string{}
	for _, l := range strings.Split(dump, "\n") {
		path, text, _ := strings.Cut(l, " ")
		b.lines[path] = text
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
	b.Freeze()
	b.findMetadata()
	return b
}

// findMetadata collects the pages that hold metadata in use.
func (b *damageBase) findMetadata() {
	add := func(page uint64) { b.pages = append(b.pages, page) }
	for range 8 { // more weight than their number gives
		add(0)
		for i := range 3 {
			add(layout.SlotOffset(i) / pageSize)
		}
		for i := range uint64(8) {
			add(layout.HeaderBlocks + i)
		}
	}
	add(uint64(len(b.mem))/pageSize - 1)
	for page := uint64(layout.HeaderBlocks); page < uint64(len(b.mem))/pageSize; page++ {
		switch layout.Node(b.mem[page*pageSize:]).Magic() {
		case layout.ExtentMagic, layout.DirLeafMagic, layout.DirIndexMagic, layout.XattrMagic:
			for range 4 {
				add(page)
			}
		}
	}
}

// flip damages some bytes of a page; with reseal the checksums say that all
// is well.
func (b *damageBase) flip(rnd *rand.Rand, reseal bool) string {
	page := b.pages[rnd.IntN(len(b.pages))]
	b.Touch(page * pageSize)
	at := rnd.IntN(pageSize)
	p := b.mem[page*pageSize : (page+1)*pageSize]
	if node := layout.Node(p); page > layout.HeaderBlocks+8 && rnd.IntN(2) == 0 {
		at = rnd.IntN(min(pageSize, layout.NodeHeader+32))
		_ = node
	}
	n := 1 + rnd.IntN(3)
	for i := range n {
		switch k := (at + i) % pageSize; rnd.IntN(3) {
		case 0:
			p[k] ^= 1 << rnd.IntN(8)
		case 1:
			p[k] = byte(rnd.Uint32())
		default:
			p[k] = []byte{0, 0xff, 0x80, 1}[rnd.IntN(4)]
		}
	}
	if reseal {
		b.reseal(page, at)
	}
	return fmt.Sprintf("page %d byte %d+%d", page, at, n)
}

// reseal makes the checksums of a page's object right again.
func (b *damageBase) reseal(page uint64, at int) {
	p := b.mem[page*pageSize : (page+1)*pageSize]
	table := uint64(layout.HeaderBlocks + layout.GroupInodeTable)
	switch {
	case page == 0:
		if at < layout.StaticSize {
			var uuid [16]byte
			copy(uuid[:], p[48:])
			layout.Seal(layout.Seed(uuid), 0, p[:layout.StaticSize])
		} else {
			layout.Seal(b.seed, layout.DynamicLocation, p[layout.DynamicOffset:])
		}
	case page < layout.HeaderBlocks:
		slot := int((page*pageSize - layout.SlotOffset(0)) / layout.SlotSize)
		r := layout.Record(b.mem[layout.SlotOffset(slot):][:layout.SlotSize])
		if at >= layout.RecIntent && at < layout.RecIntent+layout.IntentSize {
			layout.Seal(b.seed, layout.IntentLocation+uint64(slot), r[layout.RecIntent:layout.RecIntent+layout.IntentSize])
		} else if r.Length() <= layout.PayloadMax {
			r.SealRecord(b.seed)
			if r.Seq() > 1 { // let it be replayed
				binary.LittleEndian.PutUint64(r[layout.RecRetire:], layout.RetireWord(b.seed, r.Seq()-1))
			}
		}
	case page == layout.HeaderBlocks:
		layout.Seal(b.seed, page, p[:layout.GroupDescSize])
	case page < table:
		c := at / layout.ChunkSize * layout.ChunkSize
		off := page*pageSize + uint64(c)
		layout.Seal(b.seed, layout.ChunkLocation(off), p[c:c+layout.ChunkSize])
	case page < table+layout.InodeTableBlocks(b.perGroup):
		i := at / layout.InodeSize
		ino := (page-table)*layout.InodesPerBlock + uint64(i) + 1
		layout.Seal(b.seed, ino, p[i*layout.InodeSize:(i+1)*layout.InodeSize])
	default:
		layout.Seal(b.seed, page, layout.Node(p).Covered())
	}
}

// confined are the errors that damage may cause.
func confined(err error) bool {
	e := nvfs.Errno(err)
	return slices.Contains(fair, e) || e == syscall.EIO || e == syscall.EROFS || e == syscall.ENOSPC || e == syscall.EFBIG || e == syscall.EMLINK || e == syscall.ENODEV
}

// use does what an unsuspecting user would, and checks that what can be read
// is right unless it is the damage that was resealed.
func (b *damageBase) use(m *mounted, exact bool) error {
	budget := 5000 // a loop in the tree must not keep us
	var walk func(dir nvfs.NodeID, path string, depth int) error
	walk = func(dir nvfs.NodeID, path string, depth int) error {
		var list []string
		err := m.ReadDir(dir, 0, func(e *nvfs.DirEntry) bool {
			list = append(list, string(e.Name))
			budget--
			return budget > 0
		})
		if !confined(err) {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, name := range list {
			var a nvfs.Attr
			at := path + "/" + name
			if err := m.Lookup(dir, []byte(name), &a); err != nil {
				if !confined(err) {
					return fmt.Errorf("%s: %w", at, err)
				}
				continue
			}
			text, err := "", error(nil)
			if a.Size < 1<<40 {
				text, err = m.describe(&a)
			}
			if !confined(err) {
				return fmt.Errorf("%s: %w", at, err)
			}
			if want, known := b.lines[at]; exact && err == nil && known && name != "." && name != ".." && text != want && !strings.HasPrefix(want, "=") {
				return fmt.Errorf("%s reads as %s, want %s", at, text, want)
			}
			if a.Mode&unix.S_IFMT == unix.S_IFDIR && name != "." && name != ".." && depth < 6 {
				if err := walk(a.ID, at, depth+1); err != nil {
					return err
				}
			}
			m.Forget(a.ID, 1)
		}
		return nil
	}
	if err := walk(nvfs.RootID, "/", 0); err != nil {
		return err
	}
	return b.change(m)
}

// change makes changes everywhere.
func (b *damageBase) change(m *mounted) error {
	var a nvfs.Attr
	find := func(name string) nvfs.NodeID {
		if err := m.Lookup(nvfs.RootID, []byte(name), &a); err != nil {
			return 0
		}
		m.Forget(a.ID, 1)
		return a.ID
	}
	const punch = nvfs.FallocPunchHole | nvfs.FallocKeepSize
	var errs []error
	did := func(err error) {
		if !confined(err) {
			errs = append(errs, err)
		}
	}
	for _, dir := range []string{"dir", "many", "other", "empty"} {
		d := find(dir)
		id, err := m.create(d, "new", unix.S_IFREG|0644)
		did(err)
		_, err = m.Write(id, 0, data('n', 20_000), 0)
		did(err)
		_, err = m.create(d, longName, unix.S_IFDIR|0755)
		did(err)
		did(m.Rename(d, []byte("new"), nvfs.RootID, []byte("new"), 0))
		did(m.Rename(nvfs.RootID, []byte("new"), d, []byte("more-1"), 0))
		did(m.Unlink(d, []byte("a")))
		did(m.Rmdir(d, []byte(longName)))
	}
	for _, name := range []string{"small", "page", "holes", "big", "unwritten", "suid", "long", "odd"} {
		id := find(name)
		_, err := m.Write(id, 5000, data('w', 10_000), nvfs.WriteKillSuidgid)
		did(err)
		did(m.Fallocate(id, 0, 0, 100_000))
		did(m.Fallocate(id, punch, 10_000, 1<<30))
		did(m.Fallocate(id, nvfs.FallocZeroRange, 100, 60_000))
		did(m.SetXattr(id, []byte("user.new"), data('x', 5000), 0))
		did(m.RemoveXattr(id, []byte("user.x")))
		did(m.SetAttr(id, &nvfs.SetAttr{Valid: nvfs.SetSize | nvfs.SetMode, Size: 9, Mode: 0600}, &a))
		did(m.Unlink(nvfs.RootID, []byte(name)))
	}
	return errors.Join(errs...)
}

// trial damages the volume and uses it.
func (b *damageBase) trial(seed uint64, reseal bool) (how string, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	b.Reset()
	rnd := rand.New(rand.NewPCG(seed, 5))
	for range 1 + rnd.IntN(2) {
		how += b.flip(rnd, reseal) + "; "
	}
	watchdog := time.AfterFunc(time.Minute, func() { debug.SetTraceback("all"); panic("a damaged volume hangs: " + how) })
	defer watchdog.Stop()
	m, err := tryMount(b, nil)
	if err != nil {
		return how, nil // refused
	}
	if err := b.use(m, !reseal); err != nil {
		return how, err
	}
	m.End()
	m.Close()
	return how, m.fs.Unmount()
}

// TestDamage flips bytes of metadata. Nothing may panic, hang or come out
// wrong: what is damaged is refused, what is not is right.
func TestDamage(t *testing.T) {
	singleThreaded(t)
	t.Parallel()
	for _, reseal := range []bool{false, true} {
		t.Run(map[bool]string{false: "by accident", true: "by intent"}[reseal], func(t *testing.T) {
			t.Parallel()
			b := newDamageBase(t)
			count := 800 * scale(t)
			if brief() {
				count = 400
			}
			failures := 0
			for seed := range uint64(count) {
				if how, err := b.trial(seed, reseal); err != nil {
					t.Errorf("seed %d: %s: %v", seed, how, err)
					if failures++; failures > 5 {
						t.FailNow()
					}
				}
			}
		})
	}
}

// TestUnusableDevices mounts what is no volume, or not all of one.
func TestUnusableDevices(t *testing.T) {
	singleThreaded(t)
	t.Parallel()
	whole := newSpace(32 << 20)
	format(t, whole, mkfs.Options{})
	if err := mount(t, whole, nil).unmount(); err != nil {
		t.Fatal(err)
	}
	for _, size := range []uint64{0, 1, 4095, 4096, 1 << 20, 6 << 20, 16<<20 - 1, 16 << 20, 32<<20 - 4096, 32<<20 - 1} {
		s := newSpace(size)
		copy(s.Bytes(), whole.Bytes())
		if m, err := tryMount(s, nil); err == nil {
			t.Errorf("a device of %d bytes was mounted", size)
			m.End()
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, fill := range []func(p []byte){
		func(p []byte) { clear(p) },
		func(p []byte) {
			for i := range p {
				p[i] = byte(rnd.Uint32())
			}
		},
		func(p []byte) {
			for i := range p {
				p[i] = 0xff
			}
		},
	} {
		s := newSpace(32 << 20)
		copy(s.Bytes(), whole.Bytes())
		fill(s.Bytes()[:pageSize])
		fill(s.Bytes()[len(s.Bytes())-pageSize:])
		if _, err := tryMount(s, nil); err == nil {
			t.Error("garbage was mounted")
		}
	}
}
