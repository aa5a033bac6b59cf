package crashtest

import (
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// quick is the plan of the ordinary tests.
func quick(m record.Model) Plan {
	return Plan{
		Model:  m,
		Images: record.Options{Seed: 1, Alone: 12, Subsets: 4, Partial: 6, Exhaustive: 3, Between: 5},
		Twice:  4, Nested: 40, Depth: 2,
		InRecovery: record.Options{Seed: 2, Alone: 3, Subsets: 1, Partial: 1},
	}
}

// runAll runs the cases and reports what they show.
func runAll(t *testing.T, p Plan, base string, cases []Case) Count {
	t.Helper()
	failures := 0
	n := Run(p, base, cases, runtime.GOMAXPROCS(0), func(err error) {
		if failures++; failures <= 10 {
			t.Error(err)
		}
	})
	if failures > 10 {
		t.Errorf("%d more failures", failures-10)
	}
	t.Logf("%s, %v: %d cases, %d crash images, %d of them of a crash within recovery", base, p.Model, n.Cases, n.Images, n.InRecovery)
	return n
}

func TestSingles(t *testing.T) {
	for _, m := range []record.Model{record.ADR, record.EADR, record.MSync} {
		t.Run(m.String(), func(t *testing.T) { runAll(t, quick(m), "tree", Alone("tree", Singles)) })
	}
}

func TestLists(t *testing.T) {
	for _, base := range []string{"tree", "wide", "fragments", "full", "growing", "growing-group"} {
		t.Run(base, func(t *testing.T) { runAll(t, quick(record.ADR), base, Listed(base)) })
	}
}

// long is set by make crash.
var long = os.Getenv("NVFS_CRASH_LONG") != ""

var repeat struct {
	base, ops, model, image string
	seed                    uint64
	workers                 int
}

func init() {
	flag.StringVar(&repeat.base, "crash.base", "tree", "prepared volume of TestRepeat")
	flag.StringVar(&repeat.ops, "crash.ops", "", "operations of TestRepeat, separated by semicolons")
	flag.StringVar(&repeat.model, "crash.model", "adr", "persistence model of TestRepeat: adr, eadr, msync")
	flag.StringVar(&repeat.image, "crash.image", "", "the only crash image that TestRepeat checks")
	flag.Uint64Var(&repeat.seed, "crash.seed", 1, "seed of TestRepeat's images")
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
		p := quick(m)
		p.Images.Seed = repeat.seed
		r, err := newRunner(&p, Bases[c.Base])
		if err != nil {
			t.Fatal(err)
		}
		if err := r.run(c, repeat.image); err != nil {
			t.Error(err)
		}
		if r.count.Images == 0 {
			t.Errorf("no image %q", repeat.image)
		}
	}
}

func TestPairs(t *testing.T) {
	runAll(t, quick(record.ADR), "tree", Pairs("tree", Singles, 2))
}

func TestTriples(t *testing.T) {
	runAll(t, quick(record.ADR), "tree", Sequences("tree", Singles, 500, 3, rand.New(rand.NewPCG(1, 2))))
}

func TestConcurrent(t *testing.T) {
	n := uint64(40)
	if long {
		n = 2000
	}
	p := quick(record.ADR)
	p.Images.Between = 0
	r, err := newRunner(&p, Bases["common"])
	if err != nil {
		t.Fatal(err)
	}
	for seed := range n {
		if err := r.runConcurrent(seed, 4); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d workloads, %d crash images, %d of them of a crash within recovery", r.count.Cases, r.count.Images, r.count.InRecovery)
}

// TestRandom does what FuzzCrash does with random bytes.
func TestRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 7))
	var cases []Case
	for range 300 {
		data := make([]byte, 60)
		for i := range data {
			data[i] = byte(rnd.Uint32())
		}
		ops := Decode(data, 8)
		cases = append(cases, Case{Base: "tree", Ops: ops, From: len(ops), Workers: 1 + rnd.IntN(3)})
	}
	p := quick(record.ADR)
	p.Images.Seed = 5
	runAll(t, p, "tree", cases)
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
