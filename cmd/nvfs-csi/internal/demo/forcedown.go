package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

const killWait = 10 * time.Second

// forceDown takes down everything that names root, the way it is done when the
// driver cannot: mounts are detached and serving processes killed. After an
// orderly end there is nothing to do.
func forceDown(root string) error {
	mounts, err := mountsBelow(root)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w", m, err))
		}
	}
	if err := killNaming(root); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// killNaming kills the processes of this very program, or of the one that
// serves volumes, that name dir, and waits for their end. Others, a shell
// looking at the log, are left alone.
func killNaming(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	serving, err := mountd.ServingProgram()
	if err != nil {
		return err
	}
	found, err := processesNaming(dir)
	if err != nil {
		return err
	}
	for _, p := range found {
		word, _, _ := strings.Cut(p, " ")
		pid, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		if err := killProcess(pid, self, serving); err != nil {
			return fmt.Errorf("kill %s: %w", p, err)
		}
	}
	return nil
}

// killProcess goes by a pidfd, so that a process that gets the number later
// is safe.
func killProcess(pid int, programs ...string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if running, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe")); err != nil || !slices.Contains(programs, running) {
		return nil // ended, or not ours
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, int(killWait.Milliseconds())); err != nil || n == 0 {
		return fmt.Errorf("still there after %s: %w", killWait, err)
	}
	return nil
}
