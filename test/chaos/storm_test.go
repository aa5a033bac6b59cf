package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// storm changes names, links, contents and attributes. Each operation is one
// system call that succeeds once and fails when it is executed twice, or not
// at all, so that a request that is answered wrongly after a restart shows at
// once. What the tree should be is kept in a model, and compared in between.
func storm(dir string, seed uint64) app {
	return app{"storm", func(stop <-chan struct{}) error {
		s := &stormer{dir: dir, r: rand.New(rand.NewPCG(seed, 2)), names: map[string]*file{}}
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		for i := 1; !stopped(stop); i++ {
			if err := s.step(); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
			if i%2000 == 0 {
				if err := s.compare(); err != nil {
					return fmt.Errorf("after step %d: %w", i, err)
				}
			}
		}
		return s.compare()
	}}
}

// file is a file of the model; names that are links share it.
type file struct {
	dir     bool
	content []byte
	attrs   map[string]string
	links   int
}

type stormer struct {
	dir   string
	r     *rand.Rand
	names map[string]*file
	made  int
}

func (s *stormer) path(name string) string { return filepath.Join(s.dir, name) }

func (s *stormer) unused() string {
	s.made++
	return fmt.Sprintf("name %0*d", 1+s.r.IntN(30), s.made)
}

// pick is a name of a file or a directory; "" when there is none.
func (s *stormer) pick(dir bool) string {
	var list []string
	for name, f := range s.names {
		if f.dir == dir {
			list = append(list, name)
		}
	}
	if len(list) == 0 {
		return ""
	}
	slices.Sort(list)
	return list[s.r.IntN(len(list))]
}

const stormNames = 150

func (s *stormer) step() error {
	name, dir := s.pick(false), s.pick(true)
	kind := s.r.IntN(13)
	if name == "" || len(s.names) < 20 {
		kind = 0
	} else if len(s.names) > stormNames {
		kind = 3
	}
	if dir == "" && (kind == 8 || kind == 9) {
		kind = 7
	}
	switch kind {
	case 0:
		return s.create()
	case 1, 2:
		return s.append(name)
	case 3:
		return s.unlink(name)
	case 4:
		return s.rename(name)
	case 5:
		return s.exchange(name, s.pick(false))
	case 6:
		return s.link(name)
	case 7:
		return s.mkdir()
	case 8:
		return s.rmdir(dir)
	case 9:
		return s.exchange(name, dir)
	case 10:
		return s.setAttr(name)
	case 11:
		return s.removeAttr(name)
	}
	return s.truncate(name)
}

func (s *stormer) create() error {
	name := s.unused()
	fd, err := unix.Open(s.path(name), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("create %q: %w", name, err)
	}
	s.names[name] = &file{attrs: map[string]string{}, links: 1}
	return unix.Close(fd)
}

func (s *stormer) append(name string) error {
	f := s.names[name]
	if len(f.content) > 100_000 {
		return s.truncate(name)
	}
	piece := make([]byte, 1+s.r.IntN(6000))
	for i := range piece {
		piece[i] = byte(s.r.Uint32())
	}
	fd, err := unix.Open(s.path(name), unix.O_APPEND|unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %q: %w", name, err)
	}
	defer unix.Close(fd)
	if n, err := unix.Write(fd, piece); err != nil || n != len(piece) {
		return fmt.Errorf("append to %q: %d of %d bytes, %w", name, n, len(piece), err)
	}
	f.content = append(f.content, piece...)
	return nil
}

func (s *stormer) unlink(name string) error {
	if err := unix.Unlink(s.path(name)); err != nil {
		return fmt.Errorf("unlink %q: %w", name, err)
	}
	s.names[name].links--
	delete(s.names, name)
	return nil
}

func (s *stormer) rename(name string) error {
	to := s.unused()
	if err := unix.Renameat2(unix.AT_FDCWD, s.path(name), unix.AT_FDCWD, s.path(to), unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("rename %q to %q: %w", name, to, err)
	}
	s.names[to] = s.names[name]
	delete(s.names, name)
	return nil
}

func (s *stormer) exchange(a, b string) error {
	if a == b || s.names[a] == s.names[b] {
		return nil
	}
	if err := unix.Renameat2(unix.AT_FDCWD, s.path(a), unix.AT_FDCWD, s.path(b), unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange %q and %q: %w", a, b, err)
	}
	s.names[a], s.names[b] = s.names[b], s.names[a]
	return nil
}

func (s *stormer) link(name string) error {
	to := s.unused()
	if err := unix.Link(s.path(name), s.path(to)); err != nil {
		return fmt.Errorf("link %q to %q: %w", name, to, err)
	}
	s.names[to] = s.names[name]
	s.names[to].links++
	return nil
}

func (s *stormer) mkdir() error {
	name := s.unused()
	if err := unix.Mkdir(s.path(name), 0o700); err != nil {
		return fmt.Errorf("mkdir %q: %w", name, err)
	}
	s.names[name] = &file{dir: true}
	return nil
}

func (s *stormer) rmdir(name string) error {
	if err := unix.Rmdir(s.path(name)); err != nil {
		return fmt.Errorf("rmdir %q: %w", name, err)
	}
	delete(s.names, name)
	return nil
}

func (s *stormer) setAttr(name string) error {
	f := s.names[name]
	attr, value, flag := fmt.Sprintf("user.a%d", s.r.IntN(5)), fmt.Sprint(s.r.Uint64()), unix.XATTR_CREATE
	if _, set := f.attrs[attr]; set {
		flag = unix.XATTR_REPLACE
	}
	if err := unix.Setxattr(s.path(name), attr, []byte(value), flag); err != nil {
		return fmt.Errorf("set attribute %s of %q: %w", attr, name, err)
	}
	f.attrs[attr] = value
	return nil
}

func (s *stormer) removeAttr(name string) error {
	f := s.names[name]
	for attr := range f.attrs {
		if err := unix.Removexattr(s.path(name), attr); err != nil {
			return fmt.Errorf("remove attribute %s of %q: %w", attr, name, err)
		}
		delete(f.attrs, attr)
		return nil
	}
	return nil
}

func (s *stormer) truncate(name string) error {
	f := s.names[name]
	size := s.r.IntN(30_000)
	if err := unix.Truncate(s.path(name), int64(size)); err != nil {
		return fmt.Errorf("truncate %q to %d: %w", name, size, err)
	}
	if size > len(f.content) {
		f.content = append(f.content, make([]byte, size-len(f.content))...)
	}
	f.content = f.content[:size]
	return nil
}

// compare compares the tree with the model.
func (s *stormer) compare() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		f := s.names[e.Name()]
		if f == nil || f.dir != e.IsDir() {
			return fmt.Errorf("%q (directory: %v) should not be there", e.Name(), e.IsDir())
		}
	}
	if len(entries) != len(s.names) {
		return fmt.Errorf("%d names, not %d", len(entries), len(s.names))
	}
	for name, f := range s.names {
		if err := s.compareFile(name, f); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

func (s *stormer) compareFile(name string, f *file) error {
	if f.dir {
		list, err := os.ReadDir(s.path(name))
		if err == nil && len(list) > 0 {
			err = fs.ErrExist
		}
		return err
	}
	got, err := os.ReadFile(s.path(name))
	if err != nil {
		return err
	}
	if !bytes.Equal(got, f.content) {
		return fmt.Errorf("%d bytes that differ from the %d written", len(got), len(f.content))
	}
	var st unix.Stat_t
	if err := unix.Stat(s.path(name), &st); err != nil || int(st.Nlink) != f.links {
		return fmt.Errorf("%d links, not %d: %w", st.Nlink, f.links, err)
	}
	for attr, want := range f.attrs {
		b := make([]byte, 64)
		n, err := unix.Getxattr(s.path(name), attr, b)
		if err != nil || string(b[:n]) != want {
			return errors.Join(fmt.Errorf("attribute %s is %q, not %q", attr, b[:max(n, 0)], want), err)
		}
	}
	return nil
}
