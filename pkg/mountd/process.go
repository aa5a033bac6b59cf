package mountd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// process is a process by descriptor.
type process struct {
	pid int
	fd  *os.File
}

// openProcess returns nil when there is no such process.
func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return &process{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd")}, nil
}

func (p *process) Close() error { return p.fd.Close() }

// pollInterval is how often a wait looks whether its context has ended.
const pollInterval = 20 * time.Millisecond

// wait returns when the process has ended, or with the error of ctx.
func (p *process) wait(ctx context.Context) error {
	for {
		fds := []unix.PollFd{{Fd: int32(p.fd.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(pollInterval/time.Millisecond))
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", p.pid, err)
		case err == nil && n > 0:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("process %d has not ended: %w", p.pid, ctx.Err())
		}
	}
}
