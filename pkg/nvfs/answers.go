package nvfs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// A FUSE connection outlives the process that serves it. The kernel sends what
// that process had read and not answered again to its successor, which cannot
// see from the tree whether a request was executed. The journal says so: the
// record of each change names the request and how it was answered, and stays
// until the reply has been given. Options.Resume reads it back.
//
// A server that continues connection C
//
//  1. mounts with Options.Resume = C, before it asks the kernel to send again;
//  2. sets Request.Resent for each request with bit 63 of its unique set; the
//     methods of Worker then do what is right by themselves;
//  3. calls EndResume once all of these have been answered;
//  4. asks the kernel about each of Orphans, and calls ReleaseOrphan for those
//     that it does not refer to; so it does for what Options.OnOrphan tells.

// Answer is what the journal says of a request of the connection that was
// resumed: it was executed, or begun.
type Answer struct {
	// Op is the opcode in FUSE of the operation.
	Op uint32
	// Node is the inode made, changed, linked, moved or removed.
	Node NodeID
	// Result is the number of bytes written or copied.
	Result uint64
	// Errno is not 0 when the operation failed after a part of it was done.
	Errno syscall.Errno
	// Partial says that the request was interrupted after Result bytes. Executed
	// again with Request.Resent set, it goes on there.
	Partial bool
}

// The operations whose records can answer a request, as FUSE numbers them.
const (
	opSetAttr     = 4
	opSymlink     = 6
	opMknod       = 8
	opMkdir       = 9
	opUnlink      = 10
	opRmdir       = 11
	opRename      = 12
	opLink        = 13
	opWrite       = 16
	opSetXattr    = 21
	opRemoveXattr = 24
	opFallocate   = 43
	opCopyRange   = 47
	opTmpfile     = 51
)

// ErrAnswers is an error of a Mount with Options.Resume: the connection was
// taken over so often, each time by a server that ended before it had answered
// the requests, that the answers do not fit in the journal any more.
var ErrAnswers = errors.New("too many requests are unanswered; abort the connection and mount anew")

// Answer reports what the journal says of request unique (bit 63 clear) of
// connection conn. ok is false when the request has left no trace: it is to be
// executed. So it is, too, for every request of a connection that was not
// resumed. It is safe for concurrent use.
func (fs *FS) Answer(conn, unique uint64) (a Answer, ok bool) {
	if conn != fs.resumed {
		return Answer{}, false
	}
	a, ok = fs.answers[unique]
	return a, ok
}

// EndResume is called when every request that the kernel sent again has been
// answered. Until then what they made is not released, and what the journal says
// of them is kept for a further successor.
func (fs *FS) EndResume() error {
	if !fs.resuming.Swap(false) || fs.space.ReadOnly() || fs.sb.Slots < 2 {
		return nil
	}
	fs.growMu.Lock()
	defer fs.growMu.Unlock()
	return fs.guard("end the resumption of a connection", func() error {
		// Answers to requests that are never sent again do no harm: so this
		// need not be one step with anything.
		off := layout.SlotOffset(fs.answerSlot)
		fs.internal.p.Store64(off, 0)
		fs.internal.p.Flush(off, 8)
		return fs.internal.p.Fence()
	})
}

// Orphans lists the inodes without a name, which the kernel of a resumed
// connection may refer to: files that are open. It waits until all groups are
// loaded. It fails with EBUSY before EndResume.
func (fs *FS) Orphans() ([]NodeID, error) {
	if fs.resuming.Load() {
		return nil, syscall.EBUSY
	}
	fs.waitTotals()
	var list []NodeID
	for _, ino := range fs.loadGroups(true) {
		if n, err := fs.inode(ino); err == nil && n.Mode() != 0 {
			list = append(list, makeNodeID(ino, n.Generation()))
		}
	}
	return list, nil
}

// ReleaseOrphan frees an inode without a name that the kernel does not refer
// to. It does nothing when the inode has a name, or lookups that were counted
// since the mount, or is gone. It fails with EBUSY before EndResume: the
// kernel does not know what it is yet to be told of.
func (fs *FS) ReleaseOrphan(id NodeID) error {
	if fs.resuming.Load() {
		return syscall.EBUSY
	}
	fs.growMu.Lock()
	defer fs.growMu.Unlock()
	w := fs.internal
	w.Begin(&Request{})
	defer w.End()
	err := fs.guard("release a deleted file", func() error {
		if w.names(id) {
			w.releaseOrphan(id.Ino())
		}
		return nil
	})
	if err != nil {
		w.Abort()
	}
	return err
}

// names reports whether id still names an inode.
func (w *Worker) names(id NodeID) bool {
	w.rlock(id.Ino())
	defer w.unlock()
	_, err := w.fs.inodeAt(id)
	return err == nil
}

// Detach ends the use of the volume instead of Unmount, for a successor that
// resumes the connection: deleted files that are open stay, and the volume
// stays marked as mounted. No Worker may be used any more.
func (fs *FS) Detach() {
	close(fs.stop)
	fs.bg.Wait()
}

// resume collects what the journal says of the requests of the connection that
// is resumed, all of whose records have been carried out, and keeps it apart
// from them, because the next requests overwrite them. It returns the slot that
// is left for the mount's own records.
func (fs *FS) resume() (internal int, err error) {
	rows, table := fs.collectAnswers(fs.resumed)
	if len(rows) > layout.MaxAnswers {
		return 0, ErrAnswers
	}
	// The new table must not overwrite the old one, nor the mount's own records
	// the new one.
	fs.answerSlot = 1
	if table == 1 {
		fs.answerSlot = 0
	}
	if !fs.space.ReadOnly() && fs.sb.Slots > 1 && !mistakeAnswers {
		if err := fs.writeAnswers(rows); err != nil {
			return 0, err
		}
	}
	fs.answers = make(map[uint64]Answer, len(rows))
	for _, r := range rows {
		fs.answers[r.Unique] = answerOf(&r)
	}
	fs.resuming.Store(true)
	return 1 - fs.answerSlot, nil
}

func answerOf(r *layout.Answer) Answer {
	a := Answer{Op: r.Op, Node: NodeID(r.Ino), Result: r.Result, Errno: syscall.Errno(r.Errno)}
	// Other operations of several records are completed by recovery.
	a.Partial = r.More && (r.Op == opWrite || r.Op == opCopyRange)
	return a
}

// collectAnswers returns the answers to requests of conn that may be sent
// again: those of an earlier table, whose slot it also returns (else -1), and
// of each pair of slots the last, because a worker begins a request when the
// one before has been answered.
func (fs *FS) collectAnswers(conn uint64) (rows []layout.Answer, table int) {
	last := map[uint64]layout.Answer{}
	add := func(a layout.Answer) {
		if old, ok := last[a.Unique]; !ok || a.Seq > old.Seq {
			last[a.Unique] = a
		}
	}
	table = -1
	newest := uint64(0)
	for slot := range int(fs.sb.Slots) {
		r := fs.slotRecord(slot)
		if r.HoldsAnswers(fs.seed) && r.Request().Conn == conn && r.Seq() > newest {
			table, newest = slot, r.Seq()
		}
	}
	if table >= 0 {
		r := fs.slotRecord(table)
		for i := range int(r.Patches()) {
			add(r.Answer(i))
		}
	}
	for pair := 0; pair < int(fs.sb.Slots); pair += 2 {
		var a layout.Answer
		for slot := pair; slot < min(pair+2, int(fs.sb.Slots)); slot++ {
			r := fs.slotRecord(slot)
			if r.Valid(fs.seed) && r.Seq() > a.Seq && r.Request().Conn == conn {
				a = layout.Answer{RequestTuple: r.Request(), Seq: r.Seq()}
			}
		}
		if a.Seq != 0 {
			add(a)
		}
	}
	for _, a := range last {
		rows = append(rows, a)
	}
	slices.SortFunc(rows, func(a, b layout.Answer) int { return cmp.Compare(a.Seq, b.Seq) })
	return rows, table
}

// writeAnswers makes the table durable.
func (fs *FS) writeAnswers(rows []layout.Answer) error {
	r := layout.Record(make([]byte, layout.SlotSize))
	r.InitAnswers(len(rows))
	r.SetRequest(layout.RequestTuple{Conn: fs.resumed})
	for i, a := range rows {
		r.SetAnswer(i, a)
	}
	r.SetSeq(fs.seq.Add(1))
	r.SealRecord(fs.seed)
	p, off := fs.space.NewPersister(), layout.SlotOffset(fs.answerSlot)
	p.Copy(off, r[:layout.RecRetire])
	if len(rows) > 0 {
		p.Copy(off+layout.PayloadStart, r[layout.PayloadStart:layout.PayloadStart+int(r.Length())])
	}
	if err := p.Fence(); err != nil {
		return fmt.Errorf("keep the answers to requests in journal slot %d: %w", fs.answerSlot, err)
	}
	return nil
}

// answered applies what the journal says of the present request. done is
// false when the operation is to go on: from w.answer.Result on.
func (w *Worker) answered(op uint32) (done bool, err error) {
	a := &w.answer
	switch {
	case a.Op != op:
		return true, w.fs.damaged(false, "the journal says of request %d that it was operation %d, but it is %d", w.req.Unique, a.Op, op)
	case a.Errno != 0:
		return true, a.Errno
	}
	w.stripped = true // it may have; then nobody was told
	return !a.Partial, nil
}

// startEntry is start for an operation whose reply has an inode. That of a
// request that was executed before is reported, and the lookup of the reply
// counted.
func (w *Worker) startEntry(op uint32, a *Attr) (done bool, err error) {
	done, err = w.start(op)
	if done && err == nil {
		err = w.LookupID(w.answer.Node, a)
	}
	return done, err
}

// resumeAt is how far the present request had come when it was interrupted.
func (w *Worker) resumeAt() uint64 {
	if w.found {
		return w.answer.Result
	}
	return 0
}
