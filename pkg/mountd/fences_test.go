package mountd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fsck"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// Servers that kill themselves at a fence of the test's choice.

// fuseSuffix is appended to the path of a test's volume for the file that says
// when its servers end.
const fuseSuffix = ".fuse"

// fuse counts down to the end of a process. It is shared by the test and the
// servers, one after the other. One that is at zero, or below, does nothing.
type fuse struct {
	left *atomic.Int64
	next *atomic.Int64 // what left becomes when a successor begins
}

// openFuse returns nil when there is no such file.
func openFuse(path string) (*fuse, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, 16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &fuse{(*atomic.Int64)(unsafe.Pointer(&mem[0])), (*atomic.Int64)(unsafe.Pointer(&mem[8]))}, nil
}

// burn brings the end nearer, and ends the process when it has come.
func (f *fuse) burn() {
	if f.left.Add(-1) == 0 {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
}

// mortalSpace is a mapping each fence of which may be the last thing that the
// process does.
type mortalSpace struct {
	*pmem.Mapping
	fuse *fuse
}

func (s *mortalSpace) NewPersister() pmem.Persister {
	return &mortalPersister{s.Mapping.NewPersister(), s.fuse}
}

type mortalPersister struct {
	pmem.Persister
	fuse *fuse
}

func (p *mortalPersister) Fence() error {
	p.fuse.burn()
	return p.Persister.Fence()
}

// mortalWorker may also end when it has executed a request and not answered
// it.
type mortalWorker struct {
	*nvfs.Worker
	fuse *fuse
}

func (w mortalWorker) Mknod(parent nvfs.NodeID, name []byte, c *nvfs.CreateArgs, a *nvfs.Attr) error {
	defer w.fuse.burn()
	return w.Worker.Mknod(parent, name, c, a)
}

func (w mortalWorker) Link(id, parent nvfs.NodeID, name []byte, a *nvfs.Attr) error {
	defer w.fuse.burn()
	return w.Worker.Link(id, parent, name, a)
}

func (w mortalWorker) Rmdir(parent nvfs.NodeID, name []byte) error {
	defer w.fuse.burn()
	return w.Worker.Rmdir(parent, name)
}

func (w mortalWorker) Rename(oldParent nvfs.NodeID, oldName []byte, newParent nvfs.NodeID, newName []byte, flags uint32) error {
	defer w.fuse.burn()
	return w.Worker.Rename(oldParent, oldName, newParent, newName, flags)
}

func (w mortalWorker) Write(id nvfs.NodeID, off uint64, src []byte, flags nvfs.WriteFlags) (int, error) {
	defer w.fuse.burn()
	return w.Worker.Write(id, off, src, flags)
}

func (w mortalWorker) SetXattr(id nvfs.NodeID, name, value []byte, flags uint32) error {
	defer w.fuse.burn()
	return w.Worker.SetXattr(id, name, value, flags)
}

// onceOnly are operations of which each would show that it was executed twice,
// or not at all. They work in a directory of their own.
var onceOnly = []struct {
	name    string
	prepare func(d workDir) error
	do      func(d workDir) error
	check   func(d workDir) error
}{
	{
		name:    "rename with RENAME_EXCHANGE",
		prepare: func(d workDir) error { return errors.Join(d.write("a", "A"), d.write("b", "B")) },
		do: func(d workDir) error {
			return unix.Renameat2(unix.AT_FDCWD, d.path("a"), unix.AT_FDCWD, d.path("b"), unix.RENAME_EXCHANGE)
		},
		check: func(d workDir) error { return errors.Join(d.want("a", "B", 1), d.want("b", "A", 1)) },
	},
	{
		name:    "create with O_EXCL",
		prepare: func(workDir) error { return nil },
		do: func(d workDir) error {
			fd, err := unix.Open(d.path("a"), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		},
		check: func(d workDir) error { return d.want("a", "", 1) },
	},
	{
		name:    "append",
		prepare: func(d workDir) error { return d.write("a", "first,") },
		do: func(d workDir) error {
			fd, err := unix.Open(d.path("a"), unix.O_APPEND|unix.O_WRONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			n, err := unix.Write(fd, []byte("second"))
			if err == nil && n != len("second") {
				err = fmt.Errorf("%d bytes were written", n)
			}
			return errors.Join(err, unix.Close(fd))
		},
		check: func(d workDir) error { return d.want("a", "first,second", 1) },
	},
	{
		name:    "xattr with XATTR_CREATE",
		prepare: func(d workDir) error { return d.write("a", "A") },
		do:      func(d workDir) error { return unix.Setxattr(d.path("a"), "user.a", []byte("value"), unix.XATTR_CREATE) },
		check: func(d workDir) error {
			b := make([]byte, 16)
			n, err := unix.Getxattr(d.path("a"), "user.a", b)
			if err != nil || string(b[:n]) != "value" {
				return fmt.Errorf("the attribute is %q, %w", b[:max(n, 0)], err)
			}
			return nil
		},
	},
	{
		name:    "link",
		prepare: func(d workDir) error { return d.write("a", "A") },
		do:      func(d workDir) error { return unix.Link(d.path("a"), d.path("b")) },
		check:   func(d workDir) error { return errors.Join(d.want("a", "A", 2), d.want("b", "A", 2)) },
	},
	{
		name:    "rmdir",
		prepare: func(d workDir) error { return os.Mkdir(d.path("a"), 0o700) },
		do:      func(d workDir) error { return unix.Rmdir(d.path("a")) },
		check: func(d workDir) error {
			if _, err := os.Lstat(d.path("a")); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("the directory is still there: %w", err)
			}
			return nil
		},
	},
}

// workDir is a directory on the volume.
type workDir string

func (d workDir) path(name string) string { return filepath.Join(string(d), name) }

func (d workDir) write(name, content string) error {
	return os.WriteFile(d.path(name), []byte(content), 0o600)
}

func (d workDir) want(name, content string, links uint64) error {
	got, err := os.ReadFile(d.path(name))
	if err != nil || string(got) != content {
		return fmt.Errorf("%s holds %q instead of %q, %w", name, got, content, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(d.path(name), &st); err != nil || uint64(st.Nlink) != links {
		return fmt.Errorf("%s has %d links instead of %d, %w", name, st.Nlink, links, err)
	}
	return nil
}

// newMortalNode is a node whose servers have a fuse.
func newMortalNode(t *testing.T) (*node, *fuse) {
	t.Helper()
	n := newRealNode(t)
	must(t, os.WriteFile(n.spec.Path+fuseSuffix, make([]byte, 16), 0o600))
	f, err := openFuse(n.spec.Path + fuseSuffix)
	must(t, err)
	n.mount()
	return n, f
}

// killedAt executes an operation once while its server ends at the given
// point of it, counted in fences, and the successor at one of its own; 0 is
// never. It returns whether they have come to that.
func (n *node) killedAt(f *fuse, op int, first, second int64) (firstDied, secondDied bool) {
	n.t.Helper()
	o := onceOnly[op]
	d := workDir(filepath.Join(n.spec.Mountpoint, fmt.Sprintf("%d %d %d", op, first, second)))
	must(n.t, os.Mkdir(string(d), 0o700))
	must(n.t, o.prepare(d))
	f.next.Store(second)
	f.left.Store(first)
	err := o.do(d)
	secondDied = second > 0 && f.next.Load() == 0 && f.left.Load() <= 0
	firstDied = f.next.Load() == 0 && (second > 0 || f.left.Load() <= 0)
	f.left.Store(0)
	f.next.Store(0)
	if err := errors.Join(err, o.check(d)); err != nil {
		n.t.Errorf("%s, server killed at fence %d, its successor at %d: %v", o.name, first, second, err)
	}
	return firstDied, secondDied
}

// checkVolume unmounts the volume and checks what is on it. What the kernel
// had in its caches while the servers died may have been better than that.
func (n *node) checkVolume() {
	n.t.Helper()
	n.unmount()
	n.checkMedium("clean")
	space, err := openImage(n.spec.Path + realSuffix)
	must(n.t, err)
	report, err := fsck.Check(n.t.Context(), space, fsck.Options{})
	must(n.t, errors.Join(err, space.Close()))
	if report.ExitCode() != fsck.ExitClean {
		n.t.Errorf("fsck: %+v", report.Counts)
	}
	n.mount()
	defer n.unmount()
	entries, err := os.ReadDir(n.spec.Mountpoint)
	must(n.t, err)
	for _, e := range entries {
		op, err := strconv.Atoi(strings.Fields(e.Name())[0])
		must(n.t, err)
		if err := onceOnly[op].check(workDir(filepath.Join(n.spec.Mountpoint, e.Name()))); err != nil {
			n.t.Errorf("%s, %q after a new mount: %v", onceOnly[op].name, e.Name(), err)
		}
	}
}

// maxFences is more than any operation has.
const maxFences = 50

// A server that dies at any fence of a request, or between the last one and
// the answer, has executed the request or it has not; whichever it is, the
// application gets one answer, and it is that of one execution.
func TestKilledAtEveryFence(t *testing.T) {
	n, f := newMortalNode(t)
	for op, o := range onceOnly {
		deaths := int64(0)
		for died := true; died; {
			died, _ = n.killedAt(f, op, deaths+1, 0)
			if died {
				deaths++
			}
			if deaths == maxFences || t.Failed() {
				t.Fatalf("%s: killed %d times", o.name, deaths)
			}
		}
		t.Logf("%s: killed at each of %d points", o.name, deaths)
		if deaths < 3 {
			t.Errorf("%s has no fences: it was not the operation that was watched", o.name)
		}
	}
	n.checkVolume()
}

// The same when the successor dies, too, at any fence of its recovery or of the
// request that is sent to it again.
func TestKilledAtEveryFenceOfTheRecovery(t *testing.T) {
	n, f := newMortalNode(t)
	const op = 0 // the others differ in nothing that matters here
	deaths, first := int64(0), int64(1)
	for {
		firstDied, secondDied := n.killedAt(f, op, first, deaths+1)
		if t.Failed() {
			t.FailNow()
		}
		if !firstDied {
			break
		}
		if secondDied && deaths < maxFences {
			deaths++
			continue
		}
		// Each second point of the request will do: they differ in how much
		// of one record is there.
		first, deaths = first+2, 0
	}
	t.Logf("%s: killed at points 1 to %d, and its successor at each of its own", onceOnly[op].name, first-2)
	n.checkVolume()
}
