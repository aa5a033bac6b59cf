package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// SyncWriteResult is what appending synchronous blocks took.
type SyncWriteResult struct {
	Writes  int           `json:"writes"`
	Bytes   int64         `json:"bytes"`
	Elapsed time.Duration `json:"elapsed"`
	Latency Latency       `json:"latency"`
}

// SyncWrites appends count blocks of blockSize bytes to a new file in dir
// with O_DSYNC, as dd oflag=dsync does, and removes it. It runs on the given
// CPU, or anywhere with AnyCPU.
func SyncWrites(ctx context.Context, dir string, blockSize, count, cpu int) (SyncWriteResult, error) {
	name := filepath.Join(dir, "bench-dsync")
	var res SyncWriteResult
	err := onCPU(cpu, func() error {
		var err error
		res, err = syncWrites(ctx, name, blockSize, count)
		return err
	})
	if rmErr := os.Remove(name); err == nil && rmErr != nil {
		err = rmErr
	}
	return res, err
}

func syncWrites(ctx context.Context, name string, blockSize, count int) (SyncWriteResult, error) {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_DSYNC|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return SyncWriteResult{}, fmt.Errorf("create %s: %w", name, err)
	}
	defer unix.Close(fd)

	block := make([]byte, blockSize)
	took := make([]time.Duration, 0, count)
	begin := time.Now()
	last := begin
	for i := range count {
		if i%64 == 0 && ctx.Err() != nil {
			return SyncWriteResult{}, ctx.Err()
		}
		n, err := unix.Write(fd, block)
		if err != nil {
			return SyncWriteResult{}, fmt.Errorf("write %s: %w", name, err)
		}
		if n != blockSize {
			return SyncWriteResult{}, fmt.Errorf("write %s: %d of %d bytes written", name, n, blockSize)
		}
		now := time.Now()
		took = append(took, now.Sub(last))
		last = now
	}
	return SyncWriteResult{
		Writes:  count,
		Bytes:   int64(count) * int64(blockSize),
		Elapsed: last.Sub(begin),
		Latency: summarize(took),
	}, nil
}
