package mountd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Keeper and mountd start each other: the keeper restarts a mountd that has
// died, and a mountd that was started on demand starts the keeper. A lock file
// makes sure that there is one of each.

// Descriptor of the connection to its first peer, in a keeper or mountd.
const serviceLinkFD = 3

// service is a keeper or mountd that is to be started.
type service struct {
	executable string   // "" is ServingProgram
	args       []string // the command and its flags
	stateDir   string
	logDir     string // "": this process's standard error
	name       string // keeperName or mountdName
	onDemand   bool
}

// startLinked starts the service with a connection to this process, so that
// nobody has to wait until it listens.
func (s service) startLinked() (*exec.Cmd, *link, error) {
	ours, theirs, err := linkPair()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	s.args = append(append([]string{}, s.args...), "--link-fd", strconv.Itoa(serviceLinkFD))
	cmd, err := s.start(theirs)
	if err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	return cmd, ours, nil
}

// start starts the service, which gets files from descriptor serviceLinkFD on.
func (s service) start(files ...*os.File) (*exec.Cmd, error) {
	exe, err := executable(s.executable)
	if err != nil {
		return nil, err
	}
	args := append(append([]string{}, s.args...), "--state-dir", s.stateDir, "--log-dir", s.logDir)
	if s.onDemand {
		args = append(args, "--on-demand")
	}
	cmd := exec.Command(exe, args...)
	cmd.Dir = "/"
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	log, err := openLog(s.logDir, s.name)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.name[1:], err)
	}
	return cmd, nil
}

// executable is the program that is configured, else ServingProgram.
func executable(configured string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	return ServingProgram()
}

func logFile(dir, name string) string { return filepath.Join(dir, name+".log") }

// openLog opens a log for appending; a duplicate of standard error when there
// is no directory for logs.
func openLog(dir, name string) (*os.File, error) {
	if dir == "" {
		fd, err := unix.FcntlInt(os.Stderr.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, fmt.Errorf("standard error: %w", err)
		}
		return os.NewFile(uintptr(fd), "stderr"), nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("log directory: %w", err)
	}
	f, err := os.OpenFile(logFile(dir, name), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	return f, nil
}

// removeEmptyLog removes a log that says nothing.
func removeEmptyLog(dir, name string) {
	if dir == "" {
		return
	}
	if info, err := os.Stat(logFile(dir, name)); err == nil && info.Size() == 0 {
		_ = os.Remove(logFile(dir, name))
	}
}

// mountdPID is the mountd that this keeper has started; 0: none.
var mountdPID atomic.Int64

// superviseMountd restarts mountd whenever there is none, until the keeper
// ends.
func (k *keeper) superviseMountd(ctx context.Context) {
	pause := restartPause
	for {
		// Taken when no mountd runs, whoever had started it.
		lock, err := awaitLock(ctx, serviceLock(k.opts.StateDir, mountdName))
		if err != nil {
			return
		}
		_ = lock.Close()
		// One that had nothing left to do has said so just now.
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		case <-k.ending:
			return
		}
		if k.isRetired() {
			return
		}
		started := time.Now()
		if err := k.runMountd(); err != nil {
			klog.ErrorS(err, "mountd failed")
		}
		if pause = restartPause; time.Since(started) < failedEarly {
			pause = 10 * restartPause
		}
	}
}

func (k *keeper) isRetired() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.retired
}

// runMountd starts mountd and returns when it has ended.
func (k *keeper) runMountd() error {
	cmd, err := service{executable: k.opts.Executable, args: k.opts.Args, stateDir: k.opts.StateDir, logDir: k.opts.LogDir,
		name: mountdName, onDemand: k.opts.OnDemand}.start()
	if err != nil {
		return err
	}
	mountdPID.Store(int64(cmd.Process.Pid))
	defer mountdPID.Store(0)
	klog.V(2).InfoS("mountd started", "pid", cmd.Process.Pid)
	if err := cmd.Wait(); err != nil && !k.isRetired() {
		return fmt.Errorf("mountd (process %d) ended: %w", cmd.Process.Pid, err)
	}
	return nil
}

// siginfoPID is the process that waitid(2) has found; 0: none.
func siginfoPID(info *unix.Siginfo) int {
	const offset = 16 // of si_pid, behind three members and padding
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}
