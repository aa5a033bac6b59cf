package fusefs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// The kernel copies to and from these places.
func TestRingLayout(t *testing.T) {
	var h ringHeader
	if unsafe.Offsetof(h.Op) != 128 || unsafe.Offsetof(h.Flags) != 256 || unsafe.Offsetof(h.PayloadSize) != 272 || ringHeaderSize != 288 {
		t.Errorf("request header: %d, %d, %d, %d", unsafe.Offsetof(h.Op), unsafe.Offsetof(h.Flags), unsafe.Offsetof(h.PayloadSize), ringHeaderSize)
	}
	var s sqe
	if unsafe.Sizeof(s) != 128 || unsafe.Offsetof(s.UserData) != 32 || unsafe.Offsetof(s.CmdFlags) != 48 || unsafe.Offsetof(s.QID) != 64 {
		t.Errorf("submission entry: %d, %d, %d, %d", unsafe.Sizeof(s), unsafe.Offsetof(s.UserData), unsafe.Offsetof(s.CmdFlags), unsafe.Offsetof(s.QID))
	}
	if unsafe.Sizeof(ringParams{}) != 120 || unsafe.Sizeof(cqe{}) != 16 {
		t.Errorf("parameters %d, completion %d", unsafe.Sizeof(ringParams{}), unsafe.Sizeof(cqe{}))
	}
}

func writeCPUs(t *testing.T, possible, online string) (sysfs string) {
	t.Helper()
	sysfs = t.TempDir()
	must(t, os.WriteFile(filepath.Join(sysfs, "possible"), []byte(possible+"\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(sysfs, "online"), []byte(online+"\n"), 0o644))
	return sysfs
}

func TestPlanQueues(t *testing.T) {
	for _, test := range []struct {
		possible, online string
		want             []queuePlan
	}{
		{"0", "0", []queuePlan{{0, []int{0}}}},
		{"0-1", "0-1", []queuePlan{{0, []int{0}}, {1, []int{1}}}},
		{"0-4", "0,2", []queuePlan{{0, []int{0}}, {2, []int{2}}, {anyCPU, []int{1, 3, 4}}}},
		// As many queues as CPUs, whatever these are called.
		{"0,4-5", "0,4", []queuePlan{{0, []int{0}}, {anyCPU, []int{1, 2}}}},
	} {
		got, err := planQueues(writeCPUs(t, test.possible, test.online))
		must(t, err)
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("possible %s, online %s: %v, want %v", test.possible, test.online, got, test.want)
		}
	}
	if _, err := planQueues(writeCPUs(t, "x", "0")); err == nil {
		t.Error("nonsense is accepted")
	}
}

func TestEnableUring(t *testing.T) {
	parameter := filepath.Join(t.TempDir(), "enable_uring")
	if _, err := enableUring(parameter); err == nil || !strings.Contains(err.Error(), "6.14") {
		t.Errorf("old kernel: %v", err)
	}
	for content, want := range map[string]bool{"N\n": true, "Y\n": false} {
		must(t, os.WriteFile(parameter, []byte(content), 0o644))
		if changed, err := enableUring(parameter); changed != want || err != nil {
			t.Errorf("%q: %v, %v", content, changed, err)
		}
		if b, err := os.ReadFile(parameter); err != nil || b[0] != 'Y' {
			t.Errorf("%q became %q, %v", content, b, err)
		}
	}
}

func TestSetupError(t *testing.T) {
	for e, word := range map[unix.Errno]string{unix.EPERM: "io_uring_disabled", unix.ENOMEM: "ulimit -l", unix.ENOSYS: "6.14", unix.EMFILE: "too many"} {
		if err := setupError(e); !errors.Is(err, e) || !strings.Contains(err.Error(), word) {
			t.Errorf("%v: %v", e, err)
		}
	}
}

// What cannot be used is replaced by dev, with the reason, before anything of
// it is seen by those who use the mount; or it is an error if it must be used.
func TestUringUnusable(t *testing.T) {
	absent := func(t *testing.T) string { return writeCPUs(t, "0-4095", "4095") }
	for name, test := range map[string]struct {
		change func(*testing.T, *uring)
		word   string
	}{
		"a CPU refuses the thread":   {func(t *testing.T, u *uring) { u.sysfs = absent(t) }, "CPU 4095"},
		"the kernel refuses a queue": {func(t *testing.T, u *uring) { u.payload = 4096 }, "refuses queue"},
		"it was off at the mount":    {func(_ *testing.T, u *uring) { u.conn.transport = devName }, "does not offer it"},
	} {
		t.Run(name, func(t *testing.T) {
			p := mountInProcess(t, autoName, smallNull(t))
			p.serveBy(nil, func(tr Transport) { test.change(t, tr.(*uring)) })
			if p.tr.Name() != devName || !strings.Contains(p.tr.Reason(), test.word) || p.tr.Session().Transport != devName {
				t.Errorf("%s, %q, %+v", p.tr.Name(), p.tr.Reason(), p.tr.Session())
			}
			must(t, os.WriteFile(filepath.Join(p.dir, "f"), []byte("x"), 0o644))
			must(t, p.end())
		})
		t.Run(name+", must", func(t *testing.T) {
			p := mountInProcess(t, uringName, smallNull(t))
			tr, err := NewTransport(p.fd, p.fs, Options{Transport: uringName})
			must(t, err)
			test.change(t, tr.(*uring))
			err = tr.Serve(context.Background())
			if err == nil || !strings.Contains(err.Error(), test.word) || !strings.Contains(err.Error(), "transport=dev") {
				t.Errorf("Serve: %v", err)
			}
		})
	}
}

// Every connection over io_uring ends with its server, in order.
func TestUringStops(t *testing.T) {
	p := startInProcess(t, uringName)
	must(t, os.WriteFile(filepath.Join(p.dir, "f"), []byte("x"), 0o644))
	p.stop()
	if err := <-p.done; !errors.Is(err, context.Canceled) {
		t.Errorf("Serve: %v", err)
	}
	if s := p.tr.Session(); s.CanContinue() || s.CanResume() {
		t.Errorf("%+v says that it can be continued", s)
	}
	if _, err := NewTransport(p.fd, p.fs, Options{Session: p.tr.Session()}); err == nil {
		t.Error("continuing it is not refused")
	}
}

// Nothing of a transport is left when it has ended.
func TestServeLeavesNothing(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport string) {
		files := openFiles(t)
		goroutines := runtime.NumGoroutine()
		for range 3 {
			p := startInProcess(t, transport)
			must(t, os.WriteFile(filepath.Join(p.dir, "f"), []byte("x"), 0o644))
			must(t, p.end())
			must(t, p.fd.Close())
		}
		for i := 0; runtime.NumGoroutine() > goroutines; i++ { // goroutines that have said their last word
			if i == 1e6 {
				buf := make([]byte, 1<<16)
				t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), goroutines, buf[:runtime.Stack(buf, true)])
			}
			runtime.Gosched()
		}
		if now := openFiles(t); !slices.Equal(now, files) {
			t.Errorf("open files: %q, before %q", now, files)
		}
	})
}

func openFiles(t *testing.T) []string {
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	var files []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			files = append(files, to)
		}
	}
	slices.Sort(files)
	return files
}

// A connection may end while all of its threads are busy.
func TestAbortUnderLoad(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport string) {
		p := startInProcess(t, transport)
		path := filepath.Join(p.dir, "f")
		must(t, os.WriteFile(path, []byte("x"), 0o644))
		top, err := Top(p.dir)
		must(t, err)
		var busy, clients sync.WaitGroup
		for i := range 6 {
			busy.Add(1)
			clients.Go(func() {
				once := sync.OnceFunc(busy.Done)
				var st unix.Statfs_t
				for unix.Statfs(p.dir, &st) == nil && os.WriteFile(fmt.Sprint(path, i), []byte("x"), 0o644) == nil {
					once()
				}
				once()
			})
		}
		busy.Wait()
		must(t, AbortConnection(top.Connection))
		if err := <-p.done; !errors.Is(err, ErrAborted) {
			t.Errorf("Serve: %v, want ErrAborted", err)
		}
		clients.Wait()
	})
}

// blockingFS lets allocations wait until released.
type blockingFS struct {
	Filesystem
	entered, release chan struct{}
}

type blockingWorker struct {
	Worker
	fs *blockingFS
}

func (b *blockingFS) NewWorker() (Worker, error) {
	w, err := b.Filesystem.NewWorker()
	return &blockingWorker{w, b}, err
}

func (w *blockingWorker) Fallocate(id nvfs.NodeID, mode uint32, off, length uint64) error {
	if length >= longChange {
		w.fs.entered <- struct{}{}
		<-w.fs.release
	}
	return nil
}

// The requests of a CPU do not wait for a long one that was made on it.
func TestLongRequests(t *testing.T) {
	fs := &blockingFS{smallNull(t), make(chan struct{}), make(chan struct{})}
	p := mountInProcess(t, uringName, fs)
	p.serve(nil)
	const long = longThreads + 1 // one more than are executed at once
	var clients sync.WaitGroup
	for i := range long {
		clients.Go(func() {
			onCPU0(t, func() {
				fd, err := unix.Open(filepath.Join(p.dir, fmt.Sprint(i)), unix.O_CREAT|unix.O_RDWR, 0o644)
				if err == nil {
					err = errors.Join(unix.Fallocate(fd, 0, 0, longChange), unix.Close(fd))
				}
				if err != nil {
					t.Error(err)
				}
			})
		})
	}
	for range longThreads {
		<-fs.entered
	}
	for range 100 {
		onCPU0(t, func() {
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(p.dir, "missing"), &st); err != unix.ENOENT {
				t.Error(err)
			}
			var fst unix.Statfs_t
			if err := unix.Statfs(p.dir, &fst); err != nil {
				t.Error(err)
			}
		})
	}
	close(fs.release)
	for range long - longThreads {
		<-fs.entered
	}
	clients.Wait()
	must(t, p.end())
}

// onCPU0 calls f on a thread that is bound to CPU 0.
func onCPU0(t *testing.T, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		if err := pin(0); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// Long requests that are shorter than that are answered as well as others, for
// files of all sizes.
func TestLongRequestsOfAFile(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport string) {
		p := startInProcess(t, transport)
		fd, err := unix.Open(filepath.Join(p.dir, "f"), unix.O_CREAT|unix.O_RDWR, 0o644)
		must(t, err)
		for _, size := range []int64{4096, 4 * longChange, 3 * longChange, 1, 0, 2 * longChange, 2*longChange - 1} {
			must(t, unix.Ftruncate(fd, size))
			var st unix.Stat_t
			must(t, unix.Fstat(fd, &st))
			if st.Size != size {
				t.Errorf("size %d after truncating to %d", st.Size, size)
			}
		}
		must(t, unix.Close(fd))
		must(t, p.end())
	})
}

// What was removed is free for whoever asks next, although the kernel tells of
// it later.
func TestSpaceOfRemovedFiles(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport string) {
		p := startInProcess(t, transport)
		path := filepath.Join(p.dir, "f")
		var before, after unix.Statfs_t
		must(t, unix.Statfs(p.dir, &before))
		for range 5 {
			must(t, os.WriteFile(path, make([]byte, 7<<20), 0o644)) // of 8 MiB
			must(t, os.Remove(path))
		}
		must(t, unix.Statfs(p.dir, &after))
		// On dev the kernel may hand the message to one thread and the question
		// to another: there the space is free a moment later.
		for end := time.Now().Add(time.Minute); transport == devName && before.Bfree != after.Bfree && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
			must(t, unix.Statfs(p.dir, &after))
		}
		if before.Bfree != after.Bfree {
			t.Errorf("%d blocks are free, %d before", after.Bfree, before.Bfree)
		}
		must(t, p.end())
	})
}

// Threads may have to share what executes requests.
func TestSharedExecutors(t *testing.T) {
	p := mountInProcess(t, uringName, smallNull(t))
	p.serveBy(nil, func(tr Transport) { tr.(*uring).maxExecutors = 1 })
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			path := filepath.Join(p.dir, fmt.Sprint(i))
			for n := range 100 {
				want := strings.Repeat(fmt.Sprint(i), n+1)
				if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
					t.Error(err)
				}
				got, err := os.ReadFile(path)
				if err != nil || string(got) != want {
					t.Errorf("%q, %v", got, err)
				}
			}
		})
	}
	clients.Wait()
	must(t, p.end())
}

// Requests that come through queues are served without garbage, too.
func TestNoAllocationsMounted(t *testing.T) {
	eachTransport(t, func(t *testing.T, transport string) {
		p := startInProcess(t, transport)
		path := filepath.Join(p.dir, "f")
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_DIRECT, 0o644)
		must(t, err)
		buf, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
		must(t, err)
		defer unix.Munmap(buf)
		missing, err := unix.BytePtrFromString(filepath.Join(p.dir, "missing"))
		must(t, err)
		var failed atomic.Int64
		requests := func() {
			for _, size := range []int{4 << 10, 64 << 10} {
				if _, err := unix.Pwrite(fd, buf[:size], 0); err != nil {
					failed.Add(1)
				}
				if _, err := unix.Pread(fd, buf[:size], 0); err != nil {
					failed.Add(1)
				}
			}
			// The name is there for the first time each time: a LOOKUP.
			if _, _, e := unix.Syscall(unix.SYS_UNLINK, uintptr(unsafe.Pointer(missing)), 0, 0); e != unix.ENOENT {
				failed.Add(1)
			}
			if _, _, e := unix.Syscall(unix.SYS_FTRUNCATE, uintptr(fd), 128<<10, 0); e != 0 {
				failed.Add(1)
			}
		}
		for range 100 {
			requests()
		}
		const rounds = 500
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range rounds {
			requests()
		}
		runtime.ReadMemStats(&after)
		// The runtime itself makes some, such as for threads.
		if n := after.Mallocs - before.Mallocs; n > rounds/4 || failed.Load() > 0 {
			t.Errorf("%d allocations in %d rounds, %d failures", n, rounds, failed.Load())
		}
		must(t, unix.Close(fd))
		must(t, p.end())
	})
}
