package pmem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ScratchOptions of OpenScratch.
type ScratchOptions struct {
	// Path is the backing, or a directory, whose kind of memory is measured.
	// Nothing is written to it: a temporary file beside it is used.
	Path string
	// Scratch, where set, is written to instead: a device or file that is
	// blank, such as a namespace made for the purpose. It is needed for devdax
	// and block devices. Its first 64 KiB are never written.
	Scratch string
	// Emulated declares that the memory stands in for persistent memory.
	Emulated bool
	// Size is how many bytes to use; 0 is 64 MiB.
	Size uint64
	// NUMANode is where threads run and memory comes from when the backing
	// does not know; nil is anywhere.
	NUMANode *int
}

// ErrNoScratch says that there is no memory of the kind that may be written.
var ErrNoScratch = errors.New("no scratch memory to measure on")

const (
	scratchSize  = 64 << 20
	scratchBlank = 64 << 10 // every filesystem and volume has its signature here
)

// Scratch is memory whose content does not matter, to measure flush modes on.
type Scratch struct {
	m        *Mapping
	area     pageRange // what may be written
	cpus     []int
	node     int
	emulated bool
	source   []byte
}

// OpenScratch opens scratch memory of the same kind, and on the same NUMA node,
// as opts.Path.
func OpenScratch(opts ScratchOptions) (*Scratch, error) {
	if opts.Size == 0 {
		opts.Size = scratchSize
	}
	f, b, from, err := openScratchFile(opts)
	if err != nil {
		return nil, err
	}
	s := &Scratch{node: nodeOr(b.NUMANode, opts.NUMANode), emulated: opts.Emulated}
	if s.cpus, err = systemSysfs.nodeCPUs(s.node); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s.m, err = newFileMapping(f, b, Options{Emulated: opts.Emulated, Reserve: b.Size, Strategy: anyStrategy(b, opts.Emulated)})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s.area = pageRange{from, min(b.Size, from+opts.Size)}
	if err := onCPUs(s.cpus, func() error { return s.prepare(f) }); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// anyStrategy is one that is possible; each measurement brings its own.
func anyStrategy(b Backing, emulated bool) *Strategy {
	modes := AllowedModes(b, emulated)
	if len(modes) == 0 {
		return nil // let Auto fail with the reason
	}
	s := NamedStrategy(modes[0])
	return &s
}

// openScratchFile returns the file to map, and the offset from which it may be
// written.
func openScratchFile(opts ScratchOptions) (*os.File, Backing, uint64, error) {
	if opts.Scratch != "" {
		f, b, err := openLocked(opts.Scratch, false)
		if err != nil {
			return nil, Backing{}, 0, err
		}
		if err := checkScratch(f, b); err != nil {
			return nil, Backing{}, 0, errors.Join(err, f.Close())
		}
		return f, b, scratchBlank, nil
	}
	dir, err := scratchDir(opts.Path)
	if err != nil {
		return nil, Backing{}, 0, err
	}
	f, err := temporaryFile(dir, opts.Size)
	if err != nil {
		return nil, Backing{}, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, Backing{}, 0, errors.Join(err, f.Close())
	}
	b, err := describe(f, dir, info, systemSysfs)
	if err != nil {
		return nil, Backing{}, 0, errors.Join(err, f.Close())
	}
	return f, b, 0, nil
}

// checkScratch refuses what holds, or may hold, somebody's data.
func checkScratch(f *os.File, b Backing) error {
	if b.Size < 2*scratchBlank {
		return fmt.Errorf("scratch %s is too small: give it at least %d bytes", b.Path, scratchSize)
	}
	flags := unix.MAP_SHARED
	mem, err := unix.Mmap(int(f.Fd()), 0, int(max(b.Align, scratchBlank)), unix.PROT_READ, flags)
	if err != nil {
		return fmt.Errorf("look at scratch %s: %w", b.Path, err)
	}
	defer unix.Munmap(mem)
	for _, v := range mem[:scratchBlank] {
		if v != 0 {
			return fmt.Errorf("scratch %s is not blank: it will be overwritten, so clear its first %d bytes if nothing on it matters", b.Path, scratchBlank)
		}
	}
	return nil
}

// scratchDir is the directory that holds memory of the same kind as path.
func scratchDir(path string) (string, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return path, nil
	}
	b, err := Probe(path)
	if err != nil {
		return "", err
	}
	if b.Kind == KindDevDax || b.Kind == KindBlock {
		return "", fmt.Errorf("%w: %s (%s) is not overwritten; name a blank namespace or device of the same region as scratch", ErrNoScratch, path, b.Kind)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", pathError(path, err)
	}
	return filepath.Dir(real), nil
}

// temporaryFile makes a file that no directory names.
func temporaryFile(dir string, size uint64) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	var f *os.File
	if err == nil {
		f = os.NewFile(uintptr(fd), filepath.Join(dir, "(temporary)"))
	} else {
		if f, err = os.CreateTemp(dir, ".pmem-scratch-*"); err != nil {
			return nil, fmt.Errorf("%w: make a temporary file in %s: %w", ErrNoScratch, dir, err)
		}
		if err := os.Remove(f.Name()); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	if err := f.Truncate(int64(size)); err != nil {
		return nil, errors.Join(fmt.Errorf("size a temporary file in %s: %w", dir, err), f.Close())
	}
	return f, nil
}

// prepare allocates and touches every page on the calling thread's node, so
// that no measurement pays for a page fault or dies of a full filesystem.
func (s *Scratch) prepare(f *os.File) error {
	mem := s.m.mem[s.area.start:s.area.end]
	kind := s.m.backing.Kind
	// The other kinds are where they are. The node of an emulated region may be
	// one that only its description knows.
	if (kind == KindTmpfs || kind == KindFile) && systemSysfs.hasNode(s.node) {
		if err := bindMemory(mem, s.node); err != nil {
			return err
		}
	}
	if kind != KindDevDax && kind != KindBlock {
		if err := unix.Fallocate(int(f.Fd()), 0, int64(s.area.start), int64(len(mem))); err != nil && err != unix.EOPNOTSUPP {
			return fmt.Errorf("%w: allocate %d bytes beside %s: %w", ErrNoScratch, len(mem), s.m.backing.Path, err)
		}
	}
	p := s.m.NewPersister()
	for off := s.area.start; off < s.area.end; off += uint64(os.Getpagesize()) {
		p.Store64(off, 1)
		p.Flush(off, 8)
	}
	s.source = make([]byte, 1<<20)
	for i := range s.source {
		s.source[i] = byte(i)
	}
	return p.Fence()
}

// Close gives the memory back.
func (s *Scratch) Close() error { return s.m.Close() }

// Backing is what is measured.
func (s *Scratch) Backing() Backing { return s.m.backing }

// Emulated reports whether the memory only stands in for persistent memory.
func (s *Scratch) Emulated() bool { return s.m.emulated }

// NUMANode is where threads run and memory comes from, -1 for anywhere.
func (s *Scratch) NUMANode() int { return s.node }

// CPUs is how many CPUs writers can be bound to.
func (s *Scratch) CPUs() int { return len(s.cpus) }

// Modes returns the modes that can be measured.
func (s *Scratch) Modes() []Mode { return AllowedModes(s.m.backing, s.emulated) }

// Workload is one thing to measure: persists, each a copy and a fence.
type Workload struct {
	Mode       Mode
	Size       int  // bytes of a persist, up to 1 MiB
	Writers    int  // threads, each bound to a CPU and with an area of its own
	Sequential bool // destinations one after the other, else at random
}

// Row is a measured workload.
type Row struct {
	Mode         Mode    `json:"mode"`
	Size         int     `json:"size"` // bytes
	Writers      int     `json:"writers"`
	Sequential   bool    `json:"sequential,omitempty"`
	NsPerPersist float64 `json:"nsPerPersist"` // of one writer
	GBps         float64 `json:"gbps"`         // 1e9 bytes a second, all writers together
}

// measureRounds is how often MeasureAll measures each workload.
const measureRounds = 3

// MeasureAll measures all workloads within about budget. Each is measured
// several times, spread over the budget, and the best counts, so that the
// disturbance of a moment decides nothing.
func (s *Scratch) MeasureAll(ctx context.Context, workloads []Workload, budget time.Duration) ([]Row, error) {
	each := budget / time.Duration(max(1, len(workloads)*measureRounds))
	table := make([]Row, len(workloads))
	for round := range measureRounds {
		for i, w := range workloads {
			row, err := s.Measure(ctx, w, each)
			if err != nil {
				return nil, err
			}
			if round == 0 || row.NsPerPersist < table[i].NsPerPersist {
				table[i] = row
			}
		}
	}
	return table, nil
}

// Measure runs a workload for about d, at least one persist each writer.
func (s *Scratch) Measure(ctx context.Context, w Workload, d time.Duration) (Row, error) {
	if err := s.check(w); err != nil {
		return Row{}, err
	}
	var (
		wg    sync.WaitGroup
		start = make(chan struct{})
		total = make([]tally, w.Writers)
		errs  = make([]error, w.Writers)
	)
	for i := range w.Writers {
		ready := make(chan struct{})
		wg.Go(func() {
			cpu := s.cpus[i%len(s.cpus) : i%len(s.cpus)+1]
			errs[i] = onCPUs(cpu, func() error {
				close(ready)
				<-start
				var err error
				total[i], err = s.write(ctx, w, i, d)
				return err
			})
		})
		select {
		case <-ready:
		case <-ctx.Done():
		}
	}
	close(start)
	wg.Wait()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return Row{}, err
	}
	return newRow(w, total), nil
}

func (s *Scratch) check(w Workload) error {
	if w.Size < 1 || w.Size > len(s.source) {
		return fmt.Errorf("size of a persist is %d bytes: it must be 1 to %d", w.Size, len(s.source))
	}
	if w.Writers < 1 || uint64(w.Writers)*uint64(roundToLine(w.Size)) > s.area.end-s.area.start {
		return fmt.Errorf("%d writers of %d bytes do not fit into %d bytes of scratch", w.Writers, w.Size, s.area.end-s.area.start)
	}
	return CheckMode(s.m.backing, s.emulated, w.Mode)
}

// tally is what one writer did.
type tally struct {
	persists int
	elapsed  time.Duration
}

func newRow(w Workload, total []tally) Row {
	r := Row{Mode: w.Mode, Size: w.Size, Writers: w.Writers, Sequential: w.Sequential}
	for _, t := range total {
		ns := float64(t.elapsed.Nanoseconds()) / float64(t.persists)
		r.NsPerPersist += ns / float64(len(total))
		r.GBps += float64(w.Size) / ns
	}
	return r
}

func roundToLine(n int) int { return (n + lineSize - 1) &^ (lineSize - 1) }

// write is one writer: persists to its part of the area until d is over.
func (s *Scratch) write(ctx context.Context, w Workload, writer int, d time.Duration) (tally, error) {
	p := s.persister(w.Mode)
	step := uint64(roundToLine(w.Size))
	slots := (s.area.end - s.area.start) / uint64(w.Writers) / step
	base := s.area.start + uint64(writer)*slots*step
	src := s.source[:w.Size]
	random := uint64(writer)*2 + 1
	var t tally
	begin := time.Now()
	for batch := 1; ; {
		for range batch {
			slot := uint64(t.persists)
			if !w.Sequential {
				random ^= random << 13
				random ^= random >> 7
				random ^= random << 17
				slot = random
			}
			t.persists++
			p.Copy(base+slot%slots*step, src)
			if err := p.Fence(); err != nil {
				return t, err
			}
		}
		t.elapsed = time.Since(begin)
		if t.elapsed >= d || ctx.Err() != nil {
			return t, nil
		}
		batch = nextBatch(t)
	}
}

// nextBatch is how many persists take about 100 microseconds: so often the
// clock is read.
func nextBatch(t tally) int {
	const every = 100 * time.Microsecond
	return max(1, int(float64(t.persists)*float64(every)/float64(max(t.elapsed, 1))))
}

// persister uses one mode for every size.
func (s *Scratch) persister(mode Mode) Persister {
	if mode == MSync {
		return newMsyncPersister(s.m.mem, uint64(os.Getpagesize()), s.m.sync, &s.m.parts)
	}
	strategy := NamedStrategy(mode)
	strategy.Threshold = 0
	return newCPUPersister(unsafe.Pointer(unsafe.SliceData(s.m.mem)), uint64(len(s.m.mem)), strategy, nil)
}
