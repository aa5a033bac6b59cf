package fsck

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// ErrReadOnly means that a repair was asked for on a space that cannot be
// stored to.
var ErrReadOnly = errors.New("the volume is mapped read-only, it cannot be repaired")

// maxRounds is how often the repair starts over when the check that follows
// is not content: giving one thing up can bare another.
const maxRounds = 3

// Repair makes the volume on space, which must not be mounted, keep all
// invariants, by the rules that docs/format.md states. Given the same volume
// it does the same. What it did is in the report; problems that are left are
// there too. A volume without problems is not written to.
//
// Every step is a record of the journal, so it happens as a whole or not at
// all, and no step needs another to follow: a repair that was interrupted
// leaves a volume that the next one repairs, and nothing lost that it would
// have kept. Memory is that of Check, with 24 bytes for each leaf of the
// directory at work on and of damaged directories, about 100 for each run of
// blocks that belongs to several owners, and as much for each of up to 65536
// names that are added to lost+found in a step.
func Repair(ctx context.Context, space pmem.Space, opt Options) (*Report, error) {
	opt.Repair = false
	if opt.MaxProblems <= 0 {
		opt.MaxProblems = defaultMaxProblems
	}
	if opt.Now.IsZero() {
		opt.Now = time.Now()
	}
	first, err := Check(ctx, space, opt)
	switch {
	case err != nil:
		return nil, err
	case first.Total() == 0:
		return first, nil
	case space.ReadOnly():
		return nil, fmt.Errorf("repair: %w", ErrReadOnly)
	}
	began := time.Now()
	s := session{space: space, opt: opt, done: newFindings(opt.MaxProblems)}
	report, err := s.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("repair: %w", err)
	}
	report.Found, report.Seconds = first.Counts, time.Since(began).Seconds()
	s.fill(report)
	return report, nil
}

// session is a repair that runs, over all its rounds.
type session struct {
	space pmem.Space
	opt   Options
	done  *findings // what was repaired
	notes []string
}

func (s *session) run(ctx context.Context) (*Report, error) {
	for range maxRounds {
		if err := s.round(ctx, (*repairer).repairAll); err != nil {
			return nil, err
		}
		report, err := Check(ctx, s.space, s.opt)
		if err != nil {
			return nil, err
		}
		if report.Total() == report.Counts[ErrorFlag] {
			break
		}
	}
	report, err := Check(ctx, s.space, s.opt)
	if err != nil || report.Total() != report.Counts[ErrorFlag] {
		return report, err
	}
	if err := s.round(ctx, (*repairer).clearErrors); err != nil {
		return nil, err
	}
	s.settle()
	return Check(ctx, s.space, s.opt)
}

// round runs steps on the volume as it is now. What the medium does not let
// be read ends it; the check that follows says what.
func (s *session) round(ctx context.Context, steps func(*repairer)) error {
	r := &repairer{checker: &checker{opt: s.opt, found: newFindings(s.opt.MaxProblems)}, session: s, now: s.opt.Now,
		damaged: map[uint64]*dirTree{}}
	stop := context.AfterFunc(ctx, func() { r.stop.Store(true) })
	defer stop()
	var err error
	if fault := guard(func() { err = r.start(steps) }); fault != nil {
		err = (&worker{checker: r.checker}).faulted(fault)
		s.notes = append(s.notes, fmt.Sprintf("the repair ended early: %v", fault.value))
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err == errEnough { // as it was returned: nothing wraps it here
		return nil
	}
	return err
}

// settle lets the engine complete the intents and release the orphans, which
// it can once the rest is right, and mark the volume clean.
func (s *session) settle() {
	now := nvfs.Time{Sec: s.opt.Now.Unix(), Nsec: uint32(s.opt.Now.Nanosecond())}
	fs, err := nvfs.Mount(s.space, nvfs.Options{Clock: func() nvfs.Time { return now }})
	if err == nil {
		err = fs.Unmount()
	}
	if err != nil {
		s.notes = append(s.notes, fmt.Sprintf("unfinished operations are left to the next mount: %v", err))
	}
}

func (s *session) fill(r *Report) {
	done := Report{}
	s.done.fill(&done)
	r.Repairs, r.Repaired = done.Problems, done.Counts
	r.Notes = append(s.notes, r.Notes...)
}

// repairer is one round of a repair. It works alone, in order of the inode
// numbers, so that its choices are the same each time.
type repairer struct {
	*checker
	*session
	ch        changes
	now       time.Time
	damaged   map[uint64]*dirTree // directories whose tree is to be rebuilt
	remaining []Problem
	path      []uint64
	shared    []sharedRun // by inode number and place in the file
	spent     [2]int      // groups before that one have no block for alloc, free or leaked
}

// did notes a repair.
func (r *repairer) did(p Problem, format string, args ...any) {
	if r.ch.err == nil {
		r.done.add(p, format, args...)
	}
}

// left notes what cannot be repaired, and why.
func (r *repairer) left(p Problem, format string, args ...any) {
	p.Text = fmt.Sprintf(format, args...)
	r.remaining = append(r.remaining, p)
	if len(r.notes) < maxNotes {
		r.notes = append(r.notes, p.String())
	}
}

// halted reports whether the round is to end.
func (r *repairer) halted() bool { return r.ch.err != nil || r.stop.Load() }

// start finds the volume, and makes the journal and the superblocks right,
// which all else is built on.
func (r *repairer) start(steps func(*repairer)) error {
	if err := r.open(r.space); err != nil {
		return err
	}
	r.truncating = map[uint64]bool{}
	r.ch = changes{p: r.space.NewPersister(), mem: r.mem, seed: r.seed, rec: make([]byte, layout.SlotSize)}
	r.repairJournal()
	if !r.halted() {
		r.repairSuperblocks()
	}
	if !r.halted() {
		r.beginRepair()
		r.repairLabels()
	}
	if !r.halted() {
		steps(r)
	}
	return r.ch.err
}

// repairAll runs the steps. What a step gives up is given up for good; the
// ones behind it find the rest consistent.
func (r *repairer) repairAll() {
	for _, step := range []func(*repairer){
		(*repairer).repairDescriptors,
		(*repairer).repairInodeBitmaps,
		(*repairer).repairInodes,
		(*repairer).repairData,
		(*repairer).salvageLeaves,
		(*repairer).markBlocks,
		(*repairer).rebuildTrees,
		(*repairer).noteParents,
		(*repairer).repairNames,
		(*repairer).breakLoops,
		func(r *repairer) { r.attachLost(r.repairLinks()) },
		(*repairer).cloneShared,
		(*repairer).freeLeaks,
		(*repairer).withdrawIntents,
	} {
		if r.halted() {
			return
		}
		step(r)
	}
}
