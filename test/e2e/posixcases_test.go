package e2e

import (
	"bytes"
	encbinary "encoding/binary"
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

// posixCases are what rows of the table cannot say. Each gets an empty
// directory of its own.
var posixCases = []struct {
	name string
	run  func(t *testing.T, dir string)
}{
	{"names", posixNames},
	{"open and unlinked", posixUnlinkedOpen},
	{"sizes", posixTruncate},
	{"concurrent appends", posixAppends},
	{"large directory", posixLargeDirectory},
	{"directory positions", posixDirectoryPositions},
	{"deep tree", posixDeepTree},
	{"holes under a mapping", posixMappedHoles},
	{"read-only bind mount", posixReadOnly},
	{"ID-mapped mount", posixIDMapped},
	{"statfs", posixStatfs},
	{"sendfile and splice", posixSendfile},
	{"inotify", posixInotify},
	{"file size limit", posixFileSizeLimit},
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

// dirent is an entry with the position after it.
type dirent struct {
	name string
	next int64
}

// getdents reads entries from the present position on, as many as fit.
func getdents(t *testing.T, fd, size int) []dirent {
	t.Helper()
	buf := make([]byte, size)
	n, err := unix.Getdents(fd, buf)
	if err != nil {
		t.Fatalf("getdents: %v", err)
	}
	var list []dirent
	for b := buf[:n]; len(b) > 0; {
		length := encbinary.NativeEndian.Uint16(b[16:])
		name, _, _ := bytes.Cut(b[19:length], []byte{0})
		list = append(list, dirent{string(name), int64(encbinary.NativeEndian.Uint64(b[8:]))})
		b = b[length:]
	}
	return list
}

// posixDirectoryPositions wants a position in a directory, as telldir(3) gives
// it, to stay good while names come and go.
func posixDirectoryPositions(t *testing.T, dir string) {
	const count = 2000
	name := func(i int) string { return filepath.Join(dir, fmt.Sprintf("name-%d", i)) }
	for i := range count {
		write(t, name(i), "")
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var all []dirent
	for i := 0; ; i++ {
		part := getdents(t, fd, 1000)
		if len(part) == 0 {
			break
		}
		all = append(all, part...)
		// One name goes and two come for each call.
		check(t, "unlink", unix.Unlink(name(i)))
		write(t, filepath.Join(dir, fmt.Sprintf("new-%d", i)), "")
		write(t, filepath.Join(dir, fmt.Sprintf("other-%d", i)), "")
	}
	alive := map[string]bool{}
	for i := range count {
		if _, err := os.Lstat(name(i)); err == nil {
			alive[filepath.Base(name(i))] = true
		}
	}
	for i := 0; i < len(all); i += 97 {
		want := map[string]bool{}
		for _, e := range all[i+1:] {
			if alive[e.name] {
				want[e.name] = true
			}
		}
		if _, err := unix.Seek(fd, all[i].next, unix.SEEK_SET); err != nil {
			t.Fatalf("seek to %d: %v", all[i].next, err)
		}
		for {
			part := getdents(t, fd, 32<<10)
			if len(part) == 0 {
				break
			}
			for _, e := range part {
				if alive[e.name] && !want[e.name] {
					t.Fatalf("after the position of %q (%d of %d) %q is read, which came before, or again", all[i].name, i, len(all), e.name)
				}
				delete(want, e.name)
			}
		}
		if len(want) > 0 {
			t.Fatalf("after the position of %q (%d of %d) %d names are missing", all[i].name, i, len(all), len(want))
		}
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for part := getdents(t, fd, 32<<10); len(part) > 0; part = getdents(t, fd, 32<<10) {
		for _, e := range part {
			seen[e.name]++
		}
	}
	for n := range alive {
		if seen[n] != 1 {
			t.Errorf("after rewinding %q is read %d times", n, seen[n])
		}
	}
}

// posixDeepTree makes a tree that no path reaches the bottom of.
func posixDeepTree(t *testing.T, dir string) {
	const depth = 1500
	name := strings.Repeat("d", 200) // 300 KB of path
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range depth {
		if err := unix.Mkdirat(fd, name, 0o755); err != nil {
			t.Fatalf("mkdir at depth %d: %v", i, err)
		}
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatalf("open at depth %d: %v", i, err)
		}
		unix.Close(fd)
		fd = next
	}
	_, err = os.Lstat(filepath.Join(dir, strings.Repeat(name+"/", 21)))
	wantErrno(t, "a path of more than 4096 bytes", err, syscall.ENAMETOOLONG)
	check(t, "move the tree", os.Rename(filepath.Join(dir, name), filepath.Join(dir, "moved")))
	wantErrno(t, "move it to its own bottom", unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "moved"), fd, "x", 0), syscall.EINVAL)
	for i := range depth { // up again, by ".."
		next, err := unix.Openat(fd, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatalf("open .. %d levels above the bottom: %v", i, err)
		}
		unix.Close(fd)
		fd = next
	}
	var got, want unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &got), unix.Lstat(dir, &want), unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
	if got.Ino != want.Ino {
		t.Errorf("%d times .. from the bottom leads to inode %d, want %d", depth, got.Ino, want.Ino)
	}
	must(t, "rm", "-rf", filepath.Join(dir, "moved"))
}

// siblingMount is a directory beside the mount that dir lies on.
func siblingMount(t *testing.T, dir, name string) string {
	t.Helper()
	at := filepath.Join(filepath.Dir(filepath.Dir(dir)), name)
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if isMounted(t, at) {
			check(t, "unmount", unix.Unmount(at, unix.MNT_DETACH))
		}
		check(t, "rmdir", os.Remove(at))
	})
	return at
}

// wantReadOnly wants each change below dir, which holds a file f and a
// directory d, to be refused.
func wantReadOnly(t *testing.T, dir string) {
	t.Helper()
	c := newCast(t)
	if err := c.enter(dir); err != nil {
		t.Fatal(err)
	}
	for _, step := range []string{
		"creat g 644", "mkdir e 755", "symlink x l", "mknod p fifo 600", "link f g", "unlink f", "rmdir d", "rename f g",
		"open @f f w", "open @f f r,trunc", "open @f . tmpfile,rw 600", "truncate f 0", "chmod f 600", "chown f alice alice",
		"utimens f 1.2 3.4", "setxattr f user.a 1", "rmxattr f user.b", "access f w", "setacl f access u::rwx,g::---,o::---",
	} {
		if got := c.step(step); got != "EROFS" {
			t.Errorf("%s: %s, want EROFS", step, got)
		}
	}
	for step, want := range map[string]string{"cat f": "hello", "stat f nlink": "1", "getxattr f user.b": "2", "ls .": "[d f]"} {
		if got := c.step(step); got != want {
			t.Errorf("%s: %s, want %s", step, got, want)
		}
	}
	if err := c.enter("/"); err != nil {
		t.Fatal(err)
	}
}

func posixReadOnly(t *testing.T, dir string) {
	write(t, filepath.Join(dir, "f"), "hello")
	check(t, "setxattr", unix.Setxattr(filepath.Join(dir, "f"), "user.b", []byte("2"), 0))
	check(t, "mkdir", os.Mkdir(filepath.Join(dir, "d"), 0o755))
	at := siblingMount(t, dir, "ro")
	check(t, "bind", unix.Mount(dir, at, "", unix.MS_BIND, ""))
	check(t, "remount", unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	wantReadOnly(t, at)
}

// TestReadOnlyMount wants the same of a volume that is mounted read-only.
func TestReadOnlyMount(t *testing.T) {
	v := newVolume(t, 64<<20)
	openToAll(t, filepath.Dir(v.mnt))
	v.mount(t)
	openToAll(t, v.mnt)
	write(t, v.path("f"), "hello")
	check(t, "setxattr", unix.Setxattr(v.path("f"), "user.b", []byte("2"), 0))
	check(t, "mkdir", os.Mkdir(v.path("d"), 0o755))
	before := describeTree(t, v.mnt)
	v.unmount(t)
	v.mount(t, "ro")
	wantReadOnly(t, v.mnt)
	if after := describeTree(t, v.mnt); after != before {
		t.Errorf("read-only the tree is another:\n%s", firstDifference(before, after))
	}
	v.unmount(t)
	v.check(t)
}

// idMapping is a user namespace in which 0 to 999 are alice's number and those
// that follow it.
func idMapping(t *testing.T) *os.File {
	t.Helper()
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: aliceID, Size: 1000}}
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	if err := cmd.Start(); err != nil {
		t.Fatalf("a process in a user namespace: %v", err)
	}
	defer func() {
		check(t, "kill", cmd.Process.Kill())
		_ = cmd.Wait() // says that it was killed
	}()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// posixIDMapped looks at a directory through a mount on which user 0 is alice
// and 1 is bob.
func posixIDMapped(t *testing.T, dir string) {
	write(t, filepath.Join(dir, "of-root"), "hello")
	check(t, "chmod", os.Chmod(filepath.Join(dir, "of-root"), 0o600))
	at := siblingMount(t, dir, "idmapped")
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatalf("open_tree: %v", err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(idMapping(t).Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		if errors.Is(err, unix.EINVAL) {
			t.Skipf("this kernel maps no owners on this filesystem (on FUSE since Linux 6.12): mount_setattr: %v", err)
		}
		t.Fatalf("mount_setattr: %v", err)
	}
	check(t, "move_mount", unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
	c := newCast(t)
	if err := c.enter(at); err != nil {
		t.Fatal(err)
	}
	for _, s := range [][2]string{
		{"stat of-root uid,gid", "alice:alice"},
		{"alice: cat of-root", "hello"},
		{"bob: cat of-root", "EACCES"},
		{"alice: chmod of-root 640", "ok"},
		{"alice: creat f 640", "ok"},
		{"alice: mkdir d 755", "ok"},
		{"alice: symlink x l", "ok"},
		{"alice: mknod p fifo 600", "ok"},
		{"alice: open @t . tmpfile,rw 600", "ok"},
		{"alice: link @t t", "ok"},
		{"bob: creat g 600", "ok"},
		{"creat of-nobody 600", "EOVERFLOW"}, // root has no number here
		{"stat f uid,gid", "alice:alice"},
		{"stat g uid,gid", "bob:bob"},
		{"chown of-root bob bob", "ok"},
		{"alice: setacl f access u::rw-,u:bob:r--,g::---,m::r--,o::---", "ok"},
		{"alice: getacl f access", "u::rw-,u:bob:r--,g::---,m::r--,o::---"},
		{"bob: cat f", `""`},
		{"alice: open @w f rw", "ok"},
		{"alice: write @w hello", "ok"},
		{"bob: unlink g", "ok"},
	} {
		if got := c.step(s[0]); got != s[1] {
			t.Errorf("%s: %s, want %s", s[0], got, s[1])
		}
	}
	if err := c.enter(dir); err != nil {
		t.Fatal(err)
	}
	for _, s := range [][2]string{
		{"stat f uid,gid", "root:root"}, {"stat d uid,gid", "root:root"}, {"stat l uid,gid", "root:root"},
		{"stat p uid,gid", "root:root"}, {"stat t uid,gid", "root:root"}, {"stat of-root uid,gid,perm", "1:1:640"},
		{"getacl f access", "u::rw-,u:1:r--,g::---,m::r--,o::---"}, {"cat f", "hello"},
	} {
		if got := c.step(s[0]); got != s[1] {
			t.Errorf("on the volume: %s: %s, want %s", s[0], got, s[1])
		}
	}
	if err := c.enter("/"); err != nil {
		t.Fatal(err)
	}
}

func posixStatfs(t *testing.T, dir string) {
	statfs := func() (st unix.Statfs_t) {
		t.Helper()
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	before := statfs()
	if before.Namelen != 255 || before.Bavail > before.Bfree || before.Bfree > before.Blocks || before.Ffree > before.Files || before.Bsize != 4096 {
		t.Errorf("statfs: %+v", before)
	}
	const size = 8 << 20
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(bytes.Repeat([]byte{1}, size))
	check(t, "write", errors.Join(err, f.Sync(), f.Close()))
	full := statfs()
	// Beside its data the file has a few blocks that map them.
	if used := before.Bfree - full.Bfree; used < size/4096 || used > size/4096+16 {
		t.Errorf("a file of %d blocks takes %d", size/4096, used)
	}
	if before.Bavail-full.Bavail != before.Bfree-full.Bfree {
		t.Errorf("%d blocks less are free, %d less available", before.Bfree-full.Bfree, before.Bavail-full.Bavail)
	}
	if before.Ffree-full.Ffree != 1 {
		t.Errorf("a file takes %d inodes", before.Ffree-full.Ffree)
	}
	if full.Blocks != before.Blocks || full.Files != before.Files || full.Fsid != before.Fsid {
		t.Errorf("statfs: %+v and then %+v", before, full)
	}
	check(t, "unlink", os.Remove(f.Name()))
	eventually(t, "the space of the file is free", func() bool {
		now := statfs()
		return now.Bfree == before.Bfree && now.Ffree == before.Ffree
	})
}

func posixSendfile(t *testing.T, dir string) {
	content := bytes.Repeat([]byte("through a pipe. "), 20000)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	check(t, "write", os.WriteFile(src, content, 0o644))
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
	for left := len(content) / 2; left > 0; {
		n, err := unix.Sendfile(int(out.Fd()), int(in.Fd()), nil, left)
		if err != nil || n == 0 {
			t.Fatalf("sendfile: %d, %v", n, err)
		}
		left -= n
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for left := len(content) - len(content)/2; left > 0; {
		n, err := unix.Splice(int(in.Fd()), nil, int(w.Fd()), nil, min(left, 32<<10), 0)
		if err != nil || n == 0 {
			t.Fatalf("splice from the file: %d, %v", n, err)
		}
		for left -= int(n); n > 0; {
			m, err := unix.Splice(int(r.Fd()), nil, int(out.Fd()), nil, int(n), 0)
			if err != nil || m == 0 {
				t.Fatalf("splice to the file: %d, %v", m, err)
			}
			n -= m
		}
	}
	wantFile(t, dst, string(content))
}

func posixInotify(t *testing.T, dir string) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_MOVED_TO|unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_CLOSE_WRITE); err != nil {
		t.Fatal(err)
	}
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "x")
	check(t, "chmod", os.Chmod(a, 0o600))
	check(t, "rename", os.Rename(a, b))
	check(t, "unlink", os.Remove(b))
	buf := make([]byte, 64<<10)
	n, err := unix.Read(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	var got []uint32
	for e := buf[:n]; len(e) > 0; e = e[16+encbinary.NativeEndian.Uint32(e[12:]):] {
		got = append(got, encbinary.NativeEndian.Uint32(e[4:]))
	}
	want := []uint32{unix.IN_CREATE, unix.IN_MODIFY, unix.IN_CLOSE_WRITE, unix.IN_ATTRIB, unix.IN_MOVED_FROM, unix.IN_MOVED_TO, unix.IN_DELETE}
	if !slices.Equal(got, want) {
		t.Errorf("events %#x, want %#x", got, want)
	}
}

func posixFileSizeLimit(t *testing.T, dir string) {
	name := filepath.Join(dir, "f")
	// In units of 1024 bytes; the signal that comes along is ignored.
	r := execute(t, "bash", "-c", `trap '' XFSZ; ulimit -f 8; head -c 100000 /dev/zero >"$0"`, name)
	if r.code == 0 {
		t.Error("a file grows past the limit of its process")
	}
	if st := stat(t, name); st.Size != 8192 {
		t.Errorf("size %d, want 8192", st.Size)
	}
}

// posixMappedHoles copies a file by what SEEK_DATA and SEEK_HOLE say of it
// while a shared mapping of it is stored to.
func posixMappedHoles(t *testing.T, dir string) {
	const size = 32 << 20
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	check(t, "truncate", f.Truncate(size))
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	places := []int{20000, 5 << 20, 5<<20 + 4096, 17 << 20, size - 1}
	for i, at := range places {
		mem[at] = byte(i + 1)
		wantIslands(t, f, places[:i+1])
	}
	check(t, "msync", unix.Msync(mem, unix.MS_SYNC))
	wantIslands(t, f, places)
	for i, at := range places { // again, to pages that are clean now
		mem[at+1-2*(at%2)] = byte(i + 1)
		wantIslands(t, f, places)
	}
}

// wantIslands wants each place to be in data. There may be more data.
func wantIslands(t *testing.T, f *os.File, places []int) {
	t.Helper()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]bool{}
	for pos := int64(0); pos < end; {
		data, err := unix.Seek(int(f.Fd()), pos, unix.SEEK_DATA)
		if err == unix.ENXIO {
			break
		}
		hole, herr := unix.Seek(int(f.Fd()), max(data, 0), unix.SEEK_HOLE)
		if err != nil || herr != nil || data < pos || hole <= data {
			t.Fatalf("from %d on: data at %d (%v), then a hole at %d (%v)", pos, data, err, hole, herr)
		}
		for _, p := range places {
			found[p] = found[p] || data <= int64(p) && int64(p) < hole
		}
		pos = hole
	}
	for _, p := range places {
		if !found[p] {
			t.Errorf("byte %d was stored to and counts as a hole", p)
		}
	}
}
