package pmem

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestFaultIsRecoverable cuts the backing off under the mapping: a store must
// panic with the address of the fault, the process must live, and the part that
// is left must stay usable.
func TestFaultIsRecoverable(t *testing.T) {
	const left, size = 64 << 10, 1 << 20
	dir := tmpfsDir(t)
	for _, mode := range CPUModes() {
		t.Run(string(mode), func(t *testing.T) {
			path := newFile(t, dir, string(mode), size)
			m := open(t, path, Options{Mode: mode})
			p := m.NewPersister()
			if err := os.Truncate(path, left); err != nil {
				t.Fatal(err)
			}
			base := uintptr(unsafe.Pointer(&m.Bytes()[0]))
			src := pattern(maxLeaf + 100)
			// A store of each kind that begins in what is left.
			checkFault(t, "Copy", base+left, faults(t, func() { p.Copy(left-50, src) }))
			checkFault(t, "Zero", base+left, faults(t, func() { p.Zero(left-50, maxLeaf) }))
			checkFault(t, "short Copy", base+left, faults(t, func() { p.Copy(left-5, src[:10]) }))
			checkFault(t, "Store64", base+left, faults(t, func() { p.Store64(left, 1) }))
			checkFault(t, "read", base+left, faults(t, func() { src[0] = m.Bytes()[left] }))

			p = m.NewPersister()
			p.Copy(100, src[:1000])
			if err := p.Fence(); err != nil {
				t.Fatal(err)
			}
			if got := string(m.Bytes()[100:1100]); got != string(src[:1000]) {
				t.Error("the part that is left is not usable any more")
			}
		})
	}
}

// checkFault wants a fault in the page at want.
func checkFault(t *testing.T, op string, want, got uintptr) {
	t.Helper()
	if got == unknownAddress {
		return
	}
	if page := uintptr(os.Getpagesize()); got&^(page-1) != want {
		t.Errorf("%s faulted at %#x, want one in the page at %#x", op, got, want)
	}
}

// TestFaultLeavesTheGate: a bulk copy that faults must not keep its place
// among the limited writers.
func TestFaultLeavesTheGate(t *testing.T) {
	path := newFile(t, tmpfsDir(t), "file", 1<<20)
	strategy := NamedStrategy(CPUModes()[0])
	strategy.WriterCap = 1
	m := open(t, path, Options{Strategy: &strategy})
	if err := os.Truncate(path, 64<<10); err != nil {
		t.Fatal(err)
	}
	src := make([]byte, 8192)
	for range 3 {
		p := m.NewPersister()
		if faults(t, func() { p.Copy(128<<10, src) }) == 0 {
			t.Fatal("no fault")
		}
	}
	m.NewPersister().Copy(0, src) // would wait for ever
}

// TestReserveFaults: what no device backs must not be silently usable.
func TestReserveFaults(t *testing.T) {
	m := memoryIn(t, CPUModes()[0], 1<<20)
	if faults(t, func() { m.NewPersister().Store64(m.Size(), 1) }) == 0 {
		t.Error("a store behind the memory did not fault")
	}
}

// TestFlushLeaves puts a range against pages that must not be touched: a flush
// of one byte too many would fault there, and one of a byte too few would not
// fault where it must.
func TestFlushLeaves(t *testing.T) {
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 3*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	if err := unix.Mprotect(mem[page:2*page], unix.PROT_READ|unix.PROT_WRITE); err != nil {
		t.Fatal(err)
	}
	base := unsafe.Pointer(&mem[0])
	for _, mode := range CPUModes() {
		if !mode.flushes() {
			continue
		}
		t.Run(string(mode), func(t *testing.T) {
			flush := methodOf(mode, mode).flush
			touches := func(off, n int) bool {
				return faults(t, func() { flush(unsafe.Add(base, off), uintptr(n)) }) != 0
			}
			for n := 1; n <= 200; n++ {
				if touches(page, n) {
					t.Errorf("%d bytes from the first of the page: flushed outside", n)
				}
				if touches(2*page-n, n) {
					t.Errorf("%d bytes to the last of the page: flushed outside", n)
				}
				if !touches(2*page-n, n+1) {
					t.Errorf("%d bytes that end one byte into the next page: its line was not flushed", n+1)
				}
				if !touches(page-1, n) {
					t.Errorf("%d bytes from the last one of the page before: its line was not flushed", n)
				}
			}
		})
	}
}
