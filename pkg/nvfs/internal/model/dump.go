package model

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// A dump describes a tree in lines, one for each path. The engine's volumes
// are dumped with the same functions, so that dumps of equal trees are equal
// within a process.

var seed = maphash.MakeSeed()

// Content is a hash of a file's bytes; pages of zeros do not count.
type Content struct{ sum uint64 }

// Add adds the bytes p at pos, a multiple of PageSize, and so is the length
// of p unless it ends the file.
func (c *Content) Add(pos uint64, p []byte) {
	for len(p) > 0 {
		page := p[:min(PageSize, len(p))]
		if t := trimZeros(page); len(t) > 0 {
			var at [16]byte
			binary.LittleEndian.PutUint64(at[:], pos)
			binary.LittleEndian.PutUint64(at[8:], maphash.Bytes(seed, t))
			c.sum ^= maphash.Bytes(seed, at[:])
		}
		p, pos = p[len(page):], pos+PageSize
	}
}

func trimZeros(p []byte) []byte {
	for len(p) >= 8 && binary.LittleEndian.Uint64(p[len(p)-8:]) == 0 {
		p = p[:len(p)-8]
	}
	for len(p) > 0 && p[len(p)-1] == 0 {
		p = p[:len(p)-1]
	}
	return p
}

// Line describes an inode but for its content.
func Line(path string, a *nvfs.Attr, xattrs map[string]string) string {
	b := make([]byte, 0, 160)
	b = append(b, path...)
	b = append(b, " mode="...)
	b = strconv.AppendUint(b, uint64(a.Mode), 8)
	num := func(name string, v uint64) {
		b = append(append(append(b, ' '), name...), '=')
		b = strconv.AppendUint(b, v, 10)
	}
	num("nlink", uint64(a.Nlink))
	num("uid", uint64(a.UID))
	num("gid", uint64(a.GID))
	if a.Rdev != 0 {
		num("rdev", uint64(a.Rdev))
	}
	num("mtime", uint64(a.Mtime.Sec))
	num("ctime", uint64(a.Ctime.Sec))
	num("btime", uint64(a.Btime.Sec))
	for _, name := range slices.Sorted(maps.Keys(xattrs)) {
		b = fmt.Appendf(b, " %s=%d:%x", name, len(xattrs[name]), maphash.String(seed, xattrs[name]))
	}
	return string(b)
}

// FileLine completes the line of a regular file.
func FileLine(line string, size uint64, c Content) string {
	b := append([]byte(line), " size="...)
	b = strconv.AppendUint(b, size, 10)
	b = append(b, " content="...)
	return string(strconv.AppendUint(b, c.sum, 16))
}

// LinkLine completes the line of a symbolic link.
func LinkLine(line, target string) string { return line + " -> " + target }

// HardLinkLine is the line of a further name of an inode.
func HardLinkLine(path, first string) string { return path + " = " + first }

// Dump describes the tree, in the order of paths.
func (m *Model) Dump() []string {
	first := map[*Node]string{}
	var lines []string
	var visit func(n *Node, path string)
	visit = func(n *Node, path string) {
		if p, seen := first[n]; seen {
			lines = append(lines, HardLinkLine(path, p))
			return
		}
		first[n] = path
		lines = append(lines, n.line(path))
		for _, name := range slices.Sorted(maps.Keys(n.Children)) {
			visit(n.Children[name], strings.TrimSuffix(path, "/")+"/"+name)
		}
	}
	visit(m.Root, "/")
	return lines
}

func (n *Node) line(path string) string {
	a := nvfs.Attr{Mode: n.Mode, Nlink: n.Nlink, UID: n.UID, GID: n.GID, Rdev: n.Rdev, Mtime: n.Mtime, Ctime: n.Ctime, Btime: n.Btime}
	s := Line(path, &a, n.Xattrs)
	switch n.Type() {
	case unix.S_IFREG:
		var c Content
		for at, p := range n.Pages {
			c.Add(at*PageSize, p[:])
		}
		return FileLine(s, n.Size, c)
	case unix.S_IFLNK:
		return LinkLine(s, n.Target)
	}
	return s
}
