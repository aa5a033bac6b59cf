package e2e

import (
	encbinary "encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// verb is one kind of step of the table: a system call or a few. It runs on
// the actor's thread. A file is named by a path or, where that makes sense, by
// an open file "@name".
type verb struct {
	min int // arguments
	run func(a *actor, args []string) (string, error)
}

var verbs map[string]verb

func init() {
	verbs = map[string]verb{
		"access":    {2, verbAccess},
		"cat":       {1, verbCat},
		"cd":        {1, func(_ *actor, v []string) (string, error) { return "", unix.Chdir(v[0]) }},
		"chmod":     {2, verbChmod},
		"chown":     {3, verbChown},
		"clone":     {2, verbClone},
		"close":     {1, verbClose},
		"copy":      {5, verbCopy},
		"creat":     {2, verbCreat},
		"dropcache": {0, func(*actor, []string) (string, error) { return "", dropAllCaches() }},
		"exec":      {1, verbExec},
		"fallocate": {4, verbFallocate},
		"fdatasync": {1, func(a *actor, v []string) (string, error) { return "", unix.Fdatasync(a.fd(v[0])) }},
		"flock":     {2, verbFlock},
		"fsync":     {1, func(a *actor, v []string) (string, error) { return "", unix.Fsync(a.fd(v[0])) }},
		"getacl":    {2, verbGetACL},
		"getlk":     {4, verbGetLock},
		"getxattr":  {2, verbGetXattr},
		"handle":    {2, verbHandle},
		"link":      {2, verbLink},
		"lock":      {4, func(a *actor, v []string) (string, error) { return "", a.lock(v, unix.F_SETLK) }},
		"ls":        {1, verbList},
		"lsxattr":   {1, verbListXattr},
		"lseek":     {3, verbLseek},
		"mkdir":     {2, func(_ *actor, v []string) (string, error) { return "", unix.Mkdir(v[0], octal(v[1])) }},
		"mknod":     {3, verbMknod},
		"mmap":      {6, verbMmap},
		"msync":     {1, func(a *actor, v []string) (string, error) { return "", unix.Msync(a.maps[v[0]], unix.MS_SYNC) }},
		"munmap":    {1, verbMunmap},
		"ofdlock":   {4, func(a *actor, v []string) (string, error) { return "", a.lock(v, unix.F_OFD_SETLK) }},
		"open":      {3, verbOpen},
		"openh":     {3, verbOpenHandle},
		"peek":      {3, verbPeek},
		"poke":      {3, verbPoke},
		"pread":     {3, verbPread},
		"program":   {2, verbProgram},
		"put":       {2, verbPut},
		"pwrite":    {3, verbPwrite},
		"read":      {2, verbRead},
		"readlink":  {1, verbReadlink},
		"rename":    {2, verbRename},
		"rmdir":     {1, func(_ *actor, v []string) (string, error) { return "", unix.Rmdir(v[0]) }},
		"rmxattr":   {2, verbRemoveXattr},
		"setacl":    {3, verbSetACL},
		"setcap":    {1, verbSetCap},
		"setxattr":  {3, verbSetXattr},
		"stat":      {2, verbStat},
		"statl":     {2, verbStatFollow},
		"symlink":   {2, func(_ *actor, v []string) (string, error) { return "", unix.Symlink(v[0], v[1]) }},
		"syncfs":    {1, func(a *actor, v []string) (string, error) { return "", unix.Syncfs(a.fd(v[0])) }},
		"truncate":  {2, verbTruncate},
		"umask":     {1, func(_ *actor, v []string) (string, error) { unix.Umask(int(octal(v[0]))); return "", nil }},
		"unlink":    {1, func(_ *actor, v []string) (string, error) { return "", unix.Unlink(v[0]) }},
		"utimens":   {3, verbUtimens},
		"write":     {2, verbWrite},
		"writev2":   {4, verbPwritev2},
	}
}

// fd is the descriptor of an open file; -1, for EBADF, when there is none.
func (a *actor) fd(name string) int {
	if fd, ok := a.files[strings.TrimPrefix(name, "@")]; ok {
		return fd
	}
	return -1
}

func isFile(arg string) bool { return strings.HasPrefix(arg, "@") }

func octal(s string) uint32 {
	v, err := strconv.ParseUint(s, 8, 32)
	if err != nil {
		panic(err)
	}
	return uint32(v)
}

// number reads "12", "4k", "3M", "1G", "2T" and sums of them.
func number(s string) int64 {
	total := int64(0)
	for part := range strings.SplitSeq(s, "+") {
		shift := map[byte]int{'k': 10, 'M': 20, 'G': 30, 'T': 40}[part[len(part)-1]]
		if shift != 0 {
			part = part[:len(part)-1]
		}
		v, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			panic(err)
		}
		total += v << shift
	}
	return total
}

// bits is the union of named flags.
func bits[T ~int | ~uint32](list string, known map[string]T) T {
	var set T
	for name := range strings.SplitSeq(list, ",") {
		v, ok := known[name]
		if !ok {
			panic("no flag " + name)
		}
		set |= v
	}
	return set
}

var openFlags = map[string]int{
	"r": unix.O_RDONLY, "w": unix.O_WRONLY, "rw": unix.O_RDWR, "creat": unix.O_CREAT, "excl": unix.O_EXCL,
	"trunc": unix.O_TRUNC, "append": unix.O_APPEND, "dsync": unix.O_DSYNC, "sync": unix.O_SYNC,
	"direct": unix.O_DIRECT, "tmpfile": unix.O_TMPFILE, "nofollow": unix.O_NOFOLLOW, "dir": unix.O_DIRECTORY,
	"path": unix.O_PATH, "noatime": unix.O_NOATIME, "nonblock": unix.O_NONBLOCK,
}

func (a *actor) keep(name string, fd int) {
	name = strings.TrimPrefix(name, "@")
	if old, ok := a.files[name]; ok {
		_ = unix.Close(old)
	}
	a.files[name] = fd
}

func verbOpen(a *actor, v []string) (string, error) {
	mode := uint32(0)
	if len(v) > 3 {
		mode = octal(v[3])
	}
	fd, err := unix.Open(v[1], bits(v[2], openFlags)|unix.O_CLOEXEC, mode)
	if err != nil {
		return "", err
	}
	a.keep(v[0], fd)
	return "", nil
}

func verbClose(a *actor, v []string) (string, error) {
	fd := a.fd(v[0])
	delete(a.files, strings.TrimPrefix(v[0], "@"))
	return "", unix.Close(fd)
}

// verbCreat makes a file that must not exist.
func verbCreat(_ *actor, v []string) (string, error) {
	fd, err := unix.Open(v[0], unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, octal(v[1]))
	if err != nil {
		return "", err
	}
	return "", unix.Close(fd)
}

// verbPut gives a file content, and makes it if need be.
func verbPut(_ *actor, v []string) (string, error) {
	fd, err := unix.Open(v[0], unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return "", err
	}
	_, err = unix.Write(fd, []byte(v[1]))
	return "", errors.Join(err, unix.Close(fd))
}

func verbCat(_ *actor, v []string) (string, error) {
	fd, err := unix.Open(v[0], unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var all []byte
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return "", err
		}
		if n == 0 {
			return runs(all), nil
		}
		all = append(all, buf[:n]...)
	}
}

// written is the outcome of a write: nothing special when it was whole.
func written(n, want int, err error) (string, error) {
	if err != nil || n == want {
		return "", err
	}
	return fmt.Sprintf("wrote %d", n), nil
}

func verbWrite(a *actor, v []string) (string, error) {
	n, err := unix.Write(a.fd(v[0]), []byte(v[1]))
	return written(n, len(v[1]), err)
}

func verbPwrite(a *actor, v []string) (string, error) {
	data := aligned([]byte(v[2]))
	n, err := unix.Pwrite(a.fd(v[0]), data, number(v[1]))
	return written(n, len(data), err)
}

func verbPwritev2(a *actor, v []string) (string, error) {
	flags := bits(v[3], map[string]int{"0": 0, "append": unix.RWF_APPEND, "dsync": unix.RWF_DSYNC, "sync": unix.RWF_SYNC})
	n, err := unix.Pwritev2(a.fd(v[0]), [][]byte{[]byte(v[2])}, number(v[1]), flags)
	return written(n, len(v[2]), err)
}

func verbRead(a *actor, v []string) (string, error) {
	buf := aligned(make([]byte, number(v[1])))
	n, err := unix.Read(a.fd(v[0]), buf)
	if err != nil {
		return "", err
	}
	return runs(buf[:n]), nil
}

func verbPread(a *actor, v []string) (string, error) {
	buf := aligned(make([]byte, number(v[2])))
	n, err := unix.Pread(a.fd(v[0]), buf, number(v[1]))
	if err != nil {
		return "", err
	}
	return runs(buf[:n]), nil
}

// aligned is b at an address that O_DIRECT accepts.
func aligned(b []byte) []byte {
	const align = 4096
	buf := make([]byte, len(b)+align)
	skip := -int(uintptr(unsafe.Pointer(&buf[0]))) & (align - 1)
	return append(buf[skip:skip], b...)
}

func verbLseek(a *actor, v []string) (string, error) {
	whence := map[string]int{"set": unix.SEEK_SET, "cur": unix.SEEK_CUR, "end": unix.SEEK_END, "data": unix.SEEK_DATA, "hole": unix.SEEK_HOLE}[v[2]]
	off, err := unix.Seek(a.fd(v[0]), number(v[1]), whence)
	if err != nil {
		return "", err
	}
	return strconv.FormatInt(off, 10), nil
}

func verbTruncate(a *actor, v []string) (string, error) {
	if isFile(v[0]) {
		return "", unix.Ftruncate(a.fd(v[0]), number(v[1]))
	}
	return "", unix.Truncate(v[0], number(v[1]))
}

func verbFallocate(a *actor, v []string) (string, error) {
	mode := bits(v[1], map[string]uint32{"alloc": 0, "keep": unix.FALLOC_FL_KEEP_SIZE, "punch": unix.FALLOC_FL_PUNCH_HOLE,
		"zero": unix.FALLOC_FL_ZERO_RANGE, "collapse": unix.FALLOC_FL_COLLAPSE_RANGE, "insert": unix.FALLOC_FL_INSERT_RANGE,
		"unshare": unix.FALLOC_FL_UNSHARE_RANGE})
	return "", unix.Fallocate(a.fd(v[0]), mode, number(v[2]), number(v[3]))
}

// verbCopy is copy_file_range, repeated until all is copied.
func verbCopy(a *actor, v []string) (string, error) {
	in, out := number(v[1]), number(v[3])
	for left := int(number(v[4])); left > 0; {
		n, err := unix.CopyFileRange(a.fd(v[0]), &in, a.fd(v[2]), &out, left, 0)
		if err != nil {
			return "", err
		}
		if n == 0 {
			return fmt.Sprintf("%d left", left), nil
		}
		left -= n
	}
	return "", nil
}

func verbClone(a *actor, v []string) (string, error) {
	return "", unix.IoctlFileClone(a.fd(v[1]), a.fd(v[0]))
}

func verbMknod(_ *actor, v []string) (string, error) {
	kind := map[string]uint32{"reg": unix.S_IFREG, "fifo": unix.S_IFIFO, "sock": unix.S_IFSOCK, "chr": unix.S_IFCHR, "blk": unix.S_IFBLK, "dir": unix.S_IFDIR}[v[1]]
	dev := uint64(0)
	if len(v) > 3 {
		major, minor, _ := strings.Cut(v[3], ",")
		dev = unix.Mkdev(uint32(number(major)), uint32(number(minor)))
	}
	return "", unix.Mknod(v[0], kind|octal(v[2]), int(dev))
}

func verbLink(a *actor, v []string) (string, error) {
	flags, from := 0, v[0]
	if len(v) > 2 && v[2] == "follow" {
		flags = unix.AT_SYMLINK_FOLLOW
	}
	if isFile(from) {
		from, flags = threadFD(a.fd(from)), unix.AT_SYMLINK_FOLLOW
	}
	return "", unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, v[1], flags)
}

func verbRename(_ *actor, v []string) (string, error) {
	flags := 0
	if len(v) > 2 {
		flags = bits(v[2], map[string]int{"noreplace": unix.RENAME_NOREPLACE, "exchange": unix.RENAME_EXCHANGE, "whiteout": unix.RENAME_WHITEOUT, "unknown": 1 << 20})
	}
	return "", unix.Renameat2(unix.AT_FDCWD, v[0], unix.AT_FDCWD, v[1], uint(flags))
}

func verbReadlink(_ *actor, v []string) (string, error) {
	buf := make([]byte, 8192)
	n, err := unix.Readlink(v[0], buf)
	if err != nil {
		return "", err
	}
	return runs(buf[:n]), nil
}

func verbChmod(a *actor, v []string) (string, error) {
	if isFile(v[0]) {
		return "", unix.Fchmod(a.fd(v[0]), octal(v[1]))
	}
	if len(v) > 2 && v[2] == "nofollow" {
		return "", unix.Fchmodat(unix.AT_FDCWD, v[0], octal(v[1]), unix.AT_SYMLINK_NOFOLLOW)
	}
	return "", unix.Chmod(v[0], octal(v[1]))
}

func verbChown(a *actor, v []string) (string, error) {
	uid, knowsUID := ids[v[1]]
	gid, knowsGID := ids[v[2]]
	if !knowsUID || !knowsGID {
		panic("chown to an unknown user")
	}
	if isFile(v[0]) {
		return "", unix.Fchown(a.fd(v[0]), uid, gid)
	}
	return "", unix.Lchown(v[0], uid, gid)
}

func verbUtimens(a *actor, v []string) (string, error) {
	ts := []unix.Timespec{timespec(v[1]), timespec(v[2])}
	if isFile(v[0]) {
		return "", unix.UtimesNanoAt(unix.AT_FDCWD, threadFD(a.fd(v[0])), ts, 0)
	}
	return "", unix.UtimesNanoAt(unix.AT_FDCWD, v[0], ts, unix.AT_SYMLINK_NOFOLLOW)
}

func timespec(s string) unix.Timespec {
	switch s {
	case "now":
		return unix.Timespec{Nsec: unix.UTIME_NOW}
	case "omit":
		return unix.Timespec{Nsec: unix.UTIME_OMIT}
	}
	sec, nsec, _ := strings.Cut(s, ".")
	ts := unix.Timespec{Sec: number(sec)}
	if nsec != "" {
		ts.Nsec = number(nsec)
	}
	return ts
}

func verbAccess(_ *actor, v []string) (string, error) {
	mode := bits(v[1], map[string]uint32{"f": 0, "r": unix.R_OK, "w": unix.W_OK, "x": unix.X_OK, "rw": unix.R_OK | unix.W_OK})
	return "", unix.Faccessat(unix.AT_FDCWD, v[0], mode, unix.AT_EACCESS)
}

// verbStat shows members of a stat(2), separated by commas.
func verbStat(a *actor, v []string) (string, error) {
	return a.stat(v[0], v[1], unix.AT_SYMLINK_NOFOLLOW)
}

func verbStatFollow(a *actor, v []string) (string, error) { return a.stat(v[0], v[1], 0) }

func (a *actor) stat(name, members string, flags int) (string, error) {
	dir := unix.AT_FDCWD
	if isFile(name) {
		dir, name, flags = a.fd(name), "", unix.AT_EMPTY_PATH
	}
	var st unix.Statx_t
	if err := unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return "", err
	}
	stamp := func(t unix.StatxTimestamp) string { return fmt.Sprintf("%d.%09d", t.Sec, t.Nsec) }
	values := map[string]string{
		"mode": fmt.Sprintf("%o", st.Mode), "perm": fmt.Sprintf("%o", st.Mode&0o7777), "nlink": fmt.Sprint(st.Nlink),
		"uid": idName(int(st.Uid)), "gid": idName(int(st.Gid)), "size": fmt.Sprint(st.Size),
		"rdev": fmt.Sprintf("%d,%d", st.Rdev_major, st.Rdev_minor), "ino": fmt.Sprint(st.Ino), "blocks": fmt.Sprint(st.Blocks),
		"atime": stamp(st.Atime), "mtime": stamp(st.Mtime), "ctime": stamp(st.Ctime), "btime": stamp(st.Btime),
		"sparse": fmt.Sprint(st.Blocks*512 < st.Size),
	}
	var out []string
	for m := range strings.SplitSeq(members, ",") {
		value, ok := values[m]
		if !ok {
			panic("no member " + m)
		}
		out = append(out, value)
	}
	return strings.Join(out, ":"), nil
}

func verbList(_ *actor, v []string) (string, error) {
	fd, err := unix.Open(v[0], unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var names []string
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return "", err
		}
		if n == 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	slices.Sort(names)
	return "[" + strings.Join(names, " ") + "]", nil
}

func verbSetXattr(a *actor, v []string) (string, error) {
	flags := 0
	if len(v) > 3 {
		flags = bits(v[3], map[string]int{"create": unix.XATTR_CREATE, "replace": unix.XATTR_REPLACE})
	}
	value := []byte(strings.TrimPrefix(v[2], "="))
	if isFile(v[0]) {
		return "", unix.Fsetxattr(a.fd(v[0]), v[1], value, flags)
	}
	return "", unix.Lsetxattr(v[0], v[1], value, flags)
}

func verbGetXattr(_ *actor, v []string) (string, error) {
	size := 64 << 10
	if len(v) > 2 {
		size = int(number(v[2]))
	}
	buf := make([]byte, size)
	n, err := unix.Lgetxattr(v[0], v[1], buf)
	if err != nil {
		return "", err
	}
	return runs(buf[:min(n, size)]), nil
}

func verbRemoveXattr(_ *actor, v []string) (string, error) { return "", unix.Lremovexattr(v[0], v[1]) }

func verbListXattr(_ *actor, v []string) (string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(v[0], buf)
	if err != nil {
		return "", err
	}
	names := strings.FieldsFunc(string(buf[:n]), func(r rune) bool { return r == 0 })
	slices.Sort(names)
	return "[" + strings.Join(names, " ") + "]", nil
}

// verbSetCap gives a program CAP_NET_BIND_SERVICE (bit 10) with the effective
// bit.
func verbSetCap(_ *actor, v []string) (string, error) {
	data := encbinary.LittleEndian.AppendUint32(nil, 0x02000000|1) // version 2, effective
	for _, word := range []uint32{1 << 10, 0, 0, 0} {
		data = encbinary.LittleEndian.AppendUint32(data, word)
	}
	return "", unix.Lsetxattr(v[0], "security.capability", data, 0)
}

func (a *actor) lock(v []string, cmd int) error {
	lk := flockOf(v)
	return unix.FcntlFlock(uintptr(a.fd(v[0])), cmd, &lk)
}

func flockOf(v []string) unix.Flock_t {
	return unix.Flock_t{
		Type:  map[string]int16{"r": unix.F_RDLCK, "w": unix.F_WRLCK, "u": unix.F_UNLCK}[v[1]],
		Start: number(v[2]), Len: number(v[3]),
	}
}

func verbGetLock(a *actor, v []string) (string, error) {
	lk := flockOf(v)
	if err := unix.FcntlFlock(uintptr(a.fd(v[0])), unix.F_GETLK, &lk); err != nil {
		return "", err
	}
	if lk.Type == unix.F_UNLCK {
		return "free", nil
	}
	return fmt.Sprintf("%s %d %d", map[int16]string{unix.F_RDLCK: "r", unix.F_WRLCK: "w"}[lk.Type], lk.Start, lk.Len), nil
}

func verbFlock(a *actor, v []string) (string, error) {
	how := map[string]int{"sh": unix.LOCK_SH, "ex": unix.LOCK_EX, "un": unix.LOCK_UN}[v[1]]
	return "", unix.Flock(a.fd(v[0]), how|unix.LOCK_NB)
}

func verbMmap(a *actor, v []string) (string, error) {
	prot := map[string]int{"r": unix.PROT_READ, "rw": unix.PROT_READ | unix.PROT_WRITE}[v[4]]
	flags := map[string]int{"shared": unix.MAP_SHARED, "private": unix.MAP_PRIVATE}[v[5]]
	m, err := unix.Mmap(a.fd(v[1]), number(v[2]), int(number(v[3])), prot, flags)
	if err != nil {
		return "", err
	}
	a.maps[v[0]] = m
	return "", nil
}

func verbMunmap(a *actor, v []string) (string, error) {
	m := a.maps[v[0]]
	delete(a.maps, v[0])
	return "", unix.Munmap(m)
}

func verbPeek(a *actor, v []string) (string, error) {
	off := number(v[1])
	return runs(a.maps[v[0]][off : off+number(v[2])]), nil
}

func verbPoke(a *actor, v []string) (string, error) {
	copy(a.maps[v[0]][number(v[1]):], v[2])
	return "", nil
}

func verbHandle(a *actor, v []string) (string, error) {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, v[1], 0)
	if err != nil {
		return "", err
	}
	a.handles[v[0]] = h
	return "", nil
}

func verbOpenHandle(a *actor, v []string) (string, error) {
	mount, err := unix.Open(".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(mount)
	fd, err := unix.OpenByHandleAt(mount, a.handles[v[1]], bits(v[2], openFlags)|unix.O_CLOEXEC)
	if err != nil {
		return "", err
	}
	a.keep(v[0], fd)
	return "", nil
}

// dropAllCaches makes the kernel forget all inodes, names and pages that nobody
// uses.
func dropAllCaches() error {
	unix.Sync()
	// What was used lately is spared the first time.
	for range 3 {
		if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
			return err
		}
	}
	return nil
}

// verbProgram copies a program of the system.
func verbProgram(_ *actor, v []string) (string, error) {
	path, err := exec.LookPath(v[1])
	if err != nil {
		return "", err
	}
	code, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	fd, err := unix.Open(v[0], unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o755)
	if err != nil {
		return "", err
	}
	for len(code) > 0 && err == nil {
		var n int
		n, err = unix.Write(fd, code)
		code = code[max(n, 0):]
	}
	return "", errors.Join(err, unix.Close(fd))
}

// verbExec runs a program as the actor and returns what it says.
func verbExec(_ *actor, v []string) (string, error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return "", err
	}
	defer unix.Close(pipe[0])
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", errors.Join(err, unix.Close(pipe[1]))
	}
	// Not os/exec, whose goroutines know nothing of this thread's descriptors.
	pid, err := syscall.ForkExec("./"+v[0], v, &syscall.ProcAttr{Files: []uintptr{uintptr(null), uintptr(pipe[1]), uintptr(pipe[1])}})
	unix.Close(null)
	unix.Close(pipe[1])
	if err != nil {
		return "", err
	}
	var out []byte
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(pipe[0], buf)
		if err != nil || n == 0 {
			break
		}
		out = append(out, buf[:n]...)
	}
	var status unix.WaitStatus
	for {
		if _, err = unix.Wait4(pid, &status, 0, nil); err != unix.EINTR {
			break
		}
	}
	return strings.Join(strings.Fields(string(out)), " "), err
}
