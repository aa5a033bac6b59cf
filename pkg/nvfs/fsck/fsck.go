// Package fsck checks an NVFS volume against the invariants that
// docs/format.md lists, and repairs what breaks them.
//
// Check never writes: records that the journal holds are replayed into
// private copies of the blocks that they change.
//
// A check has three passes over the groups, each spread over threads: the
// bitmaps are verified; the inodes in use are verified and everything that
// they refer to is claimed and counted; claims and counts are compared with
// the bitmaps and the link counts. Memory is a bit for each block and a byte
// for each inode.
package fsck

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// Options of Check.
type Options struct {
	// Threads that work at a time; 0 means one for each CPU.
	Threads int
	// MaxProblems is how many problems the report describes; all are
	// counted. 0 means 1000.
	MaxProblems int
	// Repair asks for problems to be repaired: Check does what Repair does.
	Repair bool
	// Now is the time that what a repair makes gets; zero is the system's.
	Now time.Time
}

const defaultMaxProblems = 1000

// ErrNoSuperblock means that the check could not run because neither
// superblock can be used.
var ErrNoSuperblock = errors.New("no usable superblock")

// Report is the result of a check.
type Report struct {
	UUID     string `json:"uuid"`
	Label    string `json:"label,omitempty"`
	VolumeID string `json:"volumeID,omitempty"`

	// Problems describes the problems found, ordered by code, group, inode,
	// block; at most Options.MaxProblems, and of each code a share of these.
	Problems []Problem `json:"problems"`
	// Counts is the number of problems of each code, described or not.
	Counts map[Code]uint64 `json:"counts,omitempty"`
	// Notes say what is not a problem but worth knowing: replayed records,
	// intents and orphans that the next mount completes.
	Notes []string `json:"notes,omitempty"`

	// Repairs describes what a repair did, as Problems the problems, and
	// Repaired counts it by the code of what was wrong.
	Repairs  []Problem       `json:"repairs,omitempty"`
	Repaired map[Code]uint64 `json:"repaired,omitempty"`
	// Found is Counts of before the repair; nil when nothing was repaired.
	Found map[Code]uint64 `json:"found,omitempty"`

	Totals Totals `json:"totals"`

	Threads int     `json:"threads"`
	Seconds float64 `json:"seconds"`
}

// Totals are what was counted on the volume.
type Totals struct {
	Groups      uint64 `json:"groups"`
	Inodes      uint64 `json:"inodes"` // in use
	InodesMax   uint64 `json:"inodesMax"`
	Directories uint64 `json:"directories"`
	Orphans     uint64 `json:"orphans"`
	Names       uint64 `json:"names"`
	Blocks      uint64 `json:"blocks"` // of all groups, metadata included
	BlocksUsed  uint64 `json:"blocksUsed"`
	Extents     uint64 `json:"extents"`
	Records     uint64 `json:"records"` // replayed from the journal
}

// Exit codes as fsck(8) defines them.
const (
	ExitClean    = 0
	ExitRepaired = 1 // errors were found and all of them repaired
	ExitErrors   = 4 // errors were left uncorrected
	ExitCouldNot = 8 // the check could not run
)

// ExitCode is the exit code for the report; a nil report is that of a check
// that could not run.
func (r *Report) ExitCode() int {
	switch {
	case r == nil:
		return ExitCouldNot
	case r.Total() > 0:
		return ExitErrors
	case r.Found != nil:
		return ExitRepaired
	}
	return ExitClean
}

// Total is the number of problems found.
func (r *Report) Total() uint64 {
	n := uint64(0)
	for _, c := range r.Counts {
		n += c
	}
	return n
}

// Check checks the volume on space, which must not be mounted. Problems are
// in the report; an error means that the check could not run to its end, and
// then there is no report.
func Check(ctx context.Context, space pmem.Space, opt Options) (*Report, error) {
	if opt.Repair {
		return Repair(ctx, space, opt)
	}
	if opt.Threads <= 0 {
		opt.Threads = runtime.GOMAXPROCS(0)
	}
	if opt.MaxProblems <= 0 {
		opt.MaxProblems = defaultMaxProblems
	}
	began := time.Now()
	c := &checker{opt: opt, found: newFindings(opt.MaxProblems)}
	stop := context.AfterFunc(ctx, func() { c.stop.Store(true) })
	defer stop()
	if err := c.run(space); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("check: %w", err)
	}
	r := c.report()
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// checker is a check that runs.
type checker struct {
	*volume
	opt   Options
	found *findings
	stop  atomic.Bool // the context ended
	names nameCounter
	total totals
}

// totals are added to by the workers.
type totals struct {
	mu sync.Mutex
	Totals
}

func (t *totals) add(o *Totals) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Inodes += o.Inodes
	t.Directories += o.Directories
	t.Orphans += o.Orphans
	t.Names += o.Names
	t.BlocksUsed += o.BlocksUsed
	t.Extents += o.Extents
}

var (
	errStopped = errors.New("stopped")
	// errEnough ends a check early, with a report, when what follows cannot
	// be looked at.
	errEnough = errors.New("nothing more can be checked")
)

// run checks everything. It returns nil when there is a report to give.
func (c *checker) run(space pmem.Space) error {
	err := c.runAll(space)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (c *checker) runAll(space pmem.Space) error {
	for _, step := range []func(*worker) error{
		func(*worker) error { return c.open(space) },
		(*worker).checkJournal,
		(*worker).checkSuperblocks,
		(*worker).checkIntents,
	} {
		if err := c.alone(step); err != nil {
			return err
		}
	}
	for _, pass := range []func(*worker, *group){(*worker).checkBitmaps, (*worker).checkInodes, (*worker).compare} {
		if err := c.parallel(pass); err != nil {
			return err
		}
	}
	return c.alone((*worker).findPaths)
}

// alone runs a step in a single worker. A fault of the medium in it is a
// problem and ends the step.
func (c *checker) alone(step func(*worker) error) error {
	w := &worker{checker: c}
	var err error
	if fault := guard(func() { err = step(w) }); fault != nil {
		return w.faulted(fault)
	}
	if err == nil && c.stop.Load() {
		err = errStopped
	}
	return err
}

// parallel runs pass for each group.
func (c *checker) parallel(pass func(*worker, *group)) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	for range min(c.opt.Threads, len(c.groups)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			w := &worker{checker: c}
			defer c.total.add(&w.sum)
			for !c.stop.Load() {
				i := next.Add(1) - 1
				if i >= int64(len(c.groups)) {
					return
				}
				if err := w.runGroup(pass, &c.groups[i]); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					c.stop.Store(true)
				}
			}
		}()
	}
	wg.Wait()
	if first == nil && c.stop.Load() {
		first = errStopped
	}
	return first
}

// runGroup runs pass on g, anew behind each place that cannot be read.
func (w *worker) runGroup(pass func(*worker, *group), g *group) error {
	w.group, w.next = g, 0
	for {
		fault := guard(func() { pass(w, g) })
		if fault == nil {
			return nil
		}
		if err := w.faulted(fault); err != nil {
			return err
		}
		w.next++
		if w.next >= g.inodes {
			return nil
		}
	}
}

// worker is one thread of a check.
type worker struct {
	*checker
	sum   Totals
	group *group // at work on
	next  uint32 // index of the inode at work on

	at   inodeWalk
	set  []byte   // attribute set that is put together
	path []uint64 // of directories to the root
}

// cancelled reports whether the check is to end; it is asked for each block
// of a tree.
func (w *worker) cancelled() bool { return w.stop.Load() }

func (c *checker) report() *Report {
	r := &Report{Threads: c.opt.Threads, Totals: c.total.Totals}
	if c.volume != nil {
		r.UUID, r.Label, r.VolumeID = formatUUID(c.sb.UUID), c.sb.Label, c.sb.VolumeID
		r.Totals.Groups = uint64(len(c.groups))
		for i := range c.groups {
			r.Totals.Blocks += uint64(c.groups[i].blocks)
			r.Totals.InodesMax += uint64(c.groups[i].inodes)
		}
		r.Totals.Records = c.records
	}
	c.found.fill(r)
	return r
}

func formatUUID(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
