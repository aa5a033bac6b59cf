package bench

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSyncWritesCountsAndCleansUp(t *testing.T) {
	dir := t.TempDir()
	cpu, err := PinCPU()
	if err != nil {
		t.Fatal(err)
	}
	for _, on := range []int{AnyCPU, cpu} {
		res, err := SyncWrites(t.Context(), dir, 4096, 20, on)
		if err != nil {
			t.Fatal(err)
		}
		if res.Writes != 20 || res.Bytes != 20*4096 || res.Latency.Median <= 0 || res.Elapsed < res.Latency.P99 {
			t.Errorf("on CPU %d: implausible result %+v", on, res)
		}
	}
	assertEmptyDir(t, dir)
}

func TestSyncWritesStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if _, err := SyncWrites(ctx, dir, 4096, 1000, AnyCPU); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	assertEmptyDir(t, dir)
}

func TestOnCPURunsThereAndLeavesTheProcessAlone(t *testing.T) {
	var before, during, after unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &before); err != nil {
		t.Fatal(err)
	}
	cpu, err := PinCPU()
	if err != nil {
		t.Fatal(err)
	}
	err = onCPU(cpu, func() error { return unix.SchedGetaffinity(0, &during) })
	if err != nil {
		t.Fatal(err)
	}
	if during.Count() != 1 || !during.IsSet(cpu) {
		t.Errorf("ran on %d CPUs, want CPU %d alone", during.Count(), cpu)
	}
	if err := unix.SchedGetaffinity(os.Getpid(), &after); err != nil {
		t.Fatal(err)
	}
	if after != before {
		t.Error("the affinity of the process changed")
	}
}

func assertEmptyDir(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 0 {
		t.Errorf("left in %s: %v", dir, left)
	}
}
