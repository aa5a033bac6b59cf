package nvfs_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
)

// sparseFile makes a file of 100 blocks of which only block 50 is data.
func sparseFile(t *testing.T, m *mounted, name string) nvfs.NodeID {
	t.Helper()
	var a nvfs.Attr
	if err := m.Mknod(nvfs.RootID, []byte(name), &nvfs.CreateArgs{Mode: unix.S_IFREG | 0o600}, &a); err != nil {
		t.Fatal(err)
	}
	if err := m.SetAttr(a.ID, &nvfs.SetAttr{Valid: nvfs.SetSize, Size: 100 * 4096}, &a); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Write(a.ID, 50*4096, []byte("data"), 0); err != nil {
		t.Fatal(err)
	}
	return a.ID
}

// segments lists data as SEEK_DATA and SEEK_HOLE tell it, in blocks.
func segments(t *testing.T, m *mounted, id nvfs.NodeID) string {
	t.Helper()
	out := ""
	for pos := uint64(0); ; {
		data, err := m.Lseek(id, pos, unix.SEEK_DATA)
		if errors.Is(err, syscall.ENXIO) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if pos, err = m.Lseek(id, data, unix.SEEK_HOLE); err != nil {
			t.Fatal(err)
		}
		out += fmt.Sprintf("[%d %d)", data/4096, pos/4096)
	}
}

// TestHolesThatWereRead wants what was read of a hole to count as data, since
// the kernel may hold it in its page cache and change it there, until the
// inode is forgotten.
func TestHolesThatWereRead(t *testing.T) {
	space := newSpace(16 << 20)
	format(t, space, mkfs.Options{})
	m := mount(t, space, nil)
	id := sparseFile(t, m, "f")
	read := func(block, count int) {
		t.Helper()
		if _, err := m.Read(id, uint64(block)*4096, make([]byte, count*4096)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what, list string) {
		t.Helper()
		if got := segments(t, m, id); got != list {
			t.Errorf("%s: data is %s, want %s", what, got, list)
		}
	}
	read(0, 100)
	want("without a cache above", "[50 51)")
	m.TrackHoles()
	want("before a read", "[50 51)")
	read(10, 2)
	want("after a read", "[10 12)[50 51)")
	read(40, 20)
	want("after a read around data", "[10 12)[40 60)")
	read(12, 1)
	read(9, 1)
	want("after reads beside another", "[9 13)[40 60)")
	read(99, 4)
	want("after a read across the end", "[9 13)[40 60)[99 100)")
	if _, err := m.Write(id, 11*4096, []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	want("after a write", "[9 13)[40 60)[99 100)")
	if off, err := m.Lseek(id, 12*4096+5, unix.SEEK_DATA); err != nil || off != 12*4096+5 {
		t.Errorf("SEEK_DATA inside finds %d, %v", off, err)
	}
	if off, err := m.Lseek(id, 5, unix.SEEK_HOLE); err != nil || off != 5 {
		t.Errorf("SEEK_HOLE before finds %d, %v", off, err)
	}
	read(0, 100)
	want("after a read of all", "[0 100)")
	m.Forget(id, 1)
	want("once the inode is forgotten", "[11 12)[50 51)")
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}

// TestManyHolesThatWereRead reads more places and files than are told apart:
// nothing that was read may count as a hole.
func TestManyHolesThatWereRead(t *testing.T) {
	space := newSpace(160 << 20)
	format(t, space, mkfs.Options{BytesPerInode: 8192})
	m := mount(t, space, nil)
	m.TrackHoles()
	id := sparseFile(t, m, "f")
	for block := 0; block < 100; block += 2 {
		if _, err := m.Read(id, uint64(block)*4096+100, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
	}
	for block := 0; block < 100; block += 2 {
		if off, err := m.Lseek(id, uint64(block)*4096, unix.SEEK_DATA); err != nil || off != uint64(block)*4096 {
			t.Errorf("SEEK_DATA of block %d, which was read, finds %d, %v", block, off, err)
		}
	}
	if got := segments(t, m, id); got == "[0 100)" {
		t.Error("everything is data, although half was not read")
	}
	var a nvfs.Attr
	for i := range 17 << 10 {
		err := m.Mknod(nvfs.RootID, fmt.Appendf(nil, "%d", i), &nvfs.CreateArgs{Mode: unix.S_IFREG | 0o600}, &a)
		if err == nil {
			err = m.SetAttr(a.ID, &nvfs.SetAttr{Valid: nvfs.SetSize, Size: 4096}, &a)
		}
		if err == nil {
			_, err = m.Read(a.ID, 0, make([]byte, 4096))
		}
		if err != nil {
			t.Fatal(err)
		}
		if off, err := m.Lseek(a.ID, 0, unix.SEEK_DATA); err != nil || off != 0 {
			t.Fatalf("file %d, which was read: SEEK_DATA finds %d, %v", i, off, err)
		}
	}
}

// TestLookupByHandle looks inodes up by their number, as the kernel does for
// open_by_handle_at(2) when it has forgotten them.
func TestLookupByHandle(t *testing.T) {
	space := newSpace(16 << 20)
	format(t, space, mkfs.Options{})
	m := mount(t, space, nil)
	var a, b nvfs.Attr
	for _, typ := range []uint32{unix.S_IFREG, unix.S_IFIFO, unix.S_IFDIR, unix.S_IFLNK} {
		name := fmt.Appendf(nil, "%o", typ)
		var err error
		switch typ {
		case unix.S_IFDIR:
			err = m.Mkdir(nvfs.RootID, name, &nvfs.CreateArgs{Mode: 0o700}, &a)
		case unix.S_IFLNK:
			err = m.Symlink(nvfs.RootID, name, []byte("target"), &nvfs.CreateArgs{}, &a)
		default:
			err = m.Mknod(nvfs.RootID, name, &nvfs.CreateArgs{Mode: typ | 0o600}, &a)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Lookup(a.ID, []byte("."), &b); err != nil || b != a {
			t.Errorf("type %o: %+v, %v; want %+v", typ, b, err, a)
		}
		if typ != unix.S_IFDIR {
			for _, name := range []string{"..", "x"} {
				if err := m.Lookup(a.ID, []byte(name), &b); !errors.Is(err, syscall.ENOTDIR) {
					t.Errorf("type %o: %q below it: %v", typ, name, err)
				}
			}
		}
		if typ == unix.S_IFDIR {
			err = m.Rmdir(nvfs.RootID, name)
		} else {
			err = m.Unlink(nvfs.RootID, name)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Lookup(a.ID, []byte("."), &b); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("type %o, without a name but in use: %v, want ESTALE", typ, err)
		}
		m.Forget(a.ID, 2)
		if err := m.Lookup(a.ID, []byte("."), &b); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("type %o, gone: %v, want ESTALE", typ, err)
		}
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}

// TestXattrNames checks which names are refused, and how.
func TestXattrNames(t *testing.T) {
	space := newSpace(16 << 20)
	format(t, space, mkfs.Options{})
	m := mount(t, space, nil)
	for name, want := range map[string]error{
		"user.": syscall.EINVAL, "trusted.": syscall.EINVAL, "security.": syscall.EINVAL,
		"user": syscall.EOPNOTSUPP, "system.x": syscall.EOPNOTSUPP, "nosuch.x": syscall.EOPNOTSUPP, "user.x": nil,
	} {
		if err := m.SetXattr(nvfs.RootID, []byte(name), []byte("v"), 0); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
	}
	var before, after nvfs.Attr
	if err := m.GetAttr(nvfs.RootID, &before); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{aclAccess, aclDefault} {
		if err := m.RemoveXattr(nvfs.RootID, []byte(name)); err != nil {
			t.Errorf("removal of %s, which there is none of: %v", name, err)
		}
	}
	if err := m.GetAttr(nvfs.RootID, &after); err != nil || before != after {
		t.Errorf("that changed %+v to %+v, %v", before, after, err)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
}
