package crashtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// concurrent is what several workers did at once, each with names of its own
// in a directory that all share and in one of its own.
type concurrent struct{ workers []*history }

// owned are those lines of a dump that are of the worker's names.
func owned(lines []string, worker int) []string {
	own := [...]string{fmt.Sprintf("/common/w%d-", worker), fmt.Sprintf("/w%d/", worker), fmt.Sprintf("/w%d ", worker)}
	var list []string
	for _, l := range lines {
		if slices.ContainsFunc(own[:], func(p string) bool { return strings.HasPrefix(l, p) }) {
			list = append(list, l)
		}
	}
	return list
}

// ofEach expects of each worker's names what its own progress allows.
type ofEach []*between

func (c *concurrent) expect(img *record.Image) ofEach {
	var e ofEach
	for k, h := range c.workers {
		e = append(e, &between{history: h, Progress: img.Worker(k)})
	}
	return e
}

func (e ofEach) look(mem []byte) {
	for _, b := range e {
		b.look(mem)
	}
}

func (e ofEach) legal(v *volume, lines []string) error {
	for k, b := range e {
		if err := b.legal(v, owned(lines, k)); err != nil {
			return fmt.Errorf("worker %d: %w", k, err)
		}
	}
	return nil
}

// templates are what a worker does, W being its number.
var templates = Ops(`
	create /common/wW-x; create /common/wW-a; create /wW/c; mkdir /common/wW-d; create /common/wW-d/e; symlink /common/wW-s 9; symlink /wW/s 2000;
	unlink /common/wW-x; unlink /common/wW-a; unlink /wW/b; unlink /wW/c; unlink /common/wW-d/e; rmdir /common/wW-d; unlink /common/wW-s; unlink /wW/s;
	rename /common/wW-a /common/wW-x; rename /common/wW-x /common/wW-a; rename /common/wW-a /wW/b; rename /wW/b /common/wW-x; rename /common/wW-d /wW/d;
	rename /wW/d /common/wW-d; rename /common/wW-a /wW/b exchange; rename /wW/c /common/wW-x noreplace;
	link /common/wW-a /wW/c; link /wW/b /common/wW-x;
	write /common/wW-a 0 300; write /common/wW-a 4000 9000; write /wW/b 10000 5000; write /wW/b 0 100; write /common/wW-x 0 20000;
	truncate /common/wW-a 0; truncate /wW/b 100; truncate /common/wW-x 5001;
	fallocate /common/wW-a alloc 0 20000; fallocate /wW/b punch 0 8192; setxattr /common/wW-a user.x 6000; setxattr /wW/b user.x 20; rmxattr /common/wW-a user.x;
	setattr /common/wW-a mode=600 uid=3`)

// workload makes the operations of each worker.
func workload(seed uint64, length int) [][]Op {
	rnd := rand.New(rand.NewPCG(seed, 3))
	list := make([][]Op, workers)
	for w := range list {
		for range length {
			op := string(templates[rnd.IntN(len(templates))])
			list[w] = append(list[w], Op(strings.ReplaceAll(op, "W", fmt.Sprint(w))))
		}
	}
	return list
}

// runConcurrent runs a workload whose workers give way to each other at
// random fences, and checks what a crash leaves of the interleaving that came
// of it.
func (r *runner) runConcurrent(seed uint64, length int) error {
	ops := workload(seed, length)
	c, trace, err := r.recordConcurrent(seed, ops)
	if err != nil {
		return fmt.Errorf("workload %d: %w", seed, err)
	}
	r.count.Cases++
	trace.Images(r.plan.Model, r.plan.Images, func(img *record.Image) bool {
		if err = r.check(img, c.expect(img), 0); err != nil {
			err = fmt.Errorf("workload %d, crash at %v: %w\n%s", seed, img, err, interleaving(ops, trace.Events()[:img.Point]))
		}
		return err == nil
	})
	return err
}

// interleaving tells in which order the workers came to what they did, and
// which Persister reached each fence.
func interleaving(ops [][]Op, events []record.Event) string {
	var b strings.Builder
	b.WriteString("interleaving:")
	next := make([]int, len(ops))
	for _, e := range events {
		switch e.Kind {
		case record.OpBegin:
			fmt.Fprintf(&b, "\n  worker %d begins %q", e.Persister, ops[e.Persister][next[e.Persister]])
			next[e.Persister]++
		case record.OpEnd:
			fmt.Fprintf(&b, "\n  worker %d ends", e.Persister)
		case record.Fence:
			fmt.Fprintf(&b, " fence(%d)", e.Persister)
		}
	}
	return b.String()
}

func (r *runner) recordConcurrent(seed uint64, ops [][]Op) (*concurrent, *record.Trace, error) {
	r.space.Reset()
	giveWay := yielder(seed)
	r.space.AtFence(giveWay)
	defer r.space.AtFence(nil)
	v, err := mount(r.space, r.clock.now, len(ops), r.buf)
	if err != nil {
		return nil, nil, err
	}
	c, trace, err := r.runWorkers(v, ops)
	if err != nil {
		return nil, nil, fail(v, err)
	}
	return c, trace, v.unmount()
}

// yielder returns a function that lets other goroutines run, at random.
func yielder(seed uint64) func() {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 5))
	return func() {
		mu.Lock()
		n := rnd.IntN(8)
		mu.Unlock()
		for range n {
			runtime.Gosched()
		}
	}
}

func (r *runner) runWorkers(v *volume, ops [][]Op) (*concurrent, *record.Trace, error) {
	c := &concurrent{}
	sessions := make([]*session, len(ops))
	for k := range ops {
		s, err := r.session(v)
		if err != nil {
			return nil, nil, err
		}
		s.w, s.still, s.seq = v.workers[k], true, k<<20
		sessions[k] = s
		c.workers = append(c.workers, &history{states: []state{{owned(s.m.Dump(), k)}}, session: s})
	}
	if err := sessions[0].settle(); err != nil {
		return nil, nil, err
	}
	r.space.Record()
	errs := make([]error, len(ops))
	var wg sync.WaitGroup
	for k := range ops {
		wg.Go(func() { errs[k] = r.work(sessions[k], c.workers[k], k, ops[k]) })
	}
	wg.Wait()
	trace := r.space.Stop()
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	if found := r.space.Lint(); len(found) > 0 && !r.plan.WithoutLint {
		return nil, nil, fmt.Errorf("stores, flushes and fences: %v", found)
	}
	lines, err := v.dump()
	if err != nil {
		return nil, nil, err
	}
	for k, h := range c.workers {
		if have, want := owned(lines, k), h.states[len(h.states)-1].lines; !slices.Equal(have, want) {
			return nil, nil, fmt.Errorf("worker %d: the tree differs from the model's:\n%s", k, difference(have, want))
		}
	}
	return c, trace, nil
}

// work is one worker.
func (r *runner) work(s *session, h *history, k int, ops []Op) error {
	for _, op := range ops {
		r.space.Begin(k)
		err := s.run(op)
		r.space.End(k)
		if err != nil {
			return err
		}
		h.states = append(h.states, state{owned(s.m.Dump(), k)})
		h.steps = append(h.steps, s.done(op))
	}
	return nil
}
