package mountd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// LauncherOptions configure a Launcher.
type LauncherOptions struct {
	// Executable is started to serve a volume; "" is ServingProgram.
	Executable string
	// Args precede the arguments of SpecArgs; nil is "serve".
	Args []string
	// StateDir holds control sockets and locks; "" is DefaultStateDir.
	StateDir string
	// LogDir gets one log file per volume; "" lets the serving processes
	// write to this process's standard error.
	LogDir string
	// RemoveLogs lets a serving process remove its log file when it has
	// unmounted its volume without any error. Otherwise Forget does.
	RemoveLogs bool
}

// Launcher is the Mounter that starts one process per volume. The processes
// outlive it: any Launcher with the same state directory manages them.
type Launcher struct{ opts LauncherOptions }

var _ Mounter = (*Launcher)(nil)

// NewLauncher returns a Launcher; it makes the state directory when it is
// needed first.
func NewLauncher(o LauncherOptions) *Launcher {
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	if o.Args == nil {
		o.Args = []string{"serve"}
	}
	return &Launcher{opts: o}
}

// Descriptors of a serving process.
const (
	childFuseFD  = 3
	childReadyFD = 4
	childLockFD  = 5
)

// SpecEnv is the environment variable that carries the Spec, as JSON, to the
// serving process.
const SpecEnv = "NVFS_SERVE_SPEC"

// SpecFromEnv is what the serving process is to serve.
func SpecFromEnv() (Spec, error) {
	var spec Spec
	if err := json.Unmarshal([]byte(os.Getenv(SpecEnv)), &spec); err != nil {
		return Spec{}, fmt.Errorf("%s does not hold a volume specification: %w", SpecEnv, err)
	}
	return spec, nil
}

// SpecArgs are the arguments a serving process is started with, after the
// name of its command. They show the volume to whoever looks at the process
// list; the whole Spec is in the environment.
func SpecArgs(spec Spec, stateDir string) []string {
	return []string{
		"--volume", spec.VolumeID,
		"--fuse-fd", strconv.Itoa(childFuseFD),
		"--ready-fd", strconv.Itoa(childReadyFD),
		"--lock-fd", strconv.Itoa(childLockFD),
		"--state-dir", stateDir,
		spec.Path, spec.Mountpoint,
	}
}

// cleanupTimeout bounds what is done after a caller's context has ended.
const cleanupTimeout = 10 * time.Second

// Mount implements Mounter.
func (l *Launcher) Mount(ctx context.Context, spec Spec) (err error) {
	lock, fuseFile, err := prepare(spec, l.opts.StateDir)
	if err != nil {
		return err
	}
	// The serving process has its own copy, if it lives.
	defer func() { err = errors.Join(err, dropLock(lock, l.opts.StateDir, spec.VolumeID)) }()
	child, err := l.start(spec, fuseFile, lock)
	// From here the connection lives and dies with the serving process.
	closeErr := fuseFile.Close()
	if err == nil {
		err = child.answers(ctx, spec)
	}
	if err = errors.Join(err, closeErr); err != nil {
		return errors.Join(err, tearDown(spec.Mountpoint, child))
	}
	klog.V(2).InfoS("Volume mounted", "volume", spec.VolumeID, "path", spec.Path, "mountpoint", spec.Mountpoint, "pid", child.cmd.Process.Pid)
	return nil
}

// child is a serving process that this process has started.
type child struct {
	cmd    *exec.Cmd
	ready  *os.File
	log    *os.File // nil: inherited
	logOff int64
	exited chan struct{} // closed when it has been waited for
}

func (l *Launcher) start(spec Spec, fuseFile, lock *os.File) (_ *child, err error) {
	exe := l.opts.Executable
	if exe == "" {
		if exe, err = ServingProgram(); err != nil {
			return nil, err
		}
	}
	specJSON, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", spec.VolumeID, err)
	}
	readyR, readyW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("ready pipe: %w", err)
	}
	defer readyW.Close()
	c := &child{ready: readyR, exited: make(chan struct{})}
	// Not CommandContext: the process outlives the call.
	c.cmd = exec.Command(exe, l.args(spec)...)
	c.cmd.Env = append(os.Environ(), SpecEnv+"="+string(specJSON))
	c.cmd.Dir = "/"
	c.cmd.ExtraFiles = []*os.File{fuseFile, readyW, lock}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := l.setLog(c, spec.VolumeID); err != nil {
		return nil, errors.Join(err, readyR.Close())
	}
	if err := onNode(spec.NUMANode, c.cmd.Start); err != nil {
		return nil, errors.Join(fmt.Errorf("start the serving process of volume %s: %w", spec.VolumeID, err), readyR.Close(), c.closeLog())
	}
	go func() {
		// Reaps it, whenever it ends.
		err := c.cmd.Wait()
		klog.V(2).InfoS("Serving process ended", "volume", spec.VolumeID, "pid", c.cmd.Process.Pid, "status", c.cmd.ProcessState, "err", err)
		close(c.exited)
	}()
	return c, nil
}

func (l *Launcher) args(spec Spec) []string {
	args := append([]string{}, l.opts.Args...)
	if l.opts.RemoveLogs && l.opts.LogDir != "" {
		args = append(args, "--remove-log", l.logPath(spec.VolumeID))
	}
	return append(args, SpecArgs(spec, l.opts.StateDir)...)
}

func (l *Launcher) logPath(volumeID string) string {
	return filepath.Join(l.opts.LogDir, stateName(volumeID)+".log")
}

// setLog sends the output of c to its volume's log file.
func (l *Launcher) setLog(c *child, volumeID string) error {
	if l.opts.LogDir == "" {
		c.cmd.Stdout, c.cmd.Stderr = os.Stderr, os.Stderr
		return nil
	}
	if err := os.MkdirAll(l.opts.LogDir, 0o700); err != nil {
		return fmt.Errorf("log directory: %w", err)
	}
	f, err := os.OpenFile(l.logPath(volumeID), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("log file: %w", err)
	}
	if c.logOff, err = f.Seek(0, io.SeekEnd); err != nil {
		return errors.Join(fmt.Errorf("log file: %w", err), f.Close())
	}
	c.log, c.cmd.Stdout, c.cmd.Stderr = f, f, f
	return nil
}

func (c *child) closeLog() error {
	if c.log == nil {
		return nil
	}
	return c.log.Close()
}

// answers waits until the filesystem answers at its mount point.
func (c *child) answers(ctx context.Context, spec Spec) error {
	err := c.awaitReady(ctx, spec)
	if err := errors.Join(err, c.ready.Close(), c.closeLog()); err != nil {
		return err
	}
	return awaitAnswer(ctx, spec.Mountpoint)
}

// awaitReady waits for the line on the ready pipe.
func (c *child) awaitReady(ctx context.Context, spec Spec) error {
	stop := context.AfterFunc(ctx, func() { c.ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := bufio.NewReader(c.ready).ReadBytes('\n')
	if ctx.Err() != nil {
		return fmt.Errorf("volume %s: the serving process is not ready: %w", spec.VolumeID, ctx.Err())
	}
	if err != nil {
		// The pipe was closed without a word: the process is ending.
		return &ServeError{VolumeID: spec.VolumeID, Text: c.lastWords(ctx)}
	}
	var r readiness
	if err := json.Unmarshal(line, &r); err != nil {
		return &ServeError{VolumeID: spec.VolumeID, Text: fmt.Sprintf("unexpected output %q", line)}
	}
	if r.Error != "" {
		return &ServeError{VolumeID: spec.VolumeID, Text: r.Error}
	}
	return nil
}

// lastWords describes how the process ended, with the end of its log.
func (c *child) lastWords(ctx context.Context) string {
	select {
	case <-c.exited:
	case <-ctx.Done():
		return "it closed its ready pipe without saying why"
	}
	text := c.cmd.ProcessState.String()
	if c.log == nil {
		return text
	}
	const tail = 2048
	end, err := c.log.Seek(0, io.SeekEnd)
	if err != nil {
		return text
	}
	b := make([]byte, min(tail, end-c.logOff))
	if _, err := c.log.ReadAt(b, end-int64(len(b))); err != nil || len(b) == 0 {
		return text
	}
	return text + ": " + strings.TrimSpace(string(b))
}

// tearDown removes what a Mount that fails has made: the mount and, when it
// was started, the process.
func tearDown(mountpoint string, c *child) error {
	err := detachIfMounted(mountpoint)
	if c == nil {
		return err
	}
	if e := c.cmd.Process.Kill(); e != nil && !errors.Is(e, os.ErrProcessDone) {
		err = errors.Join(err, fmt.Errorf("kill process %d: %w", c.cmd.Process.Pid, e))
	}
	timer := time.NewTimer(cleanupTimeout)
	defer timer.Stop()
	select {
	case <-c.exited:
	case <-timer.C:
		err = errors.Join(err, fmt.Errorf("process %d does not end", c.cmd.Process.Pid))
	}
	return err
}

// Unmount implements Mounter.
func (l *Launcher) Unmount(ctx context.Context, volumeID, mountpoint string) error {
	proc, locked, err := findServer(l.opts.StateDir, volumeID)
	if err != nil {
		return err
	}
	if proc == nil && locked {
		return fmt.Errorf("volume %s is just being mounted: %w", volumeID, ErrBusy)
	}
	if proc == nil {
		_, err := unmountAll(mountpoint)
		return errors.Join(err, removeLock(l.opts.StateDir, volumeID)) // of a process that was killed
	}
	defer proc.Close()
	connection, err := unmountAll(mountpoint)
	if err != nil {
		return err
	}
	if connection == 0 && l.servesElsewhere(ctx, volumeID, mountpoint) {
		return nil
	}
	if err := proc.wait(ctx); err != nil {
		return errors.Join(fmt.Errorf("volume %s: %w", volumeID, err), otherMounts(connection))
	}
	klog.V(2).InfoS("Volume unmounted", "volume", volumeID, "mountpoint", mountpoint)
	return nil
}

// servesElsewhere reports whether the serving process says that the volume is
// mounted at another place. A process that does not say so may be on its way
// out, and is waited for.
func (l *Launcher) servesElsewhere(ctx context.Context, volumeID, mountpoint string) bool {
	status, err := l.Status(ctx, volumeID)
	return err == nil && status.Mountpoint != "" && !samePlace(status.Mountpoint, mountpoint)
}

// Status implements Mounter.
func (l *Launcher) Status(ctx context.Context, volumeID string) (Status, error) {
	return callControl(ctx, l.opts.StateDir, volumeID, methodStatus)
}

// Grow implements Mounter.
func (l *Launcher) Grow(ctx context.Context, volumeID string) (Status, error) {
	return callControl(ctx, l.opts.StateDir, volumeID, methodGrow)
}

// Stop tells the process that serves a volume to unmount it and end. It does
// not wait for the end.
func (l *Launcher) Stop(ctx context.Context, volumeID string) error {
	_, err := callControl(ctx, l.opts.StateDir, volumeID, methodStop)
	return err
}

// Forget implements Mounter.
func (l *Launcher) Forget(volumeID string) error {
	lock, err := openLock(l.opts.StateDir, volumeID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there is no state directory: nothing was ever served
	}
	if err != nil {
		return err
	}
	if l.opts.LogDir != "" {
		err = removeFile(l.logPath(volumeID))
	}
	return errors.Join(err, removeState(l.opts.StateDir, volumeID), lock.Close())
}
