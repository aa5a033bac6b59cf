package nvfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// Options of Mount.
type Options struct {
	// ReadOnly refuses every change. A volume that needs recovery cannot be
	// mounted read-only on a read-only mapping.
	ReadOnly bool
	// Clock returns the time for timestamps; nil is the system's.
	Clock func() Time
	// Resume is the connection that this mount continues; 0 is none. Requests
	// of it are answered from the journal if they were executed before (see
	// Request.Resent and EndResume), and deleted files that were open are kept
	// until ReleaseOrphan.
	Resume uint64
	// OnOrphan, when not nil, is told of a deleted file whose last reference
	// may be gone: the counts of a resumed connection are not known, so the
	// kernel is to be asked, and ReleaseOrphan called if it has none. It is
	// called by Workers and must return at once, without calling the FS.
	OnOrphan func(NodeID)
}

// FS is a mounted volume. Its methods are safe for concurrent use; the
// operations on files are methods of Worker.
type FS struct {
	space pmem.Space
	mem   []byte
	sb    *layout.Superblock
	seed  uint32
	key0  uint64 // directory hash key
	key1  uint64
	clock func() Time

	groups   atomic.Pointer[groupTable]
	seq      atomic.Uint64 // of the last record
	locks    lockTable
	lookups  lookupTable
	verified verifiedBlocks
	holes    holeTable
	renameMu sync.Mutex
	growMu   sync.Mutex

	freeBlocks  atomic.Int64 // in loaded groups, less what running transactions took
	freeInodes  atomic.Int64
	totalBlocks atomic.Int64
	totalInodes atomic.Int64
	loaded      chan struct{} // closed when every group is loaded
	load        chan struct{} // closed when somebody waits for that
	loadOnce    sync.Once
	started     chan struct{} // closed when recovery is complete

	slots    chan int // first slots of the pairs that no Worker has
	internal *Worker  // for mount, unmount, growth; guarded by growMu
	readOnly atomic.Bool
	wasClean bool // before this mount

	resumed    uint64            // connection, or 0
	answers    map[uint64]Answer // of its requests, by unique; fixed by the mount
	answerSlot int               // has them for a further successor
	resuming   atomic.Bool       // until EndResume
	onOrphan   func(NodeID)
	stop       chan struct{}
	bg         sync.WaitGroup

	healthMu sync.Mutex
	health   string
	damages  atomic.Uint64
	met      chan struct{} // closed when damage of the medium is met
	metOnce  sync.Once
	half     atomic.Bool // a record was carried out in part
	observer bool        // mounted read-only: damage is not noted on the medium
}

// Errors of Mount. Other failures are wrapped errors of package layout.
var (
	ErrTruncated     = errors.New("device is smaller than the volume on it")
	ErrNeedsRecovery = errors.New("volume was not unmounted cleanly and needs recovery; mount it read-write once")
	ErrJournal       = errors.New("journal is damaged; run fsck")
	ErrNoSlot        = errors.New("all journal slots are taken")
)

func systemClock() Time {
	t := time.Now()
	return Time{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())}
}

// Mount makes the volume on space usable: it replays the journal and
// completes interrupted operations. Its cost does not depend on the size of
// the volume; totals and orphans are dealt with in the background. The FS
// does not own space: the caller closes it after Unmount.
func Mount(space pmem.Space, opt Options) (*FS, error) {
	mem := space.Bytes()
	sb, err := findSuperblock(mem, space.Size())
	if err != nil {
		return nil, fmt.Errorf("mount NVFS: %w", err)
	}
	fs := &FS{space: space, mem: mem, sb: sb, seed: sb.Seed(), clock: opt.Clock,
		loaded: make(chan struct{}), load: make(chan struct{}), started: make(chan struct{}), stop: make(chan struct{}), met: make(chan struct{}), slots: make(chan int, layout.SlotCount)}
	if fs.clock == nil {
		fs.clock = systemClock
	}
	fs.readOnly.Store(opt.ReadOnly || space.ReadOnly() || sb.ROCompat&^uint64(layout.SupportedROCompat) != 0)
	fs.observer = fs.readOnly.Load()
	fs.resumed, fs.onOrphan = opt.Resume, opt.OnOrphan
	if err := fs.guard("recovery", fs.start); err != nil {
		close(fs.stop)
		fs.bg.Wait()
		return nil, fmt.Errorf("mount NVFS: %w", err)
	}
	close(fs.started)
	return fs, nil
}

// start brings the volume to its last state and makes it usable.
func (fs *FS) start() error {
	if err := checkDevices(fs.space, fs.sb); err != nil {
		return err
	}
	if err := fs.replayJournal(); err != nil {
		return err
	}
	// Only now is the superblock what the last commit made it.
	sb, err := layout.DecodeSuperblock(fs.mem[:layout.StaticSize])
	if err != nil {
		return fmt.Errorf("%w; fsck can restore it from its copy", err)
	}
	fs.sb = sb
	fs.key0 = binary.LittleEndian.Uint64(sb.HashKey[:])
	fs.key1 = binary.LittleEndian.Uint64(sb.HashKey[8:])
	if err := checkDevices(fs.space, sb); err != nil {
		return err
	}
	fs.buildGroups()
	for pair := 2; pair+1 < int(sb.Slots); pair += 2 {
		fs.slots <- pair
	}
	slot := 0
	if fs.resumed != 0 {
		if slot, err = fs.resume(); err != nil {
			return err
		}
	}
	fs.internal = fs.newWorker(slot, slot)
	fs.bg.Add(1)
	go fs.background() // what recovery allocates waits for the totals
	return fs.recover()
}

func (fs *FS) buildGroups() {
	t := newGroupTable(slices.Clone(fs.sb.Devices), fs.sb.InodesPerGroup, nil)
	fs.groups.Store(t)
	blocks, inodes := t.totals()
	fs.totalBlocks.Store(blocks)
	fs.totalInodes.Store(inodes)
	fs.lookups.init(t.size() * uint64(fs.sb.InodesPerGroup))
	last := fs.sb.Devices[len(fs.sb.Devices)-1]
	fs.verified.init(last.Base + last.Blocks)
}

// background does what the mount leaves for later, and then waits for damage
// to be noted on the medium.
func (fs *FS) background() {
	defer fs.bg.Done()
	fs.settleIn()
	select {
	case <-fs.met:
	case <-fs.stop:
	}
	select {
	case <-fs.started:
		fs.growMu.Lock()
		defer fs.growMu.Unlock()
		fs.noteDamage()
	default: // the mount has failed
	}
}

// settleDelay is how long a volume is left alone after the mount: whoever
// mounts it first wants an answer, which takes a tenth of that.
const settleDelay = 100 * time.Millisecond

// settleIn loads all groups, so that totals are known, and releases the
// orphans of the previous mount. It lets the mount, and whoever makes it known,
// have the CPUs and the page tables to themselves, unless somebody needs the
// totals.
func (fs *FS) settleIn() {
	select {
	case <-fs.started:
		fs.leaveAlone()
	case <-fs.load:
	case <-fs.stop:
	}
	orphans := fs.loadGroups(true)
	close(fs.loaded)
	select {
	case <-fs.started:
	case <-fs.stop:
		return
	}
	if len(orphans) == 0 || fs.readOnly.Load() || fs.resumed != 0 {
		return
	}
	w, err := fs.NewWorker()
	if err != nil {
		return // Unmount or the next mount releases them
	}
	defer w.Close()
	fs.releaseOrphans(w, orphans)
}

func (fs *FS) leaveAlone() {
	timer := time.NewTimer(settleDelay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-fs.load:
	case <-fs.stop:
	}
}

// loadGroups returns the orphans in all groups, or only in those that are
// loaded already.
func (fs *FS) loadGroups(all bool) []uint64 {
	var orphans []uint64
	t := fs.groups.Load()
	get := t.made
	if all {
		get = t.at
	}
	for n := range t.size() {
		if fs.stopping() {
			break
		}
		g := get(n)
		if g == nil {
			continue
		}
		_ = fs.guard("load a group", func() error {
			g.mu.Lock()
			defer g.mu.Unlock()
			if (all || g.ready) && fs.loadGroup(g) && g.orphans > 0 {
				orphans = fs.appendOrphans(orphans, g)
			}
			return nil
		})
	}
	return orphans
}

func (fs *FS) releaseOrphans(w *Worker, list []uint64) {
	for _, ino := range list {
		if fs.stopping() {
			return
		}
		w.Begin(&Request{})
		if err := fs.guard("release a deleted file", func() error { w.releaseOrphan(ino); return nil }); err != nil {
			w.Abort()
		}
		w.End()
	}
}

func (fs *FS) stopping() bool {
	select {
	case <-fs.stop:
		return true
	default:
		return false
	}
}

// guard runs f. Memory that cannot be read, or any other panic, is damage
// and not the end of the process.
func (fs *FS) guard(what string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s: %v: %w", what, v, fs.damaged(true, "%s: %v", what, v))
		}
	}()
	return f()
}

// Unmount releases what is left of deleted files and marks the volume clean.
// No Worker may be used any more. The volume of an FS that found damage is
// not marked clean.
func (fs *FS) Unmount() error {
	close(fs.stop)
	fs.bg.Wait()
	fs.growMu.Lock()
	defer fs.growMu.Unlock()
	defer fs.noteDamage()
	if fs.readOnly.Load() {
		return nil
	}
	fs.stop = make(chan struct{}) // the release below is not to be cut short
	fs.lookups.clear()
	// A volume that was clean had no orphans; those made since lie in groups
	// that are loaded. So unmounting does not wait for the rest of them.
	fs.releaseOrphans(fs.internal, fs.loadGroups(!fs.wasClean))
	if fs.damages.Load() != 0 || fs.readOnly.Load() {
		return nil
	}
	return fs.guard("unmount NVFS", func() error { return fs.setState(layout.StateClean) })
}

func (fs *FS) setState(state uint32) error {
	w := fs.internal
	w.Begin(&Request{})
	defer w.End()
	now := fs.clock()
	d := layout.Dynamic(w.stage(layout.DynamicOffset, layout.StaticSize, layout.DynamicLocation, sealWhole))
	d.SetState(state)
	d.SetChangeTime(now.Sec)
	if state == layout.StateMounted {
		d.SetMounts(d.Mounts() + 1)
		d.SetMountTime(now.Sec)
	}
	return w.commit()
}

// Health is "" while nothing is wrong, else what was found damaged.
func (fs *FS) Health() string {
	fs.healthMu.Lock()
	defer fs.healthMu.Unlock()
	return fs.health
}

// ReadOnly reports whether changes are refused, by option or after damage.
func (fs *FS) ReadOnly() bool { return fs.readOnly.Load() }

// Superblock describes the volume; it must not be changed.
func (fs *FS) Superblock() *layout.Superblock {
	fs.growMu.Lock()
	defer fs.growMu.Unlock()
	sb := *fs.sb
	sb.Devices = slices.Clone(fs.sb.Devices)
	return &sb
}

// damaged notes damage and returns EIO for the operation that met it.
// shared says that the damaged metadata belongs to more than one inode: then
// nothing may be changed any more.
func (fs *FS) damaged(shared bool, format string, args ...any) error {
	if !fs.half.Load() { // else it may be what the next recovery makes whole
		fs.metOnce.Do(func() { close(fs.met) })
	}
	return fs.unwell(shared, format, args...)
}

// halted is damaged for an operation that only the next recovery can complete:
// the medium is not marked.
func (fs *FS) halted(format string, args ...any) error {
	fs.half.Store(true)
	return fs.unwell(true, format, args...)
}

func (fs *FS) unwell(shared bool, format string, args ...any) error {
	fs.damages.Add(1)
	fs.healthMu.Lock()
	if fs.health == "" {
		fs.health = fmt.Sprintf(format, args...) + "; unmount the volume and run fsck"
	}
	fs.healthMu.Unlock()
	if shared {
		fs.readOnly.Store(true)
	}
	return errIO
}

// group returns the group of that number, or nil.
func (fs *FS) group(n uint64) *group {
	return fs.groups.Load().at(n)
}

// block returns the bytes of block b, or nil when b cannot hold data or
// metadata of a file.
func (fs *FS) block(b uint64) []byte {
	if !fs.inGroups(b, 1) {
		return nil
	}
	off := b << layout.BlockShift
	return fs.mem[off : off+layout.BlockSize : off+layout.BlockSize]
}

// inGroups reports whether blocks [b, b+n) are data blocks of one group.
func (fs *FS) inGroups(b, n uint64) bool {
	if b < layout.HeaderBlocks || n == 0 || n > layout.GroupBlocks {
		return false
	}
	g := fs.group(layout.GroupOf(b))
	return g != nil && b >= g.start+uint64(g.meta) && b+n <= g.start+uint64(g.blocks.Load())
}

func randomGeneration() uint32 { return rand.Uint32() & (1<<(64-inoBits) - 1) }
