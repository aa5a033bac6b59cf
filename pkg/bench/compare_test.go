package bench

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// countingWorkload returns 1, 2, 3 and so on for each filesystem.
func countingWorkload(order *[]string) Workload {
	calls := map[string]float64{}
	return Workload{Group: "test", Rows: []Row{{"count", "count", "n", lower}, {"none", "none", "n", lower}},
		run: func(_ context.Context, r *Run) ([]float64, error) {
			*order = append(*order, filepath.Base(filepath.Dir(filepath.Dir(r.Dir))))
			calls[r.Dir]++
			return []float64{calls[r.Dir], notApplicable}, nil
		}}
}

type namedTmpFS struct {
	TmpFS
	name string
}

func (n namedTmpFS) Mount(ctx context.Context, dir string, size int64) (*Mounted, error) {
	m, err := n.TmpFS.Mount(ctx, dir, size)
	if m != nil {
		m.Name, m.ServerPID = n.name, os.Getpid()
	}
	return m, err
}

func TestCompareInterleavesAndTakesMedians(t *testing.T) {
	memory := testMemory(t)
	var order []string
	var progress, out strings.Builder
	c, err := Compare(t.Context(), CompareOptions{
		Memory: memory, Size: 1 << 20, Rounds: 3, Progress: &progress,
		Filesystems: []Filesystem{namedTmpFS{name: "a"}, namedTmpFS{name: "b"}},
		Workloads:   []Workload{countingWorkload(&order)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(order, " "), "fs0 fs1 fs0 fs1 fs0 fs1"; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
	for _, name := range []string{"a", "b"} {
		if got := c.Rows[0].Median[name]; got != 2 {
			t.Errorf("median of %s = %v, want 2", name, got)
		}
		if got := [2]float64{c.Rows[0].Min[name], c.Rows[0].Max[name]}; got != [2]float64{1, 3} {
			t.Errorf("range of %s = %v, want 1 to 3", name, got)
		}
		if _, found := c.Rows[1].Median[name]; found {
			t.Errorf("%s has a figure that it cannot give", name)
		}
		if r := c.RSSAnon[name]; r.Idle <= 0 || r.Peak <= 0 {
			t.Errorf("RssAnon of %s: %+v", name, r)
		}
	}
	if err := c.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"emulated", "count", "RssAnon"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
	assertMemoryUnused(t, memory)
}

// TestCompareGoesOnAfterAFailure wants the figures of the other workloads, the
// failed one tried once only, and nothing left mounted.
func TestCompareGoesOnAfterAFailure(t *testing.T) {
	memory := testMemory(t)
	broken := errors.New("broken")
	tries := 0
	var order []string
	c, err := Compare(t.Context(), CompareOptions{
		Memory: memory, Size: 1 << 20, Rounds: 2, Progress: &strings.Builder{},
		Filesystems: []Filesystem{TmpFS{}},
		Workloads: []Workload{
			{Rows: []Row{{"w", "w", "s", lower}}, run: func(context.Context, *Run) ([]float64, error) { tries++; return nil, broken }},
			countingWorkload(&order),
		},
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want the error of the workload", err)
	}
	if tries != 1 || len(order) != 2 {
		t.Errorf("the failing workload ran %d times, the other one %d times; want 1 and 2", tries, len(order))
	}
	if len(c.Failures) != 1 || c.Failures[0].Filesystem != "tmpfs" {
		t.Errorf("failures %+v, want one of tmpfs", c.Failures)
	}
	assertMemoryUnused(t, memory)
}

func TestCompareStopsWithItsContext(t *testing.T) {
	memory := testMemory(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Compare(ctx, CompareOptions{
		Memory: memory, Size: 1 << 20, Rounds: 2, Progress: &strings.Builder{}, Filesystems: []Filesystem{TmpFS{}},
		Workloads: []Workload{{Rows: []Row{{"w", "w", "s", lower}}, run: func(ctx context.Context, _ *Run) ([]float64, error) {
			cancel()
			return nil, ctx.Err()
		}}},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	assertMemoryUnused(t, memory)
}

func TestCompareLeavesVariantsOutAndKeepsToMaxRounds(t *testing.T) {
	memory := testMemory(t)
	var once, variants []string
	short, wide := countingWorkload(&once), countingWorkload(&variants)
	short.MaxRounds, wide.Variants = 1, true
	_, err := Compare(t.Context(), CompareOptions{
		Memory: memory, Size: 1 << 20, Rounds: 2, Progress: &strings.Builder{}, Variants: []string{"b"},
		Filesystems: []Filesystem{namedTmpFS{name: "a"}, namedTmpFS{name: "b"}},
		Workloads:   []Workload{short, wide},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(once, " "); got != "fs0" {
		t.Errorf("a workload of one round without variants ran on %q, want fs0", got)
	}
	if got := strings.Join(variants, " "); got != "fs0 fs1 fs0 fs1" {
		t.Errorf("a workload with variants ran on %q, want fs0 fs1 fs0 fs1", got)
	}
}

// smallParams make every workload as short as it can be.
func smallParams(t *testing.T) Params {
	t.Helper()
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	if err := os.Mkdir(src, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"small": 7, "large": largeFile} {
		if err := os.WriteFile(filepath.Join(src, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	trees, err := StageTrees(t.Context(), src, filepath.Join(dir, "tree"))
	if err != nil {
		t.Fatal(err)
	}
	if trees.All.Files != 2 || trees.Small.Bytes != 7 || trees.Large.Bytes != largeFile {
		t.Fatalf("staged %+v, want one small and one large file", trees)
	}
	compile, err := NewCompileJob(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	compile.commands = compile.commands[len(compile.commands)-1:]
	return Params{Trees: trees, Compile: compile, SyncWrites: 20, FileSize: 2 << 20, RandomSize: 1 << 20, RandomOps: 20,
		Jobs: 2, JobFileSize: 128 << 10, Runtime: 50 * time.Millisecond, JobBlocks: []int{4 << 10},
		ToggleNames: 16, ToggleOps: 64, SmallNames: 4, LargeNames: 64, CreateThreads: 2, CreateFiles: 8}
}

// TestWorkloadsRun runs every workload on a filesystem that has a remount and
// on one that has none.
func TestWorkloadsRun(t *testing.T) {
	p := smallParams(t)
	for _, fs := range []Filesystem{TmpFS{}, LoopFS{"ext4"}} {
		memory := testMemory(t)
		c, err := Compare(t.Context(), CompareOptions{Memory: memory, Size: 128 << 20, Rounds: 1, Progress: &strings.Builder{},
			Filesystems: []Filesystem{fs}, Workloads: Workloads(p)})
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range c.Rows {
			v, found := row.Median[fs.Name()]
			cold := strings.HasSuffix(row.ID, "-cold")
			if found == (cold && fs.Kind() == KindMemory) || found && v <= 0 {
				t.Errorf("%s on %s (pinned %v): %v, %v", row.ID, fs.Name(), row.Pinned, v, found)
			}
		}
		assertMemoryUnused(t, memory)
	}
}

func TestMeasureBindsAndReleasesTheServer(t *testing.T) {
	m, err := TmpFS{}.Mount(t.Context(), memoryDir(t), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmount(context.Background())
	m.ServerPID = os.Getpid() // binds and releases the test's own threads
	cpu, err := PinCPU()
	if err != nil {
		t.Fatal(err)
	}
	w := Workload{Pinned: true, Rows: []Row{{"w", "w", "s", lower}}, run: func(_ context.Context, r *Run) ([]float64, error) {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(os.Getpid(), &set); err != nil {
			return nil, err
		}
		if r.CPU != cpu || set.Count() != 1 || !set.IsSet(cpu) {
			t.Errorf("bound to CPU %d, the server to %d CPUs; want CPU %d for both", r.CPU, set.Count(), cpu)
		}
		return []float64{1}, nil
	}}
	var before, after unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &before); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Measure(t.Context(), m, nil); err != nil {
		t.Fatal(err)
	}
	if err := unix.SchedGetaffinity(os.Getpid(), &after); err != nil {
		t.Fatal(err)
	}
	if before != after {
		t.Error("the affinity of the server was not restored")
	}
	assertEmptyDir(t, m.Dir)
}

func TestSelected(t *testing.T) {
	w := Workload{Group: "tree", Rows: []Row{{Name: "cp -a and sync"}}}
	for words, want := range map[string]bool{"": true, "tree": true, "sync": false, "cp -a": true, "jobs": false, "jobs,cp -a": true} {
		var list []string
		if words != "" {
			list = strings.Split(words, ",")
		}
		if got := w.Selected(list); got != want {
			t.Errorf("selected by %q: %v, want %v", words, got, want)
		}
	}
}

func TestSignificant(t *testing.T) {
	for v, want := range map[float64]string{4567.8: "4568", 45.67: "45.7", 4.567: "4.57", 0.0456: "0.05", 0: "0.00"} {
		if got := significant(v); got != want {
			t.Errorf("significant(%v) = %q, want %q", v, got, want)
		}
	}
}

func testMemory(t *testing.T) *Memory {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("mounting a tmpfs needs root")
	}
	m, err := NewMemory("/dev/shm", "nvfs-bench-test-", 1<<30, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil { // fails if something is mounted below
			t.Error(err)
		}
	})
	return m
}

// assertMemoryUnused wants no file left; directories may be.
func assertMemoryUnused(t *testing.T, m *Memory) {
	t.Helper()
	err := filepath.WalkDir(m.Dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("left: %s", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
