package fusefs

import (
	"sync/atomic"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

// The kernel caches the listing of a directory while several processes read
// it, each adding what comes next. It looks whether the directory has changed
// at the start of a listing only. So one that began after a change, and was
// answered from here at first, may go on in a cache whose next part is older
// than the change, if a third process completes that meanwhile: it would miss
// names that were made before it began, and show such as were removed. Hence
// the listing is taken from the kernel when a directory changes that was read
// since it changed last.

// listings remembers which directories were read since they changed last: one for
// each slot, by a hash of the node. A directory that loses its slot to another
// is taken from the kernel then.
type listings [256]atomic.Uint64

func (l *listings) slot(id nvfs.NodeID) *atomic.Uint64 {
	return &l[uint64(id)*0x9e3779b97f4a7c15>>56]
}

// directoryRead notes that the kernel is about to cache a part of a listing.
func (h *handler) directoryRead(id nvfs.NodeID) {
	s := h.conn.listed.slot(id)
	if s.Load() == uint64(id) {
		return
	}
	if old := s.Swap(uint64(id)); old != 0 && old != uint64(id) {
		h.note.invalListing(nvfs.NodeID(old))
	}
}

// directoryChanged makes the kernel forget the listing of a directory, if it
// may have one, before the caller learns of the change. A process that took the
// connection over does not know what was read before.
func (h *handler) directoryChanged(id nvfs.NodeID) {
	if !h.conn.fresh.Load() {
		h.note.invalListing(id)
	} else if s := h.conn.listed.slot(id); s.Load() == uint64(id) && s.CompareAndSwap(uint64(id), 0) {
		h.note.invalListing(id)
	}
}

// changed is directoryChanged for a change that ended with err, which it
// returns.
func (h *handler) changed(err error, id nvfs.NodeID) error {
	if err == nil {
		h.directoryChanged(id)
	}
	return err
}

// invalListing implements notifier. The pages of a directory are locked only
// while entries are copied from or to them, never while a request is waited
// for.
func (t *devThread) invalListing(id nvfs.NodeID) {
	type inval struct {
		fuse.OutHeader
		fuse.NotifyInvalInodeOut
	}
	msg := inval{
		OutHeader:           fuse.OutHeader{Length: uint32(unsafe.Sizeof(inval{})), Status: notifyInvalInode},
		NotifyInvalInodeOut: fuse.NotifyInvalInodeOut{Ino: uint64(id)}, // from 0 on, all
	}
	_, err := unix.Write(int(t.fd), unsafe.Slice((*byte)(unsafe.Pointer(&msg)), unsafe.Sizeof(msg)))
	// ENOENT: the kernel does not know the directory, so it has no listing.
	if err != nil && err != unix.ENOENT && !gone(err) {
		klog.ErrorS(err, "Invalidating a listing failed", "node", uint64(id))
	}
}
