package nvfs

import (
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// intent is the rest of an operation that does not fit in one record.
type intent struct {
	kind       uint32
	start, end uint64
	aux        uint64
}

// chain commits the transaction, in which done says that the operation is
// complete; otherwise it records the intent with it and repeats step until
// step says so. The inode's lock is held throughout. When it fails after the
// first record the intent is withdrawn: what was done stays, and nothing is
// left for recovery to do to a file that has changed since.
func (w *Worker) chain(id NodeID, in intent, done bool, step func(n layout.Inode) (bool, error)) error {
	if done {
		return w.commit()
	}
	result := w.tx.result
	w.setIntent(in.kind, id, in.start, in.end, in.aux)
	if err := w.commitKeeping(); err != nil {
		return err
	}
	w.chaining = true
	for !done {
		w.tx.result = result
		n, err := w.stageInode(id)
		if err == nil {
			done, err = step(n)
		}
		if err == nil && done {
			w.setIntent(layout.IntentNone, 0, 0, 0, 0)
		} else {
			w.tx.more = true
		}
		if err == nil {
			err = w.commitKeeping()
		}
		if err != nil {
			w.rollback()
			w.setIntent(layout.IntentNone, 0, 0, 0, 0)
			w.tx.result = result
			w.tx.result.Errno = uint32(Errno(err))
			if cerr := w.commit(); cerr != nil {
				err = w.fs.damaged(true, "an operation could be neither completed nor withdrawn: %v", cerr)
			}
			w.chaining = false
			return err
		}
	}
	w.chaining = false
	w.reset()
	return nil
}

// commitKeeping commits and keeps the reserve for the next transaction.
func (w *Worker) commitKeeping() error {
	w.kept, w.tx.reserve = w.tx.reserve, 0
	err := w.commit()
	w.tx.reserve, w.kept = w.kept, 0
	return err
}

// truncate sets the size of a regular file whose other changes are staged
// already, and commits.
func (w *Worker) truncate(id NodeID, n layout.Inode, size uint64) error {
	ino, old := id.Ino(), n.Size()
	if n.Format() == layout.FormatInline {
		if size <= uint64(n.BodyRoom()) {
			if size < old {
				clear(n.Body()[size:])
			}
			n.SetSize(size)
			return w.commit()
		}
		var base [layout.InodeBodySize]byte
		keep := base[:copy(base[:], n.Body()[:min(old, uint64(n.BodyRoom()))])]
		if err := w.leaveInline(ino, n, keep, true); err != nil {
			return err
		}
		n.SetSize(size)
		return w.commit()
	}
	n.SetSize(size)
	if size > old {
		if err := w.zeroTail(ino, n, old, size); err != nil {
			return err
		}
		return w.commit()
	}
	start := blocksTo(size)
	step := func(n layout.Inode) (bool, error) { return w.truncateStep(ino, n, start) }
	done, err := step(n)
	if err != nil {
		return err
	}
	return w.chain(id, intent{kind: layout.IntentTruncate, start: start}, done, step)
}

// truncateStep frees blocks from start on, as many as fit in the record.
func (w *Worker) truncateStep(ino uint64, n layout.Inode, start uint64) (bool, error) {
	next, err := w.unmapExtents(ino, n, start, noBlock, true)
	if err != nil || next != noBlock {
		return false, err
	}
	if n.Size() == 0 && n.ExtentCount() == 0 {
		clear(n.Body())
		n.SetFormat(layout.FormatInline)
	}
	return true, nil
}

// Fallocate allocates, punches or zeroes bytes [off, off+length); mode as in
// fallocate(2), of which the kernel's FUSE passes on these: 0, KEEP_SIZE,
// PUNCH_HOLE|KEEP_SIZE, ZERO_RANGE and ZERO_RANGE|KEEP_SIZE.
func (w *Worker) Fallocate(id NodeID, mode uint32, off, length uint64) error {
	if done, err := w.start(opFallocate); done {
		return err
	}
	if length == 0 {
		return errInvalid
	}
	if off > maxFileSize || length > maxFileSize-off {
		return errTooBig
	}
	w.lock(id.Ino())
	defer w.unlock()
	n, err := w.stageInode(id)
	if err == nil {
		err = w.fallocate(id, n, mode, off, off+length)
	}
	if err != nil {
		w.rollback()
	}
	return err
}

func (w *Worker) fallocate(id NodeID, n layout.Inode, mode uint32, from, to uint64) error {
	if !isRegular(n) {
		if isDir(n) {
			return errIsDir
		}
		return unix.ENODEV
	}
	if w.req.UID != 0 {
		w.stripSetID(n)
	}
	if err := w.stripCapability(n); err != nil {
		return err
	}
	w.changedData(n, mode&FallocKeepTimes != 0)
	mode &^= FallocKeepTimes
	w.tx.result = layout.RequestTuple{Ino: uint64(id)}
	size := n.Size()
	if mode&FallocKeepSize == 0 {
		size = max(size, to)
	}
	switch mode {
	case 0, FallocKeepSize:
		return w.preallocate(id, n, from, to, size)
	case FallocPunchHole | FallocKeepSize:
		return w.punch(id, n, from, to)
	case FallocZeroRange, FallocZeroRange | FallocKeepSize:
		return w.zeroRange(id, n, from, to, size)
	}
	return errNotSup
}

// makeRoom prepares a file for an allocation up to byte `to`: it zeroes the
// tail that a growing size would expose and leaves the inline format. done is
// true when the inline format can stay.
func (w *Worker) makeRoom(ino uint64, n layout.Inode, to, size uint64) (done bool, err error) {
	if n.Format() != layout.FormatInline {
		if size > n.Size() {
			return false, w.zeroTail(ino, n, n.Size(), size)
		}
		return false, nil
	}
	if to <= uint64(n.BodyRoom()) {
		return true, nil
	}
	var base [layout.InodeBodySize]byte
	keep := base[:copy(base[:], n.Body()[:min(n.Size(), uint64(n.BodyRoom()))])]
	return false, w.leaveInline(ino, n, keep, true)
}

// preallocate makes every block of [from, to) allocated.
func (w *Worker) preallocate(id NodeID, n layout.Inode, from, to, size uint64) error {
	ino := id.Ino()
	if done, err := w.makeRoom(ino, n, to, size); err != nil {
		return err
	} else if done {
		n.SetSize(size)
		return w.commit()
	}
	first, last := blockOf(from), blocksTo(to)
	if err := w.reserveHoles(ino, n, first, last); err != nil {
		return err
	}
	pos := first
	step := func(n layout.Inode) (_ bool, err error) {
		if pos, err = w.fillHoles(ino, n, pos, last); err != nil || pos < last {
			return false, err
		}
		n.SetSize(max(n.Size(), size))
		return true, nil
	}
	done, err := step(n)
	if err != nil {
		return err
	}
	return w.chain(id, intent{layout.IntentAllocate, from, to, size}, done, step)
}

// reserveHoles reserves what filling the holes of [first, last) takes, so
// that it cannot fail half-way.
func (w *Worker) reserveHoles(ino uint64, n layout.Inode, first, last uint64) error {
	need := uint64(0)
	for pos := first; pos < last; {
		e, err := w.extentAt(ino, n, pos)
		if err != nil {
			return err
		}
		stop := min(e.End(), last)
		if e.Physical == 0 {
			need += stop - pos
			if need > uint64(w.fs.totalBlocks.Load()) {
				return errNoSpace
			}
		}
		pos = stop
	}
	if err := w.reserve(need, false); err != nil {
		return err
	}
	return w.reserve(need+need/(layout.NodeExtents/2)+treeSlack, true)
}

// treeSlack is the number of blocks for tree nodes that an operation on one
// place of a tree may need: a split on each level and a new root.
const treeSlack = maxExtentDepth + 1

// fillHoles allocates the holes of [pos, last) as unwritten extents, as many
// as fit in the record, and returns where to go on.
func (w *Worker) fillHoles(ino uint64, n layout.Inode, pos, last uint64) (uint64, error) {
	for pos < last && w.tx.cost <= costLimit {
		e, err := w.extentAt(ino, n, pos)
		if err != nil {
			return pos, err
		}
		if e.Physical != 0 {
			pos = e.End()
			continue
		}
		count := min(e.End(), last) - pos
		s, err := w.takeReserved(w.goalFor(ino, n, pos), uint32(min(count, layout.GroupBlocks)), pos%layout.HugeBlocks == 0 && count >= layout.HugeBlocks, false)
		if err != nil {
			return pos, err
		}
		if err := w.mapNew(ino, n, pos, s, layout.ExtentUnwritten); err != nil {
			return pos, err
		}
		pos += s.n
	}
	return pos, nil
}

// innerBlocks is the range of whole blocks in bytes [from, to); a range that
// reaches the end of file takes its last block whole.
func innerBlocks(from, to, size uint64) (first, last uint64) {
	first, last = blocksTo(from), blockOf(to)
	if to >= size {
		last = max(last, blocksTo(min(size, to)))
	}
	return first, max(first, last)
}

// zeroEdges zeroes in place the parts of [from, to) that are not whole
// blocks.
func (w *Worker) zeroEdges(ino uint64, n layout.Inode, from, to uint64) error {
	first, last := innerBlocks(from, to, n.Size())
	if err := w.zeroMapped(ino, n, from, min(to, bytesOf(first))); err != nil {
		return err
	}
	return w.zeroMapped(ino, n, bytesOf(last), to)
}

// zeroAround does what zeroEdges does, and zeroes what lies beyond the end of
// file in its block if the size is to grow. No byte is stored twice.
func (w *Worker) zeroAround(ino uint64, n layout.Inode, from, to, size uint64) error {
	switch old := n.Size(); {
	case size <= old:
	case blockOf(from) == blockOf(old) && from%layout.BlockSize != 0:
		from = min(from, old) // the same run of bytes, to the block's end or to size
	default:
		if err := w.zeroTail(ino, n, old, size); err != nil {
			return err
		}
	}
	return w.zeroEdges(ino, n, from, to)
}

// punch frees the whole blocks of [from, to) and zeroes the rest.
func (w *Worker) punch(id NodeID, n layout.Inode, from, to uint64) error {
	ino := id.Ino()
	if n.Format() == layout.FormatInline {
		if from < n.Size() {
			clear(n.Body()[from:min(to, n.Size())])
		}
		return w.commit()
	}
	w.tx.last = true // a hole in the middle of an extent makes two of it
	if err := w.zeroEdges(ino, n, from, to); err != nil {
		return err
	}
	first, last := innerBlocks(from, to, n.Size())
	step := func(n layout.Inode) (bool, error) {
		next, err := w.unmapExtents(ino, n, first, last, true)
		return next >= last, err
	}
	done, err := step(n)
	if err != nil {
		return err
	}
	return w.chain(id, intent{kind: layout.IntentPunch, start: from, end: to}, done, step)
}

// zeroRange makes [from, to) read as zeros and allocated.
func (w *Worker) zeroRange(id NodeID, n layout.Inode, from, to, size uint64) error {
	ino := id.Ino()
	inline := n.Format() == layout.FormatInline
	if inline {
		clear(n.Body()[min(from, n.Size()):min(to, n.Size())])
		if done, err := w.makeRoom(ino, n, to, size); err != nil {
			return err
		} else if done {
			n.SetSize(size)
			return w.commit()
		}
	}
	if err := w.reserveHoles(ino, n, blockOf(from), blocksTo(to)); err != nil {
		return err
	}
	if !inline {
		if err := w.zeroAround(ino, n, from, to, size); err != nil {
			return err
		}
	}
	first, last := innerBlocks(from, to, n.Size())
	pos, hole, end := first, blockOf(from), blocksTo(to)
	step := func(n layout.Inode) (_ bool, err error) {
		if pos, err = w.unwriteExtents(ino, n, pos, last); err != nil || pos < last {
			return false, err
		}
		if hole, err = w.fillHoles(ino, n, hole, end); err != nil || hole < end {
			return false, err
		}
		n.SetSize(max(n.Size(), size))
		return true, nil
	}
	done, err := step(n)
	if err != nil {
		return err
	}
	return w.chain(id, intent{layout.IntentZero, from, to, size}, done, step)
}

// unwriteExtents turns the written extents of [pos, last) into unwritten
// ones, as many as fit in the record, and returns where to go on.
func (w *Worker) unwriteExtents(ino uint64, n layout.Inode, pos, last uint64) (uint64, error) {
	for pos < last && w.tx.cost <= costLimit {
		e, err := w.extentAt(ino, n, pos)
		if err != nil {
			return pos, err
		}
		stop := min(e.End(), last)
		if e.Physical != 0 && !e.Unwritten() {
			if err := w.reflag(ino, n, e, pos, stop, layout.ExtentUnwritten); err != nil {
				return pos, err
			}
		}
		pos = stop
	}
	return pos, nil
}
