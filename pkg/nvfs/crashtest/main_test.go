package crashtest

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The fewest images that a whole run checks, the ordinary one and that of make
// crash: a plan that lost some of its cases must not pass for one that found
// nothing.
const (
	leastImages     = 50_000
	leastLongImages = 1_000_000
)

// classes counts by the test, which is the class of its workloads.
var classes struct {
	sync.Mutex
	order  []string
	counts map[string]Count
}

// report notes what a test has checked.
func report(t *testing.T, base string, p Plan, n Count) {
	t.Helper()
	t.Logf("%s, %v: %d cases, %d crash images, %d of them of a crash within recovery", base, p.Model, n.Cases, n.Images, n.InRecovery)
	name, _, _ := strings.Cut(t.Name(), "/")
	classes.Lock()
	defer classes.Unlock()
	if classes.counts == nil {
		classes.counts = map[string]Count{}
	}
	if !slices.Contains(classes.order, name) {
		classes.order = append(classes.order, name)
	}
	c := classes.counts[name]
	c.add(n)
	classes.counts[name] = c
}

// TestMain tells how many images were checked, by class and in all.
func TestMain(m *testing.M) {
	began := time.Now()
	code := m.Run()
	var all Count
	for _, c := range classes.counts {
		all.add(c)
	}
	if all.Images > 0 && (long || testing.Verbose()) {
		row := func(name string, c Count) { fmt.Printf("%-24s %8d %10d %12d\n", name, c.Cases, c.Images, c.InRecovery) }
		fmt.Printf("%-24s %8s %10s %12s\n", "class", "cases", "images", "in recovery")
		for _, name := range classes.order {
			row(strings.TrimPrefix(name, "Test"), classes.counts[name])
		}
		row("all", all)
		fmt.Printf("in %v\n", time.Since(began).Round(time.Second))
	}
	least := uint64(leastImages)
	if long {
		least = leastLongImages
	}
	if code == 0 && whole() && all.Images < least {
		fmt.Printf("%d crash images were checked, of at least %d: the plans have become too small\n", all.Images, least)
		code = 1
	}
	os.Exit(code)
}

// whole reports whether all tests ran, at their full size.
func whole() bool {
	for _, name := range []string{"run", "skip", "list", "fuzz", "fuzzworker", "bench"} {
		if f := flag.Lookup("test." + name); f != nil && f.Value.String() != f.DefValue {
			return false
		}
	}
	return !raced && !testing.Short()
}
