package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStressNames lets several clients change names at once, in directories
// that all of them use. Each touches its own names only, so that it knows what
// must be there.
func TestStressNames(t *testing.T) {
	const clients = 6
	eachMode(t, 512<<20, func(t *testing.T, v testVolume, mount func()) {
		shared := []string{v.mkdir(t, "a"), v.mkdir(t, "b"), v.mkdir(t, "a", "c")}
		var list []*nameClient
		for i := range clients {
			list = append(list, &nameClient{id: i, dirs: slices.Clone(shared), r: rand.New(rand.NewPCG(seed(t), uint64(i))), names: map[string]*nameNode{}})
		}
		var wg sync.WaitGroup
		for _, c := range list {
			wg.Go(func() {
				for range scale(1500, 200_000) {
					if c.err = c.step(); c.err != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		verify := func(when string) {
			t.Helper()
			expected := len(shared)
			for _, c := range list {
				if err := errors.Join(c.err, c.verify()); err != nil {
					t.Errorf("%s, client %d: %v", when, c.id, err)
				}
				expected += len(c.names)
			}
			if got := countNames(t, v.mnt); got != expected {
				t.Errorf("%s: %d names, want %d", when, got, expected)
			}
			wantDirectoryLinks(t, v.mnt)
		}
		verify("afterwards")
		v.unmount(t)
		v.check(t)
		mount()
		verify("after a remount")
	})
}

func countNames(t *testing.T, dir string) int {
	t.Helper()
	n := -1 // dir itself
	if err := filepath.WalkDir(dir, func(_ string, _ os.DirEntry, err error) error { n++; return err }); err != nil {
		t.Fatal(err)
	}
	return n
}

// wantDirectoryLinks wants each directory to have two links and one for each
// directory in it.
func wantDirectoryLinks(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(dir string, e os.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		list, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		want := uint64(2)
		for _, e := range list {
			if e.IsDir() {
				want++
			}
		}
		if st := stat(t, dir); st.Nlink != want {
			t.Errorf("%s has %d links, want %d", dir, st.Nlink, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// nameNode is what a name stands for; links share it.
type nameNode struct {
	kind    uint32 // S_IFREG, S_IFDIR, S_IFLNK or S_IFIFO
	perm    uint32
	content string // or the target of a link
	xattr   string
	links   int
}

// nameClient changes names that begin with its number.
type nameClient struct {
	id    int
	dirs  []string // where it may make names
	r     *rand.Rand
	names map[string]*nameNode // by path
	err   error
}

// unused is a path that does not exist.
func (c *nameClient) unused() string {
	for {
		length := []int{0, 0, 10, 100, 230}[c.r.IntN(5)]
		name := fmt.Sprintf("%d-%d%s", c.id, c.r.IntN(1000), strings.Repeat("x", length))
		path := filepath.Join(c.dirs[c.r.IntN(len(c.dirs))], name)
		if c.names[path] == nil {
			return path
		}
	}
}

// pick is a path of one of the kinds; "" when there is none.
func (c *nameClient) pick(kinds ...uint32) string {
	var list []string
	for path, n := range c.names {
		if slices.Contains(kinds, n.kind) {
			list = append(list, path)
		}
	}
	if len(list) == 0 {
		return ""
	}
	slices.Sort(list)
	return list[c.r.IntN(len(list))]
}

// step does one operation and brings the model up to date.
func (c *nameClient) step() error {
	const reg, dir, lnk, fifo = unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO
	path := c.unused()
	file, any := c.pick(reg), c.pick(reg, lnk, fifo)
	op := c.r.IntN(100)
	if len(c.names) > 400 { // not too many, so that names meet
		op = 40 + op%20
	}
	switch {
	case op < 15 || file == "":
		c.names[path] = &nameNode{kind: reg, perm: 0o644, links: 1}
		return unix.Mknod(path, reg|0o644, 0)
	case op < 22:
		c.names[path] = &nameNode{kind: dir, perm: 0o755, links: 1}
		return unix.Mkdir(path, 0o755)
	case op < 27:
		c.names[path] = &nameNode{kind: lnk, perm: 0o777, content: path, links: 1}
		return unix.Symlink(path, path)
	case op < 30:
		c.names[path] = &nameNode{kind: fifo, perm: 0o600, links: 1}
		return unix.Mknod(path, fifo|0o600, 0)
	case op < 40:
		c.names[path] = c.names[any]
		c.names[any].links++
		return unix.Linkat(unix.AT_FDCWD, any, unix.AT_FDCWD, path, 0)
	case op < 55:
		c.drop(any)
		return unix.Unlink(any)
	case op < 60:
		d := c.pick(dir)
		if d == "" {
			return nil
		}
		c.drop(d)
		return unix.Rmdir(d)
	case op < 80:
		return c.rename(path)
	case op < 90:
		n := c.names[file]
		n.content = strings.Repeat(string(rune('a'+c.r.IntN(26))), c.r.IntN(9000))
		return os.WriteFile(file, []byte(n.content), 0)
	case op < 94:
		c.names[file].perm = uint32(c.r.IntN(0o1000)) | 0o400
		return unix.Chmod(file, c.names[file].perm)
	case op < 98:
		c.names[file].xattr = strings.Repeat("v", 1+c.r.IntN(500))
		return unix.Setxattr(file, "user.test", []byte(c.names[file].xattr), 0)
	}
	return c.verifyNames()
}

// rename moves one of the client's names to a free path, over another, or
// exchanges two.
func (c *nameClient) rename(free string) error {
	const reg, dir, lnk, fifo = unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO
	src, dst := c.pick(reg, dir, lnk, fifo), c.pick(reg, dir, lnk, fifo)
	a, b := c.names[src], c.names[dst]
	switch kind := c.r.IntN(4); {
	case kind == 0 && src != dst && a != b && (a.kind == dir) == (b.kind == dir):
		c.drop(dst)
		c.names[dst] = a
		delete(c.names, src)
		return unix.Rename(src, dst)
	case kind == 1 && src != dst && a != b:
		c.names[src], c.names[dst] = b, a
		return unix.Renameat2(unix.AT_FDCWD, src, unix.AT_FDCWD, dst, unix.RENAME_EXCHANGE)
	case kind == 2:
		err := unix.Renameat2(unix.AT_FDCWD, src, unix.AT_FDCWD, dst, unix.RENAME_NOREPLACE)
		if err != unix.EEXIST {
			return fmt.Errorf("RENAME_NOREPLACE to %s, which exists: %w", dst, err)
		}
		return nil
	}
	c.names[free] = a
	delete(c.names, src)
	return unix.Rename(src, free)
}

func (c *nameClient) drop(path string) {
	c.names[path].links--
	delete(c.names, path)
}

// verifyNames wants a listing of each directory to show each of the client's
// names once, whatever the others are doing.
func (c *nameClient) verifyNames() error {
	seen := map[string]int{}
	prefix := fmt.Sprintf("%d-", c.id)
	for _, d := range c.dirs {
		f, err := os.Open(d)
		if err != nil {
			return err
		}
		list, err := f.Readdirnames(-1)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		for _, name := range list {
			if strings.HasPrefix(name, prefix) {
				seen[filepath.Join(d, name)]++
			}
		}
	}
	for path := range c.names {
		if seen[path] != 1 {
			return fmt.Errorf("%s is listed %d times", path, seen[path])
		}
		delete(seen, path)
	}
	if len(seen) > 0 {
		return fmt.Errorf("listed but not made: %q", slices.Sorted(maps.Keys(seen)))
	}
	return nil
}

// verify compares everything with the model.
func (c *nameClient) verify() error {
	if err := c.verifyNames(); err != nil {
		return err
	}
	first := map[*nameNode]uint64{}
	for path, n := range c.names {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if st.Mode != n.kind|n.perm || n.kind != unix.S_IFDIR && int(st.Nlink) != n.links {
			return fmt.Errorf("%s: mode %o with %d links, want %o with %d", path, st.Mode, st.Nlink, n.kind|n.perm, n.links)
		}
		if ino, known := first[n]; known && ino != st.Ino {
			return fmt.Errorf("%s is inode %d, and %d by another name", path, st.Ino, ino)
		}
		first[n] = st.Ino
		if err := n.verifyContent(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func (n *nameNode) verifyContent(path string) error {
	switch n.kind {
	case unix.S_IFLNK:
		if got, err := os.Readlink(path); err != nil || got != n.content {
			return fmt.Errorf("target %q, %w", got, err)
		}
	case unix.S_IFREG:
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, []byte(n.content)) {
			return fmt.Errorf("%d bytes %.20q, want %d of %.20q", len(got), got, len(n.content), n.content)
		}
		value := make([]byte, 1000)
		size, err := unix.Getxattr(path, "user.test", value)
		if err == unix.ENODATA && n.xattr == "" {
			return nil
		}
		if err != nil || string(value[:size]) != n.xattr {
			return fmt.Errorf("attribute of %d bytes, %w; want %d", size, err, len(n.xattr))
		}
	}
	return nil
}
