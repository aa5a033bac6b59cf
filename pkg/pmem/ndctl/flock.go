package ndctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile is the name of the file that is locked around every change. It is
// never removed: two processes would then lock different files.
const lockFile = "ndctl.lock"

// lockPoll is how often a lock that another process holds is tried again.
// flock(2) has no form that a context could interrupt.
const lockPoll = 10 * time.Millisecond

// lockFiles takes all locks in the given order or, if ctx ends, none.
func lockFiles(ctx context.Context, paths []string) (unlock func() error, err error) {
	var files []*os.File
	unlock = func() error {
		var errs []error
		for i := len(files) - 1; i >= 0; i-- {
			errs = append(errs, files[i].Close())
		}
		return errors.Join(errs...)
	}
	for _, path := range paths {
		f, err := lockOne(ctx, path)
		if err != nil {
			return nil, errors.Join(err, unlock())
		}
		files = append(files, f)
	}
	return unlock, nil
}

func lockOne(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		switch locked, err := tryLock(f); {
		case err != nil:
			return nil, errors.Join(fmt.Errorf("lock of %s: %w", path, err), f.Close())
		case locked:
			return f, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("waiting for %s, which another process holds: %w", path, ctx.Err()), f.Close())
		}
	}
}

// tryLock takes an exclusive lock that ends when f is closed; false when
// another open file has one.
func tryLock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		default:
			return false, err
		}
	}
}

// inUse reports whether the file is locked by a process that serves it or is
// the backing of a loop device.
//
// The test takes and drops the lock. A server that starts in that moment
// finds the file locked, so servers try for a while before they give up.
func inUse(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	locked, err := tryLock(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return false, fmt.Errorf("lock probe of %s: %w", path, err)
	}
	if !locked {
		return true, nil
	}
	return loopMounted(path)
}
