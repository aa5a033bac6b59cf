package ndctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// killGrace is how long a killed command has to go away. A process that waits
// inside the kernel does not.
const killGrace = 5 * time.Second

// maxOutput is how much of a command's output is kept, in bytes.
const maxOutput = 4 << 20

// tool runs ndctl(1).
type tool struct {
	path    string
	timeout time.Duration // of one command
}

// toolError is a command that failed or was stopped. That it failed does not
// mean that it changed nothing.
type toolError struct {
	args   []string
	err    error
	output string // what it printed to its standard error
}

func (e *toolError) Error() string {
	text := fmt.Sprintf("ndctl %s: %v", strings.Join(e.args, " "), e.err)
	if e.output != "" {
		text += ": " + e.output
	}
	return text
}

func (e *toolError) Unwrap() error { return e.err }

// run runs one command in a process group of its own and returns what it
// printed. The files stay open in the command: a lock on them is held until
// the command has ended, even if this process has ended before. When ctx ends
// or the time is up the whole group is killed.
func (t tool) run(ctx context.Context, held []*os.File, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	stdout, stderr := limitedBuffer{limit: maxOutput}, limitedBuffer{limit: 4 << 10}
	cmd := exec.Command(t.path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &stdout, &stderr, held
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = killGrace // for pipes that a grandchild keeps open
	if err := cmd.Start(); err != nil {
		return nil, &toolError{args: args, err: fmt.Errorf("%w: install the package ndctl", err)}
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			return stdout.Bytes(), &toolError{args: args, err: err, output: oneLine(stderr.String())}
		}
		return stdout.Bytes(), nil
	case <-ctx.Done():
	}
	kill := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	grace := time.NewTimer(killGrace)
	defer grace.Stop()
	select {
	case <-done:
		return nil, &toolError{args: args, err: fmt.Errorf("stopped after %v: %w", t.timeout, ctx.Err()), output: oneLine(stderr.String())}
	case <-grace.C:
		return nil, &toolError{args: args, err: errors.Join(fmt.Errorf("process %d hangs in the kernel and keeps the lock; see /proc/%[1]d/stack and dmesg: %w", cmd.Process.Pid, ctx.Err()), kill)}
	}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// limitedBuffer keeps the first bytes that are written to it.
type limitedBuffer struct {
	bytes.Buffer
	limit int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := b.limit - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
