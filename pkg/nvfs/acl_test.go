package nvfs_test

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
)

const (
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
)

// acl encodes entries {tag, permissions, id} as the kernel does.
func acl(entries ...[3]uint32) []byte {
	p := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range entries {
		p = binary.LittleEndian.AppendUint16(p, uint16(e[0]))
		p = binary.LittleEndian.AppendUint16(p, uint16(e[1]))
		p = binary.LittleEndian.AppendUint32(p, e[2])
	}
	return p
}

const undefined = 1<<32 - 1

func minimalACL(user, group, other uint32) []byte {
	return acl([3]uint32{1, user, undefined}, [3]uint32{4, group, undefined}, [3]uint32{0x20, other, undefined})
}

func extendedACL(user, named, group, mask, other uint32) []byte {
	return acl([3]uint32{1, user, undefined}, [3]uint32{2, named, 77}, [3]uint32{4, group, undefined},
		[3]uint32{0x10, mask, undefined}, [3]uint32{0x20, other, undefined})
}

// TestACL checks that ACLs and modes stay in step and that new inodes inherit
// the default ACL instead of the umask.
func TestACL(t *testing.T) {
	space := newSpace(16 << 20)
	format(t, space, mkfs.Options{})
	m := mount(t, space, nil)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	expect := func(path string, mode uint32, want map[string][]byte) {
		t.Helper()
		var a nvfs.Attr
		must(m.GetAttr(m.id(path), &a))
		if a.Mode&07777 != mode {
			t.Errorf("%s: mode %o, want %o", path, a.Mode&07777, mode)
		}
		have, err := m.xattrs(a.ID)
		must(err)
		if !slices.Equal(slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(want))) {
			t.Errorf("%s: attributes %q", path, have)
		}
		for name, v := range want {
			if have[name] != string(v) {
				t.Errorf("%s: %s is %x, want %x", path, name, have[name], v)
			}
		}
	}
	create := func(dir, name string, mode uint32) {
		t.Helper()
		var a nvfs.Attr
		c := &nvfs.CreateArgs{Mode: mode, Umask: 027}
		if mode&unix.S_IFMT == unix.S_IFDIR {
			must(m.Mkdir(m.id(dir), []byte(name), c, &a))
		} else {
			must(m.Mknod(m.id(dir), []byte(name), c, &a))
		}
		m.Forget(a.ID, 1)
	}
	set := func(path, name string, v []byte) error { return m.SetXattr(m.id(path), []byte(name), v, 0) }

	create("", "plain", unix.S_IFREG|0666)
	expect("plain", 0640, nil)
	must(set("plain", aclAccess, minimalACL(7, 5, 1)))
	expect("plain", 0751, nil)
	must(set("plain", aclAccess, extendedACL(7, 6, 4, 7, 0)))
	expect("plain", 0770, map[string][]byte{aclAccess: extendedACL(7, 6, 4, 7, 0)})
	must(m.set("plain", nvfs.SetAttr{Valid: nvfs.SetMode, Mode: 0614}))
	expect("plain", 0614, map[string][]byte{aclAccess: extendedACL(6, 6, 4, 1, 4)})
	must(set("plain", aclAccess, minimalACL(6, 4, 4)))
	expect("plain", 0644, nil)

	create("", "dir", unix.S_IFDIR|0777)
	expect("dir", 0750, nil)
	def := extendedACL(7, 5, 5, 7, 4)
	must(set("dir", aclDefault, def))
	expect("dir", 0750, map[string][]byte{aclDefault: def})
	create("dir", "file", unix.S_IFREG|0666)
	expect("dir/file", 0664, map[string][]byte{aclAccess: extendedACL(6, 5, 5, 6, 4)})
	create("dir", "sub", unix.S_IFDIR|0700)
	expect("dir/sub", 0700, map[string][]byte{aclAccess: extendedACL(7, 5, 5, 0, 0), aclDefault: def})
	must(set("dir", aclDefault, minimalACL(7, 5, 0)))
	create("dir", "simple", unix.S_IFREG|0666)
	expect("dir/simple", 0640, nil)
	must(m.RemoveXattr(m.id("dir"), []byte(aclDefault)))
	create("dir", "masked", unix.S_IFREG|0666)
	expect("dir/masked", 0640, nil)

	if err := set("plain", aclDefault, def); !errors.Is(err, syscall.EACCES) {
		t.Errorf("default ACL of a file: %v", err)
	}
	for _, bad := range [][]byte{{1}, {3, 0, 0, 0}, append(def, 0)} {
		if err := set("plain", aclAccess, bad); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("ACL %x: %v", bad, err)
		}
	}
	must(m.unmount())
}
