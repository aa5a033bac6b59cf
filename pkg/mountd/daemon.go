package mountd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// Descriptors of a serving process.
const (
	childFuseFD = 3
	childLinkFD = 4
	childLockFD = 5
)

// The serving process is told what to do by environment variables, as JSON.
const (
	// SpecEnv carries the Spec.
	SpecEnv = "NVFS_SERVE_SPEC"
	// ResumeEnv carries what it needs to go on where another process has
	// ended; empty when it is the first.
	ResumeEnv = "NVFS_SERVE_RESUME"
)

// resumption is what a serving process is told of the ones before it.
type resumption struct {
	Instance   string          `json:"instance"`
	Connection int             `json:"connection"`
	Session    *fusefs.Session `json:"session,omitempty"`
	// First is true for the first process that serves the connection.
	First bool `json:"first"`
	// Wait lets the process start, and do nothing until it is told to go.
	Wait bool `json:"wait,omitempty"`
	// Refuse are requests that have ended two processes.
	Refuse []uint64 `json:"refuse,omitempty"`
	// Restarts counts the processes before; LastDeath says how the last one
	// ended, "" when that was in order.
	Restarts  int    `json:"restarts"`
	LastDeath string `json:"lastDeath,omitempty"`
	// LogDir and RemoveLog are those of Held.
	LogDir    string `json:"logDir,omitempty"`
	RemoveLog bool   `json:"removeLog,omitempty"`
}

// SpecFromEnv is what the serving process is to serve.
func SpecFromEnv() (Spec, error) {
	var spec Spec
	if err := json.Unmarshal([]byte(os.Getenv(SpecEnv)), &spec); err != nil {
		return Spec{}, fmt.Errorf("%s does not hold a volume specification: %w", SpecEnv, err)
	}
	return spec, nil
}

func resumptionFromEnv() (*resumption, error) {
	text := os.Getenv(ResumeEnv)
	if text == "" {
		return &resumption{First: true}, nil
	}
	var r resumption
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("%s does not say how to go on: %w", ResumeEnv, err)
	}
	return &r, nil
}

// SpecArgs are the arguments a serving process is started with, after the
// name of its command. They show the volume to whoever looks at the process
// list; the whole Spec is in the environment.
func SpecArgs(spec Spec, stateDir string) []string {
	return []string{
		"--volume", spec.VolumeID,
		"--fuse-fd", strconv.Itoa(childFuseFD),
		"--link-fd", strconv.Itoa(childLinkFD),
		"--lock-fd", strconv.Itoa(childLockFD),
		"--state-dir", stateDir,
		spec.Path, spec.Mountpoint,
	}
}

// daemonOOMScore makes a serving process an unlikely victim, but a likelier
// one than those that restart it.
const daemonOOMScore = -900

// daemon is a serving process that this process has started.
type daemon struct {
	volumeID string
	cmd      *exec.Cmd
	link     *link
	log      *os.File
	logStart int64
	group    *cgroup
	exited   chan struct{} // closed when it has been waited for
	hung     chan struct{} // closed when it was killed because it hung
}

// startDaemon starts a process that serves held. The files stay the caller's.
func (s *supervisor) startDaemon(held Held, r resumption, fuseFD int, lock *os.File) (_ *daemon, err error) {
	exe, err := executable(s.opts.Executable)
	if err != nil {
		return nil, err
	}
	specJSON, err := json.Marshal(held.Spec)
	if err != nil {
		return nil, err
	}
	resumeJSON, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	fuseFile, err := forChild(fuseFD)
	if err != nil {
		return nil, err
	}
	defer fuseFile.Close()
	ours, theirs, err := linkPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	d := &daemon{volumeID: held.Spec.VolumeID, link: ours, exited: make(chan struct{}), hung: make(chan struct{})}
	if d.log, err = openLog(held.LogDir, stateName(held.Spec.VolumeID)); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	if held.LogDir != "" {
		d.logStart, err = d.log.Seek(0, io.SeekEnd)
	}
	// Not CommandContext: the process outlives the call.
	d.cmd = exec.Command(exe, append(append([]string{}, s.opts.ServeArgs...), SpecArgs(held.Spec, s.opts.StateDir)...)...)
	d.cmd.Env = append(os.Environ(), SpecEnv+"="+string(specJSON), ResumeEnv+"="+string(resumeJSON))
	d.cmd.Dir = "/"
	d.cmd.ExtraFiles = []*os.File{fuseFile, theirs, lock}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err == nil {
		d.group = s.cgroups.open(held.Spec.VolumeID)
		err = onNode(held.Spec.NUMANode, d.cmd.Start)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the serving process of volume %s: %w", held.Spec.VolumeID, err), ours.Close(), d.log.Close())
	}
	d.group.add(held.Spec.VolumeID, d.cmd.Process.Pid)
	setOOMScore(strconv.Itoa(d.cmd.Process.Pid), daemonOOMScore)
	go func() {
		_ = d.cmd.Wait() // the status stands in ProcessState
		close(d.exited)
	}()
	return d, nil
}

// forChild duplicates a FUSE descriptor for a process that is to be started.
// A server that was killed may have left it in a mode in which it must not
// get into the runtime's poller.
func forChild(fd int) (*os.File, error) {
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, fmt.Errorf("FUSE connection: %w", err)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("FUSE connection: %w", err)
	}
	return os.NewFile(uintptr(dup), "/dev/fuse"), nil
}

// close lets go of what belongs to a process that has ended.
func (d *daemon) close() {
	d.link.Close()
	d.log.Close()
}

// kill ends the process and waits for its end.
func (d *daemon) kill() {
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		klog.ErrorS(err, "A serving process cannot be killed", "volume", d.volumeID, "pid", d.cmd.Process.Pid)
	}
	<-d.exited
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
