package nvfs_test

import (
	"bytes"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// opCase is an operation on what prepareTree made.
type opCase struct {
	name string
	run  func(m *mounted) error
}

// id finds an inode by its path, without a lookup being counted.
func (m *mounted) id(path string) nvfs.NodeID {
	at := nvfs.RootID
	for name := range strings.SplitSeq(path, "/") {
		if name == "" {
			continue
		}
		var a nvfs.Attr
		if err := m.Lookup(at, []byte(name), &a); err != nil {
			panic(fmt.Errorf("%s: %w", path, err))
		}
		m.Forget(a.ID, 1)
		at = a.ID
	}
	return at
}

// create makes a file and forgets it.
func (m *mounted) create(dir nvfs.NodeID, name string, mode uint32) (nvfs.NodeID, error) {
	var a nvfs.Attr
	var err error
	c := &nvfs.CreateArgs{Mode: mode}
	if mode&unix.S_IFMT == unix.S_IFDIR {
		err = m.Mkdir(dir, []byte(name), c, &a)
	} else {
		err = m.Mknod(dir, []byte(name), c, &a)
	}
	if err == nil {
		m.Forget(a.ID, 1)
	}
	return a.ID, err
}

func (m *mounted) write(path string, off uint64, p []byte) error {
	n, err := m.Write(m.id(path), off, p, 0)
	if err == nil && n != len(p) {
		err = fmt.Errorf("wrote %d of %d bytes", n, len(p))
	}
	return err
}

func (m *mounted) set(path string, s nvfs.SetAttr) error {
	var a nvfs.Attr
	return m.SetAttr(m.id(path), &s, &a)
}

func (m *mounted) rename(fromDir, from, toDir, to string, flags uint32) error {
	return m.Rename(m.id(fromDir), []byte(from), m.id(toDir), []byte(to), flags)
}

func (m *mounted) link(path, dir, name string) error {
	var a nvfs.Attr
	err := m.Link(m.id(path), m.id(dir), []byte(name), &a)
	if err == nil {
		m.Forget(a.ID, 1)
	}
	return err
}

// data is content that differs by kind.
func data(kind byte, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = kind ^ byte(i*13) ^ byte(i>>8)
	}
	return p
}

// prepareTree makes one of everything.
func prepareTree(m *mounted) error {
	root := nvfs.RootID
	for _, d := range []string{"dir", "other", "empty", "many"} {
		if _, err := m.create(root, d, unix.S_IFDIR|0755); err != nil {
			return err
		}
	}
	for name, size := range map[string]int{"none": 0, "small": 100, "inline": 350, "page": 4096, "odd": 10_000, "plain": 10_000, "big": 600_000, "dir/a": 20, "dir/b": 5000, "other/c": 30} {
		dir, base := root, name
		if i := strings.IndexByte(name, '/'); i >= 0 {
			dir, base = m.id(name[:i]), name[i+1:]
		}
		if _, err := m.create(dir, base, unix.S_IFREG|0644); err != nil {
			return err
		}
		if err := m.write(name, 0, data('o', size)); err != nil {
			return err
		}
	}
	for _, d := range []string{"dir/sub", "other/sub", "other/vacant"} {
		i := strings.IndexByte(d, '/')
		if _, err := m.create(m.id(d[:i]), d[i+1:], unix.S_IFDIR|0755); err != nil {
			return err
		}
	}
	if _, err := m.create(m.id("dir/sub"), "deep", unix.S_IFREG|0600); err != nil {
		return err
	}
	for i := range 40 { // the next long name splits the leaf
		if _, err := m.create(m.id("many"), fmt.Sprintf("%02d%s", i, strings.Repeat("x", 60)), unix.S_IFREG|0600); err != nil {
			return err
		}
	}
	if _, err := m.create(root, "holes", unix.S_IFREG|0644); err != nil {
		return err
	}
	for i := range uint64(40) {
		if err := m.write("holes", i*2*pageSize, data('h', pageSize)); err != nil {
			return err
		}
	}
	if _, err := m.create(root, "unwritten", unix.S_IFREG|0644); err != nil {
		return err
	}
	if err := m.Fallocate(m.id("unwritten"), 0, 0, 20*pageSize); err != nil {
		return err
	}
	if _, err := m.create(root, "suid", unix.S_IFREG|06755); err != nil {
		return err
	}
	for path, size := range map[string]int{"small": 50, "page": 5000, "big": 100} {
		if err := m.SetXattr(m.id(path), []byte("user.x"), data('x', size), 0); err != nil {
			return err
		}
	}
	if err := m.SetXattr(m.id("suid"), []byte(capability), data('c', 20), 0); err != nil {
		return err
	}
	var a nvfs.Attr
	for name, n := range map[string]int{"short": 9, "long": 1000} {
		if err := m.Symlink(root, []byte(name), bytes.Repeat([]byte("t"), n), &nvfs.CreateArgs{}, &a); err != nil {
			return err
		}
		m.Forget(a.ID, 1)
	}
	return m.link("odd", "dir", "hard")
}

// opCases are operations of every kind.
func opCases() []opCase {
	root := nvfs.RootID
	made := func(_ nvfs.NodeID, err error) error { return err }
	return []opCase{
		{name: "create", run: func(m *mounted) error { return made(m.create(root, "new", unix.S_IFREG|0644)) }},
		{name: "create first", run: func(m *mounted) error { return made(m.create(m.id("empty"), "new", unix.S_IFREG|0644)) }},
		{name: "create with split", run: func(m *mounted) error { return made(m.create(m.id("many"), longName, unix.S_IFREG|0644)) }},
		{name: "mkdir", run: func(m *mounted) error { return made(m.create(m.id("dir"), "new", unix.S_IFDIR|0755)) }},
		{name: "mknod", run: func(m *mounted) error { return made(m.create(root, "new", unix.S_IFIFO|0644)) }},
		{name: "symlink", run: func(m *mounted) error {
			return m.Symlink(root, []byte("new"), []byte("target"), &nvfs.CreateArgs{}, new(nvfs.Attr))
		}},
		{name: "symlink long", run: func(m *mounted) error {
			return m.Symlink(root, []byte("new"), bytes.Repeat([]byte("n"), 3000), &nvfs.CreateArgs{}, new(nvfs.Attr))
		}},
		{name: "link", run: func(m *mounted) error { return m.link("page", "dir", "new") }},
		{name: "tmpfile", run: func(m *mounted) error {
			return m.Tmpfile(root, &nvfs.CreateArgs{Mode: unix.S_IFREG | 0600}, new(nvfs.Attr))
		}},
		{name: "tmpfile and link", run: func(m *mounted) error {
			var a nvfs.Attr
			if err := m.Tmpfile(root, &nvfs.CreateArgs{Mode: unix.S_IFREG | 0600}, &a); err != nil {
				return err
			}
			return m.Link(a.ID, root, []byte("new"), &a)
		}},
		{name: "unlink inline", run: func(m *mounted) error { return m.Unlink(root, []byte("small")) }},
		{name: "unlink big", run: func(m *mounted) error { return m.Unlink(root, []byte("big")) }},
		{name: "unlink holes", run: func(m *mounted) error { return m.Unlink(root, []byte("holes")) }},
		{name: "unlink with attributes", run: func(m *mounted) error { return m.Unlink(root, []byte("page")) }},
		{name: "unlink one of two", run: func(m *mounted) error { return m.Unlink(root, []byte("odd")) }},
		{name: "unlink last of directory", run: func(m *mounted) error { return m.Unlink(m.id("dir/sub"), []byte("deep")) }},
		{name: "unlink held", run: func(m *mounted) error {
			var a nvfs.Attr
			if err := m.Lookup(root, []byte("big"), &a); err != nil {
				return err
			}
			if err := m.Unlink(root, []byte("big")); err != nil {
				return err
			}
			m.Forget(a.ID, 1)
			return nil
		}},
		{name: "rmdir", run: func(m *mounted) error { return m.Rmdir(m.id("other"), []byte("vacant")) }},
		{name: "rename", run: func(m *mounted) error { return m.rename("", "small", "", "new", 0) }},
		{name: "rename away", run: func(m *mounted) error { return m.rename("dir", "a", "other", "new", 0) }},
		{name: "rename over", run: func(m *mounted) error { return m.rename("", "small", "", "big", 0) }},
		{name: "rename over away", run: func(m *mounted) error { return m.rename("dir", "b", "other", "c", 0) }},
		{name: "rename over one of two", run: func(m *mounted) error { return m.rename("", "small", "dir", "hard", 0) }},
		{name: "rename directory", run: func(m *mounted) error { return m.rename("dir", "sub", "other", "new", 0) }},
		{name: "rename directory over", run: func(m *mounted) error { return m.rename("dir", "sub", "other", "vacant", 0) }},
		{name: "rename noreplace", run: func(m *mounted) error { return m.rename("", "none", "empty", "new", nvfs.RenameNoReplace) }},
		{name: "exchange", run: func(m *mounted) error { return m.rename("", "small", "", "big", nvfs.RenameExchange) }},
		{name: "exchange away", run: func(m *mounted) error { return m.rename("dir", "sub", "other", "c", nvfs.RenameExchange) }},
		{name: "exchange directories", run: func(m *mounted) error { return m.rename("dir", "sub", "other", "sub", nvfs.RenameExchange) }},
		{name: "whiteout", run: func(m *mounted) error { return m.rename("dir", "a", "other", "c", nvfs.RenameWhiteout) }},
		{name: "write inline", run: func(m *mounted) error { return m.write("small", 50, data('n', 200)) }},
		{name: "write first", run: func(m *mounted) error { return m.write("none", 0, data('n', 10_001)) }},
		{name: "write leaves inline", run: func(m *mounted) error { return m.write("inline", 340, data('n', 5000)) }},
		{name: "write leaves inline behind a hole", run: func(m *mounted) error { return m.write("inline", 9000, data('n', 100)) }},
		{name: "append", run: func(m *mounted) error { return m.write("page", 4096, data('n', 4096)) }},
		{name: "append unaligned", run: func(m *mounted) error { return m.write("odd", 10_000, data('n', 7001)) }},
		{name: "append within block", run: func(m *mounted) error { return m.write("odd", 10_001, data('n', 13)) }},
		{name: "write behind a hole", run: func(m *mounted) error { return m.write("odd", 100_003, data('n', 77)) }},
		{name: "write into hole", run: func(m *mounted) error { return m.write("holes", 3*pageSize+100, data('n', 50)) }},
		{name: "write into unwritten", run: func(m *mounted) error { return m.write("unwritten", 5*pageSize+17, data('n', 9000)) }},
		{name: "overwrite", run: func(m *mounted) error { return m.write("plain", 3, data('n', 9000)) }},
		{name: "overwrite and append", run: func(m *mounted) error { return m.write("plain", 5001, data('n', 9000)) }},
		{name: "overwrite across holes", run: func(m *mounted) error { return m.write("holes", 5, data('n', 70_000)) }},
		{name: "write in steps", run: func(m *mounted) error { return m.write("small", 90, data('n', 1_200_000)) }},
		{name: "write strips", run: func(m *mounted) error {
			_, err := m.Write(m.id("suid"), 0, data('n', 5000), nvfs.WriteKillSuidgid)
			return err
		}},
		{name: "truncate inline", run: func(m *mounted) error { return m.set("small", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 40}) }},
		{name: "truncate inline up", run: func(m *mounted) error { return m.set("small", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 200}) }},
		{name: "truncate inline far up", run: func(m *mounted) error { return m.set("small", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 1 << 30}) }},
		{name: "truncate up", run: func(m *mounted) error { return m.set("odd", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 20_000}) }},
		{name: "truncate down", run: func(m *mounted) error { return m.set("big", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 5001}) }},
		{name: "truncate to nothing", run: func(m *mounted) error { return m.set("big", nvfs.SetAttr{Valid: nvfs.SetSize}) }},
		{name: "truncate down and up", run: func(m *mounted) error {
			if err := m.set("plain", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 5001}); err != nil {
				return err
			}
			return m.set("plain", nvfs.SetAttr{Valid: nvfs.SetSize, Size: 10_000})
		}},
		{name: "setattr of all", run: func(m *mounted) error {
			return m.set("suid", nvfs.SetAttr{Valid: nvfs.SetMode | nvfs.SetUID | nvfs.SetGID | nvfs.SetSize | nvfs.SetMtime, Mode: 0700, UID: 5, GID: 6, Size: 77})
		}},
		{name: "chown", run: func(m *mounted) error { return m.set("suid", nvfs.SetAttr{Valid: nvfs.SetUID, UID: 5}) }},
		{name: "fallocate", run: func(m *mounted) error { return m.Fallocate(m.id("odd"), 0, 0, 300_000) }},
		{name: "fallocate inline", run: func(m *mounted) error { return m.Fallocate(m.id("small"), 0, 0, 300_000) }},
		{name: "fallocate keep size", run: func(m *mounted) error { return m.Fallocate(m.id("holes"), nvfs.FallocKeepSize, 0, 1_000_000) }},
		{name: "punch", run: func(m *mounted) error {
			return m.Fallocate(m.id("big"), nvfs.FallocPunchHole|nvfs.FallocKeepSize, 5001, 200_000)
		}},
		{name: "punch all", run: func(m *mounted) error {
			return m.Fallocate(m.id("holes"), nvfs.FallocPunchHole|nvfs.FallocKeepSize, 0, 1<<40)
		}},
		{name: "zero range", run: func(m *mounted) error { return m.Fallocate(m.id("plain"), nvfs.FallocZeroRange, 100, 20_001) }},
		{name: "copy range", run: func(m *mounted) error {
			_, err := m.CopyFileRange(m.id("odd"), 100, m.id("none"), 0, 1<<20, 0)
			return err
		}},
		{name: "setxattr inline", run: func(m *mounted) error { return m.SetXattr(m.id("none"), []byte("user.new"), data('n', 30), 0) }},
		{name: "setxattr leaves inline", run: func(m *mounted) error { return m.SetXattr(m.id("small"), []byte("user.new"), data('n', 9000), 0) }},
		{name: "setxattr replaces", run: func(m *mounted) error { return m.SetXattr(m.id("page"), []byte("user.x"), data('n', 7000), 0) }},
		{name: "setxattr becomes inline", run: func(m *mounted) error { return m.SetXattr(m.id("page"), []byte("user.x"), data('n', 7), 0) }},
		{name: "removexattr", run: func(m *mounted) error { return m.RemoveXattr(m.id("page"), []byte("user.x")) }},
	}
}

func (m *mounted) readAll(path string) ([]byte, error) {
	var a nvfs.Attr
	id := m.id(path)
	if err := m.GetAttr(id, &a); err != nil {
		return nil, err
	}
	p := make([]byte, a.Size)
	_, err := m.Read(id, 0, p)
	return p, err
}
