package mountd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// childLinkFD is the descriptor of a serving process's connection to mountd,
// by which it gets everything else.
const childLinkFD = 3

// resumption is what a serving process is told of the ones before it.
type resumption struct {
	// First is true for the first process that serves the connection.
	First bool `json:"first"`
	// Wait lets the process do nothing until it is told to go.
	Wait bool `json:"wait,omitempty"`
	// Refuse are requests that have ended two processes.
	Refuse []uint64 `json:"refuse,omitempty"`
	// Restarts counts the processes before; LastDeath says how the last one
	// ended, "" when that was in order.
	Restarts  int    `json:"restarts"`
	LastDeath string `json:"lastDeath,omitempty"`
}

// serveArgs are the arguments that a serving process shows to whoever looks at
// the process list.
func serveArgs(spec Spec) []string {
	return []string{"--volume", spec.VolumeID, spec.Path, spec.Mountpoint}
}

// daemonOOMScore makes a serving process an unlikely victim, but a likelier
// one than those that restart it.
const daemonOOMScore = -900

// daemon is a serving process that this process has started. It has no volume
// until assign.
type daemon struct {
	cmd    *exec.Cmd
	link   *link
	exited chan struct{} // closed when it has been waited for
	hung   chan struct{} // closed when it was killed because it hung

	volumeID string
	log      *os.File
	logStart int64
	group    *cgroup
}

// launch starts a serving process, which waits for a volume.
func (s *supervisor) launch() (*daemon, error) {
	exe, err := executable(s.opts.Executable)
	if err != nil {
		return nil, err
	}
	ours, theirs, err := linkPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	d := &daemon{link: ours, exited: make(chan struct{}), hung: make(chan struct{})}
	// Not CommandContext: the process outlives the call.
	d.cmd = exec.Command(exe, append(append([]string{}, s.opts.ServeArgs...),
		"--link-fd", strconv.Itoa(childLinkFD), "--state-dir", s.opts.StateDir, titleRoom)...)
	d.cmd.Dir = "/"
	d.cmd.ExtraFiles = []*os.File{theirs}
	d.cmd.Stdout, d.cmd.Stderr = os.Stderr, os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a serving process: %w", err), ours.Close())
	}
	setOOMScore(strconv.Itoa(d.cmd.Process.Pid), daemonOOMScore)
	go func() {
		_ = d.cmd.Wait() // the status stands in ProcessState
		close(d.exited)
	}()
	return d, nil
}

// startDaemon makes a process serve held. The files stay the caller's.
func (s *supervisor) startDaemon(held Held, r resumption, fuseFD int, lock *os.File) (*daemon, error) {
	if d := s.takeSpare(); d != nil {
		err := s.assign(d, held, r, fuseFD, lock)
		if err == nil {
			return d, nil
		}
		klog.V(2).InfoS("A spare serving process cannot be used", "volume", held.Spec.VolumeID, "reason", err.Error())
	}
	d, err := s.launch()
	if err == nil {
		err = s.assign(d, held, r, fuseFD, lock)
	}
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", held.Spec.VolumeID, err)
	}
	return d, nil
}

// takeSpare returns the spare process, unless its program was replaced by
// another one since; nil when there is none.
func (s *supervisor) takeSpare() *daemon {
	d := s.spare.take()
	if d == nil {
		return nil
	}
	exe, err := executable(s.opts.Executable)
	if err == nil && sameFile(exe, fmt.Sprintf("/proc/%d/exe", d.cmd.Process.Pid)) {
		return d
	}
	d.kill()
	d.close()
	return nil
}

func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// assign gives a process its volume. If that fails, the process is ended.
func (s *supervisor) assign(d *daemon, held Held, r resumption, fuseFD int, lock *os.File) (err error) {
	d.volumeID = held.Spec.VolumeID
	defer func() {
		if err != nil {
			d.kill()
			d.close()
		}
	}()
	if d.log, err = openLog(held.LogDir, stateName(d.volumeID)); err != nil {
		return err
	}
	if held.LogDir != "" {
		if d.logStart, err = d.log.Seek(0, io.SeekEnd); err != nil {
			return fmt.Errorf("log file: %w", err)
		}
	}
	// A server that was killed may have left it in a mode in which it must not
	// get into the runtime's poller.
	if err := unix.SetNonblock(fuseFD, false); err != nil {
		return fmt.Errorf("FUSE connection: %w", err)
	}
	d.group = s.cgroups.open(d.volumeID)
	d.group.add(d.volumeID, d.cmd.Process.Pid)
	return d.link.send(message{Kind: msgTask, Held: &held, Resume: &r}, fuseFD, int(lock.Fd()), int(d.log.Fd()))
}

// close lets go of what belongs to a process that has ended.
func (d *daemon) close() {
	d.link.Close()
	if d.log != nil {
		d.log.Close()
	}
}

// kill ends the process and waits for its end.
func (d *daemon) kill() {
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		klog.ErrorS(err, "A serving process cannot be killed", "volume", d.volumeID, "pid", d.cmd.Process.Pid)
	}
	<-d.exited
}

// end waits for the end of a process that has said that it ends, and kills it
// if that takes too long.
func (d *daemon) end(timeout time.Duration) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-d.exited:
	case <-timer.C:
		d.kill()
	}
}

func (d *daemon) running() bool {
	select {
	case <-d.exited:
		return false
	default:
		return true
	}
}

// expect waits for one kind of message, and passes others to on. It fails when
// the process says that it has failed, ends, or ctx ends.
func (d *daemon) expect(ctx context.Context, kind string, on func(message) error) error {
	stop := context.AfterFunc(ctx, func() { d.link.conn.SetReadDeadline(pastDeadline) })
	defer stop()
	for {
		m, fds, err := d.link.receive()
		closeAll(fds)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("volume %s: the serving process is not ready: %w", d.volumeID, ctx.Err())
		case err != nil:
			// It hung up without a word: it is ending.
			return &ServeError{VolumeID: d.volumeID, Text: d.lastWords(ctx)}
		case m.Kind == msgFailed:
			return m.err(d.volumeID)
		case m.Kind == kind:
			return nil
		}
		if err := on(m); err != nil {
			return err
		}
	}
}

// lastWords says how the process ended, with the end of its log.
func (d *daemon) lastWords(ctx context.Context) string {
	select {
	case <-d.exited:
	case <-ctx.Done():
		return "it closed its connection without saying why"
	}
	how := death{pid: d.cmd.Process.Pid, how: d.cmd.ProcessState.String(), words: d.logTail()}
	return how.String()
}

// logTail is the end of what the process has logged.
func (d *daemon) logTail() string {
	const tail = 2048
	end, err := d.log.Seek(0, io.SeekEnd)
	if err != nil || end <= d.logStart { // or it logs to a terminal
		return ""
	}
	b := make([]byte, min(tail, end-d.logStart))
	if _, err := d.log.ReadAt(b, end-int64(len(b))); err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
