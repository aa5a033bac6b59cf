package nvfs_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
)

// crowd is what concurrent workers share: directories, files, and the ids
// that any of them saw, which may be stale.
type crowd struct {
	fs    *nvfs.FS
	dirs  []nvfs.NodeID
	files []nvfs.NodeID

	mu   sync.Mutex
	seen []nvfs.NodeID
}

func (c *crowd) remember(id nvfs.NodeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.seen) < 500 {
		c.seen = append(c.seen, id)
	} else {
		c.seen[rand.IntN(len(c.seen))] = id
	}
}

func (c *crowd) anyone() nvfs.NodeID {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.seen) == 0 {
		return nvfs.RootID
	}
	return c.seen[rand.IntN(len(c.seen))]
}

// member is one of the concurrent workers.
type member struct {
	*mounted
	c     *crowd
	rnd   *rand.Rand
	own   nvfs.NodeID // directory that only this one uses
	held  map[nvfs.NodeID]uint64
	block [pageSize]byte
}

// fair are the results that races between operations explain.
var fair = []syscall.Errno{0, unix.ENOENT, unix.EEXIST, unix.ENOTEMPTY, unix.EISDIR, unix.ENOTDIR, unix.ESTALE, unix.EINVAL,
	unix.ENXIO, unix.ENODATA, unix.EPERM}

func (w *member) hold(err error, a *nvfs.Attr) error {
	if err == nil {
		w.held[a.ID]++
		w.c.remember(a.ID)
	}
	return err
}

func (w *member) dir() nvfs.NodeID {
	if w.rnd.IntN(4) == 0 {
		return w.own
	}
	return w.c.dirs[w.rnd.IntN(len(w.c.dirs))]
}

func (w *member) name() []byte { return fmt.Appendf(nil, "n%d", w.rnd.IntN(12)) }

func (w *member) file() nvfs.NodeID { return w.c.files[w.rnd.IntN(len(w.c.files))] }

// step does one operation.
func (w *member) step() error {
	var a nvfs.Attr
	file := &nvfs.CreateArgs{Mode: unix.S_IFREG | 0644}
	off := uint64(w.rnd.IntN(64)) * pageSize
	switch w.rnd.IntN(22) {
	case 0, 1, 2:
		return w.hold(w.Mknod(w.dir(), w.name(), file, &a), &a)
	case 3:
		return w.hold(w.Mkdir(w.dir(), w.name(), &nvfs.CreateArgs{Mode: 0755}, &a), &a)
	case 4:
		return w.hold(w.Symlink(w.dir(), w.name(), data('s', 1+w.rnd.IntN(600)), file, &a), &a)
	case 5, 6:
		return w.Unlink(w.dir(), w.name())
	case 7:
		return w.Rmdir(w.dir(), w.name())
	case 8, 9:
		return w.Rename(w.dir(), w.name(), w.dir(), w.name(), uint32(w.rnd.IntN(3)))
	case 10:
		return w.hold(w.Link(w.c.anyone(), w.dir(), w.name(), &a), &a)
	case 11, 12:
		return w.hold(w.Lookup(w.dir(), w.name(), &a), &a)
	case 13:
		return w.GetAttr(w.c.anyone(), &a)
	case 14:
		for i := range w.block {
			w.block[i] = byte(w.rnd.Uint32())
		}
		fill := w.block[0]
		for i := range w.block {
			w.block[i] = fill
		}
		_, err := w.Write(w.file(), off, w.block[:], 0)
		return err
	case 15:
		return w.readBlock(off)
	case 16:
		return w.Fallocate(w.file(), []uint32{0, 1, 3, 0x10}[w.rnd.IntN(4)], off, pageSize*uint64(1+w.rnd.IntN(8)))
	case 17:
		return w.SetAttr(w.file(), &nvfs.SetAttr{Valid: nvfs.SetSize, Size: off}, &a)
	case 18:
		return w.SetXattr(w.c.anyone(), []byte("user.x"), data('v', w.rnd.IntN(6000)), 0)
	case 19:
		return w.RemoveXattr(w.c.anyone(), []byte("user.x"))
	case 20:
		_, err := w.names(w.dir())
		return err
	}
	return w.forgetOne()
}

// readBlock reads a block, which someone wrote as a whole.
func (w *member) readBlock(off uint64) error {
	n, err := w.Read(w.file(), off, w.block[:])
	if err != nil {
		return err
	}
	for _, b := range w.block[:n] {
		if b != w.block[0] {
			return errors.New("a block of two writers")
		}
	}
	return nil
}

func (w *member) forgetOne() error {
	for id, n := range w.held {
		w.Forget(id, n)
		delete(w.held, id)
		break
	}
	return nil
}

// fill is what a member does with its time: steps, then it lets go of all.
func (w *member) run(steps int) error {
	defer w.Close()
	for i := range steps {
		w.Begin(&nvfs.Request{Conn: 1, Unique: uint64(i)})
		err := w.step()
		w.End()
		if e := nvfs.Errno(err); !slices.Contains(fair, e) {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	for _, id := range slices.Collect(maps.Keys(w.held)) {
		w.Forget(id, w.held[id])
	}
	return nil
}

func (c *crowd) join(m *mounted, i int) (*member, error) {
	w, err := c.fs.NewWorker()
	if err != nil {
		return nil, err
	}
	own, err := m.create(nvfs.RootID, fmt.Sprintf("own%d", i), unix.S_IFDIR|0755)
	return &member{mounted: &mounted{Worker: w, fs: c.fs}, c: c, rnd: rand.New(rand.NewPCG(uint64(i), 1)), own: own, held: map[nvfs.NodeID]uint64{}}, err
}

func newCrowd(t *testing.T, m *mounted) *crowd {
	t.Helper()
	c := &crowd{fs: m.fs}
	for i := range 3 {
		d, err := m.create(nvfs.RootID, fmt.Sprintf("shared%d", i), unix.S_IFDIR|0755)
		if err != nil {
			t.Fatal(err)
		}
		f, err := m.create(nvfs.RootID, fmt.Sprintf("file%d", i), unix.S_IFREG|0644)
		if err != nil {
			t.Fatal(err)
		}
		c.dirs, c.files = append(c.dirs, d), append(c.files, f)
	}
	return c
}

// runCrowd lets workers work at the same time, and alongside next to them.
func runCrowd(t *testing.T, m *mounted, workers, steps int, alongside func() error) {
	t.Helper()
	c := newCrowd(t, m)
	errs := make(chan error, workers+1)
	for i := range workers {
		w, err := c.join(m, i)
		if err != nil {
			t.Fatal(err)
		}
		go func() { errs <- w.run(steps) }()
	}
	go func() { errs <- alongside() }()
	for range workers + 1 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if h := m.fs.Health(); h != "" {
		t.Fatal("damage: ", h)
	}
	if _, err := m.dump(); err != nil {
		t.Fatal(err)
	}
}

// TestConcurrentOperations lets several workers use the same directories and
// files.
func TestConcurrentOperations(t *testing.T) {
	space := newSpace(128 << 20)
	format(t, space, mkfs.Options{})
	m := mount(t, space, nil)
	empty := m.totals()
	steps := 6000 * scale(t)
	if brief() {
		steps = 1500
	}
	runCrowd(t, m, 6, steps, func() error { return nil })
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
	mustEmpty(t, space, empty)
}

// TestImpossibleReservation makes an allocation that cannot succeed again and
// again: it must not let others fail.
func TestImpossibleReservation(t *testing.T) {
	space := newSpace(64 << 20)
	format(t, space, mkfs.Options{})
	m := mount(t, space, nil)
	greedy, err := m.create(nvfs.RootID, "greedy", unix.S_IFREG|0644)
	if err != nil {
		t.Fatal(err)
	}
	w, err := m.fs.NewWorker()
	if err != nil {
		t.Fatal(err)
	}
	blocks := m.totals().Blocks
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		defer w.Close()
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := w.Fallocate(greedy, 0, 0, blocks*pageSize); !errors.Is(err, syscall.ENOSPC) {
				done <- fmt.Errorf("allocation of everything: %v", err)
				return
			}
		}
	}()
	for i := range 3000 {
		id, err := m.create(nvfs.RootID, "modest", unix.S_IFREG|0644)
		if err == nil {
			_, err = m.Write(id, 0, data('m', 8192), 0)
		}
		if err == nil {
			err = m.Unlink(nvfs.RootID, []byte("modest"))
		}
		if err != nil {
			t.Errorf("round %d: %v", i, err)
			break
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}

// TestStaleIDs uses ids of inodes that are gone, while their numbers are used
// again.
func TestStaleIDs(t *testing.T) {
	space := newSpace(16 << 20)
	format(t, space, mkfs.Options{})
	m := mount(t, space, nil)
	var old []nvfs.NodeID
	for i := range 4000 {
		id, err := m.create(nvfs.RootID, "name", unix.S_IFREG|uint32(i%0777))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Unlink(nvfs.RootID, []byte("name")); err != nil {
			t.Fatal(err)
		}
		old = append(old, id)
	}
	kept, err := m.create(nvfs.RootID, "kept", unix.S_IFREG|0644)
	if err != nil {
		t.Fatal(err)
	}
	var a nvfs.Attr
	for _, id := range append(old, nvfs.NodeID(1<<36-1), 0, 1<<63, kept+1<<40) {
		if err := m.GetAttr(id, &a); !errors.Is(err, syscall.ESTALE) {
			t.Fatalf("%#x: %v", id, err)
		}
		if err := m.Lookup(id, []byte("x"), &a); !errors.Is(err, syscall.ESTALE) {
			t.Fatalf("%#x: %v", id, err)
		}
		m.Forget(id, 3)
	}
	if err := m.GetAttr(kept, &a); err != nil {
		t.Fatal(err)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}

// TestForgetOfStaleID must not take lookups off the inode that has the number
// now.
func TestForgetOfStaleID(t *testing.T) {
	space := newSpace(16 << 20)
	format(t, space, mkfs.Options{BytesPerInode: 1 << 20})
	m := mount(t, space, nil)
	gone, err := m.create(nvfs.RootID, "name", unix.S_IFREG|0644)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Unlink(nvfs.RootID, []byte("name")); err != nil {
		t.Fatal(err)
	}
	var a nvfs.Attr
	for i := 0; a.ID.Ino() != gone.Ino(); i++ { // until the number comes round again
		if err := m.Mknod(nvfs.RootID, fmt.Appendf(nil, "n%d", i), &nvfs.CreateArgs{Mode: unix.S_IFREG | 0644}, &a); err != nil {
			t.Fatal(err)
		}
		if err := m.Unlink(nvfs.RootID, fmt.Appendf(nil, "n%d", i)); err != nil {
			t.Fatal(err)
		}
		if a.ID.Ino() != gone.Ino() {
			m.Forget(a.ID, 1)
		}
	}
	m.Forget(gone, 1)
	if err := m.GetAttr(a.ID, &a); err != nil {
		t.Fatal("an open file is gone: ", err)
	}
	m.Forget(a.ID, 1)
	if err := m.GetAttr(a.ID, &a); !errors.Is(err, syscall.ESTALE) {
		t.Fatal(err)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}

// TestParentOfRemovedDirectory looks ".." up where what it was is gone.
func TestParentOfRemovedDirectory(t *testing.T) {
	space := newSpace(16 << 20)
	format(t, space, mkfs.Options{})
	m := mount(t, space, nil)
	top, err := m.create(nvfs.RootID, "top", unix.S_IFDIR|0755)
	if err != nil {
		t.Fatal(err)
	}
	var a nvfs.Attr
	if err := m.Mkdir(top, []byte("held"), &nvfs.CreateArgs{Mode: 0755}, &a); err != nil {
		t.Fatal(err)
	}
	held := a.ID
	if err := m.Rmdir(top, []byte("held")); err != nil {
		t.Fatal(err)
	}
	if err := m.Rmdir(nvfs.RootID, []byte("top")); err != nil {
		t.Fatal(err)
	}
	if err := m.Lookup(held, []byte(".."), &a); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
	if _, err := m.create(nvfs.RootID, "d", unix.S_IFDIR|0755); err != nil {
		t.Fatal(err)
	}
	if err := m.Rename(nvfs.RootID, []byte("d"), held, []byte("d"), 0); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
	m.Forget(held, 1)
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}
