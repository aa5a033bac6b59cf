package fsck_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fsck"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

func newVolume(t testing.TB, size uint64, opt mkfs.Options) *pmem.Mapping {
	t.Helper()
	m, err := pmem.NewMemory(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := mkfs.Format(m, opt); err != nil {
		t.Fatal(err)
	}
	return m
}

// newLintedVolume is memory that checks the discipline of stores, flushes and
// fences; the test fails at its end if that was broken.
func newLintedVolume(t testing.TB, size uint64, opt mkfs.Options) *record.Space {
	t.Helper()
	s := record.New(size, size)
	t.Cleanup(func() {
		for _, f := range s.Lint() {
			t.Error(f)
		}
	})
	if _, err := mkfs.Format(s, opt); err != nil {
		t.Fatal(err)
	}
	return s
}

func mustBeClean(t testing.TB, m pmem.Space, when string) *fsck.Report {
	t.Helper()
	r, err := fsck.Check(context.Background(), m, fsck.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range r.Problems {
		if i == 20 {
			break
		}
		t.Errorf("%s: %v", when, p)
	}
	if r.Total() > 0 {
		t.FailNow()
	}
	return r
}

func TestFormattedVolumes(t *testing.T) {
	for _, size := range []uint64{16 << 20, 17<<20 + 4096, 131 << 20, 300 << 20} {
		for _, perInode := range []uint64{0, 4096, 1 << 20} {
			m := newVolume(t, size, mkfs.Options{Label: "x", BytesPerInode: perInode})
			mustBeClean(t, m, fmt.Sprintf("%d bytes, %d per inode", size, perInode))
		}
	}
}

// actor does random operations on a small set of names, so that these meet.
type actor struct {
	t     *testing.T
	w     *nvfs.Worker
	r     *rand.Rand
	dirs  []nvfs.NodeID
	data  []byte
	done  map[string]int
	pairs uint64
}

func newActor(t *testing.T, fs *nvfs.FS, seed uint64) *actor {
	t.Helper()
	w, err := fs.NewWorker()
	if err != nil {
		t.Fatal(err)
	}
	a := &actor{t: t, w: w, r: rand.New(rand.NewPCG(seed, 99)), dirs: []nvfs.NodeID{nvfs.RootID}, data: make([]byte, 1<<20), done: map[string]int{}}
	for i := range a.data {
		a.data[i] = byte(a.r.Uint32())
	}
	return a
}

func (a *actor) dir() nvfs.NodeID { return a.dirs[a.r.IntN(len(a.dirs))] }

func (a *actor) name() []byte {
	n := a.r.IntN(60)
	return fmt.Appendf(nil, "name %d %0*d", n, n*4, n)[:5+n*4%240]
}

// file looks a random name up and returns what it is; the caller forgets it.
func (a *actor) file() (nvfs.Attr, bool) {
	var at nvfs.Attr
	return at, a.w.Lookup(a.dir(), a.name(), &at) == nil
}

func (a *actor) size() int {
	if a.r.IntN(3) == 0 {
		return a.r.IntN(len(a.data))
	}
	return a.r.IntN(9000)
}

var operations = []struct {
	name   string
	weight int
	do     func(a *actor) error
}{
	{"create", 20, func(a *actor) error {
		mode := []uint32{unix.S_IFREG, unix.S_IFREG, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR}[a.r.IntN(6)]
		return a.made(func(at *nvfs.Attr) error {
			return a.w.Mknod(a.dir(), a.name(), &nvfs.CreateArgs{Mode: mode | 0o644}, at)
		})
	}},
	{"mkdir", 6, func(a *actor) error {
		var at nvfs.Attr
		err := a.w.Mkdir(a.dir(), a.name(), &nvfs.CreateArgs{Mode: 0o755}, &at)
		if err == nil {
			if len(a.dirs) < 12 {
				a.dirs = append(a.dirs, at.ID)
			}
			a.w.Forget(at.ID, 1)
		}
		return err
	}},
	{"symlink", 5, func(a *actor) error {
		target := a.data[:1+a.r.IntN(4095)]
		return a.made(func(at *nvfs.Attr) error { return a.w.Symlink(a.dir(), a.name(), target, &nvfs.CreateArgs{}, at) })
	}},
	{"link", 8, func(a *actor) error {
		f, ok := a.file()
		if !ok {
			return nil
		}
		defer a.w.Forget(f.ID, 1)
		return a.made(func(at *nvfs.Attr) error { return a.w.Link(f.ID, a.dir(), a.name(), at) })
	}},
	{"tmpfile", 3, func(a *actor) error {
		return a.made(func(at *nvfs.Attr) error {
			err := a.w.Tmpfile(a.dir(), &nvfs.CreateArgs{Mode: unix.S_IFREG | 0o600}, at)
			if err == nil && a.r.IntN(2) == 0 {
				_, _ = a.w.Write(at.ID, 0, a.data[:a.size()], 0)
				var l nvfs.Attr
				if a.w.Link(at.ID, a.dir(), a.name(), &l) == nil {
					a.w.Forget(l.ID, 1)
				}
			}
			return err
		})
	}},
	{"unlink", 14, func(a *actor) error { return a.w.Unlink(a.dir(), a.name()) }},
	{"unlink open file", 4, func(a *actor) error {
		d, n := a.dir(), a.name()
		var at nvfs.Attr
		if err := a.w.Lookup(d, n, &at); err != nil {
			return err
		}
		defer a.w.Forget(at.ID, 1)
		if err := a.w.Unlink(d, n); err != nil {
			return err
		}
		_, err := a.w.Write(at.ID, uint64(a.size()), a.data[:a.size()], 0)
		return err
	}},
	{"rmdir", 4, func(a *actor) error { return a.w.Rmdir(a.dir(), a.name()) }},
	{"rename", 14, func(a *actor) error {
		flags := []uint32{0, 0, nvfs.RenameNoReplace, nvfs.RenameExchange, nvfs.RenameWhiteout}[a.r.IntN(5)]
		return a.w.Rename(a.dir(), a.name(), a.dir(), a.name(), flags)
	}},
	{"write", 30, func(a *actor) error {
		f, ok := a.file()
		if !ok {
			return nil
		}
		defer a.w.Forget(f.ID, 1)
		off := uint64(a.r.IntN(20000))
		switch a.r.IntN(4) {
		case 0:
			off = f.Size
		case 1:
			off = uint64(a.r.IntN(1<<20)) &^ 4095
		}
		_, err := a.w.Write(f.ID, off, a.data[:a.size()], 0)
		return err
	}},
	{"setattr", 12, func(a *actor) error {
		f, ok := a.file()
		if !ok {
			return nil
		}
		defer a.w.Forget(f.ID, 1)
		s := nvfs.SetAttr{Valid: nvfs.SetMode | nvfs.SetMtimeNow, Mode: a.r.Uint32() & 0o7777}
		if a.r.IntN(2) == 0 && f.Mode&unix.S_IFMT == unix.S_IFREG {
			s.Valid |= nvfs.SetSize
			s.Size = uint64(a.size())
		}
		return a.w.SetAttr(f.ID, &s, &f)
	}},
	{"fallocate", 12, func(a *actor) error {
		f, ok := a.file()
		if !ok {
			return nil
		}
		defer a.w.Forget(f.ID, 1)
		mode := []uint32{0, nvfs.FallocKeepSize, nvfs.FallocPunchHole | nvfs.FallocKeepSize, nvfs.FallocZeroRange, nvfs.FallocZeroRange | nvfs.FallocKeepSize}[a.r.IntN(5)]
		return a.w.Fallocate(f.ID, mode, uint64(a.r.IntN(1<<20)), uint64(1+a.size()))
	}},
	{"setxattr", 10, func(a *actor) error {
		f, ok := a.file()
		if !ok {
			return nil
		}
		defer a.w.Forget(f.ID, 1)
		n := a.r.IntN(60)
		if a.r.IntN(3) == 0 {
			n = a.r.IntN(20000)
		}
		return a.w.SetXattr(f.ID, fmt.Appendf(nil, "user.%d", a.r.IntN(6)), a.data[:n], 0)
	}},
	{"removexattr", 4, func(a *actor) error {
		f, ok := a.file()
		if !ok {
			return nil
		}
		defer a.w.Forget(f.ID, 1)
		return a.w.RemoveXattr(f.ID, fmt.Appendf(nil, "user.%d", a.r.IntN(6)))
	}},
}

// made forgets the lookup that making a file counted.
func (a *actor) made(make func(at *nvfs.Attr) error) error {
	var at nvfs.Attr
	err := make(&at)
	if err == nil {
		a.w.Forget(at.ID, 1)
	}
	return err
}

func (a *actor) step() {
	total := 0
	for _, o := range operations {
		total += o.weight
	}
	pick := a.r.IntN(total)
	for _, o := range operations {
		if pick -= o.weight; pick >= 0 {
			continue
		}
		a.pairs++
		a.w.Begin(&nvfs.Request{Conn: 1, Unique: a.pairs})
		err := o.do(a)
		a.w.End()
		if nvfs.Errno(err) == unix.EIO {
			a.t.Fatalf("%s: %v", o.name, err)
		}
		if err == nil {
			a.done[o.name]++
		}
		return
	}
}

// Whatever the engine does, the volume is right between operations, and after
// an unmount.
func TestEngineLeavesCleanVolumes(t *testing.T) {
	for _, size := range []uint64{20 << 20, 200 << 20} {
		m := newLintedVolume(t, size, mkfs.Options{})
		done := map[string]int{}
		for round := range 4 {
			fs, err := nvfs.Mount(m, nvfs.Options{})
			if err != nil {
				t.Fatal(err)
			}
			a := newActor(t, fs, uint64(round)+size)
			for i := range 3000 {
				a.step()
				if i%50 == 0 {
					mustBeClean(t, m, fmt.Sprintf("round %d, operation %d", round, i))
				}
			}
			for name, n := range a.done {
				done[name] += n
			}
			a.w.Close()
			if fs.Health() != "" {
				t.Fatal(fs.Health())
			}
			if err := fs.Unmount(); err != nil {
				t.Fatal(err)
			}
			if r := mustBeClean(t, m, "unmounted"); r.Totals.Orphans != 0 {
				t.Errorf("%d orphans are left", r.Totals.Orphans)
			}
		}
		for _, o := range operations {
			if done[o.name] == 0 {
				t.Errorf("%d bytes: no %s succeeded", size, o.name)
			}
		}
	}
}

func TestConcurrentEngineLeavesCleanVolumes(t *testing.T) {
	m := newLintedVolume(t, 300<<20, mkfs.Options{})
	fs, err := nvfs.Mount(m, nvfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 4 {
		var wg sync.WaitGroup
		for i := range 4 {
			a := newActor(t, fs, uint64(round*10+i))
			wg.Add(1)
			go func() {
				defer wg.Done()
				defer a.w.Close()
				for range 1000 {
					a.step()
				}
			}()
		}
		wg.Wait()
		mustBeClean(t, m, fmt.Sprintf("round %d", round))
	}
	if fs.Health() != "" {
		t.Fatal(fs.Health())
	}
	if err := fs.Unmount(); err != nil {
		t.Fatal(err)
	}
	mustBeClean(t, m, "unmounted")
}
