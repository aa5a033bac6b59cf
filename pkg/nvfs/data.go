package nvfs

import (
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// writeChunk is the most that one transaction writes: even when each of its
// blocks lies elsewhere the record has room for all of them.
const writeChunk = 512 << 10

const lineSize = 64

func blockOf(off uint64) uint64   { return off >> layout.BlockShift }
func blocksTo(off uint64) uint64  { return (off + layout.BlockSize - 1) >> layout.BlockShift }
func bytesOf(block uint64) uint64 { return block << layout.BlockShift }

// Read reads into dst from offset off on and returns how much there was.
func (w *Worker) Read(id NodeID, off uint64, dst []byte) (int, error) {
	w.rlock(id.Ino())
	defer w.unlock()
	n, err := w.fs.inodeAt(id)
	if err != nil {
		return 0, err
	}
	if isDir(n) {
		return 0, errIsDir
	}
	return w.readAt(id.Ino(), n, off, dst)
}

func (w *Worker) readAt(ino uint64, n layout.Inode, off uint64, dst []byte) (int, error) {
	size := n.Size()
	if off >= size {
		return 0, nil
	}
	dst = dst[:min(uint64(len(dst)), size-off)]
	switch n.Format() {
	case layout.FormatInline:
		return copy(dst, n.Body()[off:size]), nil
	case layout.FormatExtents:
	default:
		return 0, errInvalid
	}
	for done := 0; done < len(dst); {
		pos := off + uint64(done)
		e, err := w.extentAt(ino, n, blockOf(pos))
		if err != nil {
			return 0, err
		}
		part := dst[done:]
		part = part[:min(uint64(len(part)), bytesOf(e.End())-pos)]
		if e.Physical == 0 || e.Unwritten() {
			clear(part)
			w.readHole(ino, n, pos, pos+uint64(len(part)))
		} else {
			copy(part, w.fs.mem[bytesOf(e.Physical)+pos-bytesOf(e.Logical):])
		}
		done += len(part)
	}
	return len(dst), nil
}

// Write writes src at off. Up to 512 KiB are atomic as far as blocks are
// newly allocated; an overwrite in place may be torn by a crash between
// aligned 8-byte words.
func (w *Worker) Write(id NodeID, off uint64, src []byte, flags WriteFlags) (int, error) {
	if done, err := w.start(opWrite); done {
		return int(w.resumeAt()), err
	}
	if len(src) == 0 {
		return 0, nil
	}
	if off > maxFileSize || uint64(len(src)) > maxFileSize-off {
		return 0, errTooBig
	}
	return w.write(id, off, src, flags, int(w.resumeAt()), 0, false)
}

// write writes src from byte done on, of which before bytes were written by the
// same request and, if more is set, after which further ones will be. It returns
// how much of src is written.
func (w *Worker) write(id NodeID, off uint64, src []byte, flags WriteFlags, done int, before uint64, more bool) (int, error) {
	w.lock(id.Ino())
	defer w.unlock()
	chunk := writeChunk
	for done < len(src) {
		part := src[done:min(done+chunk, len(src))]
		w.tx.more = more || done+len(part) < len(src)
		w.tx.result = layout.RequestTuple{Ino: uint64(id), Result: before + uint64(done+len(part))}
		if err := w.writeChunk(id, off+uint64(done), part, flags); err != nil {
			w.rollback()
			if err == errNoSpace && len(part) > layout.BlockSize {
				chunk = max(len(part)/2, layout.BlockSize) // use the last blocks too
				continue
			}
			if done > 0 {
				return done, nil
			}
			return 0, err
		}
		done += len(part)
	}
	return done, nil
}

func (w *Worker) writeChunk(id NodeID, off uint64, src []byte, flags WriteFlags) error {
	n, err := w.stageInode(id)
	if err != nil {
		return err
	}
	if !isRegular(n) {
		if isDir(n) {
			return errIsDir
		}
		return errInvalid
	}
	if err := w.writeRange(id.Ino(), n, off, src); err != nil {
		return err
	}
	if flags&WriteKillSuidgid != 0 {
		w.stripSetID(n)
	}
	if err := w.stripCapability(n); err != nil {
		return err
	}
	w.changedData(n, flags&WriteKeepTimes != 0)
	return w.commit()
}

// changedData notes a change of a file's data; keepTimes leaves the times to
// the kernel.
func (w *Worker) changedData(n layout.Inode, keepTimes bool) {
	if keepTimes {
		n.SetChanges(n.Changes() + 1)
	} else {
		w.modified(n)
	}
}

// writeRange stores src and stages the mapping and the size. It serves
// symlink targets too.
func (w *Worker) writeRange(ino uint64, n layout.Inode, off uint64, src []byte) error {
	end, size := off+uint64(len(src)), n.Size()
	if n.Format() == layout.FormatInline {
		if end <= uint64(n.BodyRoom()) {
			copy(n.Body()[off:], src)
			n.SetSize(max(size, end))
			return nil
		}
		var base [layout.InodeBodySize]byte
		old := base[:copy(base[:], n.Body()[:min(size, uint64(n.BodyRoom()))])]
		if err := w.leaveInline(ino, n, old, blockOf(off) > 0); err != nil {
			return err
		}
		if err := w.writeExtents(ino, n, off, src, old); err != nil {
			return err
		}
	} else {
		gap, err := w.zeroGap(ino, n, size, off)
		if err != nil {
			return err
		}
		w.gap = gap
		err = w.writeExtents(ino, n, off, src, nil)
		w.gap = 0
		if err != nil {
			return err
		}
	}
	n.SetSize(max(size, end))
	return nil
}

// leaveInline turns inline data into an extent tree. The old content is put
// into a block of its own when whole is set; otherwise the caller writes it
// together with what it writes to block 0.
func (w *Worker) leaveInline(ino uint64, n layout.Inode, old []byte, whole bool) error {
	clear(n.Body())
	n.SetFormat(layout.FormatExtents)
	n.SetExtentDepth(0)
	n.SetExtentCount(0)
	if !whole || len(old) == 0 {
		return nil
	}
	return w.writeHole(ino, n, 0, 1, 0, nil, old)
}

// writeExtents stores src at off into written, unwritten and missing blocks.
// base is what a new block 0 holds before src is laid over it.
func (w *Worker) writeExtents(ino uint64, n layout.Inode, off uint64, src, base []byte) error {
	end := off + uint64(len(src))
	for pos, last := blockOf(off), blocksTo(end); pos < last; {
		e, err := w.extentAt(ino, n, pos)
		if err != nil {
			return err
		}
		stop := min(e.End(), last)
		switch {
		case e.Physical == 0:
			err = w.writeHole(ino, n, pos, stop-pos, off, src, base)
		case e.Unwritten():
			err = w.writeUnwritten(ino, n, e, pos, stop, off, src)
		default:
			from, to := max(off, bytesOf(pos)), min(end, bytesOf(stop))
			if from > off {
				w.gap = 0
			}
			w.storeOver(bytesOf(e.Physical)+from-bytesOf(e.Logical), to-from, src[from-off:to-off])
		}
		if err != nil {
			return err
		}
		pos = stop
	}
	return nil
}

// writeHole allocates count blocks from block pos of the file on, fills them
// and maps them.
func (w *Worker) writeHole(ino uint64, n layout.Inode, pos, count, off uint64, src, base []byte) error {
	for count > 0 {
		s, err := w.takeReserved(w.goalFor(ino, n, pos), uint32(min(count, layout.GroupBlocks)), alignHuge(n, pos), false)
		if err != nil {
			return err
		}
		w.fillNew(s, pos, off, src, base)
		if err := w.mapNew(ino, n, pos, s, 0); err != nil {
			return err
		}
		pos, count = pos+s.n, count-s.n
	}
	return nil
}

// mapNew maps newly taken blocks at block pos of the file.
func (w *Worker) mapNew(ino uint64, n layout.Inode, pos uint64, s span, flags uint32) error {
	n.SetBlocks(n.Blocks() + s.n)
	return w.insertExtent(ino, n, layout.Extent{Logical: pos, Physical: s.start, Len: uint32(s.n), Flags: flags})
}

// goalFor is the block that would continue the file before pos, or 0.
func (w *Worker) goalFor(ino uint64, n layout.Inode, pos uint64) uint64 {
	if pos == 0 {
		return 0
	}
	e, err := w.extentAt(ino, n, pos-1)
	if err != nil || e.Physical == 0 {
		return 0
	}
	return e.Physical + pos - e.Logical
}

// alignHuge reports whether a big file starts another 2 MiB at block pos.
func alignHuge(n layout.Inode, pos uint64) bool {
	return pos%layout.HugeBlocks == 0 && n.Size() >= layout.HugeBlocks*layout.BlockSize
}

// fillNew stores the content of new blocks s, which become block pos of the
// file: src where it reaches, else base, else zeros. A cache line with more
// than one of these is put together first and stored once.
func (w *Worker) fillNew(s span, pos, off uint64, src, base []byte) {
	w.tx.dirty = true
	start, end := bytesOf(pos), bytesOf(pos+s.n)
	srcEnd := off + uint64(len(src))
	if len(src) == 0 {
		off, srcEnd = end, end
	}
	baseEnd := uint64(len(base))
	line := &w.line
	for cur := start; cur < end; {
		to := bytesOf(s.start) + cur - start
		next := end
		for _, edge := range [...]uint64{off, srcEnd, baseEnd} {
			if edge > cur && edge < next {
				next = edge
			}
		}
		if next < end && next-cur < lineSize {
			for i := range line {
				line[i] = 0
				if at := cur + uint64(i); at >= off && at < srcEnd {
					line[i] = src[at-off]
				} else if at < baseEnd {
					line[i] = base[at]
				}
			}
			w.p.Copy(to, line[:])
			cur += lineSize
			continue
		}
		if next < end {
			next -= (next - cur) % lineSize
		}
		switch {
		case cur >= off && cur < srcEnd:
			w.p.Copy(to, src[cur-off:next-off])
		case cur < baseEnd:
			w.p.Copy(to, base[cur:next])
		default:
			w.p.Zero(to, next-cur)
		}
		cur = next
	}
}

// writeUnwritten fills blocks [pos, stop) of the unwritten extent e and
// marks them written.
func (w *Worker) writeUnwritten(ino uint64, n layout.Inode, e layout.Extent, pos, stop, off uint64, src []byte) error {
	s := span{e.Physical + pos - e.Logical, stop - pos}
	w.fillNew(s, pos, off, src, nil)
	return w.reflag(ino, n, e, pos, stop, 0)
}

// reflag gives blocks [pos, stop) of the mapped extent e other flags.
func (w *Worker) reflag(ino uint64, n layout.Inode, e layout.Extent, pos, stop uint64, flags uint32) error {
	w.tx.last = true // the space was paid for when it was allocated
	cut := layout.Extent{Logical: pos, Physical: e.Physical + pos - e.Logical, Len: uint32(stop - pos), Flags: e.Flags}
	if err := w.cutExtent(ino, n, e, cut); err != nil {
		return err
	}
	cut.Flags = flags
	return w.insertExtent(ino, n, cut)
}

// zeroTail zeroes what the block of the end of file holds beyond it, up to
// limit: it is about to become part of the file.
func (w *Worker) zeroTail(ino uint64, n layout.Inode, size, limit uint64) error {
	limit = min(limit, bytesOf(blocksTo(size)))
	return w.zeroMapped(ino, n, size, limit)
}

// zeroGap zeroes what the block of the end of file holds ahead of off, but for
// the last bytes before off, in its cache line: how many these are it returns,
// and they are stored with what goes to off.
func (w *Worker) zeroGap(ino uint64, n layout.Inode, size, off uint64) (gap uint64, err error) {
	if off <= size {
		return 0, nil
	}
	limit := off
	if off < bytesOf(blocksTo(size)) {
		limit = max(size, off&^(lineSize-1))
	}
	return off - limit, w.zeroTail(ino, n, size, limit)
}

// zeroMapped zeroes bytes [from, to) of one block in place, if it is written.
func (w *Worker) zeroMapped(ino uint64, n layout.Inode, from, to uint64) error {
	if from >= to {
		return nil
	}
	e, err := w.extentAt(ino, n, blockOf(from))
	if err != nil || e.Physical == 0 || e.Unwritten() {
		return err
	}
	w.storeOver(bytesOf(e.Physical)+from-bytesOf(e.Logical), to-from, nil)
	return nil
}

// storeOver overwrites n bytes of a file in place, with src or, if that is
// nil, with zeros. A cache line that is covered in part is stored whole, with
// what it held: a store of part of a word could be torn between its bytes,
// and no reader of the file may ever see that. The inode's lock keeps others
// from the rest of the line.
func (w *Worker) storeOver(to, n uint64, src []byte) {
	w.tx.dirty = true
	line := &w.line
	for done := uint64(0); done < n; {
		at := to + done
		part := min(n-done, lineSize-at%lineSize)
		if part == lineSize { // all lines up to the last, in one go
			part = (n - done) &^ (lineSize - 1)
			if src == nil {
				w.p.Zero(at, part)
			} else {
				w.p.Copy(at, src[done:done+part])
			}
		} else {
			start := at &^ (lineSize - 1)
			copy(line[:], w.fs.mem[start:start+lineSize])
			clear(line[at-start-w.gap : at-start])
			w.gap = 0
			if src == nil {
				clear(line[at-start : at-start+part])
			} else {
				copy(line[at-start:], src[done:done+part])
			}
			w.p.Copy(start, line[:])
		}
		done += part
	}
}

// Fsync has nothing to do: every operation is durable when it returns.
func (w *Worker) Fsync(id NodeID) error { return nil }

// Lseek finds the next data or hole at or after off (SEEK_DATA, SEEK_HOLE).
func (w *Worker) Lseek(id NodeID, off uint64, whence uint32) (uint64, error) {
	w.rlock(id.Ino())
	defer w.unlock()
	n, err := w.fs.inodeAt(id)
	if err != nil {
		return 0, err
	}
	if whence != unix.SEEK_DATA && whence != unix.SEEK_HOLE || !isRegular(n) {
		return 0, errInvalid
	}
	size := n.Size()
	if off >= size {
		return 0, errNoXIO
	}
	if n.Format() == layout.FormatInline {
		if whence == unix.SEEK_DATA {
			return off, nil
		}
		return size, nil
	}
	for pos := off; pos < size; {
		e, err := w.extentAt(id.Ino(), n, blockOf(pos))
		if err != nil {
			return 0, err
		}
		end := min(bytesOf(e.End()), size)
		if e.Physical == 0 || e.Unwritten() {
			pos = w.seekHole(id.Ino(), pos, end, whence == unix.SEEK_DATA)
		} else if whence == unix.SEEK_HOLE {
			pos = end
		}
		if pos < end {
			return pos, nil
		}
	}
	if whence == unix.SEEK_DATA {
		return 0, errNoXIO
	}
	return size, nil
}

// copyLimit bounds one CopyFileRange, so that it does not keep others that
// wait for the same thread.
const copyLimit = 16 << 20

// CopyFileRange copies inside the volume and returns how much it copied,
// which may be less than asked. The source ends where it did when that was read,
// also when the copy makes it longer.
func (w *Worker) CopyFileRange(src NodeID, srcOff uint64, dst NodeID, dstOff, length uint64, flags WriteFlags) (uint64, error) {
	if done, err := w.start(opCopyRange); done {
		return w.resumeAt(), err
	}
	length = min(length, copyLimit)
	buf := make([]byte, min(length, writeChunk))
	done := w.resumeAt()
	for ended := false; done < length && !ended; {
		chunk := buf[:min(uint64(len(buf)), length-done)]
		n, err := w.Read(src, srcOff+done, chunk)
		ended = n < len(chunk)
		if err == nil && n > 0 {
			if dstOff+done > maxFileSize-uint64(n) {
				err = errTooBig
			} else {
				n, err = w.write(dst, dstOff+done, buf[:n], flags, 0, done, done+uint64(n) < length && !ended)
			}
		}
		if err != nil {
			if done > 0 {
				return done, nil
			}
			return 0, err
		}
		done += uint64(n)
	}
	return done, nil
}
