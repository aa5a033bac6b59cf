// Package model is the oracle of the engine's tests: a filesystem in ordinary
// memory.
package model

import (
	"maps"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// Model is a filesystem in ordinary memory with the semantics that the engine
// must have. It knows nothing of blocks and journals. It is used by one
// goroutine at a time.
type Model struct {
	Root *Node
	Now  nvfs.Time // of the next operation
	UID  uint32    // of the requests
	GID  uint32
}

// Node is an inode of the model.
type Node struct {
	ID       nvfs.NodeID // the engine's name of it; 0 until it was seen
	Mode     uint32
	Nlink    uint32
	UID, GID uint32
	Rdev     uint32
	Size     uint64
	Pages    map[uint64]*[PageSize]byte // those that are not known to be zero
	Target   string
	Xattrs   map[string]string
	Children map[string]*Node // of a directory
	Parent   *Node            // of a directory
	Refs     uint64           // lookups not forgotten
	Freed    bool

	Atime, Mtime, Ctime, Btime nvfs.Time
}

// PageSize is the unit in which the content of files is kept.
const PageSize = 4096

const (
	modelMaxSize = 1<<63 - 1 - PageSize
	modelMaxSet  = 128 << 10
	capability   = "security.capability"
)

// New returns a filesystem with nothing but a root directory.
func New(now nvfs.Time) *Model {
	r := &Node{ID: nvfs.RootID, Mode: unix.S_IFDIR | 0755, Nlink: 2, Children: map[string]*Node{}, Refs: 1,
		Atime: now, Mtime: now, Ctime: now, Btime: now}
	r.Parent = r
	return &Model{Root: r, Now: now}
}

// Type is the file type as in st_mode.
func (n *Node) Type() uint32 { return n.Mode & unix.S_IFMT }

// IsDir reports whether n is a directory.
func (n *Node) IsDir() bool { return n.Type() == unix.S_IFDIR }

// Regular reports whether n is a regular file.
func (n *Node) Regular() bool { return n.Type() == unix.S_IFREG }

func (m *Model) changed(n *Node)  { n.Ctime = m.Now }
func (m *Model) modified(n *Node) { n.Mtime, n.Ctime = m.Now, m.Now }

// AsDir is the error of looking names up in n, 0 if that can be done.
func (n *Node) AsDir() syscall.Errno {
	switch {
	case n.Freed:
		return syscall.ESTALE
	case !n.IsDir():
		return syscall.ENOTDIR
	}
	return 0
}

// openDir checks that names can be added to n.
func openDir(n *Node) syscall.Errno {
	if e := n.AsDir(); e != 0 {
		return e
	}
	if n.Nlink == 0 {
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

func (m *Model) newNode(parent *Node, mode, umask uint32) *Node {
	n := &Node{Mode: mode, Nlink: 1, UID: m.UID, GID: m.GID, Refs: 1, Atime: m.Now, Mtime: m.Now, Ctime: m.Now, Btime: m.Now}
	if parent.Mode&unix.S_ISGID != 0 {
		n.GID = parent.GID
		if n.IsDir() {
			n.Mode |= unix.S_ISGID
		}
	}
	switch n.Type() {
	case unix.S_IFDIR:
		n.Nlink, n.Children, n.Parent = 2, map[string]*Node{}, parent
	case unix.S_IFREG:
		n.Pages = map[uint64]*[PageSize]byte{}
	}
	if n.Type() != unix.S_IFLNK {
		n.Mode &^= umask & 0777
	}
	return n
}

// Create makes an inode of any type and its name. The caller holds one
// reference.
func (m *Model) Create(parent *Node, name string, mode, umask, rdev uint32, target string) (*Node, syscall.Errno) {
	if e := badName(name); e != 0 {
		return nil, e
	}
	if e := openDir(parent); e != 0 {
		return nil, e
	}
	if parent.Children[name] != nil {
		return nil, syscall.EEXIST
	}
	n := m.newNode(parent, mode, umask)
	if t := n.Type(); t == unix.S_IFCHR || t == unix.S_IFBLK {
		n.Rdev = rdev
	}
	n.Target, n.Size = target, uint64(len(target))
	if n.IsDir() {
		parent.Nlink++
	}
	parent.Children[name] = n
	m.modified(parent)
	return n, 0
}

// Tmpfile makes a file without a name. The caller holds one reference.
func (m *Model) Tmpfile(parent *Node, mode, umask uint32) (*Node, syscall.Errno) {
	if e := openDir(parent); e != 0 {
		return nil, e
	}
	n := m.newNode(parent, mode, umask)
	n.Nlink = 0
	return n, 0
}

// Link gives n a further name, and the caller a reference.
func (m *Model) Link(n, parent *Node, name string) syscall.Errno {
	if e := badName(name); e != 0 {
		return e
	}
	if e := openDir(parent); e != 0 {
		return e
	}
	switch {
	case n.Freed:
		return syscall.ESTALE
	case n.IsDir():
		return syscall.EPERM
	case parent.Children[name] != nil:
		return syscall.EEXIST
	}
	parent.Children[name] = n
	n.Nlink++
	n.Refs++
	m.changed(n)
	m.modified(parent)
	return 0
}

// Lookup finds a name. The caller gets no reference.
func (m *Model) Lookup(parent *Node, name string) (*Node, syscall.Errno) {
	if len(name) > 255 {
		return nil, syscall.ENAMETOOLONG
	}
	if e := parent.AsDir(); e != 0 {
		return nil, e
	}
	n := parent.Children[name]
	switch {
	case name == ".":
		n = parent
	case name == ".." && parent.Nlink > 0:
		n = parent.Parent
	}
	if n == nil {
		return nil, syscall.ENOENT
	}
	return n, 0
}

// mayRemove checks that a name of n can be removed, as a directory or not.
func mayRemove(n *Node, dir bool) syscall.Errno {
	switch {
	case dir && !n.IsDir():
		return syscall.ENOTDIR
	case !dir && n.IsDir():
		return syscall.EISDIR
	case dir && len(n.Children) > 0:
		return syscall.ENOTEMPTY
	}
	return 0
}

// Remove removes a name, of a directory or of anything else.
func (m *Model) Remove(parent *Node, name string, dir bool) syscall.Errno {
	if e := badName(name); e == syscall.EEXIST {
		return syscall.EINVAL
	} else if e != 0 {
		return e
	}
	n, e := m.Lookup(parent, name)
	if e != 0 {
		return e
	}
	if e := mayRemove(n, dir); e != 0 {
		return e
	}
	delete(parent.Children, name)
	if dir {
		parent.Nlink--
	}
	m.modified(parent)
	m.dropLink(n)
	return 0
}

func (m *Model) dropLink(n *Node) {
	m.changed(n)
	if n.IsDir() {
		n.Nlink = 0
	} else {
		n.Nlink--
	}
	m.reap(n)
}

func (m *Model) reap(n *Node) {
	if n.Nlink == 0 && n.Refs == 0 {
		n.Freed, n.Pages = true, nil
	}
}

// Forget takes references back.
func (m *Model) Forget(n *Node, count uint64) {
	n.Refs -= min(n.Refs, count)
	m.reap(n)
}

// below reports whether directory n is top or lies below it.
func below(n, top *Node) bool {
	for ; n != top; n = n.Parent {
		if n == n.Parent {
			return false
		}
	}
	return true
}

// Rename does what renameat2(2) does.
func (m *Model) Rename(from *Node, fromName string, to *Node, toName string, flags uint32) syscall.Errno {
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
	src, e := m.Lookup(from, fromName)
	if e != 0 {
		return e
	}
	dst, e := m.Lookup(to, toName)
	if e != 0 && e != syscall.ENOENT {
		return e
	}
	switch {
	case dst != nil && flags&nvfs.RenameNoReplace != 0:
		return syscall.EEXIST
	case dst == nil && exchange:
		return syscall.ENOENT
	case to.Nlink == 0:
		return syscall.ENOENT
	case src.IsDir() && from != to && below(to, src), exchange && dst.IsDir() && from != to && below(from, dst):
		return syscall.EINVAL
	case src == dst:
		return 0
	}
	if exchange {
		from.Children[fromName], to.Children[toName] = dst, src
		m.moved(from, to, src)
		m.moved(to, from, dst)
		m.changed(dst)
	} else {
		if dst != nil {
			if e := mayRemove(dst, src.IsDir()); e != 0 {
				return e
			}
			if dst.IsDir() {
				to.Nlink--
			}
		}
		delete(from.Children, fromName)
		to.Children[toName] = src
		m.moved(from, to, src)
		if dst != nil {
			m.dropLink(dst)
		}
		if whiteout {
			w := m.newNode(&Node{}, unix.S_IFCHR, 0)
			w.Refs = 0
			from.Children[fromName] = w
		}
	}
	m.modified(from)
	m.modified(to)
	m.changed(src)
	return 0
}

func (m *Model) moved(from, to, n *Node) {
	if n.IsDir() {
		n.Parent = to
		from.Nlink--
		to.Nlink++
	}
}

func (m *Model) stripSetID(n *Node) {
	n.Mode &^= unix.S_ISUID
	if n.Mode&unix.S_IXGRP != 0 {
		n.Mode &^= unix.S_ISGID
	}
}

// SetAttr changes attributes.
func (m *Model) SetAttr(n *Node, s *nvfs.SetAttr) syscall.Errno {
	if n.Freed {
		return syscall.ESTALE
	}
	if s.Valid&nvfs.SetSize != 0 {
		switch {
		case n.IsDir():
			return syscall.EISDIR
		case !n.Regular():
			return syscall.EINVAL
		case s.Size > modelMaxSize:
			return syscall.EFBIG
		}
	}
	if s.Valid&nvfs.SetMode != 0 {
		n.Mode = n.Type() | s.Mode&07777
	}
	if s.Valid&nvfs.SetUID != 0 {
		n.UID = s.UID
	}
	if s.Valid&nvfs.SetGID != 0 {
		n.GID = s.GID
	}
	chown := s.Valid&(nvfs.SetUID|nvfs.SetGID) != 0
	if !n.IsDir() && (chown || s.Valid&(nvfs.KillSuidgid|nvfs.SetSize) != 0) {
		if s.Valid&nvfs.KillSuidgid != 0 || chown && s.Valid&nvfs.SetMode == 0 {
			m.stripSetID(n)
		}
		delete(n.Xattrs, capability)
	}
	m.changed(n)
	if s.Valid&nvfs.SetSize != 0 {
		m.truncate(n, s.Size)
		n.Mtime = m.Now
	}
	if s.Valid&nvfs.SetAtime != 0 {
		n.Atime = s.Atime
	}
	if s.Valid&nvfs.SetAtimeNow != 0 {
		n.Atime = m.Now
	}
	if s.Valid&nvfs.SetMtime != 0 {
		n.Mtime = s.Mtime
	}
	if s.Valid&nvfs.SetMtimeNow != 0 {
		n.Mtime = m.Now
	}
	if s.Valid&nvfs.SetCtime != 0 {
		n.Ctime = s.Ctime
	}
	return 0
}

func (m *Model) truncate(n *Node, size uint64) {
	if size < n.Size {
		m.zero(n, size, n.Size)
	}
	n.Size = size
}

// zero makes bytes [from, to) zero.
func (m *Model) zero(n *Node, from, to uint64) {
	for at, p := range n.Pages {
		lo, hi := at*PageSize, (at+1)*PageSize
		switch {
		case lo >= to || hi <= from:
		case lo >= from && hi <= to:
			delete(n.Pages, at)
		default:
			clear(p[max(lo, from)-lo : min(hi, to)-lo])
		}
	}
}

// Store puts bytes into a file, which grows as needed; times stay.
func (m *Model) Store(n *Node, off uint64, src []byte) {
	n.Size = max(n.Size, off+uint64(len(src)))
	for len(src) > 0 {
		at, in := off/PageSize, off%PageSize
		p := n.Pages[at]
		if p == nil {
			p = new([PageSize]byte)
			n.Pages[at] = p
		}
		k := copy(p[in:], src)
		src, off = src[k:], off+uint64(k)
	}
}

// writable checks that data can be written to n.
func writable(n *Node) syscall.Errno {
	switch {
	case n.Freed:
		return syscall.ESTALE
	case n.IsDir():
		return syscall.EISDIR
	case !n.Regular():
		return syscall.EINVAL
	}
	return 0
}

// Write stores src; kill strips set-ID bits.
func (m *Model) Write(n *Node, off uint64, src []byte, kill bool) syscall.Errno {
	if len(src) == 0 {
		return 0
	}
	if off > modelMaxSize || uint64(len(src)) > modelMaxSize-off {
		return syscall.EFBIG
	}
	if e := writable(n); e != 0 {
		return e
	}
	m.Store(n, off, src)
	if kill {
		m.stripSetID(n)
	}
	delete(n.Xattrs, capability)
	m.modified(n)
	return 0
}

// Read returns up to length bytes from off on.
func (m *Model) Read(n *Node, off, length uint64) ([]byte, syscall.Errno) {
	switch {
	case n.Freed:
		return nil, syscall.ESTALE
	case n.IsDir():
		return nil, syscall.EISDIR
	case off >= n.Size:
		return nil, 0
	case n.Type() == unix.S_IFLNK:
		return []byte(n.Target)[off:min(n.Size, off+length)], 0
	}
	buf := make([]byte, min(length, n.Size-off))
	for at := off / PageSize; at*PageSize < off+uint64(len(buf)); at++ {
		p := n.Pages[at]
		if p == nil {
			continue
		}
		if lo := at * PageSize; lo >= off {
			copy(buf[lo-off:], p[:])
		} else {
			copy(buf, p[off-lo:])
		}
	}
	return buf, 0
}

// CopyRange copies as the engine may: in pieces, at most 16 MiB.
func (m *Model) CopyRange(src *Node, srcOff uint64, dst *Node, dstOff, length uint64) (uint64, syscall.Errno) {
	length = min(length, 16<<20)
	done := uint64(0)
	for ended := false; done < length && !ended; {
		chunk := min(512<<10, length-done)
		b, e := m.Read(src, srcOff+done, chunk)
		ended = uint64(len(b)) < chunk
		if e == 0 && len(b) > 0 {
			e = m.Write(dst, dstOff+done, b, true)
		}
		if e != 0 && done == 0 {
			return 0, e
		}
		if e != 0 {
			break
		}
		done += uint64(len(b))
	}
	return done, 0
}

// Fallocate does what fallocate(2) does, as far as it can be seen.
func (m *Model) Fallocate(n *Node, mode uint32, off, length uint64) syscall.Errno {
	switch {
	case length == 0:
		return syscall.EINVAL
	case off > modelMaxSize || length > modelMaxSize-off:
		return syscall.EFBIG
	case n.Freed:
		return syscall.ESTALE
	case n.IsDir():
		return syscall.EISDIR
	case !n.Regular():
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
		n.Size = max(n.Size, off+length)
	}
	if m.UID != 0 {
		m.stripSetID(n)
	}
	delete(n.Xattrs, capability)
	m.modified(n)
	return 0
}

// SetXattr sets an attribute.
func (m *Model) SetXattr(n *Node, name, value string, flags uint32) syscall.Errno {
	switch {
	case name == "" || len(name) > 255:
		return syscall.ERANGE
	case len(value) > 64<<10:
		return syscall.E2BIG
	case n.Freed:
		return syscall.ESTALE
	}
	_, exists := n.Xattrs[name]
	switch {
	case exists && flags&nvfs.XattrCreate != 0:
		return syscall.EEXIST
	case !exists && flags&nvfs.XattrReplace != 0:
		return syscall.ENODATA
	}
	total := 8 + len(name) + len(value)
	for k, v := range n.Xattrs {
		if k != name {
			total += 8 + len(k) + len(v)
		}
	}
	if total > modelMaxSet {
		return syscall.ENOSPC
	}
	if n.Xattrs == nil {
		n.Xattrs = map[string]string{}
	}
	n.Xattrs[name] = value
	m.changed(n)
	return 0
}

// RemoveXattr removes an attribute.
func (m *Model) RemoveXattr(n *Node, name string) syscall.Errno {
	if n.Freed {
		return syscall.ESTALE
	}
	if _, ok := n.Xattrs[name]; !ok {
		return syscall.ENODATA
	}
	delete(n.Xattrs, name)
	m.changed(n)
	return 0
}

// Remount forgets all lookups.
func (m *Model) Remount(known []*Node) {
	for _, n := range known {
		n.Refs = 0
		if n == m.Root {
			n.Refs = 1
		}
		m.reap(n)
	}
}

// PathOf is the path under which Dump describes n; "" if n has no name.
func (m *Model) PathOf(n *Node) string {
	var find func(at *Node, path string) string
	find = func(at *Node, path string) string {
		if at == n {
			return path
		}
		for _, name := range slices.Sorted(maps.Keys(at.Children)) {
			if p := find(at.Children[name], strings.TrimSuffix(path, "/")+"/"+name); p != "" {
				return p
			}
		}
		return ""
	}
	return find(m.Root, "/")
}
