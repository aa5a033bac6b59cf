package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// The load average counts what a benchmark itself has started. What other
// programs take is seen while it rests: between two rounds.

const (
	othersSamples  = 5
	othersInterval = 100 * time.Millisecond
)

// othersCPUs is how many CPUs other programs keep busy, 0 when the kernel does
// not say. It is called while nothing is being measured, takes half a second, and
// returns the least of some samples: what was written before may still be on its
// way to the memory.
func othersCPUs(ctx context.Context) float64 {
	least := -1.0
	before, err := readCPUTime()
	for range othersSamples {
		select {
		case <-ctx.Done():
			return max(least, 0)
		case <-time.After(othersInterval):
		}
		after, errAfter := readCPUTime()
		if err != nil || errAfter != nil {
			return 0
		}
		if busy := after.busySince(before); least < 0 || busy < least {
			least = busy
		}
		before = after
	}
	return max(least, 0)
}

// cpuTime is the first line of /proc/stat, in ticks of all CPUs.
type cpuTime struct {
	busy, idle uint64
	cpus       int
}

// busySince is the mean number of CPUs that were busy.
func (t cpuTime) busySince(before cpuTime) float64 {
	busy, idle := t.busy-before.busy, t.idle-before.idle
	if busy+idle == 0 {
		return 0
	}
	return float64(busy) / float64(busy+idle) * float64(t.cpus)
}

func readCPUTime() (cpuTime, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTime{}, err
	}
	return parseCPUTime(string(text))
}

// parseCPUTime reads /proc/stat: user, nice, system, idle, iowait, irq, softirq
// and steal; what follows is part of user and nice.
func parseCPUTime(text string) (t cpuTime, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || !strings.HasPrefix(fields[0], "cpu") {
			continue
		}
		if fields[0] != "cpu" {
			t.cpus++
			continue
		}
		if len(fields) < 9 {
			return t, fmt.Errorf("/proc/stat: %q has too few numbers", line)
		}
		for i, field := range fields[1:9] {
			n, err := strconv.ParseUint(field, 10, 64)
			if err != nil {
				return t, fmt.Errorf("/proc/stat: %w", err)
			}
			if i == 3 || i == 4 {
				t.idle += n
			} else {
				t.busy += n
			}
		}
	}
	return t, nil
}
