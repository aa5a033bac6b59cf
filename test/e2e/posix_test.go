package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const nobody = 65534

// posixCases are what programs rely on. Each gets an empty directory of its
// own on a mounted volume.
var posixCases = []struct {
	name string
	run  func(t *testing.T, dir string)
}{
	{"names", posixNames},
	{"rename", posixRename},
	{"rename exchange", posixExchange},
	{"hard links", posixLinks},
	{"symbolic links", posixSymlinks},
	{"open and unlinked", posixUnlinkedOpen},
	{"O_TMPFILE", posixTmpfile},
	{"special files", posixSpecialFiles},
	{"times", posixTimes},
	{"truncate", posixTruncate},
	{"fallocate", posixFallocate},
	{"holes", posixHoles},
	{"copy_file_range", posixCopyFileRange},
	{"extended attributes", posixXattrs},
	{"shared mapping", posixMapping},
	{"concurrent appends", posixAppends},
	{"large directory", posixLargeDirectory},
	{"permissions", posixPermissions},
	{"set-ID bits", posixSetID},
	{"umask and sticky", posixUmask},
	{"locks", posixLocks},
	{"directories", posixDirectories},
}

func TestPOSIX(t *testing.T) {
	for _, cache := range []string{"through", "direct", "writeback"} {
		t.Run(cache, func(t *testing.T) {
			v := newVolume(t, 1<<30)
			v.mount(t, "cache="+cache)
			if err := os.Chmod(v.mnt, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, c := range posixCases {
				t.Run(c.name, func(t *testing.T) {
					dir := v.path(strings.ReplaceAll(c.name, " ", "-"))
					if err := os.Mkdir(dir, 0o755); err != nil {
						t.Fatal(err)
					}
					c.run(t, dir)
				})
			}
			before := describeTree(t, v.mnt)
			v.unmount(t)
			v.check(t)
			v.mount(t, "cache="+cache)
			if after := describeTree(t, v.mnt); after != before {
				t.Errorf("the tree changed with a remount:\n%s", firstDifference(before, after))
			}
		})
	}
}

// describeTree is one line for each name below dir.
func describeTree(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		target, _ := os.Readlink(name)
		lines = append(lines, fmt.Sprintf("%q mode %o nlink %d uid %d gid %d rdev %d size %d blocks %d mtime %d.%d ctime %d.%d -> %q xattr %s",
			name, st.Mode, st.Nlink, st.Uid, st.Gid, st.Rdev, st.Size, st.Blocks, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec,
			target, listXattrs(name)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func listXattrs(name string) string {
	list := make([]byte, 4096)
	n, err := unix.Llistxattr(name, list)
	if err != nil {
		return err.Error()
	}
	names := strings.Split(strings.TrimSuffix(string(list[:n]), "\x00"), "\x00")
	slices.Sort(names)
	return strings.Join(names, ",")
}

func firstDifference(a, b string) string {
	la, lb := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(la), len(lb)) {
		if la[i] != lb[i] {
			return "before " + la[i] + "\nafter  " + lb[i]
		}
	}
	return fmt.Sprintf("%d names before, %d after", len(la), len(lb))
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func wantFile(t *testing.T, name, content string) {
	t.Helper()
	if got, err := os.ReadFile(name); err != nil || string(got) != content {
		t.Errorf("%s holds %.60q (%d bytes), %v; want %.60q (%d bytes)", name, got, len(got), err, content, len(content))
	}
}

func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func stat(t *testing.T, name string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		t.Fatalf("lstat %s: %v", name, err)
	}
	return st
}

func check(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func posixNames(t *testing.T, dir string) {
	names := []string{strings.Repeat("n", 255), "ä", "a b", "-", "\x01\xff\xfe", "new\nline", strings.Repeat("ß", 127), "..."}
	for _, n := range names {
		write(t, filepath.Join(dir, n), n)
	}
	for _, n := range names {
		wantFile(t, filepath.Join(dir, n), n)
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != len(names) {
		t.Errorf("%d names, %v; want %d", len(list), err, len(names))
	}
	wantErrno(t, "name of 256 bytes", os.WriteFile(filepath.Join(dir, strings.Repeat("n", 256)), nil, 0o600), syscall.ENAMETOOLONG)
}

func posixRename(t *testing.T, dir string) {
	a, b, sub := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "sub")
	write(t, a, "a")
	write(t, b, "b")
	check(t, "rename over a file", os.Rename(a, b))
	wantFile(t, b, "a")
	wantErrno(t, "the old name", os.Rename(a, b), syscall.ENOENT)
	check(t, "mkdir", os.MkdirAll(filepath.Join(sub, "inner"), 0o755))
	wantErrno(t, "a directory into itself", unix.Rename(sub, filepath.Join(sub, "inner", "sub")), syscall.EINVAL)
	wantErrno(t, "a file over a directory", unix.Rename(b, sub), syscall.EISDIR)
	wantErrno(t, "a directory over a file", unix.Rename(sub, b), syscall.ENOTDIR)
	check(t, "mkdir", os.Mkdir(filepath.Join(dir, "empty"), 0o755))
	wantErrno(t, "over a directory that is not empty", unix.Rename(filepath.Join(dir, "empty"), sub), syscall.ENOTEMPTY)
	check(t, "over an empty directory", unix.Rename(sub, filepath.Join(dir, "empty")))
	if _, err := os.Stat(filepath.Join(dir, "empty", "inner")); err != nil {
		t.Error(err)
	}
	check(t, "to another directory", os.Rename(b, filepath.Join(dir, "empty", "inner", "b")))
	wantFile(t, filepath.Join(dir, "empty", "inner", "b"), "a")
	write(t, a, "a")
	write(t, b, "b")
	wantErrno(t, "RENAME_NOREPLACE", unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_NOREPLACE), syscall.EEXIST)
	check(t, "RENAME_NOREPLACE to a free name", unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, filepath.Join(dir, "c"), unix.RENAME_NOREPLACE))
	if st := stat(t, dir); st.Nlink != 3 {
		t.Errorf("the directory has %d links, want 3", st.Nlink)
	}
}

func posixExchange(t *testing.T, dir string) {
	f, d := filepath.Join(dir, "f"), filepath.Join(dir, "x", "d")
	write(t, f, "file")
	check(t, "mkdir", os.MkdirAll(filepath.Join(d, "in"), 0o755))
	check(t, "exchange", unix.Renameat2(unix.AT_FDCWD, f, unix.AT_FDCWD, d, unix.RENAME_EXCHANGE))
	wantFile(t, d, "file")
	if _, err := os.Stat(filepath.Join(f, "in")); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]uint64{dir: 4, filepath.Join(dir, "x"): 2, f: 3} {
		if st := stat(t, name); st.Nlink != want {
			t.Errorf("%s has %d links, want %d", name, st.Nlink, want)
		}
	}
	wantErrno(t, "exchange with nothing", unix.Renameat2(unix.AT_FDCWD, f, unix.AT_FDCWD, filepath.Join(dir, "nothing"), unix.RENAME_EXCHANGE), syscall.ENOENT)
}

func posixLinks(t *testing.T, dir string) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "linked")
	check(t, "link", os.Link(a, b))
	sa, sb := stat(t, a), stat(t, b)
	if sa.Ino != sb.Ino || sa.Nlink != 2 {
		t.Errorf("inodes %d and %d, %d links", sa.Ino, sb.Ino, sa.Nlink)
	}
	wantErrno(t, "link over a name", os.Link(a, b), syscall.EEXIST)
	wantErrno(t, "link of a directory", os.Link(dir, filepath.Join(dir, "d")), syscall.EPERM)
	check(t, "unlink", os.Remove(a))
	wantFile(t, b, "linked")
	if st := stat(t, b); st.Nlink != 1 {
		t.Errorf("%d links, want 1", st.Nlink)
	}
}

func posixSymlinks(t *testing.T, dir string) {
	for _, target := range []string{"x", strings.Repeat("t", 300), strings.Repeat("/long", 800)} {
		name := filepath.Join(dir, fmt.Sprint(len(target)))
		check(t, "symlink", os.Symlink(target, name))
		if got, err := os.Readlink(name); err != nil || got != target {
			t.Errorf("a link of %d bytes reads as %d bytes, %v", len(target), len(got), err)
		}
		if st := stat(t, name); st.Size != int64(len(target)) {
			t.Errorf("size %d, want %d", st.Size, len(target))
		}
	}
	check(t, "symlink", os.Symlink("loop", filepath.Join(dir, "loop")))
	_, err := os.Stat(filepath.Join(dir, "loop"))
	wantErrno(t, "a loop of links", err, syscall.ELOOP)
}

func posixUnlinkedOpen(t *testing.T, dir string) {
	before := freeSpace(t, dir)
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	content := bytes.Repeat([]byte("still here "), 200000)
	if _, err := f.Write(content); err != nil {
		t.Error(err)
	}
	check(t, "unlink", os.Remove(f.Name()))
	got := make([]byte, len(content))
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, content) {
		t.Errorf("an open file lost its content with its name: %v", err)
	}
	if _, err := f.WriteAt([]byte("more"), int64(len(content))); err != nil {
		t.Error(err)
	}
	check(t, "close", f.Close())
	eventually(t, "the space of the file is free", func() bool { return freeSpace(t, dir) == before })
}

func posixTmpfile(t *testing.T, dir string) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "tmpfile")
	defer f.Close()
	if _, err := f.WriteString("without a name"); err != nil {
		t.Error(err)
	}
	name := filepath.Join(dir, "named")
	check(t, "link a tmpfile", unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW))
	wantFile(t, name, "without a name")
	if st := stat(t, name); st.Nlink != 1 || st.Mode&0o777 != 0o640 {
		t.Errorf("%d links, mode %o", st.Nlink, st.Mode)
	}
}

func posixSpecialFiles(t *testing.T, dir string) {
	for name, tc := range map[string]struct {
		mode uint32
		dev  uint64
	}{
		"fifo": {unix.S_IFIFO | 0o600, 0}, "socket": {unix.S_IFSOCK | 0o600, 0},
		"char": {unix.S_IFCHR | 0o600, unix.Mkdev(1, 3)}, "block": {unix.S_IFBLK | 0o600, unix.Mkdev(259, 1048575)},
		"whiteout": {unix.S_IFCHR, 0}, "regular": {unix.S_IFREG | 0o644, 0},
	} {
		path := filepath.Join(dir, name)
		if err := unix.Mknod(path, tc.mode, int(tc.dev)); err != nil {
			t.Errorf("mknod %s: %v", name, err)
			continue
		}
		if st := stat(t, path); st.Mode != tc.mode&^0o022 || st.Rdev != tc.dev {
			t.Errorf("%s: mode %o device %d, want %o and %d", name, st.Mode, st.Rdev, tc.mode, tc.dev)
		}
	}
}

func posixTimes(t *testing.T, dir string) {
	name := filepath.Join(dir, "f")
	write(t, name, "x")
	for _, want := range []unix.Timespec{{Sec: 1, Nsec: 999999999}, {Sec: -1000000, Nsec: 5}, {Sec: 5000000000, Nsec: 123456789}} {
		check(t, "utimensat", unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{want, want}, 0))
		if st := stat(t, name); st.Mtim != want || st.Atim != want {
			t.Errorf("times %v and %v, want %v", st.Atim, st.Mtim, want)
		}
	}
	before := stat(t, name)
	// In writeback mode times are the kernel's, which tick slowly.
	eventually(t, "chmod changes ctime", func() bool {
		check(t, "chmod", os.Chmod(name, 0o600))
		return stat(t, name).Ctim != before.Ctim
	})
	if after := stat(t, name); after.Mtim != before.Mtim {
		t.Errorf("chmod changes mtime from %v to %v", before.Mtim, after.Mtim)
	}
	var stx unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, name, 0, unix.STATX_BTIME, &stx); err != nil || stx.Mask&unix.STATX_BTIME == 0 || stx.Btime.Sec == 0 {
		t.Errorf("no time of birth: %v, mask %#x, %v", err, stx.Mask, stx.Btime)
	}
}

func posixTruncate(t *testing.T, dir string) {
	name := filepath.Join(dir, "f")
	for _, size := range []int64{100, 3000, 4096, 10000, 5 << 20} {
		write(t, name, strings.Repeat("x", int(size)))
		check(t, "shrink", os.Truncate(name, size/3))
		check(t, "grow", os.Truncate(name, size*2))
		want := strings.Repeat("x", int(size/3)) + strings.Repeat("\x00", int(size*2-size/3))
		wantFile(t, name, want)
		check(t, "empty", os.Truncate(name, 0))
		if st := stat(t, name); st.Size != 0 || st.Blocks != 0 {
			t.Errorf("an emptied file has size %d and %d blocks", st.Size, st.Blocks)
		}
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "write", errors.Join(func() error { _, err := f.WriteString("abc"); return err }(), f.Close()))
	if f, err = os.OpenFile(name, os.O_RDWR|os.O_TRUNC, 0); err != nil {
		t.Fatal(err)
	}
	check(t, "close", f.Close())
	wantFile(t, name, "") // O_TRUNC
}

func posixFallocate(t *testing.T, dir string) {
	name := filepath.Join(dir, "f")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd := int(f.Fd())
	check(t, "allocate", unix.Fallocate(fd, 0, 0, 1<<20))
	if st := stat(t, name); st.Size != 1<<20 || st.Blocks < 2048 {
		t.Errorf("size %d, %d blocks", st.Size, st.Blocks)
	}
	wantFile(t, name, strings.Repeat("\x00", 1<<20))
	check(t, "keep size", unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 1<<20, 1<<20))
	if st := stat(t, name); st.Size != 1<<20 || st.Blocks < 4096 {
		t.Errorf("size %d, %d blocks", st.Size, st.Blocks)
	}
	content := []byte(strings.Repeat("0123456789abcdef", 1<<16))
	if _, err := f.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	check(t, "punch", unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 5000, 300000))
	clear(content[5000:305000])
	wantFile(t, name, string(content))
	check(t, "zero", unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, 400001, 12345))
	clear(content[400001 : 400001+12345])
	wantFile(t, name, string(content))
	wantErrno(t, "collapse", unix.Fallocate(fd, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096), syscall.EOPNOTSUPP)
}

func posixHoles(t *testing.T, dir string) {
	name := filepath.Join(dir, "sparse")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const far = 1 << 40
	for _, off := range []int64{0, 1 << 30, far} {
		if _, err := f.WriteAt([]byte("island"), off); err != nil {
			t.Fatal(err)
		}
	}
	if st := stat(t, name); st.Size != far+6 || st.Blocks > 1000 {
		t.Errorf("size %d, %d blocks", st.Size, st.Blocks)
	}
	got := make([]byte, 4096)
	if n, err := f.ReadAt(got, 1<<35); n != len(got) || err != nil || !bytes.Equal(got, make([]byte, len(got))) {
		t.Errorf("a hole reads as %d bytes, %v", n, err)
	}
	if n, err := f.ReadAt(got, far); n != 6 || err != io.EOF || string(got[:6]) != "island" {
		t.Errorf("the end reads as %q, %v", got[:n], err)
	}
	// A filesystem may answer SEEK_DATA with more than there is, never less.
	pos, err := unix.Seek(int(f.Fd()), 1<<20, unix.SEEK_DATA)
	if err != nil || pos > 1<<30 {
		t.Errorf("SEEK_DATA finds %d, %v", pos, err)
	}
	_, err = unix.Seek(int(f.Fd()), far+100, unix.SEEK_DATA)
	wantErrno(t, "SEEK_DATA behind the end", err, syscall.ENXIO)
}

func posixCopyFileRange(t *testing.T, dir string) {
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	content := strings.Repeat("copied in the server. ", 100000)
	write(t, src, content)
	in, err := os.Open(src)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(dst)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for left := len(content); left > 0; {
		n, err := unix.CopyFileRange(int(in.Fd()), nil, int(out.Fd()), nil, left, 0)
		if err != nil || n == 0 {
			t.Fatalf("copy_file_range: %d, %v", n, err)
		}
		left -= n
	}
	wantFile(t, dst, content)
}

func posixXattrs(t *testing.T, dir string) {
	name := filepath.Join(dir, "f")
	write(t, name, "x")
	values := map[string][]byte{"user.a": []byte("1"), "user.empty": {}, "trusted.b": bytes.Repeat([]byte("v"), 200), "security.c": []byte("s"),
		"user." + strings.Repeat("n", 250): []byte("long name"), "user.big": bytes.Repeat([]byte("B"), 3000)}
	for key, value := range values {
		check(t, "setxattr "+key, unix.Setxattr(name, key, value, unix.XATTR_CREATE))
	}
	for key, value := range values {
		got := make([]byte, 4096)
		if n, err := unix.Getxattr(name, key, got); err != nil || !bytes.Equal(got[:max(0, n)], value) {
			t.Errorf("%.20s: %d bytes, %v", key, n, err)
		}
	}
	wantErrno(t, "XATTR_CREATE of what exists", unix.Setxattr(name, "user.a", nil, unix.XATTR_CREATE), syscall.EEXIST)
	wantErrno(t, "XATTR_REPLACE of what does not", unix.Setxattr(name, "user.z", nil, unix.XATTR_REPLACE), syscall.ENODATA)
	check(t, "replace", unix.Setxattr(name, "user.a", []byte("two"), unix.XATTR_REPLACE))
	_, err := unix.Getxattr(name, "user.a", make([]byte, 1))
	wantErrno(t, "a buffer too small", err, syscall.ERANGE)
	check(t, "remove", unix.Removexattr(name, "user.big"))
	wantErrno(t, "remove again", unix.Removexattr(name, "user.big"), syscall.ENODATA)
	for _, key := range strings.Split(listXattrs(name), ",") {
		if _, ok := values[key]; !ok || key == "user.big" {
			t.Errorf("listed: %q", key)
		}
	}
	wantErrno(t, "an unknown namespace", unix.Setxattr(name, "nosuch.x", []byte("1"), 0), syscall.EOPNOTSUPP)
}

func posixMapping(t *testing.T, dir string) {
	name := filepath.Join(dir, "mapped")
	write(t, name, strings.Repeat("-", 100000))
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, 100000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	copy(mem[50000:], "through the mapping")
	check(t, "msync", unix.Msync(mem, unix.MS_SYNC))
	got := make([]byte, 19)
	if _, err := f.ReadAt(got, 50000); err != nil || string(got) != "through the mapping" {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := f.WriteAt([]byte("by write"), 10); err != nil {
		t.Error(err)
	}
	if string(mem[10:18]) != "by write" {
		t.Errorf("the mapping shows %q", mem[10:18])
	}
	check(t, "munmap", unix.Munmap(mem))
}

func posixAppends(t *testing.T, dir string) {
	name := filepath.Join(dir, "log")
	const writers, lines = 4, 200
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			for i := range lines {
				if _, err := fmt.Fprintf(f, "writer %d line %d\n", w, i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(got)) {
		seen[line] = true
	}
	if len(seen) != writers*lines {
		t.Errorf("%d different lines, want %d", len(seen), writers*lines)
	}
}

func posixLargeDirectory(t *testing.T, dir string) {
	const count = 5000
	for i := range count {
		write(t, filepath.Join(dir, fmt.Sprintf("name-%d", i)), "")
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != count {
		t.Errorf("%d names, %v; want %d", len(list), err, count)
	}
	// What stays while a reader is under way is seen exactly once.
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	seen := map[string]int{}
	for i := 0; ; i += 100 {
		names, err := d.Readdirnames(100)
		for _, n := range names {
			seen[n]++
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if i < count {
			check(t, "unlink", os.Remove(filepath.Join(dir, fmt.Sprintf("name-%d", i))))
		}
	}
	for i := range count {
		name := fmt.Sprintf("name-%d", i)
		if n := seen[name]; n > 1 || (n == 0 && i%100 != 0) {
			t.Errorf("%s was seen %d times", name, n)
		}
	}
}

// asNobody returns a function that runs a shell command as an unprivileged
// user. The way to the mount is closed to that user, so dir is descriptor 3.
func asNobody(t *testing.T, dir string) func(command string) error {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return func(command string) error {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = "/"
		cmd.ExtraFiles = []*os.File{d}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return nil
	}
}

func posixPermissions(t *testing.T, dir string) {
	try := asNobody(t, dir)
	write(t, filepath.Join(dir, "readable"), "x")
	write(t, filepath.Join(dir, "secret"), "x")
	check(t, "chmod", os.Chmod(filepath.Join(dir, "secret"), 0o600))
	for command, allowed := range map[string]bool{
		"cat /proc/self/fd/3/readable":      true,
		"cat /proc/self/fd/3/secret":        false,
		"echo x >>/proc/self/fd/3/readable": false,
		"touch /proc/self/fd/3/new":         false,
		"rm -f /proc/self/fd/3/readable":    false,
		"chmod 777 /proc/self/fd/3/secret":  false,
	} {
		if err := try(command); (err == nil) != allowed {
			t.Errorf("as an ordinary user %q: %v, allowed: %v", command, err, allowed)
		}
	}
	check(t, "chmod", os.Chmod(dir, 0o777))
	check(t, "touch in a directory open to all", try("touch /proc/self/fd/3/new"))
	if st := stat(t, filepath.Join(dir, "new")); st.Uid != nobody || st.Gid != nobody {
		t.Errorf("owner %d:%d", st.Uid, st.Gid)
	}
}

func posixSetID(t *testing.T, dir string) {
	name := filepath.Join(dir, "program")
	setID := func(mode uint32) {
		t.Helper()
		check(t, "chown", os.Chown(name, nobody, nobody))
		check(t, "chmod", unix.Chmod(name, mode))
	}
	try := asNobody(t, dir)
	write(t, name, "#!/bin/sh\n")
	for what, change := range map[string]func(){
		"a write":    func() { check(t, "write", try("echo x >>/proc/self/fd/3/program")) },
		"a truncate": func() { check(t, "truncate", try("truncate -s 5 /proc/self/fd/3/program")) },
		"a chown":    func() { check(t, "chown", os.Chown(name, nobody, 0)) },
	} {
		setID(0o6755)
		change()
		if st := stat(t, name); st.Mode&0o6000 != 0 {
			t.Errorf("%s leaves mode %o", what, st.Mode)
		}
	}
	check(t, "chmod of the directory", unix.Chmod(dir, 0o2755))
	check(t, "chown of the directory", os.Chown(dir, 0, nobody))
	check(t, "chmod of the directory", unix.Chmod(dir, 0o2755))
	write(t, filepath.Join(dir, "child"), "")
	check(t, "mkdir", os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	if st := stat(t, filepath.Join(dir, "child")); st.Gid != nobody {
		t.Errorf("a file in a set-group-ID directory has group %d", st.Gid)
	}
	if st := stat(t, filepath.Join(dir, "sub")); st.Gid != nobody || st.Mode&unix.S_ISGID == 0 {
		t.Errorf("a directory in a set-group-ID directory has group %d and mode %o", st.Gid, st.Mode)
	}
}

func posixUmask(t *testing.T, dir string) {
	check(t, "umask", exec.Command("sh", "-c", "umask 077; cd '"+dir+"' && touch f && mkdir d && mkfifo p").Run())
	for name, want := range map[string]uint32{"f": 0o600, "d": 0o700, "p": 0o600} {
		if st := stat(t, filepath.Join(dir, name)); st.Mode&0o7777 != want {
			t.Errorf("%s has mode %o, want %o", name, st.Mode&0o7777, want)
		}
	}
}

func posixLocks(t *testing.T, dir string) {
	name := filepath.Join(dir, "lock")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	check(t, "flock", unix.Flock(int(f.Fd()), unix.LOCK_EX))
	g, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	wantErrno(t, "a second flock", unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB), syscall.EWOULDBLOCK)
	check(t, "unlock", unix.Flock(int(f.Fd()), unix.LOCK_UN))
	check(t, "flock after unlock", unix.Flock(int(g.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	lk := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 10}
	check(t, "record lock", unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk))
	lk = unix.Flock_t{Type: unix.F_WRLCK, Start: 5, Len: 1}
	wantErrno(t, "an overlapping record lock", unix.FcntlFlock(g.Fd(), unix.F_OFD_SETLK, &lk), syscall.EAGAIN)
}

func posixDirectories(t *testing.T, dir string) {
	deep := dir
	for range 100 {
		deep = filepath.Join(deep, "d")
	}
	check(t, "mkdir -p", os.MkdirAll(deep, 0o755))
	write(t, filepath.Join(deep, "f"), "deep")
	wantErrno(t, "rmdir of a directory that is not empty", unix.Rmdir(deep), syscall.ENOTEMPTY)
	wantErrno(t, "unlink of a directory", unix.Unlink(deep), syscall.EISDIR)
	wantErrno(t, "rmdir of a file", unix.Rmdir(filepath.Join(deep, "f")), syscall.ENOTDIR)
	wantErrno(t, "mkdir over a name", unix.Mkdir(deep, 0o755), syscall.EEXIST)
	_, err := os.Stat(filepath.Join(deep, "f", "x"))
	wantErrno(t, "a file as a directory", err, syscall.ENOTDIR)
	up := stat(t, filepath.Join(deep, ".."))
	if want := stat(t, filepath.Dir(deep)); up.Ino != want.Ino {
		t.Errorf(".. is inode %d, want %d", up.Ino, want.Ino)
	}
	check(t, "move a deep tree", os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "moved")))
	up = stat(t, filepath.Join(dir, "moved", ".."))
	if want := stat(t, dir); up.Ino != want.Ino {
		t.Errorf(".. of the moved directory is inode %d, want %d", up.Ino, want.Ino)
	}
}
