package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Row is one figure of a workload.
type Row struct {
	ID     string `json:"id"` // stable, for programs
	Name   string `json:"workload"`
	Unit   string `json:"unit"`
	Better string `json:"better"` // "lower" or "higher"
}

const (
	lower  = "lower"
	higher = "higher"
)

// A Workload measures one or several figures on one mounted filesystem.
type Workload struct {
	Group string // what --only selects by
	Rows  []Row
	// Pinned binds client and serving process to one CPU for the duration.
	Pinned bool
	// Variants are measured too: filesystems that differ from another one of
	// the run in flush or cache mode only.
	Variants bool
	// MaxRounds bounds the rounds of what takes long; 0 is all.
	MaxRounds int
	// Target says that the target table needs it.
	Target bool

	// run returns a value for each row; NaN where the filesystem cannot do it.
	run func(ctx context.Context, r *Run) ([]float64, error)
}

// notApplicable stands for a figure that a filesystem cannot give.
var notApplicable = math.NaN()

// Run is one execution of a workload.
type Run struct {
	Dir string // an empty directory of its own on the filesystem
	CPU int    // AnyCPU, or what it is bound to

	mounted *Mounted
	// second mounts another, fresh filesystem of the same kind.
	second func(ctx context.Context) (*Mounted, error)
}

// seconds runs f on the CPU of the run; what f starts inherits it.
func (r *Run) seconds(f func() error) (float64, error) {
	var took time.Duration
	err := onCPU(r.CPU, func() error {
		begin := time.Now()
		err := f()
		took = time.Since(begin)
		return err
	})
	return took.Seconds(), err
}

// remount empties the caches of the filesystem, where it survives that.
func (r *Run) remount(ctx context.Context) (cold bool, err error) {
	if !r.mounted.CanRemount() {
		return false, nil
	}
	if err := r.mounted.Remount(ctx); err != nil {
		return false, err
	}
	if r.CPU == AnyCPU || r.mounted.ServerPID == 0 {
		return true, nil
	}
	// A new process: there is nothing to restore in the old one. The binding
	// of this one ends with the next remount or with release.
	_, err = bindProcess(r.mounted.ServerPID, r.CPU)
	return true, err
}

// Title names a workload in one line.
func (w Workload) Title() string {
	title := w.Rows[0].Name
	if n := len(w.Rows); n > 1 {
		title += fmt.Sprintf(" and %d more", n-1)
	}
	if w.Pinned {
		title += ", on one CPU"
	}
	return title
}

// Selected tells whether one of the words is the group of the workload or a
// part of the name of one of its rows; no word selects everything. A word that
// is a group means that group only.
func (w Workload) Selected(words []string) bool {
	for _, word := range words {
		if slices.Contains(Groups, word) {
			if w.Group == word {
				return true
			}
			continue
		}
		for _, row := range w.Rows {
			if strings.Contains(row.Name, word) {
				return true
			}
		}
	}
	return len(words) == 0
}

// workDir is where workloads work on a filesystem.
const workDir = "bench-work"

// Measure runs the workload on m and cleans up behind it. The values are in
// the units of the rows.
func (w Workload) Measure(ctx context.Context, m *Mounted, second func(ctx context.Context) (*Mounted, error)) (values []float64, err error) {
	r := &Run{Dir: filepath.Join(m.Dir, workDir), CPU: AnyCPU, mounted: m, second: second}
	if w.Pinned {
		if r.CPU, err = PinCPU(); err != nil {
			return nil, err
		}
		release, err := bindServer(m, r.CPU)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	if err := os.Mkdir(r.Dir, 0o700); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.Dir)) }()
	values, err = w.run(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("%s on %s: %w", w.Title(), m.Name, err)
	}
	if len(values) != len(w.Rows) {
		return nil, fmt.Errorf("%s on %s: %d values for %d rows", w.Title(), m.Name, len(values), len(w.Rows))
	}
	return values, nil
}

// bindServer binds the serving process, if there is one, and returns what
// releases it, or its successor after a remount.
func bindServer(m *Mounted, cpu int) (release func() error, err error) {
	if m.ServerPID == 0 {
		return func() error { return nil }, nil
	}
	pid := m.ServerPID
	restore, err := bindProcess(pid, cpu)
	if err != nil {
		return nil, err
	}
	return func() error {
		if m.ServerPID == pid {
			return restore()
		}
		return releaseProcess(m.ServerPID)
	}, nil
}

// Params scale the workloads.
type Params struct {
	Trees   *Trees      // nil: no tree is copied
	Compile *CompileJob // nil: nothing is compiled

	SyncWrites int   // appends on one CPU; unpinned a fifth of them
	FileSize   int64 // bytes of the sequential file
	RandomSize int64 // bytes of the file of random requests of one job
	RandomOps  int   // requests of that job

	Jobs        int           // of fio
	JobFileSize int64         // bytes of each job's file
	Runtime     time.Duration // of each run of fio
	JobBlocks   []int         // bytes

	ToggleNames int // names in the directory toggle test
	ToggleOps   int
	SmallNames  int // the same test in a small and in a large directory
	LargeNames  int

	CreateThreads int
	CreateFiles   int // by all threads together

	CheckCopies int // of the small files of the tree, for the filesystem checks
}

// DefaultParams are for a comparison of a quarter of an hour.
func DefaultParams() Params {
	return Params{
		SyncWrites: 20000, FileSize: 256 << 20, RandomSize: 64 << 20, RandomOps: 10000,
		Jobs: 48, JobFileSize: 4 << 20, Runtime: time.Second,
		JobBlocks:   []int{4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10},
		ToggleNames: 8192, ToggleOps: 16384, SmallNames: 1024, LargeNames: 64 << 10,
		CreateThreads: 16, CreateFiles: 4096, CheckCopies: 2,
	}
}

// QuickParams are for two minutes.
func QuickParams() Params {
	p := DefaultParams()
	p.SyncWrites, p.FileSize, p.RandomSize, p.RandomOps = 5000, 64<<20, 32<<20, 3000
	p.JobFileSize, p.Runtime, p.JobBlocks = 1<<20, 300*time.Millisecond, []int{4 << 10, 128 << 10}
	p.ToggleNames, p.ToggleOps, p.LargeNames = 2048, 4096, 16<<10
	p.CreateThreads, p.CreateFiles = 8, 1024
	return p
}

// placements are both ways to run a workload of one client.
var placements = []bool{true, false}

// Workloads returns everything that `bench fs` runs on mounted filesystems.
func Workloads(p Params) []Workload {
	var all []Workload
	for _, pinned := range placements {
		all = append(all, syncAppend(p, pinned), syncStream(p, pinned), directSequential(p, pinned), directRandom(p, pinned))
	}
	all = append(all, linearWrites(p), jobsManyFiles(p), jobsOneFile(p), jobsBlockSizes(p))
	for _, pinned := range placements {
		all = append(all, toggleWorkload(p, pinned))
	}
	all = append(all, toggleGrowth(p), createFiles(p))
	if p.Trees != nil {
		for _, pinned := range placements {
			all = append(all, copyTree(p.Trees.All, pinned))
		}
		all = append(all, copySmallFiles(p.Trees.Small), copyLargeFiles(p.Trees.Large), copyBetween(p.Trees.All))
	}
	if p.Compile != nil {
		all = append(all, compileFrom(p.Compile))
	}
	return all
}

// Groups are the groups of the workloads, in their order, and of what is
// measured beside them.
var Groups = []string{"sync", "direct", "linear", "jobs", "directory", "create", "tree", "between", "compile", GroupCheck, GroupMount}

// What is measured on filesystems of its own.
const (
	GroupCheck = "fsck"
	GroupMount = "mount"
)

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// megabytes is a rate in MB/s.
func megabytes(bytes int64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(bytes) / seconds / 1e6
}
