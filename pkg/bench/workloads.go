package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A Workload measures one thing on one mounted filesystem.
type Workload struct {
	Name   string
	Unit   string
	Better string // "lower" or "higher"
	// Pinned binds client and serving process to one CPU for the duration.
	Pinned bool

	run func(ctx context.Context, dir string, cpu int) (float64, error)
}

const (
	lower  = "lower"
	higher = "higher"

	seqSize     = 256 << 20
	randomSize  = 64 << 20
	seqBlock    = 1 << 20
	smallBlock  = 4 << 10
	pinnedSyncs = 20000
	// An unpinned write may take twenty times as long.
	looseSyncs = 4000
)

// Workloads returns what `bench fs` measures; runtime is that of each random
// fio job. Without a tree nothing is copied.
func Workloads(tree Tree, runtime time.Duration) []Workload {
	var all []Workload
	for _, pinned := range []bool{true, false} {
		all = append(all,
			syncAppend(pinned),
			sequential("1 MiB direct write", "write", pinned),
			sequential("1 MiB direct read", "read", pinned),
			random("4 KiB random direct read", "randread", runtime, pinned),
			random("4 KiB random direct write", "randwrite", runtime, pinned),
		)
		if tree.Files > 0 {
			all = append(all, copyAndSync(tree, pinned), removeTree(pinned))
		}
	}
	return all
}

// Measure runs the workload on m. The value is in w.Unit.
func (w Workload) Measure(ctx context.Context, m *Mounted) (value float64, err error) {
	cpu := AnyCPU
	if w.Pinned {
		if cpu, err = PinCPU(); err != nil {
			return 0, err
		}
		if m.ServerPID != 0 {
			restore, err := bindProcess(m.ServerPID, cpu)
			if err != nil {
				return 0, err
			}
			defer func() {
				if e := restore(); err == nil {
					err = e
				}
			}()
		}
	}
	value, err = w.run(ctx, m.Dir, cpu)
	if err != nil {
		return 0, fmt.Errorf("%s on %s: %w", w.Name, m.Name, err)
	}
	return value, nil
}

func syncAppend(pinned bool) Workload {
	count := looseSyncs
	if pinned {
		count = pinnedSyncs
	}
	return Workload{Name: "4 KiB O_DSYNC append (dd)", Unit: "us", Better: lower, Pinned: pinned,
		run: func(ctx context.Context, dir string, cpu int) (float64, error) {
			res, err := SyncWrites(ctx, dir, smallBlock, count, cpu)
			return micros(res.Latency.Median), err
		}}
}

func sequential(name, rw string, pinned bool) Workload {
	return Workload{Name: name, Unit: "MB/s", Better: higher, Pinned: pinned,
		run: func(ctx context.Context, dir string, cpu int) (float64, error) {
			res, err := RunFio(ctx, dir, FioJob{Name: "seq", RW: rw, BlockSize: seqBlock, Size: seqSize, Direct: true, CPU: cpu})
			return res.Side(rw).BytesPerSec / 1e6, err
		}}
}

func random(name, rw string, runtime time.Duration, pinned bool) Workload {
	return Workload{Name: name, Unit: "us", Better: lower, Pinned: pinned,
		run: func(ctx context.Context, dir string, cpu int) (float64, error) {
			res, err := RunFio(ctx, dir, FioJob{Name: "rand", RW: rw, BlockSize: smallBlock, Size: randomSize,
				Direct: true, Runtime: runtime, CPU: cpu})
			return micros(res.Side(rw).Latency.Mean), err
		}}
}

// treeCopy is where copyAndSync leaves the tree for removeTree.
const treeCopy = "bench-tree"

func copyAndSync(tree Tree, pinned bool) Workload {
	return Workload{Name: fmt.Sprintf("cp -a and sync, %d files, %s", tree.Files, FormatSize(tree.Bytes)),
		Unit: "s", Better: lower, Pinned: pinned,
		run: func(ctx context.Context, dir string, cpu int) (seconds float64, err error) {
			// cp inherits the affinity of the thread that starts it.
			err = onCPU(cpu, func() error {
				took, err := CopyTree(ctx, tree, filepath.Join(dir, treeCopy))
				seconds = took.Seconds()
				return err
			})
			return seconds, err
		}}
}

func removeTree(pinned bool) Workload {
	return Workload{Name: "rm -rf of the copy", Unit: "s", Better: lower, Pinned: pinned,
		run: func(_ context.Context, dir string, cpu int) (float64, error) {
			begin := time.Now()
			err := onCPU(cpu, func() error { return os.RemoveAll(filepath.Join(dir, treeCopy)) })
			return time.Since(begin).Seconds(), err
		}}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
