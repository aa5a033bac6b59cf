package mountd

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestStateName(t *testing.T) {
	for _, id := range []string{"vol-1", "pvc-0a1b.2", "A_b"} {
		if got := stateName(id); got != id {
			t.Errorf("%s becomes %s", id, got)
		}
	}
	seen := map[string]string{}
	for _, id := range []string{"../evil", "a/b", ".", "..", ".hidden", strings.Repeat("n", 41), "with space", "+plus"} {
		got := stateName(id)
		if strings.ContainsAny(got, "/ ") || !strings.HasPrefix(got, "+") || len(got) > 40 {
			t.Errorf("%s becomes %s", id, got)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%s and %s share %s", id, other, got)
		}
		seen[got] = id
	}
}

func TestSocketPath(t *testing.T) {
	if p, err := socketPath(DefaultStateDir, strings.Repeat("n", 200)); err != nil || len(p) > maxSocketPath {
		t.Errorf("%s, %v", p, err)
	}
	_, err := socketPath("/"+strings.Repeat("d", 100), "vol-1")
	checkError(t, err, "shorter state directory")
}

func TestMakeStateDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	must(t, makeStateDir(dir))
	must(t, makeStateDir(dir))
	must(t, os.Chmod(dir, 0o755))
	checkError(t, makeStateDir(dir), "0700", "chmod")
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	if p, err := openProbe(lockPath(dir, "vol-1")); p != nil || err != nil {
		t.Errorf("probe of a volume that was never served: %v, %v", p, err)
	}
	lock, err := takeLock(dir, "vol-1")
	must(t, err)
	probe, err := openProbe(lockPath(dir, "vol-1"))
	must(t, err)
	defer probe.Close()
	check := func(wantLocked bool, wantPID int) {
		t.Helper()
		locked, err := probe.locked()
		if err != nil || locked != wantLocked {
			t.Errorf("locked %v, %v", locked, err)
		}
		p, err := probe.process()
		must(t, err)
		var pid int
		if p != nil {
			pid = p.pid
			p.Close()
		}
		if pid != wantPID {
			t.Errorf("process %d, want %d", pid, wantPID)
		}
	}
	check(true, 0)
	must(t, writePID(lock, os.Getpid()))
	check(true, os.Getpid())
	if _, err := takeLock(dir, "vol-1"); !errors.Is(err, ErrInUse) {
		t.Errorf("second lock: %v", err)
	}
	other, err := takeLock(dir, "vol-2")
	must(t, err)
	must(t, other.Close())
	must(t, lock.Close())
	check(false, 0) // the PID in the file means nothing any more
	lock, err = takeLock(dir, "vol-1")
	must(t, err)
	check(true, 0)
	must(t, lock.Close())
}

// A lock whose file was removed is nobody's: two processes never hold the lock
// of one volume.
func TestLockFileIsRemovedUnderLock(t *testing.T) {
	dir := t.TempDir()
	old, err := takeLock(dir, "vol-1")
	must(t, err)
	must(t, removeState(dir, "vol-1"))
	if current, err := isCurrent(old); current || err != nil {
		t.Errorf("a removed lock file is current: %v, %v", current, err)
	}
	next, err := takeLock(dir, "vol-1")
	must(t, err)
	if current, err := isCurrent(old); current || err != nil {
		t.Errorf("a replaced lock file is current: %v, %v", current, err)
	}
	must(t, old.Close())
	must(t, removeLock(dir, "vol-1")) // next is held
	if current, err := isCurrent(next); !current || err != nil {
		t.Errorf("the lock of somebody else was removed: %v, %v", current, err)
	}
	must(t, dropLock(next, dir, "vol-1"))

	var holders atomic.Int32
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for range 200 {
				lock, err := takeLock(dir, "vol-1")
				if errors.Is(err, ErrInUse) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d hold the lock", n)
				}
				holders.Add(-1)
				if err := dropLock(lock, dir, "vol-1"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	must(t, removeLock(dir, "vol-1"))
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("%v is left, %v", files, err)
	}
}

func TestNodeCPUs(t *testing.T) {
	sysfs := t.TempDir()
	must(t, os.Mkdir(filepath.Join(sysfs, "node1"), 0o755))
	must(t, os.WriteFile(filepath.Join(sysfs, "node1", "cpulist"), []byte("4-5\n"), 0o644))
	if cpus, err := nodeCPUs(sysfs, 1); err != nil || !reflect.DeepEqual(cpus, []int{4, 5}) {
		t.Errorf("%v, %v", cpus, err)
	}
	if cpus, err := nodeCPUs(sysfs, 2); err != nil || cpus != nil {
		t.Errorf("a node that does not exist: %v, %v", cpus, err)
	}
}
