package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const directBlock = 1 << 20

func directSequential(p Params, pinned bool) Workload {
	return Workload{Group: "direct", Pinned: pinned, Variants: true, Target: true,
		Rows: []Row{
			{"direct-write-1m", "1 MiB direct write", "MB/s", higher},
			{"direct-read-1m", "1 MiB direct read", "MB/s", higher},
		},
		run: func(ctx context.Context, r *Run) ([]float64, error) {
			f, err := newDirectFile(filepath.Join(r.Dir, "direct"), directBlock)
			if err != nil {
				return nil, err
			}
			defer f.close()
			write, err := r.seconds(func() error { return f.sequential(ctx, p.FileSize, unix.Pwrite) })
			if err != nil {
				return nil, err
			}
			read, err := r.seconds(func() error { return f.sequential(ctx, p.FileSize, unix.Pread) })
			return []float64{megabytes(p.FileSize, write), megabytes(p.FileSize, read)}, err
		}}
}

func directRandom(p Params, pinned bool) Workload {
	return Workload{Group: "direct", Pinned: pinned, Variants: true, Target: true,
		Rows: []Row{
			{"direct-randread-4k", "4 KiB random direct read", "us", lower},
			{"direct-randwrite-4k", "4 KiB random direct write", "us", lower},
		},
		run: func(ctx context.Context, r *Run) (values []float64, err error) {
			f, err := newDirectFile(filepath.Join(r.Dir, "direct"), directBlock)
			if err != nil {
				return nil, err
			}
			defer f.close()
			if err := f.sequential(ctx, p.RandomSize, unix.Pwrite); err != nil {
				return nil, err
			}
			count := requests(p.RandomOps, pinned)
			for _, request := range []func(int, []byte, int64) (int, error){unix.Pread, unix.Pwrite} {
				took, err := r.seconds(func() error { return f.random(ctx, p.RandomSize, count, request) })
				if err != nil {
					return nil, err
				}
				values = append(values, took*1e6/float64(count))
			}
			return values, nil
		}}
}

// directFile is a file opened with O_DIRECT and a buffer that is aligned as
// that demands.
type directFile struct {
	fd     int
	buffer []byte
}

func newDirectFile(name string, buffer int) (*directFile, error) {
	// Anonymous memory starts at a page.
	b, err := unix.Mmap(-1, 0, buffer, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("buffer of %d bytes: %w", buffer, err)
	}
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create %s with O_DIRECT: %w", name, err), unix.Munmap(b))
	}
	return &directFile{fd: fd, buffer: b}, nil
}

func (f *directFile) close() {
	unix.Close(f.fd)
	unix.Munmap(f.buffer)
}

// sequential makes requests as large as the buffer from 0 to size.
func (f *directFile) sequential(ctx context.Context, size int64, request func(int, []byte, int64) (int, error)) error {
	for off := int64(0); off < size; off += int64(len(f.buffer)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := whole(request(f.fd, f.buffer, off))(len(f.buffer)); err != nil {
			return err
		}
	}
	return nil
}

// random makes count requests of 4 KiB below size. The offsets are the same
// each time.
func (f *directFile) random(ctx context.Context, size int64, count int, request func(int, []byte, int64) (int, error)) error {
	rng := rand.New(rand.NewPCG(1, 2))
	buffer := f.buffer[:smallBlock]
	for i := range count {
		if i%64 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		off := rng.Int64N(size/smallBlock) * smallBlock
		if err := whole(request(f.fd, buffer, off))(smallBlock); err != nil {
			return err
		}
	}
	return nil
}

// whole turns a short read or write into an error.
func whole(n int, err error) func(want int) error {
	return func(want int) error {
		if err == nil && n != want {
			err = fmt.Errorf("%d of %d bytes", n, want)
		}
		return err
	}
}
