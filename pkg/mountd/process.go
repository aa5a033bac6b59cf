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
	// Then the runtime's poller waits for it.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("process %d: %w", pid, err), unix.Close(fd))
	}
	return &process{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd")}, nil
}

func (p *process) Close() error { return p.fd.Close() }

// wait returns when the process has ended, or with the error of ctx.
func (p *process) wait(ctx context.Context) error {
	if err := p.fd.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("wait for process %d: %w", p.pid, err)
	}
	stop := context.AfterFunc(ctx, func() { p.fd.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", p.pid, err)
	}
	var pollErr error
	err = raw.Read(func(fd uintptr) (done bool) {
		done, pollErr = readable(fd)
		return done || pollErr != nil
	})
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("process %d has not ended: %w", p.pid, ctx.Err())
	case err != nil || pollErr != nil:
		return fmt.Errorf("wait for process %d: %w", p.pid, errors.Join(err, pollErr))
	}
	return nil
}

// readable reports whether a read would not wait.
func readable(fd uintptr) (bool, error) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR {
			return n > 0, err
		}
	}
}

// kill ends the process at once.
func (p *process) kill() error {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	var killErr error
	if err := raw.Control(func(fd uintptr) { killErr = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); err != nil {
		return err
	}
	if killErr != nil && killErr != unix.ESRCH {
		return fmt.Errorf("kill process %d: %w", p.pid, killErr)
	}
	return nil
}
