package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// zeroWrite is how many bytes are written at a time.
const zeroWrite = 1 << 20

// zeroBlockDevice overwrites a block device from byte from to size, both
// multiples of its sectors. It writes, past the page cache, and does not store to
// a mapping: a write of whole blocks also clears bytes that cannot be read
// (poison), while a mapping of them would fault. The caller has claimed the
// device.
func zeroBlockDevice(ctx context.Context, path string, from, size uint64, progress func(to uint64)) (err error) {
	// Memory of its own page, as direct I/O wants it.
	zeroes, err := unix.Mmap(-1, 0, zeroWrite, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("zero %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(zeroes)) }()
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for off := from; off < size; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("zero %s: stopped at byte %d: %w", path, off, err)
		}
		for end := min(off+zeroChunk, size); off < end; {
			n, err := f.WriteAt(zeroes[:min(zeroWrite, end-off)], int64(off))
			if err != nil {
				return fmt.Errorf("zero %s at byte %d: %w", path, off, err)
			}
			off += uint64(n)
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return fmt.Errorf("zero %s before byte %d: %w", path, off, err)
		}
		progress(off)
	}
	return nil
}
