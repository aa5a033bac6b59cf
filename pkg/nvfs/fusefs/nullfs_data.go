package fusefs

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

const nullPageSize = 4096

// nullPages hands out the pages of a space: unused ones in ascending order,
// so that a file written in one go is contiguous, then freed ones.
type nullPages struct {
	mu    sync.Mutex
	total uint32
	next  uint32
	freed []uint32
}

// alloc returns a page number plus 1; 0 when the space is full.
func (p *nullPages) alloc() uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next < p.total {
		p.next++
		return p.next
	}
	if n := len(p.freed); n > 0 {
		page := p.freed[n-1]
		p.freed = p.freed[:n-1]
		return page
	}
	return 0
}

func (p *nullPages) release(pages []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(pages) - 1; i >= 0; i-- {
		if pages[i] != 0 {
			p.freed = append(p.freed, pages[i])
		}
	}
}

func (p *nullPages) count() (total, free uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return uint64(p.total), uint64(p.total-p.next) + uint64(len(p.freed))
}

// run is the longest contiguous piece of the space that holds the file's
// bytes from off, at most n. ok is false for a hole. n.mu is held.
func (n *nullNode) run(off, length uint64) (pos, size uint64, ok bool) {
	i := off / nullPageSize
	within := off % nullPageSize
	size = min(length, nullPageSize-within)
	if i >= uint64(len(n.pages)) || n.pages[i] == 0 {
		return 0, size, false
	}
	first := n.pages[i]
	for j := uint32(1); size < length && i+uint64(j) < uint64(len(n.pages)) && n.pages[i+uint64(j)] == first+j; j++ {
		size = min(length, size+nullPageSize)
	}
	return uint64(first-1)*nullPageSize + within, size, true
}

func (w *nullWorker) Read(id nvfs.NodeID, off uint64, dst []byte) (int, error) {
	n, err := w.find(id)
	if err != nil {
		return 0, err
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if off >= n.attr.Size {
		return 0, nil
	}
	dst = dst[:min(uint64(len(dst)), n.attr.Size-off)]
	for done := uint64(0); done < uint64(len(dst)); {
		pos, size, ok := n.run(off+done, uint64(len(dst))-done)
		piece := dst[done : done+size]
		if ok {
			copy(piece, w.fs.space.Bytes()[pos:pos+size])
		} else {
			clear(piece)
		}
		done += size
	}
	return len(dst), nil
}

func (w *nullWorker) Write(id nvfs.NodeID, off uint64, src []byte, flags nvfs.WriteFlags) (int, error) {
	n, err := w.find(id)
	if err != nil {
		return 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := w.write(n, off, src); err != nil {
		return 0, err
	}
	if flags&nvfs.WriteKillSuidgid != 0 {
		w.strip(n)
	}
	return len(src), w.p.Fence()
}

// write stores data and grows the file. n.mu is held.
func (w *nullWorker) write(n *nullNode, off uint64, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	if err := w.populate(n, off, uint64(len(src)), true); err != nil {
		return err
	}
	for done := uint64(0); done < uint64(len(src)); {
		pos, size, _ := n.run(off+done, uint64(len(src))-done)
		w.p.Copy(pos, src[done:done+size])
		done += size
	}
	n.attr.Size = max(n.attr.Size, off+uint64(len(src)))
	n.attr.Mtime = nullNow()
	n.attr.Ctime = n.attr.Mtime
	return nil
}

// populate gives every page of a range space. With overwrite set the caller
// goes on to store the whole range, so of a new page only what lies outside it
// is zeroed here. n.mu is held.
func (w *nullWorker) populate(n *nullNode, off, length uint64, overwrite bool) error {
	end := (off + length + nullPageSize - 1) / nullPageSize
	if end > uint64(w.fs.pages.total) {
		return syscall.EFBIG // sparse files are no larger than the space
	}
	for uint64(len(n.pages)) < end {
		n.pages = append(n.pages, 0)
	}
	w.fresh = w.fresh[:0]
	for i := off / nullPageSize; i < end; i++ {
		if n.pages[i] != 0 {
			continue
		}
		if n.pages[i] = w.fs.pages.alloc(); n.pages[i] == 0 {
			w.undo(n)
			return syscall.ENOSPC
		}
		w.fresh = append(w.fresh, i)
		if !overwrite || i*nullPageSize < off || (i+1)*nullPageSize > off+length {
			w.p.Zero(uint64(n.pages[i]-1)*nullPageSize, nullPageSize)
		}
	}
	n.attr.Blocks += uint64(len(w.fresh)) * nullPageSize / 512
	return nil
}

// undo gives back the pages that a populate which fails has taken.
func (w *nullWorker) undo(n *nullNode) {
	for _, i := range w.fresh {
		w.fs.pages.release(n.pages[i : i+1])
		n.pages[i] = 0
	}
}

// zero makes a range read as zeros; whole pages become holes. n.mu is held.
func (w *nullWorker) zero(n *nullNode, off, length uint64) {
	end := min(off+length, uint64(len(n.pages))*nullPageSize)
	for off < end {
		i, within := off/nullPageSize, off%nullPageSize
		size := min(end-off, nullPageSize-within)
		switch {
		case n.pages[i] == 0:
		case size == nullPageSize:
			w.fs.pages.release(n.pages[i : i+1])
			n.pages[i] = 0
			n.attr.Blocks -= nullPageSize / 512
		default:
			w.p.Zero(uint64(n.pages[i]-1)*nullPageSize+within, size)
		}
		off += size
	}
}

// resize truncates or extends. n.mu is held.
func (w *nullWorker) resize(n *nullNode, size uint64) error {
	if n.fileType != unix.S_IFREG {
		return syscall.EINVAL
	}
	if size < n.attr.Size {
		end := uint64(len(n.pages)) * nullPageSize
		if size < end {
			w.zero(n, size, end-size)
			n.pages = n.pages[:(size+nullPageSize-1)/nullPageSize]
		}
	}
	n.attr.Size = size
	return nil
}

func (w *nullWorker) Fallocate(id nvfs.NodeID, mode uint32, off, length uint64) error {
	n, err := w.find(id)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if mode&(nvfs.FallocPunchHole|nvfs.FallocZeroRange) != 0 {
		w.zero(n, off, length)
	}
	if mode&nvfs.FallocPunchHole == 0 {
		if err := w.populate(n, off, length, false); err != nil {
			return err
		}
	}
	if mode&nvfs.FallocKeepSize == 0 {
		n.attr.Size = max(n.attr.Size, off+length)
	}
	if w.req.UID != 0 {
		w.strip(n)
	}
	n.attr.Ctime = nullNow()
	return w.p.Fence()
}

func (w *nullWorker) Lseek(id nvfs.NodeID, off uint64, whence uint32) (uint64, error) {
	n, err := w.find(id)
	if err != nil {
		return 0, err
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if off >= n.attr.Size {
		return 0, syscall.ENXIO
	}
	for off < n.attr.Size {
		_, size, data := n.run(off, n.attr.Size-off)
		if data == (whence == unix.SEEK_DATA) {
			return off, nil
		}
		off += size
	}
	if whence == unix.SEEK_DATA {
		return 0, syscall.ENXIO
	}
	return n.attr.Size, nil
}

// CopyFileRange copies one page at most at a time, so that two files are
// never locked at once.
func (w *nullWorker) CopyFileRange(src nvfs.NodeID, srcOff uint64, dst nvfs.NodeID, dstOff, length uint64, flags nvfs.WriteFlags) (uint64, error) {
	var page [nullPageSize]byte
	var done uint64
	for done < length {
		n, err := w.Read(src, srcOff+done, page[:min(length-done, nullPageSize)])
		if err != nil || n == 0 {
			return done, err
		}
		if _, err := w.Write(dst, dstOff+done, page[:n], flags); err != nil {
			return done, err
		}
		done += uint64(n)
	}
	return done, nil
}

func (w *nullWorker) Fsync(nvfs.NodeID) error { return w.p.Fence() }
