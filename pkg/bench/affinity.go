package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// AnyCPU leaves placement to the scheduler.
const AnyCPU = -1

// PinCPU is the CPU on which pinned measurements run: the last one this
// process may use, since the first one serves most interrupts.
func PinCPU() (int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, fmt.Errorf("read the CPU affinity: %w", err)
	}
	for cpu := len(set)*64 - 1; cpu >= 0; cpu-- {
		if set.IsSet(cpu) {
			return cpu, nil
		}
	}
	return 0, fmt.Errorf("the CPU affinity is empty")
}

// onCPU runs f on a thread that is bound to cpu; AnyCPU binds nothing. The
// thread ends with f, so no other goroutine inherits its affinity.
func onCPU(cpu int, f func() error) error {
	if cpu == AnyCPU {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		// Not unlocked: a goroutine that ends locked takes its thread along.
		runtime.LockOSThread()
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			done <- fmt.Errorf("bind to CPU %d: %w", cpu, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// bindProcess binds all threads of a process to one CPU and returns what
// undoes it. Threads that start later inherit the affinity of their parent.
func bindProcess(pid, cpu int) (restore func() error, err error) {
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &before); err != nil {
		return nil, fmt.Errorf("read the CPU affinity of process %d: %w", pid, err)
	}
	set.Set(cpu)
	if err := setProcessAffinity(pid, &set); err != nil {
		return nil, err
	}
	return func() error { return setProcessAffinity(pid, &before) }, nil
}

// setProcessAffinity repeats until it met no thread for the first time: one
// may have been started by a thread that was not bound yet.
func setProcessAffinity(pid int, set *unix.CPUSet) error {
	seen := map[int]bool{}
	for {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return fmt.Errorf("list the threads of process %d: %w", pid, err)
		}
		found := false
		for _, t := range threads {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || seen[tid] {
				continue
			}
			seen[tid], found = true, true
			if err := unix.SchedSetaffinity(tid, set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("bind thread %d of process %d: %w", tid, pid, err)
			}
		}
		if !found {
			return nil
		}
	}
}
