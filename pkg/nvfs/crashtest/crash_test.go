package crashtest

import (
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// quick is the plan of the ordinary tests, thorough that of make crash.
func quick(m record.Model) Plan {
	if long {
		return thorough(m)
	}
	return Plan{
		Model:  m,
		Images: record.Options{Seed: 1, Alone: 12, Subsets: 4, Partial: 6, Exhaustive: 3, Between: 5},
		Twice:  4, Nested: 60, Depth: 2,
		InRecovery: record.Options{Seed: 2, Alone: 3, Subsets: 1, Partial: 1},
	}
}

func thorough(m record.Model) Plan {
	return Plan{
		Model:  m,
		Images: record.Options{Seed: 1, Alone: 40, Subsets: 12, Partial: 16, Exhaustive: 6, Between: 2},
		Twice:  4, Nested: 40, Depth: 3,
		InRecovery: record.Options{Seed: 2, Alone: 4, Subsets: 2, Partial: 2},
	}
}

// light is for many cases, each of which differs little from the others.
func light(m record.Model) Plan {
	p := quick(m)
	p.Images = record.Options{Seed: 3, Alone: 3, Subsets: 2, Partial: 3, Exhaustive: 2}
	p.Nested = 200
	if long {
		p.Images = record.Options{Seed: 3, Alone: 12, Subsets: 6, Partial: 10, Exhaustive: 4, Between: 4}
	}
	return p
}

// runAll runs the cases and reports what they show.
func runAll(t *testing.T, p Plan, base string, cases []Case) Count {
	t.Helper()
	if raced {
		cases = cases[:min(2, len(cases))]
	}
	failures := 0
	n := Run(p, base, cases, runtime.GOMAXPROCS(0), func(err error) {
		if failures++; failures <= 10 {
			t.Error(err)
		}
	})
	if failures > 10 {
		t.Errorf("%d more failures", failures-10)
	}
	report(t, base, p, n)
	return n
}

// TestSingles interrupts each kind of operation, under each model.
func TestSingles(t *testing.T) {
	for _, m := range models {
		t.Run(m.String(), func(t *testing.T) { runAll(t, quick(m), "tree", Alone("tree", Singles)) })
	}
}

// TestLists interrupts operations that belong together, and volumes that are
// full, grow, or have large trees.
func TestLists(t *testing.T) {
	for _, base := range []string{"tree", "wide", "fragments", "full", "growing", "growing-group", "two-devices"} {
		t.Run(base, func(t *testing.T) {
			p := quick(record.ADR)
			if base == "fragments" { // whose images take long
				p = light(record.ADR)
			}
			runAll(t, p, base, Listed(base))
		})
	}
}

// TestSecondDevice interrupts the growth onto a further device, under each model.
func TestSecondDevice(t *testing.T) {
	for _, m := range models {
		t.Run(m.String(), func(t *testing.T) { runAll(t, quick(m), "second-device", Listed("second-device")) })
	}
}

// long is set by make crash.
var long = os.Getenv("NVFS_CRASH_LONG") != ""

var repeat struct {
	base, ops, model, image string
	seed                    uint64
	workers                 int
	resent                  bool
}

func init() {
	flag.StringVar(&repeat.base, "crash.base", "tree", "prepared volume of TestRepeat")
	flag.StringVar(&repeat.ops, "crash.ops", "", "operations of TestRepeat, separated by semicolons")
	flag.StringVar(&repeat.model, "crash.model", "adr", "persistence model of TestRepeat: adr, eadr, msync")
	flag.StringVar(&repeat.image, "crash.image", "", "the only crash image that TestRepeat checks")
	flag.Uint64Var(&repeat.seed, "crash.seed", 1, "seed of TestRepeat's images")
	flag.BoolVar(&repeat.resent, "crash.resent", false, "send the last request again in TestRepeat")
	flag.IntVar(&repeat.workers, "crash.workers", 1, "workers that take turns in TestRepeat")
}

var models = []record.Model{record.ADR, record.EADR, record.MSync}

// TestRepeat repeats the case that the flags describe, as failures print them.
func TestRepeat(t *testing.T) {
	c := Case{Base: repeat.base, Ops: Ops(repeat.ops), Workers: repeat.workers}
	if len(c.Ops) == 0 {
		c.Ops = Ops("create /new; rename /new /small")
	}
	for _, m := range models {
		if m.String() != repeat.model {
			continue
		}
		p, run := quick(m), (*runner).run
		if repeat.resent {
			p, run = resendPlan(m), (*runner).resendCase
		}
		p.Images.Seed = repeat.seed
		r, err := newRunner(&p, Bases[c.Base])
		if err != nil {
			t.Fatal(err)
		}
		if err := run(r, c, repeat.image); err != nil {
			t.Error(err)
		}
		if r.count.Images == 0 {
			t.Errorf("no image %q", repeat.image)
		}
	}
}

// TestPairs interrupts the second of two operations, which two workers carry
// out: each slot's last record is another's. Every pair in the long run, one of
// 13 in the short one.
func TestPairs(t *testing.T) {
	cases := Pairs("tree", Singles, 2)
	if !long {
		var some []Case
		for i := 0; i < len(cases); i += 13 {
			some = append(some, cases[i])
		}
		cases = some
	}
	runAll(t, light(record.ADR), "tree", cases)
}

// TestTriples interrupts the third of three operations.
func TestTriples(t *testing.T) {
	n := 300
	if long {
		n = 5000
	}
	runAll(t, light(record.ADR), "tree", Sequences("tree", Singles, n, 3, rand.New(rand.NewPCG(1, 2))))
}

// TestOtherProcs recovers under another number of CPUs than the one that the
// volume was used with.
func TestOtherProcs(t *testing.T) {
	for _, procs := range []int{1, 7} {
		p := light(record.ADR)
		p.Procs = procs
		var cases []Case
		for i := procs % 3; i < len(Singles); i += 6 {
			cases = append(cases, Case{Base: "tree", Ops: []Op{"write /none 0 5000", "mkdir /new", "rename /dir/a /new/a", Singles[i]}, From: 4, Workers: 4})
		}
		runAll(t, p, "tree", cases)
	}
}

// TestConcurrent interrupts workers that work at the same time.
func TestConcurrent(t *testing.T) {
	n := uint64(16)
	switch {
	case long:
		n = 90
	case raced:
		n = 2
	}
	p := quick(record.ADR)
	p.Images.Between = 0
	eachSeed(t, p, n, func(r *runner, seed uint64) error { return r.runConcurrent(seed, 4) })
}

// eachSeed runs workloads 1 to n on volume "common", on as many goroutines as
// there are CPUs, and reports what they show.
func eachSeed(t *testing.T, p Plan, n uint64, run func(r *runner, seed uint64) error) {
	t.Helper()
	b := Bases["common"]
	if err := b.prepare(); err != nil {
		t.Fatal(err)
	}
	var next atomic.Uint64
	counts := make(chan Count, runtime.GOMAXPROCS(0))
	for range cap(counts) {
		go func() {
			r, err := newRunner(&p, b)
			if err != nil {
				t.Error(err)
				counts <- Count{}
				return
			}
			for seed := next.Add(1); seed <= n && err == nil; seed = next.Add(1) {
				if err = run(r, seed); err != nil {
					t.Error(err)
				}
			}
			counts <- r.count
		}()
	}
	var total Count
	for range cap(counts) {
		total.add(<-counts)
	}
	report(t, b.Name, p, total)
}

// TestRandom does what FuzzCrash does with random bytes.
func TestRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 7))
	var cases []Case
	n := 400
	if long {
		n = 12000
	}
	for range n {
		data := make([]byte, 60)
		for i := range data {
			data[i] = byte(rnd.Uint32())
		}
		ops := Decode(data, 8)
		cases = append(cases, Case{Base: "tree", Ops: ops, From: len(ops), Workers: 1 + rnd.IntN(3)})
	}
	runAll(t, light(record.ADR), "tree", cases)
}

// FuzzCrash decodes bytes to operations and interrupts the last of them.
func FuzzCrash(f *testing.F) {
	f.Add([]byte("\x00\x16\x09\x16\x00\x00\x10"))
	f.Add([]byte("\x07\x01\x03\x00\x05\x03"))
	f.Add([]byte("\x14\x04\x05\x04\x15\x01\x05\x10\x13\x02"))
	p := quick(record.ADR)
	r, err := newRunner(&p, Bases["tree"])
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ops := Decode(data, 12)
		if len(ops) == 0 {
			return
		}
		if err := r.run(Case{Base: "tree", Ops: ops, From: len(ops), Workers: 2}, ""); err != nil {
			t.Fatal(err)
		}
	})
}
