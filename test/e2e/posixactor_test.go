package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// user is whom an actor is.
type user struct {
	name     string
	uid, gid int
	groups   []int
}

const (
	aliceID = 61001
	bobID   = 61002
	// staffID is a group that alice is in.
	staffID = 61100
)

// users are root, and two that own nothing but what they make.
var users = []user{
	{"root", 0, 0, nil},
	{"alice", aliceID, aliceID, []int{staffID}},
	{"bob", bobID, bobID, nil},
}

// ids are the names that chown and ACLs of the table use.
var ids = map[string]int{"root": 0, "alice": aliceID, "bob": bobID, "staff": staffID, "-": -1}

func idName(id int) string {
	for name, v := range ids {
		if v == id {
			return name
		}
	}
	return strconv.Itoa(id)
}

// actor makes system calls as one user, on a thread of its own that shares
// neither credentials nor umask, working directory or descriptors with any
// other. POSIX locks of two actors are those of two processes.
type actor struct {
	user
	calls   chan func()
	ended   chan struct{}
	files   map[string]int
	handles map[string]unix.FileHandle
	maps    map[string][]byte
}

func newActor(t *testing.T, u user) *actor {
	t.Helper()
	a := &actor{user: u, calls: make(chan func()), ended: make(chan struct{})}
	ready := make(chan error)
	go a.serve(ready)
	if err := <-ready; err != nil {
		t.Fatalf("become %s: %v", u.name, err)
	}
	return a
}

// serve makes the calls. The thread is never unlocked, so it ends with the
// goroutine; the runtime starts no thread from it meanwhile.
func (a *actor) serve(ready chan<- error) {
	runtime.LockOSThread()
	defer close(a.ended)
	err := a.become()
	ready <- err
	if err != nil {
		return
	}
	for call := range a.calls {
		call()
	}
}

// become makes the calling thread the user's. The functions of package
// syscall would do so to the whole process.
func (a *actor) become() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_FILES); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := closeInherited(); err != nil {
		return fmt.Errorf("close what others have open: %w", err)
	}
	unix.Umask(0o022)
	if a.uid == 0 {
		return nil
	}
	// setgroups(2) takes 32-bit numbers.
	groups := make([]uint32, len(a.groups))
	for i, g := range a.groups {
		groups[i] = uint32(g)
	}
	if err := rawSetgroups(groups); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(a.gid), uintptr(a.gid), uintptr(a.gid)); e != 0 {
		return fmt.Errorf("setresgid: %w", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(a.uid), uintptr(a.uid), uintptr(a.uid)); e != 0 {
		return fmt.Errorf("setresuid: %w", e)
	}
	return nil
}

// closeInherited closes the copies of what the process has open, which would
// keep a filesystem busy for as long as the thread lives. What the Go runtime
// polls with and what package testing logs to stays: any thread may have to use
// that.
func closeInherited() error {
	links, err := filepath.Glob("/proc/thread-self/fd/*")
	if err != nil {
		return err
	}
	for _, link := range links {
		fd, err := strconv.Atoi(filepath.Base(link))
		if err != nil {
			return err
		}
		target, err := os.Readlink(link)
		ofRuntime := target == "anon_inode:[eventpoll]" || target == "anon_inode:[eventfd]"
		if fd <= 2 || err != nil || ofRuntime || filepath.Base(target) == "testlog.txt" {
			continue // an error: the descriptor of the listing itself
		}
		if err := unix.Close(fd); err != nil {
			return fmt.Errorf("%d (%s): %w", fd, target, err)
		}
	}
	return nil
}

// do runs f on the actor's thread.
func (a *actor) do(f func()) {
	done := make(chan struct{})
	a.calls <- func() {
		defer close(done)
		f()
	}
	<-done
}

// enter goes to a directory with nothing open and the usual umask.
func (a *actor) enter(dir string) error {
	var err error
	a.do(func() {
		a.leave()
		a.files, a.handles, a.maps = map[string]int{}, map[string]unix.FileHandle{}, map[string][]byte{}
		unix.Umask(0o022)
		err = unix.Chdir(dir)
	})
	return err
}

// leave closes what the actor has open. It runs on the actor's thread.
func (a *actor) leave() {
	for _, m := range a.maps {
		_ = unix.Munmap(m)
	}
	for _, fd := range a.files {
		_ = unix.Close(fd)
	}
	a.maps, a.files = nil, nil
}

func (a *actor) stop() {
	a.do(func() {
		a.leave()
		_ = unix.Chdir("/")
	})
	close(a.calls)
	<-a.ended
}

// cast is all actors in one directory.
type cast map[string]*actor

func newCast(t *testing.T) cast {
	t.Helper()
	c := cast{}
	t.Cleanup(func() {
		for _, a := range c {
			a.stop()
		}
	})
	for _, u := range users {
		c[u.name] = newActor(t, u)
	}
	return c
}

func (c cast) enter(dir string) error {
	for name, a := range c {
		if err := a.enter(dir); err != nil {
			return fmt.Errorf("%s: chdir %s: %w", name, dir, err)
		}
	}
	return nil
}

// step runs one step, "[actor: ]verb argument...", and returns what came of
// it: "ok", a result, or the name of an error number.
func (c cast) step(text string) string {
	fields := strings.Fields(text)
	who := "root"
	if len(fields) > 0 && strings.HasSuffix(fields[0], ":") {
		who, fields = strings.TrimSuffix(fields[0], ":"), fields[1:]
	}
	a := c[who]
	if a == nil || len(fields) == 0 {
		return fmt.Sprintf("%q is no step", text)
	}
	v, known := verbs[fields[0]]
	args := make([]string, len(fields)-1)
	for i, f := range fields[1:] {
		args[i] = expand(f)
	}
	if !known || len(args) < v.min {
		return fmt.Sprintf("%q is no step: the verbs are %v", text, slices.Sorted(maps.Keys(verbs)))
	}
	var out string
	var err error
	a.do(func() { out, err = v.run(a, args) })
	if err != nil {
		return errorName(err)
	}
	if out == "" {
		return "ok"
	}
	return out
}

// steps runs steps that a semicolon separates; all but those that end in "="
// and an outcome must be ok or give a result.
func (c cast) steps(text string) error {
	for s := range strings.SplitSeq(text, ";") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		if got := c.step(s); strings.HasPrefix(got, "E") || strings.Contains(got, "is no step") {
			return fmt.Errorf("%s: %s", s, got)
		}
	}
	return nil
}

func errorName(err error) string {
	if e, ok := err.(unix.Errno); ok {
		if e == unix.EOPNOTSUPP { // has a second name
			return "EOPNOTSUPP"
		}
		if name := unix.ErrnoName(e); name != "" {
			return name
		}
	}
	return "E: " + err.Error()
}

var repetition = regexp.MustCompile(`\{([^{}]*):(\d+)\}`)

// expand writes {text:n} out: text, n times.
func expand(s string) string {
	return repetition.ReplaceAllStringFunc(s, func(m string) string {
		p := repetition.FindStringSubmatch(m)
		n, err := strconv.Atoi(p[2])
		if err != nil {
			panic(err)
		}
		return strings.Repeat(p[1], n)
	})
}

// runs describes content by runs of equal bytes when it is long.
func runs(b []byte) string {
	if len(b) == 0 {
		return `""`
	}
	if len(b) <= 40 && !slices.Contains(b, 0) {
		return string(b)
	}
	var out []string
	for i := 0; i < len(b); {
		j := i
		for j < len(b) && b[j] == b[i] {
			j++
		}
		c := string(b[i])
		if b[i] == 0 {
			c = "0"
		}
		if out = append(out, fmt.Sprintf("%s*%d", c, j-i)); len(out) > 20 {
			return strings.Join(out, "+") + "+..."
		}
		i = j
	}
	return strings.Join(out, "+")
}

// threadFD is the path of a descriptor of the calling thread.
func threadFD(fd int) string {
	return filepath.Join("/proc/thread-self/fd", strconv.Itoa(fd))
}

func rawSetgroups(groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0); e != 0 {
		return e
	}
	return nil
}

// TestActorHoldsNothing wants an actor to keep no filesystem busy, neither by
// what others had open when it began nor after its end.
func TestActorHoldsNothing(t *testing.T) {
	dir := memoryDir(t)
	openToAll(t, dir)
	mnt := filepath.Join(dir, "mnt")
	check(t, "mkdir", os.Mkdir(mnt, 0o755))
	check(t, "mount", unix.Mount("none", mnt, "tmpfs", 0, ""))
	for range 20 {
		open, err := os.Create(filepath.Join(mnt, "f"))
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range users {
			a := newActor(t, u)
			defer a.stop()
		}
		open.Close()
	}
	a := newActor(t, users[1])
	check(t, "chdir", a.enter(mnt))
	a.stop()
	check(t, "unmount", unix.Unmount(mnt, 0))
}
