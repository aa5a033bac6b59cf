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
)

// countingWorkload returns 1, 2, 3 and so on for each filesystem.
func countingWorkload(order *[]string) Workload {
	calls := map[string]float64{}
	return Workload{Name: "count", Unit: "n", Better: lower, run: func(_ context.Context, dir string, _ int) (float64, error) {
		*order = append(*order, filepath.Base(filepath.Dir(dir)))
		calls[dir]++
		return calls[dir], nil
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
		if r := c.RSSAnon[name]; r.Idle <= 0 || r.After <= 0 {
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

func TestCompareUnmountsAfterAnError(t *testing.T) {
	memory := testMemory(t)
	broken := errors.New("broken")
	_, err := Compare(t.Context(), CompareOptions{
		Memory: memory, Size: 1 << 20, Rounds: 1, Progress: &strings.Builder{},
		Filesystems: []Filesystem{TmpFS{}},
		Workloads:   []Workload{{Name: "w", run: func(context.Context, string, int) (float64, error) { return 0, broken }}},
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want the error of the workload", err)
	}
	assertMemoryUnused(t, memory)
}

func TestWorkloadsRunOnTmpfs(t *testing.T) {
	m, err := TmpFS{}.Mount(t.Context(), memoryDir(t), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmount(context.Background())
	m.ServerPID = os.Getpid() // binds and releases the test's own threads
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "f"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, w := range Workloads(Tree{Dir: src, Files: 1, Bytes: 7}, 50*time.Millisecond) {
		if v, err := w.Measure(t.Context(), m); err != nil || v <= 0 {
			t.Errorf("%s (pinned %v): %v, %v", w.Name, w.Pinned, v, err)
		}
	}
	assertEmptyDir(t, m.Dir)
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
