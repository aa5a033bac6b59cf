package mountd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultStateDir is where the control sockets and locks of a node's volumes
// lie; it does not outlive a reboot, and need not.
const DefaultStateDir = "/run/nvfs-csi/mountd"

// maxSocketPath is the longest path of a Unix socket, without its NUL.
const maxSocketPath = 107

// isPlainName reports whether a volume ID may name a file as it is: up to 40
// letters, digits and inner dots, dashes and underscores.
func isPlainName(id string) bool {
	const inner = "._-"
	for i, c := range []byte(id) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || strings.IndexByte(inner, c) < 0) {
			return false
		}
	}
	return id != "" && len(id) <= 40
}

// stateName is the name of a volume's files in the state directory.
func stateName(volumeID string) string {
	if isPlainName(volumeID) {
		return volumeID
	}
	sum := sha256.Sum256([]byte(volumeID))
	return "+" + hex.EncodeToString(sum[:16]) // no plain name starts with +
}

func socketPath(stateDir, volumeID string) (string, error) {
	path := filepath.Join(stateDir, stateName(volumeID)+".sock")
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("control socket path %s is longer than %d bytes: use a shorter state directory", path, maxSocketPath)
	}
	return path, nil
}

func lockPath(stateDir, volumeID string) string {
	return filepath.Join(stateDir, stateName(volumeID)+".lock")
}

// replayPath is where a server notes which request that was sent again it is
// executing.
func replayPath(stateDir, volumeID string) string {
	return filepath.Join(stateDir, stateName(volumeID)+".replay")
}

// failedPath is where it is written down why a volume is not served any more
// although nobody has unmounted it.
func failedPath(stateDir, volumeID string) string {
	return filepath.Join(stateDir, stateName(volumeID)+".failed")
}

// makeStateDir makes the state directory. Who may enter it may stop volumes.
func makeStateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("state directory %s must be a directory of mode 0700, not %v: chmod it", dir, info.Mode())
	}
	return nil
}

// A volume's lock file is locked for as long as a process serves the volume:
// the launcher takes the lock and the serving process inherits it, so there
// is no moment at which the volume is served but not locked. The lock belongs
// to the open file (F_OFD_SETLK) and ends with its last descriptor, however
// the process ends. The file holds the PID of the serving process.

// The file is removed by whoever holds the lock and is done with the volume,
// so a lock counts only while its path still names the file that is locked.

// takeLock locks a volume for serving it; ErrInUse when it is locked.
func takeLock(stateDir, volumeID string) (*os.File, error) {
	f, err := openLock(stateDir, volumeID)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(fmt.Errorf("volume lock: %w", err), f.Close())
	}
	return f, nil
}

// openLock locks a volume and leaves in the file who served it last.
func openLock(stateDir, volumeID string) (*os.File, error) {
	f, err := lockNamed(lockPath(stateDir, volumeID))
	var locked *lockedError
	if errors.As(err, &locked) {
		return nil, fmt.Errorf("volume %s: %w%s", volumeID, ErrInUse, locked.by)
	}
	if err != nil {
		return nil, fmt.Errorf("volume lock: %w", err)
	}
	return f, nil
}

// errLocked means that another process holds a lock file.
var errLocked = errors.New("it is locked")

type lockedError struct{ by string }

func (e *lockedError) Error() string { return errLocked.Error() + e.by }
func (e *lockedError) Unwrap() error { return errLocked }

// lockNamed locks a file, which is made if need be; errLocked when another
// process has it.
func lockNamed(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := lockFile(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		current, err := isCurrent(f)
		if err == nil && current {
			return f, nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		// It was removed between being opened and being locked.
	}
}

// awaitLock is lockNamed that waits until the lock is free, or ctx ends.
func awaitLock(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := lockNamed(path)
		if err == nil || !errors.Is(err, errLocked) {
			return f, err
		}
		if err := awaitHolder(ctx, path); err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

// lockPoll is how often a lock is tried whose holder cannot be waited for: it
// has not written down its number yet, or lives in another PID namespace. A
// wait in the kernel could not be ended.
const lockPoll = 20 * time.Millisecond

// holderPoll is how often a lock is tried whose holder is waited for.
const holderPoll = 500 * time.Millisecond

// awaitHolder returns when the holder of a lock may have ended.
func awaitHolder(ctx context.Context, path string) error {
	probe, err := openProbe(path)
	if err != nil || probe == nil {
		return err
	}
	defer probe.Close()
	proc, err := probe.process()
	if err != nil {
		return err
	}
	if proc != nil {
		defer proc.Close()
		// It may give the lock up and live on.
		within, cancel := context.WithTimeout(ctx, holderPoll)
		defer cancel()
		if err := proc.wait(within); err != nil && ctx.Err() != nil {
			return err
		}
		return nil
	}
	select {
	case <-time.After(lockPoll):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unlockNamed gives up a lock and removes its file.
func unlockNamed(f *os.File) error {
	return errors.Join(removeFile(f.Name()), f.Close())
}

func lockFile(f *os.File) error {
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
	switch err {
	case nil:
		return nil
	case unix.EAGAIN, unix.EACCES:
		return &lockedError{servedBy(f)}
	}
	return fmt.Errorf("lock %s: %w", f.Name(), err)
}

// isCurrent reports whether the path of a lock file still names it.
func isCurrent(f *os.File) (bool, error) {
	opened, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Lstat(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(opened, named), err
}

// dropLock gives a lock up and removes its file, unless somebody else holds
// the lock: a process that inherited it, or whoever took it since.
func dropLock(lock *os.File, stateDir, volumeID string) error {
	return errors.Join(lock.Close(), removeLock(stateDir, volumeID))
}

// removeLock removes what is left of a volume in the state directory, unless
// the volume is locked.
func removeLock(stateDir, volumeID string) error {
	lock, err := openLock(stateDir, volumeID)
	if errors.Is(err, ErrInUse) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(removeState(stateDir, volumeID), lock.Close())
}

// removeState removes the files of a volume; the caller holds its lock, and
// has nothing without it. The lock comes last.
func removeState(stateDir, volumeID string) error {
	socket, err := socketPath(stateDir, volumeID)
	if err == nil {
		err = removeFile(socket)
	}
	return errors.Join(err, removeFile(replayPath(stateDir, volumeID)), removeFile(lockPath(stateDir, volumeID)))
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("state file: %w", err)
	}
	return nil
}

func servedBy(lock *os.File) string {
	if pid, err := readPID(lock); err == nil && pid > 0 {
		return fmt.Sprintf(" by process %d", pid)
	}
	return ""
}

// writePID records the serving process in the lock file that it holds, with
// the PID namespace in which that number means something.
func writePID(lock *os.File, pid int) error {
	line := fmt.Sprintf("%d %d\n", pid, pidNamespace())
	if _, err := lock.WriteAt([]byte(line), 0); err != nil {
		return fmt.Errorf("volume lock: %w", err)
	}
	return nil
}

// noteLetGo records in the lock file that the process which is named there has
// answered everything that it had read, and serves no more.
func noteLetGo(lock *os.File) error {
	if err := lock.Truncate(0); err != nil {
		return fmt.Errorf("volume lock: %w", err)
	}
	return nil
}

// hasLetGo reports whether who held the lock last has said so.
func hasLetGo(lock *os.File) bool {
	info, err := lock.Stat()
	return err == nil && info.Size() == 0
}

// pidNamespace names the PID namespace of this process; 0 when it is not
// known.
func pidNamespace() uint64 {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0
	}
	return st.Ino
}

// readPID returns 0 when the file names no process yet, or one in another PID
// namespace.
func readPID(lock *os.File) (int, error) {
	b := make([]byte, 64)
	n, err := lock.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return 0, err
	}
	line, _, ok := strings.Cut(string(b[:n]), "\n")
	if !ok {
		return 0, nil
	}
	pid, namespace, _ := strings.Cut(line, " ")
	if namespace != strconv.FormatUint(pidNamespace(), 10) {
		return 0, nil
	}
	return strconv.Atoi(pid)
}

// lockProbe looks at a volume's lock without ever holding it.
type lockProbe struct{ f *os.File }

// openProbe returns nil when there is no such lock file: a volume that has
// none is not served.
func openProbe(path string) (*lockProbe, error) {
	// OFD locks are asked about through a descriptor that could take them.
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	return &lockProbe{f}, nil
}

// lockTaken reports whether a lock is taken; it is not touched.
func lockTaken(path string) (bool, error) {
	probe, err := openProbe(path)
	if err != nil || probe == nil {
		return false, err
	}
	defer probe.Close()
	return probe.locked()
}

func (p *lockProbe) Close() error { return p.f.Close() }

// locked reports whether somebody serves the volume or is about to.
func (p *lockProbe) locked() (bool, error) {
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(p.f.Fd(), unix.F_OFD_GETLK, &lk); err != nil {
		return false, fmt.Errorf("volume lock %s: %w", p.f.Name(), err)
	}
	return lk.Type != unix.F_UNLCK, nil
}

// process opens the serving process, so that its number cannot come to mean
// another one; nil when nobody serves the volume.
func (p *lockProbe) process() (*process, error) {
	pid, err := readPID(p.f)
	if err != nil {
		return nil, fmt.Errorf("volume lock %s: %w", p.f.Name(), err)
	}
	if pid <= 0 {
		return nil, nil
	}
	proc, err := openProcess(pid)
	if err != nil || proc == nil {
		return nil, err
	}
	// Who holds the lock now held it when the PID was read: the PID was, and
	// by the descriptor remains, the holder's.
	if locked, err := p.locked(); err != nil || !locked {
		return nil, errors.Join(err, proc.Close())
	}
	return proc, nil
}

// findServer opens the process that serves a volume, nil when there is none.
// locked reports whether somebody holds the volume's lock, with a nil process
// one that is only about to serve it.
func findServer(stateDir, volumeID string) (proc *process, locked bool, err error) {
	for {
		probe, err := openProbe(lockPath(stateDir, volumeID))
		if probe == nil || err != nil {
			return nil, false, err
		}
		proc, locked, current, err := probe.look()
		if closeErr := probe.Close(); err != nil || closeErr != nil || current {
			return proc, locked, errors.Join(err, closeErr)
		}
		// The file was removed meanwhile, and there may be another one.
	}
}

// look returns who holds the lock; current is false when nobody does and the
// file is not the volume's lock any more.
func (p *lockProbe) look() (proc *process, locked, current bool, err error) {
	if proc, err = p.process(); err != nil || proc != nil {
		return proc, true, true, err
	}
	if locked, err = p.locked(); err != nil || locked {
		return nil, locked, true, err
	}
	current, err = isCurrent(p.f)
	return nil, false, current, err
}
