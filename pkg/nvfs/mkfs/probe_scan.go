package mkfs

import (
	"context"
	"fmt"
	"io"
)

// scanChunk is how many bytes are looked at before the context is.
const scanChunk = 4 << 20

// nextData tells where data may be, as pmem.NextData.
type nextData func(off uint64) (start, end uint64, err error)

// readChunk returns the n bytes at off, valid until the next call.
type readChunk func(off, n uint64) ([]byte, error)

// findData returns the offset of the first byte in [from, to) that is not
// zero.
func findData(ctx context.Context, from, to uint64, next nextData, read readChunk) (at uint64, found bool, err error) {
	for off := from; off < to; {
		start, end, err := next(off)
		if err != nil {
			return 0, false, err
		}
		if start < off || end <= start && start < to {
			return 0, false, fmt.Errorf("look for data at byte %d: the range [%d, %d) makes no sense", off, start, end)
		}
		end = min(end, to)
		for off = start; off < end; off += scanChunk {
			if err := ctx.Err(); err != nil {
				return 0, false, fmt.Errorf("stopped at byte %d of %d: %w", off, to, err)
			}
			p, err := read(off, min(scanChunk, end-off))
			if err != nil {
				return 0, false, fmt.Errorf("read at byte %d: %w", off, err)
			}
			if i := firstNonZero(p); i >= 0 {
				return off + uint64(i), true, nil
			}
		}
		off = max(start, end)
	}
	return 0, false, nil
}

// firstNonZero is -1 when there is none.
func firstNonZero(p []byte) int {
	if isZero(p) {
		return -1
	}
	for i, v := range p {
		if v != 0 {
			return i
		}
	}
	return -1
}

// chunksOf reads from r.
func chunksOf(r io.ReaderAt) readChunk {
	var buffer []byte
	return func(off, n uint64) ([]byte, error) {
		if buffer == nil {
			buffer = make([]byte, scanChunk)
		}
		if _, err := r.ReadAt(buffer[:n], int64(off)); err != nil {
			return nil, err
		}
		return buffer[:n], nil
	}
}

// slicesOf reads from mapped memory.
func slicesOf(b []byte) readChunk {
	return func(off, n uint64) ([]byte, error) { return b[off : off+n], nil }
}

// prove turns a device that is blank as far as the windows go into one that is
// blank, or is not.
func (im *image) prove(ctx context.Context, found Found, next nextData, read readChunk) (Found, error) {
	n := uint64(len(im.head))
	if found.Kind != Blank || im.size <= 2*n {
		return found, nil
	}
	at, data, err := findData(ctx, n, im.size-n, next, read)
	if err != nil {
		return Found{}, err
	}
	if data {
		return Found{Kind: Foreign, What: fmt.Sprintf("unknown data at byte %d", at)}, nil
	}
	return found, nil
}
