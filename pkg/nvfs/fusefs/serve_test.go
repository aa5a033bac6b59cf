package fusefs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// serveEnv makes the test binary serve the mounted descriptor 3: its value is
// a kind of filesystem, a cache mode and a transport. A process must not serve
// what it maps into memory itself: a page fault would stop its garbage
// collector.
const serveEnv = "FUSEFS_TEST_SERVE"

func TestMain(m *testing.M) {
	if what := os.Getenv(serveEnv); what != "" {
		words := strings.Fields(what)
		if err := serve(fsKind(words[0]), CacheMode(words[1]), words[2]); err != nil {
			fmt.Fprintln(os.Stderr, "serve:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fsKind says which filesystem a test mounts.
type fsKind string

const (
	nullKind   fsKind = "null"
	engineKind fsKind = "engine"
)

func serve(kind fsKind, cache CacheMode, transport string) error {
	space, err := pmem.NewMemory(64 << 20)
	if err != nil {
		return err
	}
	files := NewNull(space)
	if kind == engineKind {
		if files, err = newEngine(space); err != nil {
			return err
		}
	}
	fd := os.NewFile(3, "/dev/fuse")
	t, err := NewTransport(fd, files, Options{Transport: transport, Cache: cache, Threads: 4, OnPanic: func(f Fault) {
		fmt.Fprintf(os.Stderr, "%v\n%s", f, f.Stack)
	}})
	if err != nil {
		return err
	}
	return t.Serve(context.Background())
}

// engine is the filesystem that volumes have.
type engine struct{ fs *nvfs.FS }

func newEngine(space pmem.Space) (Filesystem, error) {
	if _, err := mkfs.Format(space, mkfs.Options{}); err != nil {
		return nil, err
	}
	fs, err := nvfs.Mount(space, nvfs.Options{})
	return engine{fs}, err
}

func (e engine) NewWorker() (Worker, error) { return e.fs.NewWorker() }

// transports are the names of all of them.
var transports = []string{devName, uringName}

// needMount fails a test that cannot run: that is a defect of its
// environment, not a success.
func needMount(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test mounts FUSE and must run as root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Fatalf("this test mounts FUSE: %v", err)
	}
}

// mounted mounts a filesystem that another process serves, and unmounts
// it at the end of the test.
func mounted(t testing.TB, kind fsKind, cache CacheMode, transport string) string {
	t.Helper()
	needMount(t)
	// Unlike t.TempDir's, open to other users.
	dir, err := os.MkdirTemp("", "fusefs-test")
	must(t, err)
	t.Cleanup(func() { os.Remove(dir) })
	must(t, os.Chmod(dir, 0o755))
	fd, err := Mount(dir, MountOptions{Source: "null", AllowOther: true, Transport: transport})
	must(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", serveEnv, kind, cache, transport))
	cmd.ExtraFiles = []*os.File{fd}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	err = cmd.Start()
	fd.Close()
	if err != nil {
		Detach(dir)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unmount(dir); err != nil {
			t.Error(err)
			Detach(dir)
			cmd.Process.Kill()
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("serving process: %v", err)
		}
	})
	return dir
}

// asUser runs f with the file access rights of an unprivileged user.
func asUser(uid int, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		if err := unix.Setfsgid(uid); err != nil {
			panic(err)
		}
		if err := unix.Setfsuid(uid); err != nil {
			panic(err)
		}
		f()
	}()
	<-done
}
