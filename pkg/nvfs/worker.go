package nvfs

import (
	"errors"
	"syscall"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// The errors of operations, as variables so that returning one does not
// allocate.
var (
	errIO          error = syscall.EIO
	errStale       error = syscall.ESTALE
	errNoSpace     error = syscall.ENOSPC
	errExist       error = syscall.EEXIST
	errNotExist    error = syscall.ENOENT
	errNotDir      error = syscall.ENOTDIR
	errIsDir       error = syscall.EISDIR
	errNotEmpty    error = syscall.ENOTEMPTY
	errInvalid     error = syscall.EINVAL
	errReadOnly    error = syscall.EROFS
	errNameTooLong error = syscall.ENAMETOOLONG
	errTooBig      error = syscall.EFBIG
	errNoData      error = syscall.ENODATA
	errRange       error = syscall.ERANGE
	errMlink       error = syscall.EMLINK
	errNotSup      error = syscall.EOPNOTSUPP
	errNoXIO       error = syscall.ENXIO
	errXattrTooBig error = syscall.E2BIG
	errPerm        error = syscall.EPERM
)

// Errno is the error number of an operation's error; 0 for nil, EIO for
// whatever is not an error number.
func Errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return syscall.EIO
}

// Worker executes operations. It owns two journal slots, so workers do not wait
// for each other there. A Worker is used by one goroutine at a time.
//
// Each operation stands between Begin and End. End is called once the reply
// has been given away: until then the slot's record still tells a successor
// how the request was answered.
type Worker struct {
	fs   *FS
	p    pmem.Persister
	slot int
	off  uint64 // of the slot

	second int // slot of the records that release deleted files
	req    Request
	now    Time

	tx         tx
	held       heldLocks
	renaming   bool   // holds fs.renameMu
	chaining   bool   // between two records of an operation
	kept       uint64 // reserve of the chain, while a record of it is committed
	stripped   bool
	gap        uint64 // bytes ahead of the next store in place that become zero with it
	blockGroup uint64
	inodeGroup uint64
	rec        []byte // image of the record being made
	line       [lineSize]byte
	xset       []byte // attribute set being read
	xnew       []byte // attribute set being made
	order      []dirOrder
}

// NewWorker returns a Worker, or ErrNoSlot when there are not two journal slots
// left for it.
func (fs *FS) NewWorker() (*Worker, error) {
	slot, ok := fs.takeSlot()
	if !ok {
		return nil, ErrNoSlot
	}
	second, ok := fs.takeSlot()
	if !ok {
		fs.slots <- slot
		return nil, ErrNoSlot
	}
	return fs.newWorker(slot, second), nil
}

// newWorker returns a Worker on these slots, which may be one for a worker
// whose requests nobody sends again.
func (fs *FS) newWorker(slot, second int) *Worker {
	w := &Worker{fs: fs, p: fs.space.NewPersister(), slot: slot, second: second, off: layout.SlotOffset(slot),
		rec: make([]byte, layout.SlotSize)}
	w.blockGroup = uint64(slot/2) % fs.groups.Load().size()
	w.inodeGroup = w.blockGroup
	w.tx.w = w
	return w
}

func (fs *FS) takeSlot() (int, bool) {
	select {
	case slot := <-fs.slots:
		return slot, true
	default:
		return 0, false
	}
}

// swapSlots lets records go to the other slot until it is called again: what
// follows a request's record must not overwrite it before the reply was given.
func (w *Worker) swapSlots() {
	w.slot, w.second = w.second, w.slot
	w.off = layout.SlotOffset(w.slot)
}

// Close gives the journal slots back.
func (w *Worker) Close() {
	w.fs.slots <- w.slot
	if w.second != w.slot {
		w.fs.slots <- w.second
	}
	w.fs = nil
}

// Begin starts an operation.
func (w *Worker) Begin(r *Request) {
	w.req = *r
	w.stripped = false
}

// End ends it.
func (w *Worker) End() { w.req = Request{} }

// Stripped reports whether the last operation took set-ID bits or
// security.capability off a file, which makes cached attributes stale.
func (w *Worker) Stripped() bool { return w.stripped }

// Abort cleans up after a panic in an operation: locks and what the
// transaction had taken are released. If the panic came between the commit
// point and the end of an operation the volume turns read-only: only the next
// recovery can complete what was begun.
func (w *Worker) Abort() {
	if w.tx.committed || w.chaining {
		w.chaining = false
		_ = w.fs.damaged(true, "an operation failed half-way")
	}
	w.rollback()
	w.fs.unreserveBlocks(w.kept)
	w.kept, w.gap = 0, 0
	w.unlock()
	if w.renaming {
		w.renaming = false
		w.fs.renameMu.Unlock()
	}
}

// mayChange is the first check of every changing operation.
func (w *Worker) mayChange() error {
	if w.fs.readOnly.Load() {
		return errReadOnly
	}
	w.now = w.fs.clock()
	return nil
}
