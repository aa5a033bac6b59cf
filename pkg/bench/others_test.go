package bench

import (
	"context"
	"testing"
)

func TestParseCPUTime(t *testing.T) {
	before, err := parseCPUTime("cpu  100 0 50 800 50 0 0 0 7 7\ncpu0 1 0 1 1 1 0 0 0 0 0\ncpu1 1 0 1 1 1 0 0 0 0 0\nintr 5\n")
	if err != nil || before != (cpuTime{busy: 150, idle: 850, cpus: 2}) {
		t.Errorf("parsed %+v, %v", before, err)
	}
	after := cpuTime{busy: 200, idle: 900, cpus: 2}
	if busy := after.busySince(before); busy != 1 {
		t.Errorf("%v CPUs were busy, want half of 2", busy)
	}
	if busy := before.busySince(before); busy != 0 {
		t.Errorf("%v CPUs were busy in no time", busy)
	}
	for _, text := range []string{"cpu  1 2 3\n", "cpu a b c d e f g h\n"} {
		if _, err := parseCPUTime(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestOthersCPUs(t *testing.T) {
	now, err := readCPUTime()
	if err != nil {
		t.Fatal(err)
	}
	if n := othersCPUs(t.Context()); n < 0 || n > float64(now.cpus) {
		t.Errorf("%v of %d CPUs", n, now.cpus)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if n := othersCPUs(ended); n != 0 {
		t.Errorf("%v without a sample", n)
	}
}
