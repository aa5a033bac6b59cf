//go:build soak

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// soakNumber is a number from the environment.
func soakNumber(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		t.Fatalf("%s=%q is no positive number", name, text)
	}
	return n
}

// anonymousMemory is the memory of a process in bytes, without what it maps of
// files: the volume is mapped, and is not the process's.
func anonymousMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("process %d has no RssAnon:\n%s", pid, status)
	return 0
}

const mib = 1 << 20

// inParallel runs f in several goroutines and fails the test for an error.
func inParallel(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestSoakCreateUnlink makes and removes files for as long as it takes to see
// whether anything grows: NVFS_SOAK_PAIRS pairs, or a million.
func TestSoakCreateUnlink(t *testing.T) {
	const clients = 4
	pairs := soakNumber(t, "NVFS_SOAK_PAIRS", 1_000_000)
	v := newVolume(t, 256<<20)
	v.mount(t)
	dir := v.mkdir(t, "d")
	pid := v.server(t)
	run := func(count int) {
		inParallel(t, clients, func(i int) error {
			for n := range count / clients {
				name := filepath.Join(dir, fmt.Sprintf("%d-%d", i, n))
				if err := unix.Mknod(name, unix.S_IFREG|0o600, 0); err != nil {
					return fmt.Errorf("mknod %s: %w", name, err)
				}
				if n%16 == 0 { // some with blocks of their own
					if err := os.WriteFile(name, make([]byte, 5000), 0o600); err != nil {
						return err
					}
				}
				if err := unix.Unlink(name); err != nil {
					return fmt.Errorf("unlink %s: %w", name, err)
				}
			}
			return nil
		})
	}
	run(pairs / 20) // until everything has its size
	eventually(t, "deleted files are released", func() bool { return usedInodes(t, v.mnt) == 2 })
	fresh, memory, start := freeSpace(t, v.mnt), anonymousMemory(t, pid), time.Now()
	const parts = 10
	for part := range parts {
		run(pairs / parts)
		t.Logf("%d pairs: %.1f MiB of memory", (part+1)*pairs/parts, float64(anonymousMemory(t, pid))/mib)
	}
	t.Logf("%.0f pairs a second", float64(pairs)/time.Since(start).Seconds())
	eventually(t, "free space is what it was", func() bool { return freeSpace(t, v.mnt) == fresh })
	if now := anonymousMemory(t, pid); now > memory+4*mib || now > 64*mib {
		t.Errorf("memory grew from %.1f to %.1f MiB", float64(memory)/mib, float64(now)/mib)
	}
	v.unmount(t)
	v.check(t)
}

func usedInodes(t *testing.T, dir string) uint64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Files - st.Ffree
}

// TestSoakMillionFiles looks at a million files with find(1), after a remount
// and again, and wants the server to stay small.
func TestSoakMillionFiles(t *testing.T) {
	const dirs, files = 1000, 1000
	v := newVolume(t, 20<<30) // there is an inode for 16 KiB; most of it is never touched
	v.mount(t)
	var next atomic.Int64
	start := time.Now()
	inParallel(t, 4, func(int) error {
		for i := next.Add(1) - 1; i < dirs; i = next.Add(1) - 1 {
			dir := v.path(fmt.Sprintf("dir-%d", i))
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
			for n := range files {
				if err := unix.Mknod(fmt.Sprintf("%s/file-%d", dir, n), unix.S_IFREG|0o600, 0); err != nil {
					return err
				}
			}
		}
		return nil
	})
	t.Logf("%d files in %.0f s", dirs*files, time.Since(start).Seconds())
	v.unmount(t)
	v.check(t)
	v.mount(t)
	pid := v.server(t)
	idle := anonymousMemory(t, pid)
	for i := range 2 {
		start = time.Now()
		out := must(t, "sh", "-c", `find "$0" -type f -size 0 | wc -l`, v.mnt)
		if got := strings.TrimSpace(out.stdout); got != strconv.Itoa(dirs*files) {
			t.Errorf("find lists %s files", got)
		}
		memory := anonymousMemory(t, pid)
		t.Logf("find %d: %.1f s; %.1f MiB of memory, idle %.1f", i+1, time.Since(start).Seconds(), float64(memory)/mib, float64(idle)/mib)
		if memory > 64*mib {
			t.Errorf("the server takes %.1f MiB after find", float64(memory)/mib)
		}
	}
	if err := dropAllCaches(); err != nil {
		t.Fatal(err)
	}
	t.Logf("with the kernel's caches dropped: %.1f MiB", float64(anonymousMemory(t, pid))/mib)
}

// TestSoakManyJobs lets 48 processes read, write and verify, each a file of
// its own and all one file.
func TestSoakManyJobs(t *testing.T) {
	eachMode(t, 1<<30, func(t *testing.T, v testVolume, _ func()) {
		for _, kind := range []struct {
			name string
			args []string
		}{
			{"48 files", []string{"--directory=" + v.mnt}},
			{"one file", []string{"--filename=" + v.path("one"), "--offset_increment=4m"}},
		} {
			start := time.Now()
			r := must(t, "fio", append([]string{"--name=job", "--numjobs=48", "--rw=randrw", "--bs=4096", "--size=4m", "--direct=1", "--ioengine=psync",
				"--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--fallocate=none", "--group_reporting", "--output-format=terse", "--terse-version=3"}, kind.args...)...)
			fields := strings.Split(r.stdout, ";")
			if len(fields) < 49 {
				t.Fatalf("fio says %s", r)
			}
			t.Logf("%s: %s reads and %s writes a second, %.1f s", kind.name, fields[7], fields[48], time.Since(start).Seconds())
		}
	})
}

// TestSoakOneDirectory lets 16 threads make and remove names in one directory.
func TestSoakOneDirectory(t *testing.T) {
	const each = 20000
	v := newVolume(t, 1<<30)
	v.mount(t)
	for _, threads := range []int{1, 16} {
		dir := v.mkdir(t, fmt.Sprint(threads))
		start := time.Now()
		inParallel(t, threads, func(i int) error {
			for n := range each {
				if err := unix.Mknod(fmt.Sprintf("%s/%d-%d", dir, i, n), unix.S_IFREG|0o600, 0); err != nil {
					return err
				}
			}
			return nil
		})
		took := time.Since(start)
		t.Logf("%d threads: %.0f names a second", threads, float64(threads*each)/took.Seconds())
		list, err := os.ReadDir(dir)
		if err != nil || len(list) != threads*each {
			t.Errorf("%d names, %v; want %d", len(list), err, threads*each)
		}
		inParallel(t, threads, func(i int) error {
			for n := range each {
				if err := unix.Unlink(fmt.Sprintf("%s/%d-%d", dir, i, n)); err != nil {
					return err
				}
			}
			return nil
		})
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}
	v.unmount(t)
	v.check(t)
}
