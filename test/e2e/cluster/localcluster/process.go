package localcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pollInterval is the pause between two looks at something that becomes true by
// itself.
const pollInterval = 100 * time.Millisecond

// process identifies a process, also when its number is used again.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // start time in /proc/PID/stat
}

// startTime returns the start time of a process; "" when there is none.
func startTime(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// Field 22; the name, field 2, may have spaces.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

func (p process) alive() bool { return p.PID > 0 && p.Start != "" && startTime(p.PID) == p.Start }

// stop ends the process, by force if it takes longer than grace.
func (p process) stop(grace time.Duration) error {
	if p.alive() {
		_ = syscall.Kill(p.PID, syscall.SIGTERM)
	}
	if p.await(grace) {
		return nil
	}
	_ = syscall.Kill(p.PID, syscall.SIGKILL)
	if !p.await(10 * time.Second) {
		return fmt.Errorf("process %d does not end", p.PID)
	}
	return nil
}

func (p process) await(d time.Duration) bool {
	for deadline := time.Now().Add(d); p.alive(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// startDetached starts a command that outlives this process, with its output in
// a log file, and remembers it in a file.
func startDetached(pidFile, logFile string, argv ...string) (process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return process{}, err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return process{}, err
	}
	p := process{PID: cmd.Process.Pid, Start: startTime(cmd.Process.Pid)}
	go func() { _ = cmd.Wait() }() // reaps it while this process lives
	return p, writeJSON(pidFile, p)
}

// readProcess returns the process that a file names; one that does not live
// when there is no file.
func readProcess(pidFile string) (process, error) {
	var p process
	err := readJSON(pidFile, &p)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	return p, err
}

// run runs a command and returns its output in the error if it fails.
func run(ctx context.Context, argv ...string) error {
	_, err := output(ctx, argv...)
	return err
}

func output(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// poll waits until done returns true, an error, or ctx ends.
func poll(ctx context.Context, what string, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return filepath.Base(path) + ":\n" + strings.Join(all[max(0, len(all)-lines):], "\n")
}

// inNetns is the beginning of a command that runs in a network namespace.
func inNetns(name string) []string { return []string{"nsenter", "--net=/run/netns/" + name, "--"} }

// childOf returns the child of a process that has exactly one.
func childOf(pid int) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data))
	if len(fields) != 1 {
		return 0, fmt.Errorf("process %d has %d children", pid, len(fields))
	}
	return strconv.Atoi(fields[0])
}
