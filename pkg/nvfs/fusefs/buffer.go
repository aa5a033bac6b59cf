package fusefs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lineSize is the size of a cache line.
const lineSize = 64

// buffers are the message and reply buffer of one thread. They lie outside
// the Go heap, so the garbage collector neither scans nor moves nor counts
// them. In each, the data of a WRITE or READ starts on a cache line.
type buffers struct {
	mem      []byte
	msg, out []byte
}

func newBuffers() (*buffers, error) {
	page := os.Getpagesize()
	half := (lineSize + writeHeaderSize + MaxWrite + page - 1) / page * page
	// Populated: a thread that is killed while the kernel copies a request to
	// memory that is not there yet fails the request instead of leaving it to
	// be sent again.
	mem, err := unix.Mmap(-1, 0, 2*half, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("request buffers: %w", err)
	}
	msgStart := (lineSize - writeHeaderSize%lineSize) % lineSize
	outStart := half + lineSize - outHeaderSize
	return &buffers{
		mem: mem,
		msg: mem[msgStart : msgStart+writeHeaderSize+MaxWrite],
		out: mem[outStart : outStart+outHeaderSize+MaxWrite],
	}, nil
}

func (b *buffers) free() error { return unix.Munmap(b.mem) }
