package pmem

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenStores writes in every mode that the backing allows and reads the
// file by other means.
func TestOpenStores(t *testing.T) {
	for name, dir := range map[string]string{"tmpfs": tmpfsDir(t), "disk": diskDir(t)} {
		path := newFile(t, dir, "file", 1<<20)
		b, err := Probe(path)
		if err != nil {
			t.Fatal(err)
		}
		for i, mode := range AllowedModes(b, false) {
			t.Run(name+"/"+string(mode), func(t *testing.T) {
				m := open(t, path, Options{Mode: mode})
				if m.Mode() != mode || m.Emulated() != (name == "tmpfs") || m.ReadOnly() || m.Size() != 1<<20 {
					t.Errorf("mode %s, emulated %v, read-only %v, size %d", m.Mode(), m.Emulated(), m.ReadOnly(), m.Size())
				}
				p := m.NewPersister()
				want := pattern(5000 + i)
				p.Copy(4099, want)
				p.Store64(0, 0x0102030405060708)
				p.Flush(0, 8)
				if err := p.Fence(); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got[4099:4099+len(want)], want) || got[0] != 8 {
					t.Error("the file does not have what was stored")
				}
			})
		}
	}
}

func TestOpenRefusesModes(t *testing.T) {
	path := newFile(t, diskDir(t), "file", 1<<20)
	clwbAndMSync := Strategy{Small: MSync, Bulk: CPUModes()[0]}
	for name, opts := range map[string]Options{
		"flush on page cache":    {Mode: CPUModes()[0]},
		"eadr on page cache":     {Mode: EADR},
		"strategy on page cache": {Strategy: &Strategy{Small: CPUModes()[0], Bulk: CPUModes()[0]}},
		"incomplete strategy":    {Strategy: &Strategy{Small: MSync}, Emulated: true},
		"auto in a strategy":     {Strategy: &Strategy{Small: Auto, Bulk: MSync}, Emulated: true},
		"strategy with msync":    {Strategy: &clwbAndMSync, Emulated: true},
		"unknown":                {Mode: "fast"},
		"reserve too small":      {Reserve: 4096},
	} {
		if m, err := Open(path, opts); err == nil {
			t.Errorf("%s: opened with %s", name, m.Strategy())
			m.Close()
		}
	}
	var modeError *ModeError
	if _, err := Open(path, Options{Mode: EADR}); !errors.As(err, &modeError) || !slices.Equal(modeError.Allowed, []Mode{MSync}) {
		t.Errorf("eadr: %v, want a ModeError that offers msync", err)
	}
	// None of the refusals may keep the lock.
	m := open(t, path, Options{})
	if m.Mode() != MSync || m.Strategy().Small != MSync || m.Why() == "" {
		t.Errorf("auto on a disk file: %s, %s, %q", m.Mode(), m.Strategy(), m.Why())
	}
}

func TestOpenEmulated(t *testing.T) {
	path := newFile(t, diskDir(t), "file", 1<<20)
	m := open(t, path, Options{Mode: EADR, Emulated: true})
	if !m.Emulated() || m.Strategy() != NamedStrategy(EADR) {
		t.Errorf("emulated %v, strategy %s", m.Emulated(), m.Strategy())
	}
}

func TestOpenLocks(t *testing.T) {
	path := newFile(t, tmpfsDir(t), "file", 1<<20)
	inUse := func(readOnly bool) {
		t.Helper()
		m, err := Open(path, Options{ReadOnly: readOnly})
		if err == nil {
			m.Close()
		}
		if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "unmount") || !strings.Contains(err.Error(), path) {
			t.Errorf("opened again (read-only %v): %v, want ErrInUse with the remedy", readOnly, err)
		}
	}
	writer := open(t, path, Options{})
	inUse(false)
	inUse(true)
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	// Readers share, and keep a writer out.
	first, second := open(t, path, Options{ReadOnly: true}), open(t, path, Options{ReadOnly: true})
	inUse(false)
	for _, m := range []*Mapping{first, second} {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	open(t, path, Options{})
}

func TestReadOnly(t *testing.T) {
	path := newFile(t, tmpfsDir(t), "file", 1<<20)
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	m := open(t, path, Options{ReadOnly: true})
	p := m.NewPersister()
	for name, store := range map[string]func(){
		"Store64": func() { p.Store64(0, 1) },
		"Copy":    func() { p.Copy(0, []byte{1}) },
		"Zero":    func() { p.Zero(0, 1) },
	} {
		if !panics(store) {
			t.Errorf("%s did not panic", name)
		}
	}
	p.Flush(0, 8)
	if err := p.Fence(); err != nil || !m.ReadOnly() {
		t.Errorf("Fence: %v, read-only %v", err, m.ReadOnly())
	}
	if faults(t, func() { m.Bytes()[0] = 1 }) == 0 {
		t.Error("the memory can be written")
	}
}

// TestExtend grows the file while readers are at work.
func TestExtend(t *testing.T) {
	const small, large = 1 << 20, 3 << 20
	path := newFile(t, tmpfsDir(t), "file", small)
	m := open(t, path, Options{Reserve: large})
	p := m.NewPersister()
	p.Copy(small-8, []byte("the last"))

	if size, err := m.Extend(); size != small || err != nil {
		t.Errorf("nothing has grown: %d, %v", size, err)
	}
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if string(m.Bytes()[small-8:small]) != "the last" || m.Size() < small {
					t.Error("a reader was disturbed")
					return
				}
			}
		})
	}
	if err := os.Truncate(path, large+100); err != nil {
		t.Fatal(err)
	}
	size, err := m.Extend()
	close(stop)
	readers.Wait()
	if size != large || err != nil || m.Size() != large {
		t.Fatalf("Extend: %d, %v, size %d; want %d", size, err, m.Size(), large)
	}
	p.Copy(small-3, []byte("across"))
	p.Store64(large-8, 5)
	if got := string(m.Bytes()[small-3 : small+3]); got != "across" {
		t.Errorf("read %q across the seam", got)
	}
	if err := os.Truncate(path, large+1<<20); err != nil {
		t.Fatal(err)
	}
	if size, err := m.Extend(); err == nil || size != large || !strings.Contains(err.Error(), "reserve") {
		t.Errorf("beyond the reserve: %d, %v", size, err)
	}
	if size, err := memoryIn(t, MSync, 4096).Extend(); size != 4096 || err != nil {
		t.Errorf("memory: %d, %v", size, err)
	}
}

func TestAttach(t *testing.T) {
	const size = 1 << 20
	dir := tmpfsDir(t)
	first, second := newFile(t, dir, "first", size), newFile(t, dir, "second", size)
	m := open(t, first, Options{Reserve: 4 * size})
	for name, off := range map[string]uint64{"on the first": 0, "over the first": size / 2, "unaligned": size + 8, "behind the reserve": 4 * size, "overflow": ^uint64(0) &^ 4095} {
		if _, err := m.Attach(second, off); err == nil {
			t.Errorf("%s: attached at %d", name, off)
		}
	}
	got, err := m.Attach(second, 2*size)
	if got != size || err != nil {
		t.Fatalf("Attach: %d, %v", got, err)
	}
	if m.Size() != size {
		t.Errorf("Size is %d: it speaks of the first device", m.Size())
	}
	for _, twice := range []string{first, second} {
		if _, err := m.Attach(twice, 3*size); !errors.Is(err, ErrAttached) {
			t.Errorf("%s attached twice: %v, want ErrAttached", twice, err)
		}
	}
	if _, err := Open(second, Options{}); !errors.Is(err, ErrInUse) {
		t.Errorf("opened an attached file: %v, want ErrInUse", err)
	}
	p := m.NewPersister()
	p.Copy(2*size+5, []byte("second"))
	if err := p.Fence(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(second)
	if err != nil || string(content[5:11]) != "second" {
		t.Errorf("the second file has %q, %v", content[5:11], err)
	}
	if faults(t, func() { p.Store64(size, 1) }) == 0 {
		t.Error("the gap between the devices can be written")
	}
	// The first device must not grow into the second.
	if err := os.Truncate(first, 3*size); err != nil {
		t.Fatal(err)
	}
	if n, err := m.Extend(); err == nil || n != size || !strings.Contains(err.Error(), second) {
		t.Errorf("extended over the second: %d, %v", n, err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, second, Options{})
}

// TestAttachRefusesWeakerMemory: flush instructions on a page cache, and
// volatile memory beside durable memory, would both lose part of a volume.
func TestAttachRefusesWeakerMemory(t *testing.T) {
	const size = 1 << 20
	disk, shm := newFile(t, diskDir(t), "disk", size), newFile(t, tmpfsDir(t), "shm", size)
	durable := open(t, disk, Options{Reserve: 4 * size})
	if _, err := durable.Attach(shm, 2*size); err == nil || !strings.Contains(err.Error(), "volatile") {
		t.Errorf("tmpfs beside a disk file: %v", err)
	}
	if err := durable.Close(); err != nil {
		t.Fatal(err)
	}
	emulated := open(t, shm, Options{Reserve: 4 * size, Mode: CPUModes()[0]})
	if _, err := emulated.Attach(disk, 2*size); err != nil {
		t.Errorf("emulated beside emulated: %v", err)
	}
}

func TestMSyncOnDisk(t *testing.T) {
	dir := diskDir(t)
	path, further := newFile(t, dir, "file", 1<<20), newFile(t, dir, "further", 1<<20)
	m := open(t, path, Options{Mode: MSync, Reserve: 8 << 20})
	if _, err := m.Attach(further, 4<<20); err != nil {
		t.Fatal(err)
	}
	var synced [][]byte
	system := m.sync.msync
	m.sync.msync = func(mem []byte) error {
		synced = append(synced, mem)
		return system(mem)
	}
	p := m.NewPersister()
	if err := p.Fence(); err != nil || len(synced) != 0 {
		t.Fatalf("nothing stored: %v, %d msyncs", err, len(synced))
	}
	page := os.Getpagesize()
	p.Copy(uint64(page)-1, []byte{1, 2})
	p.Zero(uint64(5*page), 1)
	p.Store64(4<<20+8, 9)
	if err := p.Fence(); err != nil {
		t.Fatal(err)
	}
	if len(synced) != 2 || &synced[0][0] != &m.Bytes()[0] || len(synced[0]) != 6*page || &synced[1][0] != &m.Bytes()[4<<20] || len(synced[1]) != page {
		t.Errorf("%d msyncs: want one for each file, from the first page to the last", len(synced))
	}
	p.Flush(uint64(7*page), 8)
	if err := p.Fence(); err != nil || len(synced) != 3 || &synced[2][0] != &m.Bytes()[7*page] || len(synced[2]) != page {
		t.Errorf("the second fence must sync what was flushed since the first: %v", err)
	}
}

// TestMSyncErrorSticks: the kernel tells one caller only that pages were lost,
// so all must hear of it.
func TestMSyncErrorSticks(t *testing.T) {
	m := open(t, newFile(t, diskDir(t), "file", 1<<20), Options{})
	first, second := m.NewPersister(), m.NewPersister()
	m.sync.msync = func([]byte) error { return unix.EIO }
	first.Store64(0, 1)
	if err := first.Fence(); !errors.Is(err, unix.EIO) {
		t.Errorf("Fence: %v, want EIO", err)
	}
	m.sync.msync = func([]byte) error { return nil }
	for i, p := range []Persister{first, second} {
		if err := p.Fence(); !errors.Is(err, unix.EIO) {
			t.Errorf("persister %d, empty fence: %v, want EIO", i, err)
		}
		p.Store64(8, 1)
		if err := p.Fence(); !errors.Is(err, unix.EIO) {
			t.Errorf("persister %d: %v, want EIO", i, err)
		}
	}
}

// TestPersistersAtOnce has many goroutines store side by side, with a cap on
// the writers.
func TestPersistersAtOnce(t *testing.T) {
	const writers, each = 8, 64 << 10
	for _, mode := range CPUModes() {
		strategy := NamedStrategy(mode)
		strategy.WriterCap = 2
		m := open(t, newFile(t, tmpfsDir(t), "file", writers*each), Options{Strategy: &strategy})
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				p := m.NewPersister()
				src := bytes.Repeat([]byte{byte(w + 1)}, each)
				for range 20 {
					p.Zero(uint64(w*each), each)
					p.Copy(uint64(w*each), src)
					if err := p.Fence(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		for i, v := range m.Bytes()[:writers*each] {
			if int(v) != i/each+1 {
				t.Fatalf("%s: byte %d is %d", mode, i, v)
			}
		}
	}
}

// TestMappingStaysHere: a child process and a core dump must not contain it.
func TestMappingStaysHere(t *testing.T) {
	if underQEMU {
		t.Skip("NOT TESTED: the flags of a mapping, which user mode emulation does not show")
	}
	m := memoryIn(t, CPUModes()[0], 1<<20)
	flags := vmFlags(t, m.Bytes())
	for _, want := range []string{"dd", "dc"} { // do not dump, do not copy on fork
		if !slices.Contains(flags, want) {
			t.Errorf("the mapping's flags %v lack %s", flags, want)
		}
	}
}

// vmFlags reads the kernel's flags of the mapping that begins with mem.
func vmFlags(t *testing.T, mem []byte) []string {
	t.Helper()
	smaps, err := os.ReadFile(filepath.Join("/proc/self", "smaps"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(smaps), "\n"+hexAddress(mem)+"-")
	if !found {
		t.Fatalf("no mapping at %s", hexAddress(mem))
	}
	_, rest, _ = strings.Cut(rest, "VmFlags:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.Fields(line)
}
