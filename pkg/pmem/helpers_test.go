package pmem

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tmpfsDir is a directory on tmpfs. A machine without one at /dev/shm fails
// the test: most of what is tested needs it.
func tmpfsDir(t testing.TB) string {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Fatalf("/dev/shm is not tmpfs (%v): mount one to run this test", err)
	}
	dir, err := os.MkdirTemp("/dev/shm", "pmem-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// diskDir is a directory whose files are in the page cache of a disk, or at
// least not on tmpfs.
func diskDir(t testing.TB) string {
	t.Helper()
	for _, parent := range []string{os.TempDir(), "/var/tmp", "."} {
		var st unix.Statfs_t
		if err := unix.Statfs(parent, &st); err != nil || st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC {
			continue
		}
		dir, err := os.MkdirTemp(parent, "pmem-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
		return dir
	}
	t.Fatal("no writable directory outside tmpfs: set TMPDIR to one on a disk")
	return ""
}

// newFile makes a file of that size.
func newFile(t testing.TB, dir, name string, size int64) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t testing.TB, path string, opts Options) *Mapping {
	t.Helper()
	if opts.CalibrationFile == "" {
		opts.CalibrationFile = filepath.Join(t.TempDir(), "none.json")
	}
	if underQEMU && opts.Reserve == 0 {
		opts.Reserve = 1 << 30 // old versions keep a record of every page
	}
	m, err := Open(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// underQEMU is set by test/arm64.sh: user mode emulation does not tell the
// address of a SIGBUS, nor the flags of a mapping.
var underQEMU = os.Getenv("PMEM_TEST_UNDER_QEMU") != ""

// unknownAddress is what faults returns for a fault whose address the emulator
// does not tell.
const unknownAddress = 1

// faults reports the address at which f faults, 0 when it does not.
func faults(t testing.TB, f func()) (addr uintptr) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		debug.SetPanicOnFault(true)
		defer func() {
			switch r := recover().(type) {
			case nil:
			case interface{ Addr() uintptr }:
				addr = r.Addr()
			case runtime.Error:
				if underQEMU {
					addr = unknownAddress
					return
				}
				t.Errorf("panic without an address: %v", r)
			default:
				t.Errorf("panic, but not by a fault: %v", r)
			}
		}()
		f()
	}()
	<-done
	return addr
}

func hexAddress(mem []byte) string {
	return strconv.FormatUint(uint64(uintptr(unsafe.Pointer(&mem[0]))), 16)
}
