// Package mountdtest helps tests to kill the processes behind mounted volumes.
package mountdtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Freeze stops a process, and returns when every thread of it has stopped:
// SIGSTOP takes effect after kill(2) has returned. Of processes that restart
// each other, those that are frozen do not when the next one is killed. One
// that has ended is no error.
func Freeze(ctx context.Context, pid int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil && err != unix.ESRCH {
		return fmt.Errorf("stop process %d: %w", pid, err)
	}
	for !frozen(pid) {
		select {
		case <-time.After(time.Millisecond): // nobody tells when it has
		case <-ctx.Done():
			return fmt.Errorf("process %d has not stopped: %w", pid, ctx.Err())
		}
	}
	return nil
}

// frozen reports whether no thread of a process runs.
func frozen(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, name := range tasks {
		stat, err := os.ReadFile(name) // the thread may just have ended
		_, state, found := strings.Cut(string(stat), ") ")
		if err == nil && found && !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "Z") {
			return false
		}
	}
	return true
}
