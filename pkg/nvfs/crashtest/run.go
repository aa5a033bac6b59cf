package crashtest

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// Plan says which images of a case are made and what is done with them.
type Plan struct {
	Model  record.Model
	Images record.Options
	// Twice and Nested choose one of so many images: to be recovered twice, and
	// to have its recovery interrupted. 0 is none.
	Twice, Nested int
	// Depth is how deep a recovery is interrupted in a recovery.
	Depth int
	// Procs is GOMAXPROCS of the recovery, where it is to differ; the cases are
	// then run by one goroutine.
	Procs int
	// WithoutLint leaves the check of stores, flushes and fences out.
	WithoutLint bool
	// InRecovery are the images that are made of a recovery.
	InRecovery record.Options
}

// Count counts crash images.
type Count struct {
	Cases      uint64
	Images     uint64 // in all
	InRecovery uint64 // of these, those of a crash within recovery
}

func (c *Count) add(o Count) {
	c.Cases += o.Cases
	c.Images += o.Images
	c.InRecovery += o.InRecovery
}

// Case is a list of operations on a prepared volume.
type Case struct {
	Base string
	Ops  []Op
	// Resent says that the connection was taken over after the crash and the
	// last request sent again.
	Resent bool
	// From is the first operation, counted from 1, that is interrupted; 0 is
	// the first.
	From int
	// Workers is how many workers carry the operations out, in turn; 0 is one.
	Workers int
}

// Failure is a crash after which something was wrong.
type Failure struct {
	Case  Case
	Plan  Plan
	Image *record.Image // nil: the case itself went wrong
	Err   error
}

func (f *Failure) Unwrap() error { return f.Err }

func (f *Failure) Error() string {
	at := "without a crash"
	only := ""
	if f.Image != nil {
		at = "crash at " + f.Image.String()
		only = fmt.Sprintf(" -crash.image=%q", f.Image)
	}
	if f.Case.Resent {
		only += " -crash.resent"
	}
	return fmt.Sprintf("%s: %v\nrepeat with: go test ./pkg/nvfs/crashtest -run '^TestRepeat$' -v -crash.base=%s -crash.workers=%d -crash.model=%v -crash.seed=%d%s -crash.ops=%q",
		at, f.Err, f.Case.Base, max(f.Case.Workers, 1), f.Plan.Model, f.Plan.Images.Seed, only, Join(f.Case.Ops))
}

// runner runs cases of one base, one after another.
type runner struct {
	plan  *Plan
	base  *Base
	space *record.Space
	clock *clock
	*checker
}

func newRunner(p *Plan, b *Base) (*runner, error) {
	if err := b.prepare(); err != nil {
		return nil, err
	}
	c := &clock{}
	return &runner{plan: p, base: b, space: b.content.NewSpace(), clock: c, checker: newChecker(p, b.content, c)}, nil
}

// run carries a case out and checks its crash images; only, if not "", is the
// one to check.
func (r *runner) run(c Case, only string) error {
	h, trace, err := r.record(c)
	if err != nil {
		return &Failure{Case: c, Plan: *r.plan, Err: err}
	}
	r.count.Cases++
	o := r.plan.Images
	o.From = c.From
	trace.Images(r.plan.Model, o, func(img *record.Image) bool {
		if only != "" && only != img.String() {
			return true
		}
		if err = r.check(img, &between{history: h, Progress: img.Worker(0)}, 0); err != nil {
			err = &Failure{Case: c, Plan: *r.plan, Image: img, Err: err}
		}
		return err == nil
	})
	return err
}

// session begins on the prepared volume.
func (r *runner) session(v *volume) (*session, error) {
	r.clock.ticks.Store(0)
	s := newSession(nil, 0, r.clock)
	for _, op := range r.base.Prepare {
		if err := s.run(op); err != nil {
			return nil, err
		}
	}
	s.release(nil)
	s.v, s.w = v, v.workers[0]
	return s, nil
}

// record carries a case out. After each operation the stores, flushes and
// fences must be in order, and at the end the volume be as the model.
func (r *runner) record(c Case) (*history, *record.Trace, error) {
	r.space.Reset()
	v, err := mount(r.space, r.clock.now, max(c.Workers, 1), r.buf)
	if err != nil {
		return nil, nil, err
	}
	h, trace, err := r.recordOn(v, c)
	if err != nil {
		return nil, nil, fail(v, err)
	}
	return h, trace, v.unmount()
}

func (r *runner) recordOn(v *volume, c Case) (*history, *record.Trace, error) {
	s, err := r.session(v)
	if err != nil {
		return nil, nil, err
	}
	if err := s.settle(); err != nil {
		return nil, nil, err
	}
	if found := r.space.Lint(); len(found) > 0 && !r.plan.WithoutLint {
		return nil, nil, fmt.Errorf("stores, flushes and fences of the mount: %v", found)
	}
	r.space.Record()
	h := &history{states: []state{{s.m.Dump()}}, session: s}
	for i, op := range c.Ops {
		s.w = v.workers[i%len(v.workers)]
		if err := r.step(s, h, op); err != nil {
			return nil, nil, err
		}
	}
	trace := r.space.Stop()
	for i, events := range operations(trace.Events()) {
		h.steps[i].shape = Shape(events)
	}
	lines, err := v.dump()
	if err != nil {
		return nil, nil, err
	}
	if want := h.states[len(h.states)-1].lines; !slices.Equal(lines, want) {
		return nil, nil, fmt.Errorf("the tree differs from the model's:\n%s", difference(lines, want))
	}
	return h, trace, s.release(nil)
}

// step carries one operation out.
func (r *runner) step(s *session, h *history, op Op) error {
	r.space.Begin(0)
	err := s.run(op)
	r.space.End(0)
	if err != nil {
		return err
	}
	if found := r.space.Lint(); len(found) > 0 && !r.plan.WithoutLint {
		return fmt.Errorf("stores, flushes and fences of %q: %v", op, found)
	}
	h.states = append(h.states, state{s.m.Dump()})
	h.steps = append(h.steps, s.done(op))
	return nil
}

// done describes the operation that was just run.
func (s *session) done(op Op) step {
	return step{op: op, torn: s.torn, result: s.result, failed: s.errno != 0, unique: uint64(s.seq),
		call: s.call, errno: s.errno, reply: s.reply, ticks: s.clock.ticks.Load()}
}

// Run runs the cases of one base on n goroutines and passes each failure to
// failed, one at a time.
func Run(p Plan, base string, cases []Case, n int, failed func(error)) Count {
	var total Count
	var mu sync.Mutex
	var next atomic.Int64
	var wg sync.WaitGroup
	b := Bases[base]
	if err := b.prepare(); err != nil {
		failed(err)
		return total
	}
	if p.Procs > 0 {
		n = 1
	}
	for range min(n, len(cases)) {
		wg.Go(func() {
			r, err := newRunner(&p, b)
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed(err)
				return
			}
			for {
				i := next.Add(1) - 1
				if i >= int64(len(cases)) {
					break
				}
				if err := r.run(cases[i], ""); err != nil {
					mu.Lock()
					failed(err)
					mu.Unlock()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total.add(r.count)
		})
	}
	wg.Wait()
	return total
}
