package fusefs

import (
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// dirFiller collects directory entries in the body of a reply.
type dirFiller struct {
	buf   []byte // as long as the kernel's buffer
	n     int    // bytes filled
	plus  bool
	full  bool // an entry did not fit
	yield func(*nvfs.DirEntry) bool
}

func align8(n int) int { return (n + 7) &^ 7 }

// add appends one entry; READDIRPLUS's attributes are left zero, which the
// kernel takes for a plain entry.
func (f *dirFiller) add(e *nvfs.DirEntry) bool {
	head := direntSize
	if f.plus {
		head = direntPlusSize
	}
	size := align8(head + len(e.Name))
	if f.n+size > len(f.buf) {
		f.full = true
		return false
	}
	rec := f.buf[f.n : f.n+size]
	clear(rec)
	ino := e.Ino
	if ino == 0 {
		ino = e.ID.Ino()
	}
	*(*dirent)(unsafe.Pointer(&rec[head-direntSize])) = dirent{
		Ino: ino, Off: e.Cookie, NameLen: uint32(len(e.Name)), Type: e.Type >> 12,
	}
	copy(rec[head:], e.Name)
	f.n += size
	return true
}

// next returns the READDIRPLUS entry at off, its name, and the offset of the
// entry after it.
func (f *dirFiller) next(off int) (*direntPlus, []byte, int) {
	rec := (*direntPlus)(unsafe.Pointer(&f.buf[off]))
	end := off + direntPlusSize + int(rec.NameLen)
	return rec, f.buf[off+direntPlusSize : end], align8(end)
}

func (h *handler) readdir(id nvfs.NodeID, msg, body []byte, plus bool) (int, error) {
	in, _ := arg[fuse.ReadIn](msg)
	if in == nil {
		return 0, syscall.EIO
	}
	f := &h.dir
	f.buf, f.n, f.plus, f.full = body[:min(int(in.Size), len(body))], 0, plus, false
	h.directoryRead(id)
	if err := h.w.ReadDir(id, in.Offset, f.yield); err != nil {
		return 0, err
	}
	if f.n == 0 && f.full {
		return 0, syscall.EINVAL // an empty reply would be the end of the directory
	}
	if plus {
		h.lookupEntries(id)
	}
	return f.n, nil
}

// lookupEntries adds inodes and attributes to the collected entries. The
// directory is not locked any more, so a name may be gone: it stays in the
// listing without attributes, and so does one whose inode cannot be read. The
// kernel counts no lookups of "." and "..".
func (h *handler) lookupEntries(dir nvfs.NodeID) {
	f := &h.dir
	for off := 0; off < f.n; {
		rec, name, next := f.next(off)
		if !isDots(name) && h.w.Lookup(dir, name, &h.attr) == nil {
			fillEntry(&rec.Entry, &h.attr)
		}
		off = next
	}
}
