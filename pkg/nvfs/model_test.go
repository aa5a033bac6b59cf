package nvfs_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// model is a filesystem in ordinary memory with the semantics that the engine
// must have. It knows nothing of blocks and journals.
type model struct {
	root *mnode
	now  nvfs.Time
	uid  uint32 // of the requests
	gid  uint32
}

// mnode is an inode of the model.
type mnode struct {
	id       nvfs.NodeID // the engine's name of it; 0 until it was seen
	mode     uint32
	nlink    uint32
	uid, gid uint32
	rdev     uint32
	size     uint64
	pages    map[uint64]*[pageSize]byte // those that are not known to be zero
	target   string
	xattrs   map[string]string
	children map[string]*mnode // of a directory
	parent   *mnode            // of a directory
	refs     uint64            // lookups not forgotten
	freed    bool

	atime, mtime, ctime, btime nvfs.Time
}

const (
	modelMaxSize = 1<<63 - 1 - pageSize
	modelMaxSet  = 128 << 10
	capability   = "security.capability"
)

func newModel(now nvfs.Time) *model {
	r := &mnode{id: nvfs.RootID, mode: unix.S_IFDIR | 0755, nlink: 2, children: map[string]*mnode{}, refs: 1,
		atime: now, mtime: now, ctime: now, btime: now}
	r.parent = r
	return &model{root: r, now: now}
}

func (n *mnode) typ() uint32   { return n.mode & unix.S_IFMT }
func (n *mnode) isDir() bool   { return n.typ() == unix.S_IFDIR }
func (n *mnode) regular() bool { return n.typ() == unix.S_IFREG }

// live walks over all inodes that exist, with or without names.
func (m *model) changed(n *mnode)  { n.ctime = m.now }
func (m *model) modified(n *mnode) { n.mtime, n.ctime = m.now, m.now }

// dir checks that names can be looked up in n.
func dirOf(n *mnode) syscall.Errno {
	switch {
	case n.freed:
		return syscall.ESTALE
	case !n.isDir():
		return syscall.ENOTDIR
	}
	return 0
}

// openDir checks that names can be added to n.
func openDir(n *mnode) syscall.Errno {
	if e := dirOf(n); e != 0 {
		return e
	}
	if n.nlink == 0 {
		return syscall.ENOENT
	}
	return 0
}

func badName(name string) syscall.Errno {
	switch {
	case len(name) > 255:
		return syscall.ENAMETOOLONG
	case name == "", strings.ContainsAny(name, "/\x00"):
		return syscall.EINVAL
	case name == ".", name == "..":
		return syscall.EEXIST
	}
	return 0
}

func (m *model) newNode(parent *mnode, mode, umask uint32) *mnode {
	n := &mnode{mode: mode, nlink: 1, uid: m.uid, gid: m.gid, refs: 1, atime: m.now, mtime: m.now, ctime: m.now, btime: m.now}
	if parent.mode&unix.S_ISGID != 0 {
		n.gid = parent.gid
		if n.isDir() {
			n.mode |= unix.S_ISGID
		}
	}
	switch n.typ() {
	case unix.S_IFDIR:
		n.nlink, n.children, n.parent = 2, map[string]*mnode{}, parent
	case unix.S_IFREG:
		n.pages = map[uint64]*[pageSize]byte{}
	}
	if n.typ() != unix.S_IFLNK {
		n.mode &^= umask & 0777
	}
	return n
}

func (m *model) create(parent *mnode, name string, mode, umask, rdev uint32, target string) (*mnode, syscall.Errno) {
	if e := badName(name); e != 0 {
		return nil, e
	}
	if e := openDir(parent); e != 0 {
		return nil, e
	}
	if parent.children[name] != nil {
		return nil, syscall.EEXIST
	}
	n := m.newNode(parent, mode, umask)
	if t := n.typ(); t == unix.S_IFCHR || t == unix.S_IFBLK {
		n.rdev = rdev
	}
	n.target, n.size = target, uint64(len(target))
	if n.isDir() {
		parent.nlink++
	}
	parent.children[name] = n
	m.modified(parent)
	return n, 0
}

func (m *model) tmpfile(parent *mnode, mode, umask uint32) (*mnode, syscall.Errno) {
	if e := openDir(parent); e != 0 {
		return nil, e
	}
	n := m.newNode(parent, mode, umask)
	n.nlink = 0
	return n, 0
}

func (m *model) link(n, parent *mnode, name string) syscall.Errno {
	if e := badName(name); e != 0 {
		return e
	}
	if e := openDir(parent); e != 0 {
		return e
	}
	switch {
	case n.freed:
		return syscall.ESTALE
	case n.isDir():
		return syscall.EPERM
	case parent.children[name] != nil:
		return syscall.EEXIST
	}
	parent.children[name] = n
	n.nlink++
	n.refs++
	m.changed(n)
	m.modified(parent)
	return 0
}

func (m *model) lookup(parent *mnode, name string) (*mnode, syscall.Errno) {
	if len(name) > 255 {
		return nil, syscall.ENAMETOOLONG
	}
	if e := dirOf(parent); e != 0 {
		return nil, e
	}
	n := parent.children[name]
	switch {
	case name == ".":
		n = parent
	case name == ".." && parent.nlink > 0:
		n = parent.parent
	}
	if n == nil {
		return nil, syscall.ENOENT
	}
	return n, 0
}

// mayRemove checks that a name of n can be removed, as a directory or not.
func mayRemove(n *mnode, dir bool) syscall.Errno {
	switch {
	case dir && !n.isDir():
		return syscall.ENOTDIR
	case !dir && n.isDir():
		return syscall.EISDIR
	case dir && len(n.children) > 0:
		return syscall.ENOTEMPTY
	}
	return 0
}

func (m *model) remove(parent *mnode, name string, dir bool) syscall.Errno {
	if e := badName(name); e == syscall.EEXIST {
		return syscall.EINVAL
	} else if e != 0 {
		return e
	}
	n, e := m.lookup(parent, name)
	if e != 0 {
		return e
	}
	if e := mayRemove(n, dir); e != 0 {
		return e
	}
	delete(parent.children, name)
	if dir {
		parent.nlink--
	}
	m.modified(parent)
	m.dropLink(n)
	return 0
}

func (m *model) dropLink(n *mnode) {
	m.changed(n)
	if n.isDir() {
		n.nlink = 0
	} else {
		n.nlink--
	}
	m.reap(n)
}

func (m *model) reap(n *mnode) {
	if n.nlink == 0 && n.refs == 0 {
		n.freed, n.pages = true, nil
	}
}

func (m *model) forget(n *mnode, count uint64) {
	n.refs -= min(n.refs, count)
	m.reap(n)
}

// below reports whether directory n is top or lies below it.
func below(n, top *mnode) bool {
	for ; n != top; n = n.parent {
		if n == n.parent {
			return false
		}
	}
	return true
}

func (m *model) rename(from *mnode, fromName string, to *mnode, toName string, flags uint32) syscall.Errno {
	exchange, whiteout := flags&nvfs.RenameExchange != 0, flags&nvfs.RenameWhiteout != 0
	if flags > 7 || exchange && flags != nvfs.RenameExchange {
		return syscall.EINVAL
	}
	for _, name := range []string{fromName, toName} {
		if e := badName(name); e == syscall.EEXIST {
			return syscall.EBUSY
		} else if e != 0 {
			return e
		}
	}
	src, e := m.lookup(from, fromName)
	if e != 0 {
		return e
	}
	dst, e := m.lookup(to, toName)
	if e != 0 && e != syscall.ENOENT {
		return e
	}
	switch {
	case dst != nil && flags&nvfs.RenameNoReplace != 0:
		return syscall.EEXIST
	case dst == nil && exchange:
		return syscall.ENOENT
	case to.nlink == 0:
		return syscall.ENOENT
	case src.isDir() && from != to && below(to, src), exchange && dst.isDir() && from != to && below(from, dst):
		return syscall.EINVAL
	case src == dst:
		return 0
	}
	if exchange {
		from.children[fromName], to.children[toName] = dst, src
		m.moved(from, to, src)
		m.moved(to, from, dst)
		m.changed(dst)
	} else {
		if dst != nil {
			if e := mayRemove(dst, src.isDir()); e != 0 {
				return e
			}
			if dst.isDir() {
				to.nlink--
			}
		}
		delete(from.children, fromName)
		to.children[toName] = src
		m.moved(from, to, src)
		if dst != nil {
			m.dropLink(dst)
		}
		if whiteout {
			w := m.newNode(&mnode{}, unix.S_IFCHR, 0)
			w.refs = 0
			from.children[fromName] = w
		}
	}
	m.modified(from)
	m.modified(to)
	m.changed(src)
	return 0
}

func (m *model) moved(from, to, n *mnode) {
	if n.isDir() {
		n.parent = to
		from.nlink--
		to.nlink++
	}
}

func (m *model) stripSetID(n *mnode) {
	n.mode &^= unix.S_ISUID
	if n.mode&unix.S_IXGRP != 0 {
		n.mode &^= unix.S_ISGID
	}
}

func (m *model) setAttr(n *mnode, s *nvfs.SetAttr) syscall.Errno {
	if n.freed {
		return syscall.ESTALE
	}
	if s.Valid&nvfs.SetSize != 0 {
		switch {
		case n.isDir():
			return syscall.EISDIR
		case !n.regular():
			return syscall.EINVAL
		case s.Size > modelMaxSize:
			return syscall.EFBIG
		}
	}
	if s.Valid&nvfs.SetMode != 0 {
		n.mode = n.typ() | s.Mode&07777
	}
	if s.Valid&nvfs.SetUID != 0 {
		n.uid = s.UID
	}
	if s.Valid&nvfs.SetGID != 0 {
		n.gid = s.GID
	}
	chown := s.Valid&(nvfs.SetUID|nvfs.SetGID) != 0
	if !n.isDir() && (chown || s.Valid&(nvfs.KillSuidgid|nvfs.SetSize) != 0) {
		if s.Valid&nvfs.KillSuidgid != 0 || chown && s.Valid&nvfs.SetMode == 0 {
			m.stripSetID(n)
		}
		delete(n.xattrs, capability)
	}
	m.changed(n)
	if s.Valid&nvfs.SetSize != 0 {
		m.truncate(n, s.Size)
		n.mtime = m.now
	}
	if s.Valid&nvfs.SetAtime != 0 {
		n.atime = s.Atime
	}
	if s.Valid&nvfs.SetAtimeNow != 0 {
		n.atime = m.now
	}
	if s.Valid&nvfs.SetMtime != 0 {
		n.mtime = s.Mtime
	}
	if s.Valid&nvfs.SetMtimeNow != 0 {
		n.mtime = m.now
	}
	if s.Valid&nvfs.SetCtime != 0 {
		n.ctime = s.Ctime
	}
	return 0
}

func (m *model) truncate(n *mnode, size uint64) {
	if size < n.size {
		m.zero(n, size, n.size)
	}
	n.size = size
}

// zero makes bytes [from, to) zero.
func (m *model) zero(n *mnode, from, to uint64) {
	for at, p := range n.pages {
		lo, hi := at*pageSize, (at+1)*pageSize
		switch {
		case lo >= to || hi <= from:
		case lo >= from && hi <= to:
			delete(n.pages, at)
		default:
			clear(p[max(lo, from)-lo : min(hi, to)-lo])
		}
	}
}

func (m *model) store(n *mnode, off uint64, src []byte) {
	n.size = max(n.size, off+uint64(len(src)))
	for len(src) > 0 {
		at, in := off/pageSize, off%pageSize
		p := n.pages[at]
		if p == nil {
			p = new([pageSize]byte)
			n.pages[at] = p
		}
		k := copy(p[in:], src)
		src, off = src[k:], off+uint64(k)
	}
}

// writable checks that data can be written to n.
func writable(n *mnode) syscall.Errno {
	switch {
	case n.freed:
		return syscall.ESTALE
	case n.isDir():
		return syscall.EISDIR
	case !n.regular():
		return syscall.EINVAL
	}
	return 0
}

func (m *model) write(n *mnode, off uint64, src []byte, kill bool) syscall.Errno {
	if len(src) == 0 {
		return 0
	}
	if off > modelMaxSize || uint64(len(src)) > modelMaxSize-off {
		return syscall.EFBIG
	}
	if e := writable(n); e != 0 {
		return e
	}
	m.store(n, off, src)
	if kill {
		m.stripSetID(n)
	}
	delete(n.xattrs, capability)
	m.modified(n)
	return 0
}

func (m *model) read(n *mnode, off, length uint64) ([]byte, syscall.Errno) {
	switch {
	case n.freed:
		return nil, syscall.ESTALE
	case n.isDir():
		return nil, syscall.EISDIR
	case off >= n.size:
		return nil, 0
	case n.typ() == unix.S_IFLNK:
		return []byte(n.target)[off:min(n.size, off+length)], 0
	}
	buf := make([]byte, min(length, n.size-off))
	for at := off / pageSize; at*pageSize < off+uint64(len(buf)); at++ {
		p := n.pages[at]
		if p == nil {
			continue
		}
		if lo := at * pageSize; lo >= off {
			copy(buf[lo-off:], p[:])
		} else {
			copy(buf, p[off-lo:])
		}
	}
	return buf, 0
}

// copyRange copies as the engine may: in pieces, at most 16 MiB.
func (m *model) copyRange(src *mnode, srcOff uint64, dst *mnode, dstOff, length uint64) (uint64, syscall.Errno) {
	length = min(length, 16<<20)
	done := uint64(0)
	for done < length {
		b, e := m.read(src, srcOff+done, min(512<<10, length-done))
		if e == 0 && len(b) > 0 {
			e = m.write(dst, dstOff+done, b, true)
		}
		if e != 0 && done == 0 {
			return 0, e
		}
		if e != 0 || len(b) == 0 {
			break
		}
		done += uint64(len(b))
	}
	return done, 0
}

func (m *model) fallocate(n *mnode, mode uint32, off, length uint64) syscall.Errno {
	switch {
	case length == 0:
		return syscall.EINVAL
	case off > modelMaxSize || length > modelMaxSize-off:
		return syscall.EFBIG
	case n.freed:
		return syscall.ESTALE
	case n.isDir():
		return syscall.EISDIR
	case !n.regular():
		return syscall.ENODEV
	}
	const punch = nvfs.FallocPunchHole | nvfs.FallocKeepSize
	switch mode {
	case 0, nvfs.FallocKeepSize:
	case punch, nvfs.FallocZeroRange, nvfs.FallocZeroRange | nvfs.FallocKeepSize:
		m.zero(n, off, off+length)
	default:
		return syscall.EOPNOTSUPP
	}
	if mode&nvfs.FallocKeepSize == 0 {
		n.size = max(n.size, off+length)
	}
	if m.uid != 0 {
		m.stripSetID(n)
	}
	delete(n.xattrs, capability)
	m.modified(n)
	return 0
}

func (m *model) setXattr(n *mnode, name, value string, flags uint32) syscall.Errno {
	switch {
	case name == "" || len(name) > 255:
		return syscall.ERANGE
	case len(value) > 64<<10:
		return syscall.E2BIG
	case n.freed:
		return syscall.ESTALE
	}
	_, exists := n.xattrs[name]
	switch {
	case exists && flags&nvfs.XattrCreate != 0:
		return syscall.EEXIST
	case !exists && flags&nvfs.XattrReplace != 0:
		return syscall.ENODATA
	}
	total := 8 + len(name) + len(value)
	for k, v := range n.xattrs {
		if k != name {
			total += 8 + len(k) + len(v)
		}
	}
	if total > modelMaxSet {
		return syscall.ENOSPC
	}
	if n.xattrs == nil {
		n.xattrs = map[string]string{}
	}
	n.xattrs[name] = value
	m.changed(n)
	return 0
}

func (m *model) removeXattr(n *mnode, name string) syscall.Errno {
	if n.freed {
		return syscall.ESTALE
	}
	if _, ok := n.xattrs[name]; !ok {
		return syscall.ENODATA
	}
	delete(n.xattrs, name)
	m.changed(n)
	return 0
}

// remount forgets all lookups.
func (m *model) remount(known []*mnode) {
	for _, n := range known {
		n.refs = 0
		if n == m.root {
			n.refs = 1
		}
		m.reap(n)
	}
}

// dump is what mounted.dump gives for the same tree.
func (m *model) dump() string {
	first := map[*mnode]string{}
	var lines []string
	var visit func(n *mnode, path string)
	visit = func(n *mnode, path string) {
		if p, seen := first[n]; seen {
			lines = append(lines, path+" = "+p)
			return
		}
		first[n] = path
		lines = append(lines, path+" "+n.describe())
		for _, name := range slices.Sorted(maps.Keys(n.children)) {
			visit(n.children[name], path+"/"+name)
		}
	}
	visit(m.root, "/")
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func (n *mnode) describe() string {
	s := fmt.Sprintf("%o n%d %d:%d r%x m%d c%d b%d%s", n.mode, n.nlink, n.uid, n.gid, n.rdev,
		n.mtime.Sec, n.ctime.Sec, n.btime.Sec, describeXattrs(n.xattrs))
	switch n.typ() {
	case unix.S_IFREG:
		h := sha256.New()
		for _, at := range slices.Sorted(maps.Keys(n.pages)) {
			hashPages(h, at*pageSize, n.pages[at][:])
		}
		return fmt.Sprintf("%s %d:%x", s, n.size, h.Sum(nil)[:8])
	case unix.S_IFLNK:
		return s + " -> " + n.target
	}
	return s
}
