package crashtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// resendCase carries a case out and takes its connection over after each crash:
// the last request is sent again. It must be answered as it was when nothing
// interrupted it, and the tree be as it was after it.
func (r *runner) resendCase(c Case, only string) error {
	c.Resent = true
	h, trace, err := r.record(c)
	if err != nil {
		return &Failure{Case: c, Plan: *r.plan, Err: err}
	}
	r.count.Cases++
	defer r.clock.ticks.Store(r.clock.ticks.Load())
	o := r.plan.Images
	o.From = c.From
	trace.Images(r.plan.Model, o, func(img *record.Image) bool {
		p := img.Worker(0)
		if only != "" && only != img.String() || p.Begun == 0 || h.steps[p.Begun-1].call == nil {
			return true
		}
		if err = r.resend(img, h, p); err != nil {
			err = &Failure{Case: c, Plan: *r.plan, Image: img, Err: err}
		}
		return err == nil
	})
	return err
}

// resend recovers an image and sends the last request begun again.
func (r *runner) resend(img *record.Image, h *history, p record.Progress) error {
	r.count.Images++
	s := &h.steps[p.Begun-1]
	want := h.states[p.Begun].lines
	r.clock.ticks.Store(s.ticks)
	r.checker.space.Load(img)
	v, err := takeOver(r.checker.space, r.clock.now, 1, r.buf)
	if err != nil {
		return err
	}
	if err := known(v, s, p); err != nil {
		return fail(v, err)
	}
	first, err := askAgain(v, v.workers[0], h, s, nil)
	if err == nil {
		err = v.expectTree(want)
	}
	if err != nil {
		return fail(v, err)
	}
	if chosen(img, r.plan.Twice) { // the successor ends too, before its reply
		v.fs.Detach()
		if v, err = takeOver(r.checker.space, r.clock.now, 1, r.buf); err != nil {
			return fmt.Errorf("the second successor: %w", err)
		}
		_, err := askAgain(v, v.workers[0], h, s, &first)
		if err == nil {
			err = v.expectTree(want)
		}
		if err != nil {
			return fail(v, fmt.Errorf("the second successor: %w", err))
		}
	}
	if err := r.finish(v, img); err != nil {
		return err
	}
	if chosen(img, r.plan.Nested) {
		return r.crashInTakeOver(img, h, s, want)
	}
	return nil
}

// records reports whether the operation made records of its request.
func (s *step) records() bool { return strings.Contains(s.shape, "r") }

// counted reports whether the reply counts a lookup.
func (s *step) counted() bool {
	switch verb, _, _ := strings.Cut(string(s.op), " "); verb {
	case "create", "mkdir", "mknod", "symlink", "link", "linkheld":
		return s.errno == 0
	}
	return false
}

// makes reports whether the reply has a new inode.
func (s *step) makes() bool {
	switch verb, _, _ := strings.Cut(string(s.op), " "); verb {
	case "create", "mkdir", "mknod", "symlink", "tmpfile":
		return s.errno == 0
	}
	return false
}

// takeOver mounts a volume to continue the connection of the cases.
func takeOver(space *record.Space, now func() nvfs.Time, workers int, b *buffers) (*volume, error) {
	return mountWith(space, nvfs.Options{Clock: now, Resume: conn}, workers, b)
}

// known checks that the journal names a request that has returned.
func known(v *volume, s *step, p record.Progress) error {
	a, ok := v.fs.Answer(conn, s.unique)
	switch {
	case p.Ended < p.Begun || !s.records():
		return nil
	case !ok:
		return fmt.Errorf("%q has returned, but the journal does not know its request", s.op)
	case a.Partial && a.Result != s.reply.n:
		return fmt.Errorf("%q has returned %d, but the journal says that it was interrupted after %d", s.op, s.reply.n, a.Result)
	}
	return nil
}

// askAgain sends a request again and compares the answer with the first one, or
// with the one that a predecessor of this server gave.
func askAgain(v *volume, w *nvfs.Worker, h *history, s *step, before *reply) (reply, error) {
	a, executed := v.fs.Answer(conn, s.unique)
	t := h.session
	t.w, t.reply = w, reply{}
	w.Begin(&nvfs.Request{Conn: conn, Unique: s.unique, Resent: true})
	err := s.call()
	w.End()
	got, want := t.reply, s.reply
	if before != nil {
		want = *before
	}
	if e := nvfs.Errno(err); e != s.errno {
		return got, fmt.Errorf("%q, sent again, gives %v; it was %v (the journal: %v, %+v)", s.op, e, s.errno, executed, a)
	}
	if s.counted() {
		w.Begin(&nvfs.Request{})
		w.Forget(got.attr.ID, 1)
		w.End()
	}
	// Executed anew it may get another inode. After a crash in the take-over the
	// record of the first execution may be whole again: what was missing of it
	// was stored with the second one.
	if s.makes() && (!executed || before != nil && got.attr.ID == s.reply.attr.ID) {
		want.attr.ID = got.attr.ID
	}
	if s.errno == 0 && got != want {
		return got, fmt.Errorf("%q, sent again, is answered\n%+v; it was\n%+v (the journal: %v, %+v)", s.op, got, want, executed, a)
	}
	return got, nil
}

// expectTree compares the tree.
func (v *volume) expectTree(want []string) error {
	lines, err := v.dump()
	if err == nil && !slices.Equal(lines, want) {
		err = fmt.Errorf("the tree is not as it was after the request:\n%s", difference(lines, want))
	}
	return err
}

// finish ends the take-over: what nobody refers to is released. Some of the
// volumes are then used until they are empty.
func (r *runner) finish(v *volume, img *record.Image) error {
	thorough := chosen(img, 8)
	if !thorough {
		v.fs.Detach()
		return nil
	}
	if _, err := v.fs.Orphans(); !errors.Is(err, syscall.EBUSY) {
		return fail(v, fmt.Errorf("orphans are listed (%v) while requests are sent again", err))
	}
	err := v.fs.EndResume()
	if err == nil {
		err = v.releaseOrphans()
	}
	if uerr := v.unmount(); err == nil {
		err = uerr
	}
	if err != nil {
		return err
	}
	if _, err := check(r.checker.space); err != nil {
		return err
	}
	if v, err = mount(r.checker.space, r.clock.now, 1, r.buf); err != nil {
		return err
	}
	err = v.use()
	if uerr := v.unmount(); err == nil {
		err = uerr
	}
	if err != nil {
		return err
	}
	return checkEmpty(r.checker.space)
}

// releaseOrphans releases what has no name, as if the kernel knew none of it.
func (v *volume) releaseOrphans() error {
	list, err := v.fs.Orphans()
	if err != nil {
		return err
	}
	for _, id := range list {
		v.workers[0].Forget(id, 1<<20)
		if err := v.fs.ReleaseOrphan(id); err != nil {
			return err
		}
	}
	if list, err = v.fs.Orphans(); err == nil && len(list) > 0 {
		err = fmt.Errorf("%d orphans are left after their release", len(list))
	}
	return err
}

// crashInTakeOver interrupts the take-over itself and the request that is sent
// again.
func (r *runner) crashInTakeOver(img *record.Image, h *history, s *step, want []string) error {
	space := r.rec[0]
	space.Load(img)
	space.Record()
	v, err := takeOver(space, r.clock.now, 1, r.buf)
	if err != nil {
		return err
	}
	first, err := askAgain(v, v.workers[0], h, s, nil)
	v.fs.Detach()
	if err != nil {
		return err
	}
	trace := space.Stop()
	if found := space.Lint(); len(found) > 0 && !r.plan.WithoutLint {
		return fmt.Errorf("stores, flushes and fences of the take-over: %v", found)
	}
	trace.Images(r.plan.Model, r.plan.InRecovery, func(img2 *record.Image) bool {
		r.count.Images++
		r.count.InRecovery++
		r.second.Load(img2)
		var v *volume
		if v, err = takeOver(r.second, r.clock.now, 1, r.buf); err == nil {
			if _, err = askAgain(v, v.workers[0], h, s, &first); err == nil {
				err = v.expectTree(want)
			}
			v.fs.Detach()
		}
		if err != nil {
			err = fmt.Errorf("crash in the take-over, %v: %w", img2, err)
		}
		return err == nil
	})
	return err
}

// resendConcurrent runs a workload and takes the connection over after each
// crash: the last request of each worker is sent again, in any order.
func (r *runner) resendConcurrent(seed uint64, length int) error {
	ops := workload(seed, length)
	c, trace, err := r.recordConcurrent(seed, ops)
	if err != nil {
		return fmt.Errorf("workload %d: %w", seed, err)
	}
	r.count.Cases++
	rnd := rand.New(rand.NewPCG(seed, 11))
	trace.Images(r.plan.Model, r.plan.Images, func(img *record.Image) bool {
		if err = r.resendEach(img, c, rnd); err != nil {
			err = fmt.Errorf("workload %d, taken over after a crash at %v: %w\n%s", seed, img, err, interleaving(ops, trace.Events()[:img.Point]))
		}
		return err == nil
	})
	return err
}

func (r *runner) resendEach(img *record.Image, c *concurrent, rnd *rand.Rand) error {
	r.count.Images++
	r.checker.space.Load(img)
	n := 1 + rnd.IntN(len(c.workers))
	v, err := takeOver(r.checker.space, r.clock.now, n, r.buf)
	if err != nil {
		return err
	}
	defer v.fs.Detach()
	for _, k := range rnd.Perm(len(c.workers)) {
		h, p := c.workers[k], img.Worker(k)
		if p.Begun == 0 || h.steps[p.Begun-1].call == nil {
			continue
		}
		if _, err := askAgain(v, v.workers[rnd.IntN(n)], h, &h.steps[p.Begun-1], nil); err != nil {
			return fmt.Errorf("worker %d: %w", k, err)
		}
	}
	lines, err := v.dump()
	if err != nil {
		return err
	}
	for k, h := range c.workers {
		if have, want := owned(lines, k), h.states[img.Worker(k).Begun].lines; !slices.Equal(have, want) {
			return fmt.Errorf("worker %d: the tree is not as it was after its request:\n%s", k, difference(have, want))
		}
	}
	return nil
}

// resendAll carries out a case in which each worker has one request, and takes
// the connection over when all have returned and none was answered, again and
// again: each successor answers some of the requests, in any order, and
// executes new ones on the same workers, before it ends.
func (r *runner) resendAll(c Case, successors, workers int, seed uint64) error {
	h, trace, err := r.record(c)
	if err != nil {
		return err
	}
	r.count.Cases++
	var last *record.Image
	trace.Images(r.plan.Model, record.Options{Between: 0}, func(img *record.Image) bool {
		if p := img.Worker(0); p.Ended == len(c.Ops) {
			last = img
		}
		return true
	})
	if last == nil {
		return errors.New("no image of the end of the case")
	}
	r.checker.space.Load(last)
	rnd := rand.New(rand.NewPCG(seed, 9))
	open := rnd.Perm(len(c.Ops))
	fresh := uint64(1 << 20)
	for k := range successors {
		r.count.Images++
		v, err := takeOver(r.checker.space, r.clock.now, workers, r.buf)
		if err != nil {
			return err
		}
		some := len(open) / (successors - k)
		for i, n := range open {
			w := v.workers[rnd.IntN(workers)]
			a, ok := v.fs.Answer(conn, h.steps[n].unique)
			if !ok || a.Partial {
				return fail(v, fmt.Errorf("successor %d: the request of %q is not known", k, h.steps[n].op))
			}
			if i >= some {
				continue
			}
			if _, err := askAgain(v, w, h, &h.steps[n], nil); err != nil {
				return fail(v, fmt.Errorf("successor %d: %w", k, err))
			}
			fresh += 2
			w.Begin(&nvfs.Request{Conn: conn, Unique: fresh})
			err := w.SetXattr(nvfs.RootID, []byte("user.fresh"), []byte{byte(fresh)}, 0)
			w.End()
			if err != nil {
				return fail(v, err)
			}
		}
		open = open[some:]
		if k == successors-1 {
			if err := v.fs.EndResume(); err != nil {
				return fail(v, err)
			}
			if err := v.workers[0].RemoveXattr(nvfs.RootID, []byte("user.fresh")); err != nil {
				return fail(v, err)
			}
			return v.unmount()
		}
		v.fs.Detach()
	}
	return nil
}
