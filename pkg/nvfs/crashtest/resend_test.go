package crashtest

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// exclusive are operations that fail, or do something else, when they are
// executed twice.
var exclusive = Ops(`
	create /new; mkdir /dir/new; mknod /new fifo; symlink /new 6; symlink /new 3000; link /page /dir/new; tmpfile /dir;
	unlink /small; unlink /page; unlink /dir/hard; rmdir /other/vacant; rmdir /empty;
	rename /small /new noreplace; rename /small /page; rename /small /page exchange; rename /dir/sub /other/c exchange; rename /dir/a /other/c whiteout;
	setxattr /none user.new 30 create; setxattr /page user.x 7000 replace; setxattr /small user.x 9 create; rmxattr /page user.x;
	create /small; mkdir /dir; rmdir /dir; unlink /absent; rename /small /page noreplace; rmxattr /none user.x`)

// resendLists are cases whose last operations belong together.
var resendLists = map[string][]string{
	"tree": {
		"tmpfile /dir; linkheld /new", "tmpfile /; writeheld 0 5000; linkheld /dir/new", "hold /page; unlink /page; writeheld 4000 5000",
		"hold /odd; unlink /odd; unlink /dir/hard", "hold /empty; rmdir /empty", "create /new; unlink /new; create /new",
		"write /none 0 600000", "write /small 90 1100000", "copy /plain 0 /none 0 600000", "write /none 0 900000; copy /none 0 /odd 9 850000",
		"write /odd 10000 7001; write /odd 17001 100",
	},
	"fragments": {"truncate /a 0", "setattr /a size=0 mode=600 uid=3", "unlink /a", "rename /b /a", "fallocate /a punch 5 10000000",
		"fallocate /a zero 5 4255744", "fallocate /a alloc 0 5000000", "rmxattr /a user.x"},
	"full": {"write /odd 10000 900000", "write /small 0 5000", "symlink /new 3000", "copy /odd 0 /small 0 9000", "fallocate /odd alloc 0 900000", "unlink /filler",
		"unlink /odd; write /small 0 700000"},
	"wide": {"create /leaf/" + longName(100), "rename /leaf/" + longName(3) + " /split/" + longName(105), "link /some /leaf/" + longName(103)},
}

func resendPlan(m record.Model) Plan {
	p := Plan{
		Model:  m,
		Images: record.Options{Seed: 5, Alone: 3, Subsets: 1, Partial: 2, Between: 7},
		Twice:  3, Nested: 60, Depth: 1,
		InRecovery: record.Options{Seed: 6, Alone: 1, Subsets: 1},
	}
	if long {
		p.Images = record.Options{Seed: 5, Alone: 20, Subsets: 8, Partial: 12, Exhaustive: 4, Between: 2}
		p.Twice, p.Nested = 2, 12
		p.InRecovery = record.Options{Seed: 6, Alone: 4, Subsets: 2, Partial: 2, Between: 4}
	}
	return p
}

// resendErrors runs the cases of one base.
func resendErrors(p Plan, base string, cases []Case) ([]error, Count) {
	var total Count
	if err := Bases[base].prepare(); err != nil {
		return []error{err}, total
	}
	var found []error
	var mu sync.Mutex
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(cases)) {
		wg.Go(func() {
			r, err := newRunner(&p, Bases[base])
			for i := next.Add(1) - 1; err == nil && i < int64(len(cases)); i = next.Add(1) - 1 {
				if err := r.resendCase(cases[i], ""); err != nil {
					mu.Lock()
					found = append(found, err)
					mu.Unlock()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				found = append(found, err)
				return
			}
			total.add(r.count)
		})
	}
	wg.Wait()
	return found, total
}

// runResend runs the cases and reports what they show.
func runResend(t *testing.T, p Plan, base string, cases []Case) {
	t.Helper()
	if raced {
		cases = cases[:min(2, len(cases))]
	}
	found, n := resendErrors(p, base, cases)
	for _, err := range found[:min(10, len(found))] {
		t.Error(err)
	}
	if len(found) > 10 {
		t.Errorf("%d more failures", len(found)-10)
	}
	report(t, base, p, n)
}

// TestResend sends the request of a single operation again after each crash.
// In the short run the models share the operations that are not exclusive.
func TestResend(t *testing.T) {
	for i, m := range models {
		t.Run(m.String(), func(t *testing.T) {
			ops := slices.Clone(exclusive)
			for k, op := range Singles {
				if long || k%len(models) == i {
					ops = append(ops, op)
				}
			}
			runResend(t, resendPlan(m), "tree", Alone("tree", ops))
		})
	}
}

// TestResendLists does so with operations of several records and with those
// on files without a name.
func TestResendLists(t *testing.T) {
	for base, lists := range resendLists {
		var cases []Case
		for _, list := range lists {
			cases = append(cases, Case{Base: base, Ops: Ops(list)})
		}
		p := resendPlan(record.ADR)
		if !long { // the images of these take long
			p.Images = record.Options{Seed: 5, Alone: 1, Subsets: 1}
		}
		t.Run(base, func(t *testing.T) { runResend(t, p, base, cases) })
	}
}

// allWorkers is one exclusive request for each worker that a volume has slots
// for.
var allWorkers = Ops(`
	create /n01; create /n02; create /dir/n03; create /empty/n04; mkdir /n05; mkdir /other/n06; mknod /n07 fifo; symlink /n08 6; symlink /n09 3000;
	link /dir/b /n10; link /odd /dir/n11; unlink /dir/sub/deep; unlink /suid; unlink /long; rmdir /other/vacant; rename /small /n16;
	rename /dir/a /other/c exchange; rename /short /n18 noreplace; rename /holes /n19; setxattr /none user.a 9 create; setxattr /page user.x 9 replace;
	write /n19 40000 500; write /plain 9000 700; truncate /inline 10; fallocate /unw punch 0 8192; setattr /dir mode=700;
	mkdir /n27; mkdir /n28; create /n29; create /n30; rmxattr /n16 user.x`)

// TestResendFromAllWorkers takes a connection over whose workers all have a
// request that was executed and not answered.
func TestResendFromAllWorkers(t *testing.T) {
	const most = 31
	if len(allWorkers) != most {
		t.Fatalf("%d requests for %d workers", len(allWorkers), most)
	}
	p := resendPlan(record.ADR)
	r, err := newRunner(&p, Bases["tree"])
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(0)
	for _, workers := range []int{1, 2, most} {
		for _, successors := range []int{1, 2, 5} {
			seed++
			if err := r.resendAll(Case{Base: "tree", Ops: allWorkers, Workers: most}, successors, workers, seed); err != nil {
				t.Errorf("%d workers, %d successors: %v", workers, successors, err)
			}
		}
	}
	report(t, "tree", p, r.count)
}

// TestResendConcurrent takes the connection of workers over that worked at the
// same time.
func TestResendConcurrent(t *testing.T) {
	n := uint64(6)
	switch {
	case long:
		n = 120
	case raced:
		n = 1
	}
	for _, m := range models {
		p := resendPlan(m)
		p.Images.Between = 11
		if !long {
			p.Images = record.Options{Seed: 5, Alone: 2, Subsets: 2, Between: 11}
		}
		eachSeed(t, p, n, func(r *runner, seed uint64) error { return r.resendConcurrent(seed, 5) })
	}
}
