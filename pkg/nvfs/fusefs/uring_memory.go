package fusefs

import (
	"fmt"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// ringHeader is struct fuse_uring_req_header: what the kernel and the server
// tell each other of a request, apart from names and data. Its parts begin on
// cache lines.
type ringHeader struct {
	// InOut is a fuse.InHeader on the way in and a fuse.OutHeader on the way
	// out.
	InOut [128]byte
	// Op is the request's own structure, if it has one.
	Op [128]byte

	Flags    uint64
	CommitID uint64
	// PayloadSize counts what follows Op on the way in, and what follows the
	// fuse.OutHeader on the way out, in bytes.
	PayloadSize uint32
	_           uint32
	_           uint64
}

const ringHeaderSize = int(unsafe.Sizeof(ringHeader{}))

// An entry of a queue has a page for its header and, at the page's end, room
// for the message's fixed parts, so that these and the payload that follows
// can be seen as one message. The payload begins on a page.
const (
	entryHead    = 4096
	iovecsOffset = 512
	entrySize    = entryHead + MaxWrite
)

// ringMemory holds the buffers of all queues of a connection, outside the Go
// heap. Those that were never needed take no memory.
type ringMemory struct {
	mem   []byte
	depth int // entries of each queue
}

// newRingMemory makes the buffers of so many queues.
func newRingMemory(queues, depth int) (*ringMemory, error) {
	mem, err := unix.Mmap(-1, 0, queues*depth*entrySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("request buffers: %w", err)
	}
	return &ringMemory{mem, depth}, nil
}

func (m *ringMemory) free() error { return unix.Munmap(m.mem) }

// entry returns an entry's memory.
func (m *ringMemory) entry(queue, i int) []byte {
	start := (queue*m.depth + i) * entrySize
	return m.mem[start : start+entrySize : start+entrySize]
}

// entry is a place for one request.
type entry struct {
	qid    uint16
	header *ringHeader
	mem    []byte
	unique uint64 // of the request that it holds
}

func newEntry(qid int, mem []byte) entry {
	return entry{qid: uint16(qid), header: (*ringHeader)(unsafe.Pointer(unsafe.SliceData(mem))), mem: mem}
}

// iovecs describes the entry's buffers to the kernel, with a payload of so many
// bytes. The memory stays valid until the next call.
func (e *entry) iovecs(payload int) (addr uint64, n uint32) {
	v := (*[2]unix.Iovec)(unsafe.Pointer(&e.mem[iovecsOffset]))
	v[0].Base = unsafe.SliceData(e.mem)
	v[0].SetLen(ringHeaderSize)
	v[1].Base = &e.mem[entryHead]
	v[1].SetLen(payload)
	return uint64(uintptr(unsafe.Pointer(v))), uint32(len(v))
}

// in is the request's header.
func (e *entry) in() *fuse.InHeader {
	return (*fuse.InHeader)(unsafe.Pointer(&e.header.InOut))
}

// fixedSize is the length of the request's fixed parts in bytes, and payload
// that of the rest; false when they cannot be.
func (e *entry) sizes() (fixed, payload int, ok bool) {
	payload = int(e.header.PayloadSize)
	fixed = int(e.in().Length) - payload
	return fixed, payload, payload <= MaxWrite && fixed >= inHeaderSize && fixed <= inHeaderSize+len(e.header.Op)
}

// inPlace returns the request as one message, the payload of which stays where
// it is. The reply's body is written over the payload.
func (e *entry) inPlace(fixed, payload int) []byte {
	start := entryHead - fixed
	e.copyFixed(e.mem[start:entryHead])
	return e.mem[start : entryHead+payload]
}

// copied returns the request as one message in dst; false when it is too long.
func (e *entry) copied(fixed, payload int, dst []byte) ([]byte, bool) {
	if fixed+payload > len(dst) {
		return nil, false
	}
	e.copyFixed(dst[:fixed])
	copy(dst[fixed:], e.mem[entryHead:entryHead+payload])
	return dst[:fixed+payload], true
}

func (e *entry) copyFixed(dst []byte) {
	n := copy(dst, e.header.InOut[:inHeaderSize])
	copy(dst[n:], e.header.Op[:])
}

// out is where a reply of the classic form is made: its body is the payload.
func (e *entry) out() []byte { return e.mem[entryHead-outHeaderSize:] }

// finish makes the n bytes of out the answer to the request.
func (e *entry) finish(n int) {
	hdr := (*fuse.OutHeader)(unsafe.Pointer(&e.header.InOut))
	if n == 0 {
		// The kernel waits for no reply, but for the entry.
		*hdr = fuse.OutHeader{Length: uint32(outHeaderSize), Unique: e.unique}
		n = outHeaderSize
	} else {
		*hdr = *(*fuse.OutHeader)(unsafe.Pointer(&e.mem[entryHead-outHeaderSize]))
	}
	e.header.PayloadSize = uint32(n - outHeaderSize)
}

// fail makes an error the answer to the request.
func (e *entry) fail(errno unix.Errno) {
	*(*fuse.OutHeader)(unsafe.Pointer(&e.header.InOut)) = fuse.OutHeader{
		Length: uint32(outHeaderSize), Status: -int32(errno), Unique: e.unique}
	e.header.PayloadSize = 0
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
