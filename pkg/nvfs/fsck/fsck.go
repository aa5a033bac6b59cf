// Package fsck checks an NVFS volume against the invariants that
// docs/format.md lists, and repairs what breaks them.
//
// Check never writes: records that the journal holds are replayed into
// private copies of the blocks that they change.
//
// A check has four passes, each spread over threads: the bitmaps are verified,
// a group at a time; the inodes in use are verified, in the order of the
// tables, and everything that files and attributes refer to is claimed; the
// directories are walked, large ones by several threads, and their names
// counted; claims and counts are compared with the bitmaps and the link
// counts. Directories come behind the inodes because a name needs the type of
// its inode: read from a small map this costs little, read from the inode it
// would be a cache miss for each name. Memory is a bit for each block, three
// bytes for each inode of groups with inodes in use, and about 100 for each
// directory.
//
// A repair works alone, in the order of the inode numbers; only the checks
// before and after it use threads.
package fsck

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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
	total Totals

	workers  []*worker
	dirs     []directory // to be walked
	subtrees []subtree   // of large ones
}

func (t *Totals) add(o *Totals) {
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
		(*worker).checkLabels,
		(*worker).checkIntents,
	} {
		if err := c.alone(step); err != nil {
			return err
		}
	}
	if err := c.passes(); err != nil {
		return err
	}
	return c.alone((*worker).findPaths)
}

// passes runs the passes that are spread over threads.
func (c *checker) passes() error {
	for range c.opt.Threads {
		c.workers = append(c.workers, &worker{checker: c})
	}
	for _, pass := range []struct {
		parts func() []part
		run   func(*worker)
	}{
		{c.wholeGroups, (*worker).checkBitmaps},
		{c.inodeRanges, (*worker).checkInodes},
		{c.gatherDirectories, (*worker).checkDirectories},
		{c.gatherSubtrees, (*worker).checkSubtrees},
	} {
		if err := c.parallel(pass.parts(), pass.run); err != nil {
			return err
		}
	}
	if err := c.alone((*worker).finishLarge); err != nil {
		return err
	}
	if err := c.parallel(c.inodeRanges(), (*worker).compare); err != nil {
		return err
	}
	for _, w := range c.workers {
		c.total.add(&w.sum)
	}
	return nil
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

func (c *checker) report() *Report {
	r := &Report{Threads: c.opt.Threads, Totals: c.total}
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
