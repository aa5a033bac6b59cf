package pmem

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options of Open.
type Options struct {
	// Mode is the flush mode; empty is Auto.
	Mode Mode
	// Strategy, when set, is used in place of the one that Mode names.
	Strategy *Strategy
	// Calibration, when set, is what Auto uses. Otherwise Auto looks in
	// CalibrationFile, and without an entry for this CPU and kind of backing
	// takes DefaultStrategy.
	Calibration *Calibration
	// CalibrationFile is "" for DefaultCalibrationFile.
	CalibrationFile string
	// NUMANode is where the memory is when the backing does not know, as a
	// file on tmpfs: Auto looks for its calibration. nil is unknown.
	NUMANode *int
	// Emulated declares that the backing stands in for persistent memory: any
	// mode is allowed, and nothing is durable over a power cut.
	Emulated bool
	// ReadOnly maps without the right to store, and shares the backing with
	// other read-only users.
	ReadOnly bool
	// Reserve is the address space to reserve, in bytes, so that the backing
	// can grow and further devices be attached; 0 is the larger of 4 times the
	// size and the size plus 64 GiB.
	Reserve uint64
	// Unlocked leaves the lock to (*Mapping).Lock: until then the backing may
	// be another process's, and the mapping must not be used.
	Unlocked bool
	// Beside are paths of devices that will be attached: Auto then chooses what
	// they can honour as well, and another mode that they cannot is refused.
	Beside []string
}

const (
	// mapAlign is the alignment of a mapping's address: the largest page that
	// a devdax device or the kernel may use.
	mapAlign       = 1 << 30
	defaultReserve = 64 << 30
)

// Mapping is a backing mapped into memory; it implements Space. Its methods
// may be called concurrently, but Close only when nothing uses the mapping, its
// Bytes or its Persisters any more: a later access faults.
type Mapping struct {
	backing  Backing
	mode     Mode
	strategy Strategy
	why      string
	emulated bool
	readOnly bool

	mem  []byte // the reserved range
	size atomic.Uint64
	sync *syncer
	gate chan struct{}

	mu      sync.Mutex
	devices []device // sorted by offset; the first is at 0; see setDevices

	parts atomic.Pointer[[]Part] // of the devices, for who does not hold mu
}

// device is one mapped device or file.
type device struct {
	file     *os.File // nil for anonymous memory
	backing  Backing
	off, end uint64
}

// Open maps the backing at path, which must exist and is locked until Close:
// exclusively, or shared with other readers when opts.ReadOnly. A backing that
// is in use gives ErrInUse, a mode that cannot be honoured a *ModeError.
func Open(path string, opts Options) (*Mapping, error) {
	open := openLocked
	if opts.Unlocked {
		open = openUnlocked
	}
	f, b, err := open(path, opts.ReadOnly)
	if err != nil {
		return nil, err
	}
	m, err := newFileMapping(f, b, opts)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return m, nil
}

// newFileMapping maps the open file f, which the mapping then owns.
func newFileMapping(f *os.File, b Backing, opts Options) (*Mapping, error) {
	m, err := newMapping(b, opts)
	if err != nil {
		return nil, err
	}
	if err := m.mapFile(f, b, 0, 0, b.Size); err != nil {
		return nil, errors.Join(err, m.unmap())
	}
	m.setDevices([]device{{file: f, backing: b, off: 0, end: b.Size}})
	m.size.Store(b.Size)
	return m, nil
}

// NewMemory returns a mapping of size bytes (rounded up to pages) of zeroed
// memory of this process, for tests. It is volatile; stores are plain and
// fenced. 4 times the size is reserved.
func NewMemory(size uint64) (*Mapping, error) {
	mode := MSync
	if slices.Contains(cpuModes, EADR) {
		mode = EADR
	}
	return NewMemoryMode(size, mode)
}

// NewMemoryMode is NewMemory with a flush mode of the caller's choice.
func NewMemoryMode(size uint64, mode Mode) (*Mapping, error) {
	page := uint64(os.Getpagesize())
	size = (size + page - 1) &^ (page - 1)
	if size == 0 {
		return nil, errors.New("a memory mapping needs a size")
	}
	b := Backing{Path: "(memory)", Kind: KindMemory, Size: size, Align: page, NUMANode: -1, Domain: DomainVolatile, Volatile: true}
	m, err := newMapping(b, Options{Mode: mode, Reserve: 4 * size})
	if err != nil {
		return nil, err
	}
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if err := m.mapFixed(-1, 0, 0, size, flags); err != nil {
		return nil, errors.Join(err, m.unmap())
	}
	m.setDevices([]device{{backing: b, off: 0, end: size}})
	m.size.Store(size)
	return m, nil
}

// newMapping decides how to store and reserves the address space.
func newMapping(b Backing, opts Options) (*Mapping, error) {
	m := &Mapping{
		backing:  b,
		emulated: opts.Emulated || b.Volatile,
		readOnly: opts.ReadOnly,
		sync:     newSyncer(),
	}
	if err := m.chooseStrategy(opts); err != nil {
		return nil, err
	}
	if len(opts.Beside) > 0 {
		if err := m.settleBeside(opts); err != nil {
			return nil, err
		}
	}
	if limit := m.strategy.WriterCap; limit > 0 {
		m.gate = make(chan struct{}, limit)
	}
	if opts.Reserve != 0 && opts.Reserve < b.Size {
		return nil, fmt.Errorf("reserve of %d bytes is less than the %d bytes of %s", opts.Reserve, b.Size, b.Path)
	}
	reserve := opts.Reserve
	if reserve == 0 {
		reserve = max(4*b.Size, b.Size+defaultReserve)
	}
	var err error
	m.mem, err = reserveAddressSpace(reserve &^ (b.Align - 1))
	return m, err
}

// chooseStrategy settles mode, strategy and why.
func (m *Mapping) chooseStrategy(opts Options) error {
	m.mode = opts.Mode
	if m.mode == "" {
		m.mode = Auto
	}
	if opts.Strategy != nil {
		m.strategy, m.why = *opts.Strategy, "given"
		return m.checkStrategy(opts)
	}
	if err := CheckMode(m.backing, opts.Emulated, m.mode); err != nil {
		return err
	}
	if m.mode == Auto {
		m.strategy, m.why = autoStrategy(m.backing, opts)
	} else {
		m.strategy, m.why = NamedStrategy(m.mode), "asked for"
	}
	return m.checkStrategy(opts)
}

// checkStrategy refuses a strategy that has a part which the backing cannot
// honour.
func (m *Mapping) checkStrategy(opts Options) error {
	for _, mode := range []Mode{m.strategy.Small, m.strategy.Bulk} {
		if mode == Auto || mode == "" {
			return fmt.Errorf("strategy %q is incomplete: both parts must name a mode", m.strategy)
		}
		if err := CheckMode(m.backing, opts.Emulated, mode); err != nil {
			return err
		}
	}
	if (m.strategy.Small == MSync) != (m.strategy.Bulk == MSync) {
		return fmt.Errorf("strategy %q mixes msync with another mode: use msync for both parts", m.strategy)
	}
	if m.strategy.Small == MSync {
		m.mode = MSync
	}
	return nil
}

// openLocked opens path and takes its lock.
func openLocked(path string, readOnly bool) (*os.File, Backing, error) {
	f, b, err := openUnlocked(path, readOnly)
	if err != nil {
		return nil, Backing{}, err
	}
	if err := lockBacking(f, path, readOnly); err != nil {
		return nil, Backing{}, errors.Join(err, f.Close())
	}
	return f, b, nil
}

func openUnlocked(path string, readOnly bool) (*os.File, Backing, error) {
	flags := os.O_RDWR
	if readOnly {
		flags = os.O_RDONLY
	}
	return openBacking(path, flags, systemSysfs)
}

// CheckUnused returns ErrInUse, wrapped, while a process holds the device at
// path to change what is on it. The answer may be out of date at once: Open
// decides.
func CheckUnused(path string) error {
	f, _, err := openLocked(path, true)
	if err != nil {
		return err
	}
	return f.Close()
}

// reserveAddressSpace reserves size bytes that fault when touched, aligned to
// mapAlign.
func reserveAddressSpace(size uint64) ([]byte, error) {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(size)+mapAlign, unix.PROT_NONE, flags)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of address space: %w (raise ulimit -v)", size, err)
	}
	head := -uintptr(p) % mapAlign
	start := unsafe.Add(p, head)
	if head > 0 {
		if err := unix.MunmapPtr(p, head); err != nil {
			return nil, fmt.Errorf("trim reserved address space: %w", err)
		}
	}
	if tail := mapAlign - head; tail > 0 {
		if err := unix.MunmapPtr(unsafe.Add(start, size), tail); err != nil {
			return nil, fmt.Errorf("trim reserved address space: %w", err)
		}
	}
	return unsafe.Slice((*byte)(start), size), nil
}

// reserveAgain undoes a mapping inside the reserved range.
func reserveAgain(mem []byte) error {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE | unix.MAP_FIXED
	if _, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)), unix.PROT_NONE, flags); err != nil {
		return fmt.Errorf("give up a mapping: %w", err)
	}
	return nil
}

// mapFile maps n bytes at fileOff of f at offset off of the reserved range.
func (m *Mapping) mapFile(f *os.File, b Backing, off, fileOff, n uint64) error {
	flags := unix.MAP_SHARED
	if b.Kind == KindDaxFile {
		flags = unix.MAP_SHARED_VALIDATE | unix.MAP_SYNC
	}
	if err := m.mapFixed(int(f.Fd()), off, fileOff, n, flags); err != nil {
		return fmt.Errorf("map %s: %w", b.Path, err)
	}
	if b.Kind == KindTmpfs && fullyAllocated(f, b.Size) {
		// Only where no huge page can inflate a sparse file. Best effort: the
		// kernel may be built or set up without.
		_ = unix.Madvise(m.mem[off:off+n], unix.MADV_HUGEPAGE)
	}
	return nil
}

// mapFixed replaces part of the reserved range. A core dump must not contain
// the volume, and a child process must not inherit it.
func (m *Mapping) mapFixed(fd int, off, fileOff, n uint64, flags int) error {
	prot := unix.PROT_READ | unix.PROT_WRITE
	if m.readOnly {
		prot = unix.PROT_READ
	}
	if _, err := unix.MmapPtr(fd, int64(fileOff), unsafe.Pointer(&m.mem[off]), uintptr(n), prot, flags|unix.MAP_FIXED); err != nil {
		return err
	}
	for _, advice := range []int{unix.MADV_DONTDUMP, unix.MADV_DONTFORK} {
		if err := unix.Madvise(m.mem[off:off+n], advice); err != nil {
			return fmt.Errorf("madvise %d: %w", advice, err)
		}
	}
	return nil
}

// fullyAllocated reports whether every block of the file exists.
func fullyAllocated(f *os.File, size uint64) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && uint64(st.Blocks)*512 >= size
}

// Bytes is the reserved range; see Space.
func (m *Mapping) Bytes() []byte { return m.mem }

// Size is the length of the first device in bytes. Extend makes it larger.
func (m *Mapping) Size() uint64 { return m.size.Load() }

// ReadOnly reports whether the mapping rejects stores.
func (m *Mapping) ReadOnly() bool { return m.readOnly }

// Backing is what the path was when it was opened.
func (m *Mapping) Backing() Backing { return m.backing }

// Emulated reports whether the mapping only stands in for persistent memory:
// it was declared so, or the memory is volatile.
func (m *Mapping) Emulated() bool { return m.emulated }

// Mode is the mode that was asked for; Auto when the choice was left to the
// calibration, except that it is MSync where nothing else is possible.
func (m *Mapping) Mode() Mode { return m.mode }

// Strategy is how stores are made durable.
func (m *Mapping) Strategy() Strategy { return m.strategy }

// Why says where the strategy comes from.
func (m *Mapping) Why() string { return m.why }

// NewPersister returns a writer for one goroutine at a time. A store through
// the Persister of a read-only mapping panics.
func (m *Mapping) NewPersister() Persister {
	switch {
	case m.readOnly:
		return readOnlyPersister{}
	case m.strategy.Small == MSync:
		return newMsyncPersister(m.mem, uint64(os.Getpagesize()), m.sync, &m.parts)
	}
	return newCPUPersister(unsafe.Pointer(unsafe.SliceData(m.mem)), uint64(len(m.mem)), m.strategy, m.gate)
}

// Extend maps what the first device has grown by and returns its new size. Use
// of the part that is mapped already is not disturbed. A device that has not
// grown is no error.
func (m *Mapping) Extend() (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := &m.devices[0]
	if first.file == nil {
		return first.end, nil
	}
	size, err := currentSize(first.file, first.backing)
	if err != nil {
		return first.end, err
	}
	if size <= first.end {
		return first.end, nil
	}
	if err := m.checkFree(first.end, size); err != nil {
		return first.end, fmt.Errorf("extend %s from %d to %d bytes: %w", first.backing.Path, first.end, size, err)
	}
	if err := m.mapFile(first.file, first.backing, first.end, first.end, size-first.end); err != nil {
		return first.end, errors.Join(err, reserveAgain(m.mem[first.end:size]))
	}
	first.end = size
	m.setDevices(m.devices)
	m.size.Store(size)
	return size, nil
}

// currentSize is the mappable size of an open backing now.
func currentSize(f *os.File, b Backing) (uint64, error) {
	var size uint64
	switch b.Kind {
	case KindDevDax:
		return b.Size, nil // cannot change while it is open
	case KindBlock:
		now, err := blockSize(f)
		if err != nil {
			return 0, fmt.Errorf("size of %s: %w", b.Path, err)
		}
		size = now
	default:
		info, err := f.Stat()
		if err != nil {
			return 0, fmt.Errorf("size of %s: %w", b.Path, err)
		}
		size = uint64(info.Size())
	}
	return size &^ (b.Align - 1), nil
}

// checkFree refuses a range that leaves the reserved one or that a device is
// mapped in.
func (m *Mapping) checkFree(off, end uint64) error {
	if end > uint64(len(m.mem)) {
		return fmt.Errorf("only %d bytes of address space are reserved: reopen it to reserve more", len(m.mem))
	}
	for _, d := range m.devices {
		if off < d.end && d.off < end {
			return fmt.Errorf("%s is mapped at [%d, %d)", d.backing.Path, d.off, d.end)
		}
	}
	return nil
}

// Close unmaps everything and releases the locks. It does not fence.
func (m *Mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.unmap()
	for _, d := range m.devices {
		if d.file != nil {
			err = errors.Join(err, d.file.Close())
		}
	}
	m.devices = nil
	return err
}

func (m *Mapping) unmap() error {
	if m.mem == nil {
		return nil
	}
	if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(m.mem)), uintptr(len(m.mem))); err != nil {
		return fmt.Errorf("unmap %s: %w", m.backing.Path, err)
	}
	m.mem = nil
	return nil
}
