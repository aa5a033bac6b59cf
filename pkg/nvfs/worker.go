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

// Worker executes operations. It owns a pair of journal slots, so workers do
// not wait for each other there. A Worker is used by one goroutine at a time.
//
// Each operation stands between Begin and End. End is called once the reply
// has been given to the kernel, and Begin not before: it is the sign that the
// record which says how the last request was answered may be overwritten.
type Worker struct {
	fs   *FS
	p    pmem.Persister
	slot int    // that the next record goes to
	off  uint64 // of the slot

	second    int  // the other slot of the pair
	pair      int  // the pair's first slot, which has its intents
	answering bool // slot has a record of the present request
	req       Request
	op        uint32 // of the present request
	now       Time
	found     bool   // the present request is one that was executed before
	answer    Answer // if found: how

	tx         tx
	held       heldLocks
	renaming   bool   // holds fs.renameMu
	chaining   bool   // between two records of an operation
	kept       uint64 // reserve of the chain, while a record of it is committed
	stuck      bool   // its slot has a record that awaits the next recovery
	stripped   bool
	trackHoles bool   // see TrackHoles
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
	select {
	case pair := <-fs.slots:
		return fs.newWorker(pair, pair+1), nil
	default:
		return nil, ErrNoSlot
	}
}

// newWorker returns a Worker on these slots, which are the same for the worker
// of the mount, whose requests nobody sends again.
func (fs *FS) newWorker(slot, second int) *Worker {
	w := &Worker{fs: fs, p: fs.space.NewPersister(), slot: slot, second: second, pair: slot &^ 1, off: layout.SlotOffset(slot),
		rec: make([]byte, layout.SlotSize)}
	w.blockGroup = uint64((slot-1)/2) % fs.groups.Load().size()
	w.inodeGroup = w.blockGroup
	w.tx.w = w
	return w
}

// spareSlot makes the next record go to the slot that holds no record of the
// present request. The last of these has to outlive whatever follows it until
// the reply is given: it alone says how the request was answered.
func (w *Worker) spareSlot() {
	if !w.answering || mistakeSlot {
		return
	}
	w.slot, w.second = w.second, w.slot
	w.off = layout.SlotOffset(w.slot)
	w.answering = false
}

// Close gives the journal slots back.
func (w *Worker) Close() {
	w.fs.slots <- w.pair
	w.fs = nil
}

// Begin starts an operation. The reply to the one before has been given to the
// kernel.
func (w *Worker) Begin(r *Request) {
	w.req = *r
	w.stripped = false
	w.answering = false
	w.found = false
	if r.Resent {
		w.answer, w.found = w.fs.Answer(r.Conn, r.Unique)
	}
}

// End ends it, once its reply has been given to the kernel.
func (w *Worker) End() {
	w.req = Request{}
	w.found = false
}

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
		_ = w.fs.halted("an operation failed half-way")
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

// start is the first step of every changing operation. When done is true the
// operation is over, with that result: it was executed before, or must not be.
func (w *Worker) start(op uint32) (done bool, err error) {
	w.op = op
	if w.found {
		if done, err := w.answered(op); done {
			return true, err
		}
	}
	if err := w.mayChange(); err != nil {
		return true, err
	}
	return false, nil
}

// mayChange fails while nothing may be changed, and sets the time of the
// change.
func (w *Worker) mayChange() error {
	if w.fs.readOnly.Load() {
		return errReadOnly
	}
	w.now = w.fs.clock()
	return nil
}
