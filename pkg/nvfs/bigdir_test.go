package nvfs_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
)

// bigDirectory is the number of names in TestBigDirectory; NVFS_TEST_NAMES
// sets it.
func bigDirectory(t *testing.T) int {
	if v := os.Getenv("NVFS_TEST_NAMES"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("NVFS_TEST_NAMES=%q", v)
		}
		return n
	}
	if brief() {
		return 20_000
	}
	return 200_000
}

func bigName(i int) []byte {
	if i%1000 == 7 { // now and then as long as can be
		return fmt.Appendf(nil, "%0255d", i)
	}
	return fmt.Appendf(nil, "name-%d", i)
}

// readSome lists up to n names after a cookie.
func (m *mounted) readSome(dir nvfs.NodeID, cookie uint64, n int) (list []string, next uint64, err error) {
	next = cookie
	err = m.ReadDir(dir, cookie, func(e *nvfs.DirEntry) bool {
		if len(list) == n {
			return false
		}
		list, next = append(list, string(e.Name)), e.Cookie
		return true
	})
	return list, next, err
}

// TestBigDirectory makes, finds, lists and removes many names. While they are
// listed piecewise, others come and go.
func TestBigDirectory(t *testing.T) {
	t.Parallel()
	count := bigDirectory(t)
	space := newSpace(uint64(count)*2048 + 64<<20)
	format(t, space, mkfs.Options{BytesPerInode: 4096})
	m := mount(t, space, nil)
	empty := m.totals()
	dir, err := m.create(nvfs.RootID, "dir", unix.S_IFDIR|0755)
	if err != nil {
		t.Fatal(err)
	}
	target, err := m.create(nvfs.RootID, "target", unix.S_IFREG|0644)
	if err != nil {
		t.Fatal(err)
	}
	var a nvfs.Attr
	add := func(name []byte) error {
		err := m.Link(target, dir, name, &a)
		if err == nil {
			m.Forget(a.ID, 1)
		}
		return err
	}
	for i := range count {
		if err := add(bigName(i)); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := add(bigName(count / 2)); !errors.Is(err, syscall.EEXIST) {
		t.Fatal(err)
	}
	for i := range count {
		if err := m.Lookup(dir, bigName(i), &a); err != nil || a.ID != target {
			t.Fatal(i, err)
		}
		m.Forget(a.ID, 1)
		if i%16 == 0 {
			if err := m.Lookup(dir, fmt.Appendf(nil, "name-%d", count+i), &a); !errors.Is(err, syscall.ENOENT) {
				t.Fatal(i, err)
			}
		}
	}
	depth := 0
	for i := range min(count, 1000) {
		d, err := m.DirDepth(dir, bigName(i))
		if err != nil {
			t.Fatal(err)
		}
		depth = max(depth, d)
	}
	// A leaf holds about 90 names and is at least half full; an index block
	// has 256 slots.
	if want := 2; count <= 500_000 && depth > want {
		t.Errorf("depth %d for %d names", depth, count)
	}

	seen := make(map[string]int, count)
	for cookie, round := uint64(0), 0; ; round++ {
		list, next, err := m.readSome(dir, cookie, 37)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			break
		}
		cookie = next
		for _, name := range list {
			seen[name]++
		}
		if round%8 == 0 { // others come and go
			passing := fmt.Appendf(nil, "passing-%d", round)
			if err := add(passing); err != nil {
				t.Fatal(err)
			}
			if round >= 64 {
				if err := m.Unlink(dir, fmt.Appendf(nil, "passing-%d", round-64)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for i := range count {
		if n := seen[string(bigName(i))]; n != 1 {
			t.Fatalf("%q was listed %d times", bigName(i), n)
		}
	}
	for name, n := range seen {
		if n > 1 {
			t.Fatalf("%q was listed %d times", name, n)
		}
	}
	for i := range count {
		if err := m.Unlink(dir, bigName(i)); err != nil {
			t.Fatal(i, err)
		}
		if i == count/2 {
			if err := m.Rmdir(nvfs.RootID, []byte("dir")); !errors.Is(err, syscall.ENOTEMPTY) {
				t.Fatal(err)
			}
		}
	}
	list, err := m.names(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name := range list {
		if !strings.HasPrefix(name, "passing-") {
			t.Fatalf("%q is left", name)
		}
	}
	if err := m.removeAll(nvfs.RootID); err != nil {
		t.Fatal(err)
	}
	if s := m.totals(); s != empty {
		t.Fatalf("space is lost:\n have %+v\n want %+v", s, empty)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}
