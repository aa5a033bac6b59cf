package crashtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fsck"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/internal/model"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// epoch is the time of the first tick.
const epoch = 1_000_000

// clock stands still until it is told to go on.
type clock struct{ ticks atomic.Int64 }

func (c *clock) now() nvfs.Time {
	n := c.ticks.Load()
	return nvfs.Time{Sec: epoch + n, Nsec: uint32(n)}
}

// format makes a volume whose every byte is the same each time.
func format(space *record.Space) error {
	sb, err := mkfs.Format(space, mkfs.Options{UUID: [16]byte{15: 1}, Now: time.Unix(epoch, 0)})
	if err != nil {
		return err
	}
	sb.HashKey = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9} // the shape of directories depends on it
	p := space.NewPersister()
	var static [layout.StaticSize]byte
	if err := sb.Encode(static[:]); err != nil {
		return err
	}
	p.Copy(0, static[:])
	p.Copy((sb.Devices[0].Blocks-1)*layout.BlockSize, static[:])
	return p.Fence()
}

// volume is a mounted volume in use by workers.
type volume struct {
	fs      *nvfs.FS
	workers []*nvfs.Worker
	*buffers
}

// buffers are used by one volume after another.
type buffers struct{ data, xattr []byte }

func newBuffers() *buffers {
	return &buffers{data: make([]byte, 64<<10), xattr: make([]byte, layout.MaxXattrLen)}
}

func mount(space pmem.Space, now func() nvfs.Time, workers int, b *buffers) (*volume, error) {
	return mountWith(space, nvfs.Options{Clock: now}, workers, b)
}

func mountWith(space pmem.Space, o nvfs.Options, workers int, b *buffers) (*volume, error) {
	fs, err := nvfs.Mount(space, o)
	if err != nil {
		return nil, err
	}
	v := &volume{fs: fs, buffers: b}
	for range workers {
		w, err := fs.NewWorker()
		if err != nil {
			return nil, errors.Join(err, v.unmount())
		}
		v.workers = append(v.workers, w)
	}
	return v, nil
}

// unmount ends the use of the volume; damage that the engine met is an error.
func (v *volume) unmount() error {
	for _, w := range v.workers {
		w.Close()
	}
	if err := v.fs.Unmount(); err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	if h := v.fs.Health(); h != "" {
		return errors.New("the engine met damage: " + h)
	}
	return nil
}

// check runs fsck, which must find nothing.
func check(space pmem.Space) (*fsck.Report, error) {
	r, err := fsck.Check(context.Background(), space, fsck.Options{Threads: 1})
	if err != nil {
		return nil, err
	}
	if r.Total() > 0 {
		var text []string
		for _, p := range r.Problems[:min(4, len(r.Problems))] {
			text = append(text, p.String())
		}
		return r, fmt.Errorf("fsck found %d problems: %s", r.Total(), strings.Join(text, "; "))
	}
	return r, nil
}

// checkEmpty expects fsck to find nothing but the root directory.
func checkEmpty(space pmem.Space) error {
	r, err := check(space)
	if err != nil {
		return err
	}
	sb, err := layout.DecodeSuperblock(space.Bytes()[:layout.StaticSize])
	if err != nil {
		return err
	}
	meta := r.Totals.Groups * (layout.GroupInodeTable + layout.InodeTableBlocks(sb.InodesPerGroup))
	if r.Totals.BlocksUsed != meta || r.Totals.Inodes != 1 || r.Totals.Orphans != 0 {
		return fmt.Errorf("space is lost: with everything removed %d blocks and %d inodes are in use, of which %d and 1 should be",
			r.Totals.BlocksUsed, r.Totals.Inodes, meta)
	}
	return nil
}

// entry is a name in a directory.
type entry struct {
	name string
	ino  uint64
	typ  uint32
}

// list returns the names of a directory but "." and "..", sorted.
func (v *volume) list(w *nvfs.Worker, dir nvfs.NodeID) ([]entry, error) {
	var list []entry
	last, ordered := uint64(0), true
	err := w.ReadDir(dir, 0, func(e *nvfs.DirEntry) bool {
		ordered = ordered && e.Cookie > last
		last = e.Cookie
		if name := string(e.Name); name != "." && name != ".." {
			list = append(list, entry{name, e.Ino, e.Type})
		}
		return true
	})
	if err == nil && !ordered {
		err = errors.New("cookies of a directory do not grow")
	}
	slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return list, err
}

// dumper walks a tree.
type dumper struct {
	v     *volume
	w     *nvfs.Worker
	first map[uint64]string
	lines []string
}

// dump describes the tree as model.Dump does.
func (v *volume) dump() ([]string, error) {
	d := dumper{v: v, w: v.workers[0], first: map[uint64]string{}}
	var root nvfs.Attr
	if err := d.w.GetAttr(nvfs.RootID, &root); err != nil {
		return nil, err
	}
	err := d.visit(&root, "/")
	return d.lines, err
}

func (d *dumper) visit(a *nvfs.Attr, path string) error {
	if p, seen := d.first[a.ID.Ino()]; seen {
		d.lines = append(d.lines, model.HardLinkLine(path, p))
		return nil
	}
	d.first[a.ID.Ino()] = path
	line, err := d.line(a, path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	d.lines = append(d.lines, line)
	if a.Mode&unix.S_IFMT == unix.S_IFDIR {
		return d.children(a.ID, path)
	}
	return nil
}

func (d *dumper) children(dir nvfs.NodeID, path string) error {
	list, err := d.v.list(d.w, dir)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	prefix := strings.TrimSuffix(path, "/") + "/"
	for _, e := range list {
		var a nvfs.Attr
		if err := d.w.Lookup(dir, []byte(e.name), &a); err != nil {
			return fmt.Errorf("%s%s: %w", prefix, e.name, err)
		}
		if a.ID.Ino() != e.ino || a.Mode&unix.S_IFMT != e.typ {
			return fmt.Errorf("%s%s: the entry says inode %d of type %o, lookup inode %d of mode %o", prefix, e.name, e.ino, e.typ, a.ID.Ino(), a.Mode)
		}
		err := d.visit(&a, prefix+e.name)
		d.w.Forget(a.ID, 1)
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *dumper) line(a *nvfs.Attr, path string) (string, error) {
	set, err := d.v.xattrs(d.w, a.ID)
	if err != nil {
		return "", err
	}
	s := model.Line(path, a, set)
	switch a.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		c, err := d.v.content(d.w, a.ID, a.Size)
		return model.FileLine(s, a.Size, c), err
	case unix.S_IFLNK:
		buf := d.v.data
		n, err := d.w.Readlink(a.ID, buf)
		return model.LinkLine(s, string(buf[:n])), err
	}
	return s, nil
}

// content hashes a file, without its holes.
func (v *volume) content(w *nvfs.Worker, id nvfs.NodeID, size uint64) (c model.Content, err error) {
	buf := v.data
	for pos := uint64(0); pos < size; {
		data, err := w.Lseek(id, pos, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return c, err
		}
		pos = max(pos, data&^(model.PageSize-1))
		n, err := w.Read(id, pos, buf)
		if err != nil {
			return c, err
		}
		if n == 0 {
			return c, fmt.Errorf("no data at %d of %d", pos, size)
		}
		c.Add(pos, buf[:n])
		pos += uint64(n)
	}
	return c, nil
}

func (v *volume) xattrs(w *nvfs.Worker, id nvfs.NodeID) (map[string]string, error) {
	n, err := w.ListXattr(id, nil)
	if err != nil || n == 0 {
		return nil, err
	}
	names := make([]byte, n)
	if _, err := w.ListXattr(id, names); err != nil {
		return nil, err
	}
	set := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		n, err := w.GetXattr(id, []byte(name), v.xattr)
		if err != nil {
			return nil, err
		}
		set[name] = string(v.xattr[:n])
	}
	return set, nil
}

// find looks a path up without keeping a reference.
func find(w *nvfs.Worker, path string) (nvfs.NodeID, error) {
	at := nvfs.RootID
	for name := range strings.SplitSeq(path, "/") {
		if name == "" {
			continue
		}
		var a nvfs.Attr
		if err := w.Lookup(at, []byte(name), &a); err != nil {
			return 0, err
		}
		w.Forget(a.ID, 1)
		at = a.ID
	}
	return at, nil
}

// readFile reads up to limit bytes of a file.
func (v *volume) readFile(path string, limit uint64) ([]byte, error) {
	w := v.workers[0]
	id, err := find(w, path)
	if err != nil {
		return nil, err
	}
	var a nvfs.Attr
	if err := w.GetAttr(id, &a); err != nil {
		return nil, err
	}
	p := make([]byte, min(a.Size, limit))
	_, err = w.Read(id, 0, p)
	return p, err
}

// use makes the first changes after a recovery and then removes everything. On
// a full volume the changes come last.
func (v *volume) use() error {
	err := v.probe()
	full := errors.Is(err, unix.ENOSPC)
	if err != nil && !full {
		return err
	}
	if err := v.removeAll(nvfs.RootID); err != nil || !full {
		return err
	}
	return v.probe()
}

// probe makes changes of several kinds and takes them back.
func (v *volume) probe() error {
	w := v.workers[0]
	var d, f nvfs.Attr
	args := nvfs.CreateArgs{Mode: unix.S_IFREG | 0600}
	for _, step := range []func() error{
		func() error { return w.Mkdir(nvfs.RootID, []byte(".probe"), &args, &d) },
		func() error { return w.Mknod(d.ID, []byte("a"), &args, &f) },
		func() error { _, err := w.Write(f.ID, 100, v.data[:5000], 0); return err },
		func() error { return w.SetXattr(f.ID, []byte("user.probe"), []byte("v"), 0) },
		func() error { return w.Rename(d.ID, []byte("a"), nvfs.RootID, []byte(".probe2"), 0) },
		func() error { return w.Unlink(nvfs.RootID, []byte(".probe2")) },
		func() error { return w.Rmdir(nvfs.RootID, []byte(".probe")) },
	} {
		w.Begin(&nvfs.Request{Conn: 9, Unique: 9})
		err := step()
		w.End()
		if err != nil {
			return fmt.Errorf("change after recovery: %w", err)
		}
	}
	w.Forget(f.ID, 1)
	w.Forget(d.ID, 1)
	return nil
}

// removeAll empties a directory.
func (v *volume) removeAll(dir nvfs.NodeID) error {
	w := v.workers[0]
	list, err := v.list(w, dir)
	if err != nil {
		return err
	}
	w.Begin(&nvfs.Request{})
	defer w.End()
	for _, e := range list {
		if e.typ != unix.S_IFDIR {
			if err := w.Unlink(dir, []byte(e.name)); err != nil {
				return fmt.Errorf("unlink %q: %w", e.name, err)
			}
			continue
		}
		var a nvfs.Attr
		if err := w.Lookup(dir, []byte(e.name), &a); err != nil {
			return err
		}
		err := v.removeAll(a.ID)
		w.Forget(a.ID, 1)
		if err == nil {
			err = w.Rmdir(dir, []byte(e.name))
		}
		if err != nil {
			return fmt.Errorf("%q: %w", e.name, err)
		}
	}
	return nil
}
