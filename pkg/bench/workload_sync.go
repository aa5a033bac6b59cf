package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const smallBlock = 4 << 10

// looseFraction of the requests are made where client and server may run on
// different CPUs: there one may take twenty times as long.
const looseFraction = 5

func requests(count int, pinned bool) int {
	if pinned {
		return count
	}
	return max(1, count/looseFraction)
}

func syncAppend(p Params, pinned bool) Workload {
	return Workload{Group: "sync", Pinned: pinned, Variants: true, Target: true,
		Rows: []Row{{"append-dsync", "4 KiB O_DSYNC append (dd)", "us", lower}},
		run: func(ctx context.Context, r *Run) ([]float64, error) {
			res, err := SyncWrites(ctx, r.Dir, smallBlock, requests(p.SyncWrites, pinned), r.CPU)
			return []float64{micros(res.Latency.Median)}, err
		}}
}

// syncStream appends blocks of which most are no multiple of a page.
func syncStream(p Params, pinned bool) Workload {
	w := Workload{Group: "sync", Pinned: pinned, Variants: true}
	for _, size := range streamSizes {
		w.Rows = append(w.Rows, Row{fmt.Sprintf("stream-dsync-%d", size), fmt.Sprintf("stream of %d-byte O_DSYNC writes", size), "MB/s", higher})
	}
	w.run = func(ctx context.Context, r *Run) ([]float64, error) {
		var values []float64
		for _, size := range streamSizes {
			res, err := SyncWrites(ctx, r.Dir, size, requests(p.SyncWrites, pinned)/4, r.CPU)
			if err != nil {
				return nil, err
			}
			values = append(values, megabytes(res.Bytes, res.Elapsed.Seconds()))
		}
		return values, nil
	}
	return w
}

const linearBlock = 64 << 10

func linearWrites(p Params) Workload {
	return Workload{Group: "linear",
		Rows: []Row{
			{"linear-unsynced", "linear 64 KiB writes, not synced", "MB/s", higher},
			{"linear-dsync", "linear 64 KiB O_DSYNC writes", "MB/s", higher},
		},
		run: func(ctx context.Context, r *Run) (values []float64, err error) {
			for _, flag := range []int{0, unix.O_DSYNC} {
				took, err := writeLinear(ctx, filepath.Join(r.Dir, "linear"), p.FileSize, flag)
				if err != nil {
					return nil, err
				}
				values = append(values, megabytes(p.FileSize, took.Seconds()))
			}
			return values, nil
		}}
}

// writeLinear writes a new file in blocks of 64 KiB, closes it, returns how
// long both took, and removes it.
func writeLinear(ctx context.Context, name string, size int64, flag int) (took time.Duration, err error) {
	block := make([]byte, linearBlock)
	begin := time.Now()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|flag, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.Remove(name)) }()
	for left := size; left > 0 && err == nil; left -= linearBlock {
		if err = ctx.Err(); err == nil {
			_, err = f.Write(block[:min(left, linearBlock)])
		}
	}
	err = errors.Join(err, f.Close())
	return time.Since(begin), err
}
