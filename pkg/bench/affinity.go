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
	var process, set unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &process); err != nil {
		return nil, fmt.Errorf("read the CPU affinity of process %d: %w", pid, err)
	}
	set.Set(cpu)
	// Some threads may be bound already, each to a CPU of its own.
	before := map[int]unix.CPUSet{}
	err = eachThread(pid, func(tid int) error {
		var own unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &own); err != nil {
			return err
		}
		before[tid] = own
		return unix.SchedSetaffinity(tid, &set)
	})
	if err != nil {
		return nil, err
	}
	return func() error {
		return eachThread(pid, func(tid int) error {
			own, known := before[tid]
			if !known {
				own = process
			}
			return unix.SchedSetaffinity(tid, &own)
		})
	}, nil
}

// eachThread calls f for every thread of a process. It repeats until it met
// none for the first time: one may have been started by a thread that f has
// not been called for yet.
func eachThread(pid int, f func(tid int) error) error {
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
			if err := f(tid); err != nil && err != unix.ESRCH {
				return fmt.Errorf("CPU affinity of thread %d of process %d: %w", tid, pid, err)
			}
		}
		if !found {
			return nil
		}
	}
}

// releaseProcess lets all threads of a process run wherever this one may.
func releaseProcess(pid int) error {
	var own unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &own); err != nil {
		return fmt.Errorf("read the CPU affinity: %w", err)
	}
	return eachThread(pid, func(tid int) error { return unix.SchedSetaffinity(tid, &own) })
}
