package fusefs

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// nullFS keeps names and attributes in ordinary memory and file data in a
// pmem.Space, where each write is copied and fenced as a real filesystem
// must. Nothing survives it. It is the floor that benchmarks compare against:
// what is left of an operation's cost when the filesystem itself costs next
// to nothing.
//
// Lock order: nullFS.mu, then a node's mu, then nullFS.pages.mu. mu guards
// the tree and, held exclusively, every node's link and lookup counts.
type nullFS struct {
	space pmem.Space
	pages nullPages

	mu      sync.RWMutex
	nodes   map[nvfs.NodeID]*nullNode
	nextIno nvfs.NodeID
}

// nullNode is an inode.
type nullNode struct {
	fileType uint32 // as in st_mode; does not change
	lookups  uint64

	mu     sync.RWMutex // guards what follows
	attr   nvfs.Attr
	pages  []uint32 // of a file: page number plus 1; 0 is a hole
	target string   // of a symbolic link
	xattrs map[string][]byte

	dir *nullDir // of a directory; guarded by nullFS.mu
}

// nullDir is a directory. The cookie of an entry is its slot, so that it
// stays valid while others come and go.
type nullDir struct {
	parent *nullNode
	slotOf map[string]int
	slots  []nullEntry
	free   []int
}

type nullEntry struct {
	name string
	node *nullNode // nil: the slot is free
}

// NewNull returns an empty filesystem whose file data lies in space. It is
// safe for concurrent use.
func NewNull(space pmem.Space) Filesystem {
	fs := &nullFS{space: space, nodes: map[nvfs.NodeID]*nullNode{}, nextIno: nvfs.RootID}
	fs.pages.total = uint32(space.Size() / nullPageSize)
	root := fs.newNode(&nvfs.Request{}, &nvfs.CreateArgs{Mode: unix.S_IFDIR | 0o755})
	root.dir = newNullDir(root)
	root.attr.Nlink = 2
	return fs
}

func newNullDir(parent *nullNode) *nullDir {
	return &nullDir{parent: parent, slotOf: map[string]int{}}
}

// NewWorker implements Filesystem.
func (fs *nullFS) NewWorker() (Worker, error) {
	return &nullWorker{fs: fs, p: fs.space.NewPersister()}, nil
}

func nullNow() nvfs.Time {
	t := time.Now()
	return nvfs.Time{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())}
}

// newNode makes an inode that no name leads to. fs.mu is held exclusively.
func (fs *nullFS) newNode(r *nvfs.Request, c *nvfs.CreateArgs) *nullNode {
	now := nullNow()
	n := &nullNode{fileType: c.Mode & unix.S_IFMT, attr: nvfs.Attr{
		ID: fs.nextIno, Mode: c.Mode &^ c.Umask, UID: r.UID, GID: r.GID, Rdev: c.Rdev,
		Atime: now, Mtime: now, Ctime: now, Btime: now,
	}}
	fs.nodes[n.attr.ID] = n
	fs.nextIno++
	return n
}

// node finds an inode. fs.mu is held.
func (fs *nullFS) node(id nvfs.NodeID) (*nullNode, error) {
	n := fs.nodes[id]
	if n == nil {
		return nil, syscall.ESTALE
	}
	return n, nil
}

// child finds a name. fs.mu is held.
func (fs *nullFS) child(parent nvfs.NodeID, name []byte) (dir, child *nullNode, err error) {
	if dir, err = fs.node(parent); err != nil {
		return nil, nil, err
	}
	if dir.dir == nil {
		return nil, nil, syscall.ENOTDIR
	}
	switch string(name) {
	case ".":
		return dir, dir, nil
	case "..":
		return dir, dir.dir.parent, nil
	}
	slot, ok := dir.dir.slotOf[string(name)]
	if !ok {
		return dir, nil, syscall.ENOENT
	}
	return dir, dir.dir.slots[slot].node, nil
}

func (d *nullDir) add(name []byte, n *nullNode) {
	e := nullEntry{name: string(name), node: n}
	slot := len(d.slots)
	if len(d.free) > 0 {
		slot = d.free[len(d.free)-1]
		d.free = d.free[:len(d.free)-1]
		d.slots[slot] = e
	} else {
		d.slots = append(d.slots, e)
	}
	d.slotOf[e.name] = slot
}

func (d *nullDir) remove(name []byte) {
	slot := d.slotOf[string(name)]
	delete(d.slotOf, string(name))
	d.slots[slot] = nullEntry{}
	d.free = append(d.free, slot)
}

// touch records a change of a directory's names.
func (n *nullNode) touch() {
	n.mu.Lock()
	n.attr.Mtime = nullNow()
	n.attr.Ctime = n.attr.Mtime
	n.mu.Unlock()
}

// addLinks changes the link count.
func (n *nullNode) addLinks(d int) {
	n.mu.Lock()
	n.attr.Nlink = uint32(int(n.attr.Nlink) + d)
	n.attr.Ctime = nullNow()
	n.mu.Unlock()
}

// release forgets an inode that has neither names nor lookups. fs.mu is held
// exclusively.
func (fs *nullFS) release(n *nullNode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.attr.Nlink > 0 || n.lookups > 0 {
		return
	}
	fs.pages.release(n.pages)
	n.pages = nil
	delete(fs.nodes, n.attr.ID)
}

// nullWorker implements Worker.
type nullWorker struct {
	fs       *nullFS
	p        pmem.Persister
	req      nvfs.Request
	stripped bool
	fresh    []uint64 // pages of the file that the present call has added
}

func (w *nullWorker) Begin(r *nvfs.Request) { w.req = *r; w.stripped = false }
func (w *nullWorker) End()                  {}
func (w *nullWorker) Stripped() bool        { return w.stripped }

// find finds an inode for an operation that leaves the tree alone.
func (w *nullWorker) find(id nvfs.NodeID) (*nullNode, error) {
	w.fs.mu.RLock()
	defer w.fs.mu.RUnlock()
	return w.fs.node(id)
}

func (w *nullWorker) Lookup(parent nvfs.NodeID, name []byte, a *nvfs.Attr) error {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	_, n, err := w.fs.child(parent, name)
	if err != nil {
		return err
	}
	n.lookups++
	n.report(a)
	return nil
}

func (n *nullNode) report(a *nvfs.Attr) {
	n.mu.RLock()
	*a = n.attr
	n.mu.RUnlock()
}

func (w *nullWorker) Forget(id nvfs.NodeID, count uint64) {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	n := w.fs.nodes[id]
	if n == nil {
		return
	}
	n.lookups -= min(n.lookups, count)
	w.fs.release(n)
}

func (w *nullWorker) GetAttr(id nvfs.NodeID, a *nvfs.Attr) error {
	n, err := w.find(id)
	if err != nil {
		return err
	}
	n.report(a)
	return nil
}

func (w *nullWorker) SetAttr(id nvfs.NodeID, s *nvfs.SetAttr, a *nvfs.Attr) error {
	n, err := w.find(id)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.Valid&nvfs.SetSize != 0 {
		if err := w.resize(n, s.Size); err != nil {
			return err
		}
	}
	if s.Valid&nvfs.KillSuidgid != 0 {
		w.strip(n)
	}
	n.apply(s)
	*a = n.attr
	return w.p.Fence()
}

// apply sets all but the size. n.mu is held.
func (n *nullNode) apply(s *nvfs.SetAttr) {
	now := nullNow()
	n.attr.Ctime = now
	if s.Valid&nvfs.SetMode != 0 {
		n.attr.Mode = n.attr.Mode&unix.S_IFMT | s.Mode&^unix.S_IFMT
	}
	if s.Valid&nvfs.SetUID != 0 {
		n.attr.UID = s.UID
	}
	if s.Valid&nvfs.SetGID != 0 {
		n.attr.GID = s.GID
	}
	if s.Valid&nvfs.SetAtime != 0 {
		n.attr.Atime = s.Atime
	}
	if s.Valid&nvfs.SetAtimeNow != 0 {
		n.attr.Atime = now
	}
	if s.Valid&(nvfs.SetMtimeNow|nvfs.SetSize) != 0 {
		n.attr.Mtime = now
	}
	if s.Valid&nvfs.SetMtime != 0 && s.Valid&nvfs.SetMtimeNow == 0 {
		n.attr.Mtime = s.Mtime
	}
	if s.Valid&nvfs.SetCtime != 0 {
		n.attr.Ctime = s.Ctime
	}
}

// strip takes set-ID bits from a file. n.mu is held.
func (w *nullWorker) strip(n *nullNode) {
	kill := n.attr.Mode & unix.S_ISUID
	if n.attr.Mode&unix.S_IXGRP != 0 {
		kill |= n.attr.Mode & unix.S_ISGID
	}
	if kill != 0 && n.dir == nil {
		n.attr.Mode &^= kill
		w.stripped = true
	}
}

func (w *nullWorker) Mknod(parent nvfs.NodeID, name []byte, c *nvfs.CreateArgs, a *nvfs.Attr) error {
	_, err := w.make(parent, name, c, a)
	return err
}

func (w *nullWorker) Mkdir(parent nvfs.NodeID, name []byte, c *nvfs.CreateArgs, a *nvfs.Attr) error {
	_, err := w.make(parent, name, c, a)
	return err
}

func (w *nullWorker) Symlink(parent nvfs.NodeID, name, target []byte, c *nvfs.CreateArgs, a *nvfs.Attr) error {
	n, err := w.make(parent, name, c, a)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.target = string(target)
	n.attr.Size = uint64(len(target))
	*a = n.attr
	return nil
}

// make makes an inode with a name and counts a lookup.
func (w *nullWorker) make(parent nvfs.NodeID, name []byte, c *nvfs.CreateArgs, a *nvfs.Attr) (*nullNode, error) {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	dir, _, err := w.fs.child(parent, name)
	switch {
	case err == nil:
		return nil, syscall.EEXIST
	case err != syscall.ENOENT:
		return nil, err
	}
	n := w.fs.newNode(&w.req, c)
	n.lookups = 1
	n.attr.Nlink = 1
	var d nvfs.Attr
	dir.report(&d)
	if d.Mode&unix.S_ISGID != 0 {
		n.attr.GID = d.GID
	}
	if n.fileType == unix.S_IFDIR {
		n.dir = newNullDir(dir)
		n.attr.Nlink = 2
		n.attr.Mode |= d.Mode & unix.S_ISGID
		dir.addLinks(1)
	}
	dir.dir.add(name, n)
	dir.touch()
	*a = n.attr
	return n, nil
}

func (w *nullWorker) Tmpfile(parent nvfs.NodeID, c *nvfs.CreateArgs, a *nvfs.Attr) error {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	if _, err := w.fs.node(parent); err != nil {
		return err
	}
	n := w.fs.newNode(&w.req, c)
	n.lookups = 1
	*a = n.attr
	return nil
}

func (w *nullWorker) Readlink(id nvfs.NodeID, dst []byte) (int, error) {
	n, err := w.find(id)
	if err != nil {
		return 0, err
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.fileType != unix.S_IFLNK {
		return 0, syscall.EINVAL
	}
	return copy(dst, n.target), nil
}

func (w *nullWorker) Link(id, parent nvfs.NodeID, name []byte, a *nvfs.Attr) error {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	n, err := w.fs.node(id)
	if err != nil {
		return err
	}
	dir, _, err := w.fs.child(parent, name)
	switch {
	case err == nil:
		return syscall.EEXIST
	case err != syscall.ENOENT:
		return err
	}
	dir.dir.add(name, n)
	dir.touch()
	n.addLinks(1)
	n.lookups++
	n.report(a)
	return nil
}

func (w *nullWorker) Unlink(parent nvfs.NodeID, name []byte) error {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	dir, n, err := w.fs.child(parent, name)
	if err != nil {
		return err
	}
	if n.dir != nil {
		return syscall.EISDIR
	}
	w.fs.dropName(dir, name, n)
	return nil
}

func (w *nullWorker) Rmdir(parent nvfs.NodeID, name []byte) error {
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	dir, n, err := w.fs.child(parent, name)
	switch {
	case err != nil:
		return err
	case n.dir == nil:
		return syscall.ENOTDIR
	case len(n.dir.slotOf) > 0:
		return syscall.ENOTEMPTY
	}
	w.fs.dropName(dir, name, n)
	return nil
}

// dropName removes a name and the links it stands for. fs.mu is held
// exclusively.
func (fs *nullFS) dropName(dir *nullNode, name []byte, n *nullNode) {
	dir.dir.remove(name)
	if n.dir != nil {
		n.addLinks(-2)
		dir.addLinks(-1)
	} else {
		n.addLinks(-1)
	}
	dir.touch()
	fs.release(n)
}

func (w *nullWorker) Rename(oldParent nvfs.NodeID, oldName []byte, newParent nvfs.NodeID, newName []byte, flags uint32) error {
	if flags&nvfs.RenameWhiteout != 0 {
		return syscall.EINVAL
	}
	w.fs.mu.Lock()
	defer w.fs.mu.Unlock()
	from, n, err := w.fs.child(oldParent, oldName)
	if err != nil {
		return err
	}
	to, victim, err := w.fs.child(newParent, newName)
	if err != nil && err != syscall.ENOENT {
		return err
	}
	switch {
	case flags&nvfs.RenameExchange != 0:
		if victim == nil {
			return syscall.ENOENT
		}
		w.fs.move(from, oldName, to, newName, n, victim)
		return nil
	case victim == n:
		return nil
	case victim != nil:
		if err := replaceable(n, victim, flags); err != nil {
			return err
		}
		w.fs.dropName(to, newName, victim)
	}
	w.fs.move(from, oldName, to, newName, n, nil)
	return nil
}

// replaceable says whether a rename of n may replace victim.
func replaceable(n, victim *nullNode, flags uint32) error {
	switch {
	case flags&nvfs.RenameNoReplace != 0:
		return syscall.EEXIST
	case n.dir != nil && victim.dir == nil:
		return syscall.ENOTDIR
	case n.dir == nil && victim.dir != nil:
		return syscall.EISDIR
	case victim.dir != nil && len(victim.dir.slotOf) > 0:
		return syscall.ENOTEMPTY
	}
	return nil
}

// move moves a name, back other when it is not nil. fs.mu is held
// exclusively.
func (fs *nullFS) move(from *nullNode, oldName []byte, to *nullNode, newName []byte, n, other *nullNode) {
	from.dir.remove(oldName)
	if other != nil {
		to.dir.remove(newName)
		from.dir.add(oldName, other)
		reparent(other, to, from)
	}
	to.dir.add(newName, n)
	reparent(n, from, to)
	from.touch()
	to.touch()
}

// reparent makes a directory's ".." lead to another directory.
func reparent(n, from, to *nullNode) {
	if n.dir == nil || from == to {
		return
	}
	n.dir.parent = to
	from.addLinks(-1)
	to.addLinks(1)
}

// ReadDir implements Worker. Cookies 1 and 2 follow "." and "..", slot i has
// i+3.
func (w *nullWorker) ReadDir(id nvfs.NodeID, cookie uint64, yield func(*nvfs.DirEntry) bool) error {
	w.fs.mu.RLock()
	defer w.fs.mu.RUnlock()
	n, err := w.fs.node(id)
	if err != nil {
		return err
	}
	if n.dir == nil {
		return syscall.ENOTDIR
	}
	emit := func(name string, n *nullNode, next uint64) bool {
		e := nvfs.DirEntry{Name: []byte(name), ID: n.attr.ID, Ino: n.attr.ID.Ino(), Type: n.fileType, Cookie: next}
		return yield(&e)
	}
	if cookie == 0 && !emit(".", n, 1) || cookie <= 1 && !emit("..", n.dir.parent, 2) {
		return nil
	}
	for i := int(max(cookie, 2)) - 2; i < len(n.dir.slots); i++ {
		e := &n.dir.slots[i]
		if e.node != nil && !emit(e.name, e.node, uint64(i)+3) {
			return nil
		}
	}
	return nil
}

func (w *nullWorker) GetXattr(id nvfs.NodeID, name, dst []byte) (int, error) {
	n, err := w.find(id)
	if err != nil {
		return 0, err
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	v, ok := n.xattrs[string(name)]
	if !ok {
		return 0, syscall.ENODATA
	}
	return copyOut(dst, v)
}

// copyOut copies a value out; with an empty dst it only tells the size.
func copyOut(dst, v []byte) (int, error) {
	if len(dst) > 0 && len(v) > len(dst) {
		return 0, syscall.ERANGE
	}
	copy(dst, v)
	return len(v), nil
}

func (w *nullWorker) SetXattr(id nvfs.NodeID, name, value []byte, flags uint32) error {
	const system = "system."
	if len(name) > len(system) && string(name[:len(system)]) == system {
		return syscall.EOPNOTSUPP
	}
	n, err := w.find(id)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.xattrs[string(name)]
	switch {
	case ok && flags&nvfs.XattrCreate != 0:
		return syscall.EEXIST
	case !ok && flags&nvfs.XattrReplace != 0:
		return syscall.ENODATA
	}
	if n.xattrs == nil {
		n.xattrs = map[string][]byte{}
	}
	n.xattrs[string(name)] = append([]byte{}, value...)
	return nil
}

func (w *nullWorker) ListXattr(id nvfs.NodeID, dst []byte) (int, error) {
	n, err := w.find(id)
	if err != nil {
		return 0, err
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	var list []byte
	for name := range n.xattrs {
		list = append(append(list, name...), 0)
	}
	return copyOut(dst, list)
}

func (w *nullWorker) RemoveXattr(id nvfs.NodeID, name []byte) error {
	n, err := w.find(id)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.xattrs[string(name)]; !ok {
		return syscall.ENODATA
	}
	delete(n.xattrs, string(name))
	return nil
}

func (w *nullWorker) StatFS(s *nvfs.StatFS) error {
	total, free := w.fs.pages.count()
	w.fs.mu.RLock()
	files := uint64(len(w.fs.nodes))
	w.fs.mu.RUnlock()
	*s = nvfs.StatFS{
		BlockSize: nullPageSize, Blocks: total, BlocksFree: free, BlocksAvail: free,
		Files: files + free, FilesFree: free, NameMax: nameMax,
	}
	return nil
}
