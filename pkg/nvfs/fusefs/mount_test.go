package fusefs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMounted checks that requests and replies mean to the kernel what they
// mean here, in every cache mode.
func TestMounted(t *testing.T) {
	for _, transport := range transports {
		for _, kind := range []fsKind{nullKind, engineKind} {
			for _, cache := range []CacheMode{CacheThrough, CacheDirect, CacheWriteback} {
				t.Run(fmt.Sprintf("%s/%s/%s", transport, kind, cache), func(t *testing.T) { testMounted(t, kind, cache, transport) })
			}
		}
	}
}

func testMounted(t *testing.T, kind fsKind, cache CacheMode, transport string) {
	root := mounted(t, kind, cache, transport)
	for name, test := range mountedTests {
		if name == "acl" && kind == nullKind {
			continue // has none
		}
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(root, strings.ReplaceAll(name, " ", "-"))
			must(t, os.Mkdir(dir, 0o777))
			test(t, dir, cache)
		})
	}
}

var mountedTests = map[string]func(t *testing.T, dir string, cache CacheMode){
	"data":           testData,
	"sparse":         testSparse,
	"truncate":       testTruncate,
	"create":         testCreate,
	"names":          testNames,
	"rename":         testRename,
	"directory":      testDirectory,
	"tmpfile":        testTmpfile,
	"unlinked":       testUnlinked,
	"copy range":     testCopyRange,
	"xattr":          testXattr,
	"times":          testTimes,
	"mmap":           testMmap,
	"permissions":    testPermissions,
	"set-ID":         testSetID,
	"special files":  testSpecialFiles,
	"locks":          testLocks,
	"statfs":         testStatfs,
	"negative entry": testNegativeEntry,
	"acl":            testACL,
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func testData(t *testing.T, dir string, _ CacheMode) {
	path := filepath.Join(dir, "f")
	want := pattern(3<<20 + 17)
	must(t, os.WriteFile(path, want, 0o644))
	got, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("data read differs from data written")
	}
	// Overwrite across page borders, append, and write durably.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_SYNC, 0)
	must(t, err)
	defer f.Close()
	copy(want[4090:], "overwritten")
	_, err = f.WriteAt([]byte("overwritten"), 4090)
	must(t, err)
	must(t, f.Sync())
	a, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = a.WriteString("appended")
	must(t, err)
	must(t, a.Close())
	want = append(want, "appended"...)
	got, err = os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("data read differs after overwriting and appending")
	}
	n, err := f.ReadAt(make([]byte, 10), int64(len(want)))
	if n != 0 || err != io.EOF {
		t.Errorf("read at the end: %d, %v", n, err)
	}
}

func testSparse(t *testing.T, dir string, cache CacheMode) {
	f, err := os.Create(filepath.Join(dir, "f"))
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte("data"), 1<<20)
	must(t, err)
	if cache != CacheWriteback { // there the kernel sees no holes
		off, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
		if err != nil || off != 1<<20 {
			t.Errorf("SEEK_DATA: %d, %v", off, err)
		}
		off, err = unix.Seek(int(f.Fd()), 0, unix.SEEK_HOLE)
		if err != nil || off != 0 {
			t.Errorf("SEEK_HOLE: %d, %v", off, err)
		}
	}
	// From now on the hole may be in the page cache, and counts as data.
	b := make([]byte, 4096)
	_, err = f.ReadAt(b, 1<<19)
	must(t, err)
	if !bytes.Equal(b, make([]byte, 4096)) {
		t.Error("a hole does not read as zeros")
	}
	must(t, unix.Fallocate(int(f.Fd()), 0, 0, 2<<20))
	must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1<<20, 4096))
	info, err := f.Stat()
	must(t, err)
	if info.Size() != 2<<20 {
		t.Errorf("size %d after fallocate", info.Size())
	}
	_, err = f.ReadAt(b, 1<<20)
	must(t, err)
	if !bytes.Equal(b, make([]byte, 4096)) {
		t.Error("a punched hole does not read as zeros")
	}
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096); err != unix.EOPNOTSUPP {
		t.Errorf("collapse: %v, want EOPNOTSUPP", err)
	}
	must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_ZERO_RANGE, 0, 4096)) // still allowed after it
}

func testTruncate(t *testing.T, dir string, _ CacheMode) {
	path := filepath.Join(dir, "f")
	must(t, os.WriteFile(path, pattern(10000), 0o644))
	must(t, os.Truncate(path, 5000))
	must(t, os.Truncate(path, 9000))
	got, err := os.ReadFile(path)
	must(t, err)
	if want := append(pattern(5000), make([]byte, 4000)...); !bytes.Equal(got, want) {
		t.Error("data beyond the cut came back")
	}
	// O_TRUNC must not get lost where OPEN is not sent.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	must(t, f.Close())
	info, err := os.Stat(path)
	must(t, err)
	if info.Size() != 0 {
		t.Errorf("size %d after O_TRUNC", info.Size())
	}
}

func testCreate(t *testing.T, dir string, _ CacheMode) {
	old := unix.Umask(0o027)
	defer unix.Umask(old)
	path := filepath.Join(dir, "f")
	// The creator may write whatever the mode says.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o466)
	must(t, err)
	_, err = f.WriteString("x")
	must(t, err)
	must(t, f.Close())
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode().Perm() != 0o440 {
		t.Errorf("mode %o with umask 027", info.Mode().Perm())
	}
	if _, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644); !errors.Is(err, fs.ErrExist) {
		t.Errorf("exclusive creation of a file that exists: %v", err)
	}
	f, err = os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o644)
	must(t, err)
	must(t, f.Close())
	must(t, os.Mkdir(filepath.Join(dir, "d"), 0o777))
	info, err = os.Stat(filepath.Join(dir, "d"))
	must(t, err)
	if info.Mode().Perm() != 0o750 {
		t.Errorf("directory mode %o with umask 027", info.Mode().Perm())
	}
}

func testNames(t *testing.T, dir string, _ CacheMode) {
	a, b, s := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "s")
	must(t, os.WriteFile(a, []byte("x"), 0o644))
	must(t, os.Link(a, b))
	var st unix.Stat_t
	must(t, unix.Stat(a, &st))
	if st.Nlink != 2 {
		t.Errorf("%d links", st.Nlink)
	}
	must(t, os.Symlink("a", s))
	for range 2 { // read, then from the cache
		if target, err := os.Readlink(s); err != nil || target != "a" {
			t.Errorf("symlink to %q, %v", target, err)
		}
	}
	must(t, os.Remove(a))
	must(t, unix.Stat(b, &st))
	if st.Nlink != 1 {
		t.Errorf("%d links after unlink", st.Nlink)
	}
	if _, err := os.Stat(s); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("dangling symlink: %v", err)
	}
	if err := unix.Mkdir(filepath.Join(dir, strings.Repeat("n", 256)), 0o755); err != unix.ENAMETOOLONG {
		t.Errorf("long name: %v", err)
	}
	must(t, os.Mkdir(filepath.Join(dir, strings.Repeat("n", 255)), 0o755))
}

func testRename(t *testing.T, dir string, _ CacheMode) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "sub", "b")
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	must(t, os.WriteFile(a, []byte("a"), 0o644))
	must(t, os.WriteFile(b, []byte("b"), 0o644))
	at := unix.AT_FDCWD
	if err := unix.Renameat2(at, a, at, b, unix.RENAME_NOREPLACE); err != unix.EEXIST {
		t.Errorf("NOREPLACE: %v", err)
	}
	must(t, unix.Renameat2(at, a, at, b, unix.RENAME_EXCHANGE))
	if got, err := os.ReadFile(a); err != nil || string(got) != "b" {
		t.Errorf("after EXCHANGE a holds %q, %v", got, err)
	}
	must(t, os.Rename(a, b))
	if got, err := os.ReadFile(b); err != nil || string(got) != "b" {
		t.Errorf("after rename b holds %q, %v", got, err)
	}
	if _, err := os.Stat(a); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("old name: %v", err)
	}
	if err := unix.Rmdir(filepath.Join(dir, "sub")); err != unix.ENOTEMPTY {
		t.Errorf("rmdir: %v", err)
	}
}

func testDirectory(t *testing.T, dir string, _ CacheMode) {
	const n = 1000
	want := make([]string, n)
	for i := range want {
		want[i] = fmt.Sprintf("%04d-%s", i, strings.Repeat("n", i%100))
		must(t, os.WriteFile(filepath.Join(dir, want[i]), nil, 0o644))
	}
	for range 2 {
		entries, err := os.ReadDir(dir) // sorted
		must(t, err)
		if len(entries) != len(want) {
			t.Fatalf("%d entries, want %d", len(entries), len(want))
		}
		for i, e := range entries {
			if e.Name() != want[i] {
				t.Fatalf("entry %d is %s, want %s", i, e.Name(), want[i])
			}
			info, err := e.Info()
			must(t, err)
			if !info.Mode().IsRegular() {
				t.Errorf("%s is %v", e.Name(), info.Mode())
			}
		}
	}
	// A listing that is cached must notice changes.
	must(t, os.Remove(filepath.Join(dir, want[500])))
	must(t, os.WriteFile(filepath.Join(dir, "zzz"), nil, 0o644))
	want = append(slices.Delete(want, 500, 501), "zzz")
	entries, err := os.ReadDir(dir)
	must(t, err)
	for i, e := range entries {
		if e.Name() != want[i] {
			t.Fatalf("after changes entry %d is %s, want %s", i, e.Name(), want[i])
		}
	}
}

func testTmpfile(t *testing.T, dir string, _ CacheMode) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
	must(t, err)
	f := os.NewFile(uintptr(fd), "tmpfile")
	defer f.Close()
	_, err = f.WriteString("content")
	must(t, err)
	path := filepath.Join(dir, "named")
	must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW))
	if got, err := os.ReadFile(path); err != nil || string(got) != "content" {
		t.Errorf("linked file holds %q, %v", got, err)
	}
}

func testUnlinked(t *testing.T, dir string, _ CacheMode) {
	path := filepath.Join(dir, "f")
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("still here")
	must(t, err)
	must(t, os.Remove(path))
	b := make([]byte, 10)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "still here" {
		t.Errorf("unlinked file holds %q, %v", b, err)
	}
	info, err := f.Stat()
	must(t, err)
	if n := info.Sys(); n == nil {
		t.Error("no attributes")
	}
}

func testCopyRange(t *testing.T, dir string, _ CacheMode) {
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	want := pattern(1<<20 + 11)
	must(t, os.WriteFile(src, want, 0o644))
	in, err := os.Open(src)
	must(t, err)
	defer in.Close()
	out, err := os.Create(dst)
	must(t, err)
	defer out.Close()
	for left := len(want); left > 0; {
		n, err := unix.CopyFileRange(int(in.Fd()), nil, int(out.Fd()), nil, left, 0)
		must(t, err)
		if n == 0 {
			t.Fatal("copy_file_range stopped early")
		}
		left -= n
	}
	got, err := os.ReadFile(dst)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("the copy differs")
	}
}

func testXattr(t *testing.T, dir string, _ CacheMode) {
	path := filepath.Join(dir, "f")
	must(t, os.WriteFile(path, nil, 0o644))
	must(t, unix.Setxattr(path, "user.key", []byte("value"), unix.XATTR_CREATE))
	if err := unix.Setxattr(path, "user.key", []byte("value"), unix.XATTR_CREATE); err != unix.EEXIST {
		t.Errorf("XATTR_CREATE again: %v", err)
	}
	b := make([]byte, 64)
	n, err := unix.Getxattr(path, "user.key", b)
	if err != nil || string(b[:n]) != "value" {
		t.Errorf("value %q, %v", b[:max(n, 0)], err)
	}
	if n, err = unix.Getxattr(path, "user.key", nil); err != nil || n != 5 {
		t.Errorf("size %d, %v", n, err)
	}
	if _, err = unix.Getxattr(path, "user.key", b[:2]); err != unix.ERANGE {
		t.Errorf("small buffer: %v", err)
	}
	if n, err = unix.Listxattr(path, b); err != nil || string(b[:n]) != "user.key\x00" {
		t.Errorf("list %q, %v", b[:max(n, 0)], err)
	}
	must(t, unix.Removexattr(path, "user.key"))
	if _, err = unix.Getxattr(path, "user.key", b); err != unix.ENODATA {
		t.Errorf("after removal: %v", err)
	}
}

func testTimes(t *testing.T, dir string, _ CacheMode) {
	path := filepath.Join(dir, "f")
	must(t, os.WriteFile(path, nil, 0o644))
	var x unix.Statx_t
	must(t, unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_ALL, &x))
	if x.Mask&unix.STATX_BTIME == 0 || x.Btime.Sec == 0 {
		t.Errorf("no birth time: mask %#x", x.Mask)
	}
	ts := []unix.Timespec{{Sec: 1000, Nsec: 1}, {Sec: 2000, Nsec: 999_999_999}}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, 0))
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	if st.Atim != ts[0] || st.Mtim != ts[1] {
		t.Errorf("times %v %v", st.Atim, st.Mtim)
	}
	before := st.Ctim
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}}, 0))
	must(t, unix.Stat(path, &st))
	if st.Atim != ts[0] || st.Mtim.Sec < 1e9 || st.Ctim.Nano() < before.Nano() {
		t.Errorf("after UTIME_NOW: %v %v %v", st.Atim, st.Mtim, st.Ctim)
	}
}

func testMmap(t *testing.T, dir string, _ CacheMode) {
	path := filepath.Join(dir, "f")
	must(t, os.WriteFile(path, make([]byte, 8192), 0o644))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	copy(m[4000:], "through the mapping")
	must(t, unix.Msync(m, unix.MS_SYNC))
	must(t, unix.Munmap(m))
	b := make([]byte, 19)
	if _, err := f.ReadAt(b, 4000); err != nil || string(b) != "through the mapping" {
		t.Errorf("%q, %v", b, err)
	}
}

func testPermissions(t *testing.T, dir string, _ CacheMode) {
	path := filepath.Join(dir, "f")
	must(t, os.WriteFile(path, nil, 0o600))
	must(t, os.Chmod(dir, 0o777))
	asUser(1000, func() {
		if _, err := os.Open(path); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("a foreign file opens: %v", err)
		}
		f, err := os.Create(filepath.Join(dir, "own"))
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Uid != 1000 || st.Gid != 1000 {
			t.Errorf("owner %d:%d, %v", st.Uid, st.Gid, err)
		}
	})
	must(t, os.Chown(path, 1000, 1000))
	asUser(1000, func() {
		f, err := os.Open(path)
		if err != nil {
			t.Errorf("an own file: %v", err)
			return
		}
		f.Close()
	})
}

// execMode is the mode by which the kernel would execute path: what it has
// cached, refreshed by the check for permission when it knows that to be
// stale.
func execMode(t *testing.T, path string) uint16 {
	must(t, unix.Access(path, unix.X_OK))
	var x unix.Statx_t
	must(t, unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_MODE, &x))
	return x.Mode & 0o7777
}

// The kernel leaves it to the filesystem to strip set-ID bits, and must learn
// of it.
func testSetID(t *testing.T, dir string, _ CacheMode) {
	path := filepath.Join(dir, "f")
	setup := func() *os.File {
		must(t, os.WriteFile(path, []byte("program"), 0o666))
		must(t, unix.Chmod(path, 0o6777))
		must(t, os.Chmod(path, 0o777|fs.ModeSetuid|fs.ModeSetgid))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		return f
	}
	check := func(what string, want uint16) {
		t.Helper()
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		if got := uint16(st.Mode & 0o7777); got != want {
			t.Errorf("%s: mode %o, want %o", what, got, want)
		}
	}
	f := setup()
	check("before", 0o6777)
	_, err := f.WriteAt([]byte("root's"), 0)
	must(t, err)
	check("written by root", 0o6777)
	asUser(1000, func() {
		if _, err := f.WriteAt([]byte("other"), 0); err != nil {
			t.Error(err)
		}
	})
	if mode := execMode(t, path); mode&0o6000 != 0 {
		t.Errorf("would be executed with mode %o", mode)
	}
	check("written by another", 0o777)
	f.Close()

	f = setup()
	asUser(1000, func() {
		if err := f.Truncate(3); err != nil {
			t.Error(err)
		}
	})
	check("truncated by another", 0o777)
	f.Close()

	setup().Close()
	must(t, os.Chown(path, 1000, 1000))
	check("given away", 0o777)
}

func testSpecialFiles(t *testing.T, dir string, _ CacheMode) {
	path := filepath.Join(dir, "fifo")
	must(t, unix.Mkfifo(path, 0o644))
	dev := filepath.Join(dir, "null")
	must(t, unix.Mknod(dev, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		t.Errorf("mode %o", st.Mode)
	}
	must(t, unix.Stat(dev, &st))
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Major(st.Rdev) != 1 || unix.Minor(st.Rdev) != 3 {
		t.Errorf("mode %o, device %d:%d", st.Mode, unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
}

// Locks are the kernel's own.
func testLocks(t *testing.T, dir string, _ CacheMode) {
	path := filepath.Join(dir, "f")
	a, err := os.Create(path)
	must(t, err)
	defer a.Close()
	b, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer b.Close()
	must(t, unix.Flock(int(a.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	if err := unix.Flock(int(b.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("second flock: %v", err)
	}
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	must(t, unix.FcntlFlock(a.Fd(), unix.F_OFD_SETLK, &lk))
	if err := unix.FcntlFlock(b.Fd(), unix.F_OFD_SETLK, &lk); err != unix.EAGAIN {
		t.Errorf("second lock: %v", err)
	}
}

func testStatfs(t *testing.T, dir string, _ CacheMode) {
	var st unix.Statfs_t
	must(t, unix.Statfs(dir, &st))
	if st.Type != unix.FUSE_SUPER_MAGIC || st.Blocks == 0 || st.Blocks > 64<<20/4096 || st.Bfree > st.Blocks || st.Bsize != 4096 || st.Namelen != 255 {
		t.Errorf("%+v", st)
	}
}

// The kernel remembers that a name is absent, until it makes it itself.
func testNegativeEntry(t *testing.T, dir string, _ CacheMode) {
	path := filepath.Join(dir, "f")
	for range 2 {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("absent file: %v", err)
		}
	}
	must(t, os.WriteFile(path, nil, 0o644))
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	must(t, os.Remove(path))
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed file: %v", err)
	}
	must(t, os.Mkdir(path, 0o755))
}

// acl composes an ACL in its extended attribute's format, from triples of tag,
// permission and ID.
func acl(entries ...[3]uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range entries {
		b = binary.LittleEndian.AppendUint16(b, uint16(e[0]))
		b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
		b = binary.LittleEndian.AppendUint32(b, e[2])
	}
	return b
}

// Tags of ACL entries.
const (
	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclMask     = 0x10
	aclOther    = 0x20
	aclNoID     = 0xffffffff
)

func testACL(t *testing.T, dir string, _ CacheMode) {
	must(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "f")
	must(t, os.WriteFile(path, []byte("x"), 0o600))
	open := func(uid int, path string) (err error) {
		asUser(uid, func() {
			var f *os.File
			if f, err = os.OpenFile(path, os.O_RDWR, 0); err == nil {
				f.Close()
			}
		})
		return err
	}
	if err := open(1000, path); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("without an ACL: %v", err)
	}
	list := acl([3]uint32{aclUserObj, 6, aclNoID}, [3]uint32{aclUser, 6, 1000}, [3]uint32{aclGroupObj, 4, aclNoID},
		[3]uint32{aclMask, 6, aclNoID}, [3]uint32{aclOther, 0, aclNoID})
	must(t, unix.Setxattr(path, "system.posix_acl_access", list, 0))
	if err := open(1000, path); err != nil {
		t.Errorf("with an ACL: %v", err)
	}
	if err := open(1001, path); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("another user: %v", err)
	}
	// The group bits of the mode are the mask.
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	if st.Mode&0o777 != 0o660 {
		t.Errorf("mode %o", st.Mode&0o777)
	}
	must(t, os.Chmod(path, 0o600))
	if err := open(1000, path); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("with an empty mask: %v", err)
	}
	// A default ACL is inherited, and the umask then does not count.
	must(t, unix.Setxattr(dir, "system.posix_acl_default", list, 0))
	old := unix.Umask(0o077)
	inherits := filepath.Join(dir, "g")
	err := os.WriteFile(inherits, nil, 0o666)
	unix.Umask(old)
	must(t, err)
	if err := open(1000, inherits); err != nil {
		t.Errorf("with an inherited ACL: %v", err)
	}
	must(t, unix.Stat(inherits, &st))
	if st.Mode&0o777 != 0o660 {
		t.Errorf("mode %o of the file that inherits", st.Mode&0o777)
	}
}

func TestMountFlags(t *testing.T) {
	o := MountOptions{ReadOnly: true, Flags: []string{"nosuid", "noexec"}}
	flags, err := o.flags()
	if err != nil || flags != unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NOEXEC {
		t.Errorf("%#x, %v", flags, err)
	}
	o.Flags = []string{"dax"}
	if _, err := Mount(t.TempDir(), o); err == nil || !strings.Contains(err.Error(), `"dax"`) || !strings.Contains(err.Error(), "noexec") {
		t.Errorf("unknown flag: %v", err)
	}
}
