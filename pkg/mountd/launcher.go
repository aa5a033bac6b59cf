package mountd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// LauncherOptions configure a Launcher.
type LauncherOptions struct {
	// Executable is started as mountd, with Args; "" is ServingProgram.
	Executable string
	// Args are the command of mountd; nil is "mountd".
	Args []string
	// StateDir holds sockets and locks; "" is DefaultStateDir.
	StateDir string
	// LogDir gets one log file per volume, and those of keeper and mountd; ""
	// lets them write to the standard error of who has started them.
	LogDir string
	// RemoveLogs lets a serving process remove its log file when it has
	// unmounted its volume without any error. Otherwise Forget does.
	RemoveLogs bool
	// External means that keeper and mountd are started by others: they are
	// waited for.
	External bool
}

// Launcher is the Mounter that mounts, and leaves serving to mountd, which it
// starts if need be. The mounts outlive it: any Launcher with the same state
// directory manages them.
type Launcher struct {
	opts   LauncherOptions
	holder *holder // nil unless Hold was called
}

var _ Mounter = (*Launcher)(nil)

// NewLauncher returns a Launcher; it makes the state directory when it is
// needed first.
func NewLauncher(o LauncherOptions) *Launcher {
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	if o.Args == nil {
		o.Args = []string{"mountd"}
	}
	return &Launcher{opts: o}
}

const (
	// mountAttempts is how often a mount is tried whose mountd has ended in
	// the middle of it.
	mountAttempts = 20
	mountPause    = 20 * time.Millisecond
	connectPoll   = 5 * time.Millisecond
)

// survivingTransport is the default, because a server that dies is replaced:
// it is the only transport on which no request is lost then.
const survivingTransport = "dev"

// errMountdGone means that mountd ended before it had answered.
var errMountdGone = errors.New("mountd has ended")

// Mount implements Mounter.
func (l *Launcher) Mount(ctx context.Context, spec Spec) error {
	if err := spec.check(); err != nil {
		return err
	}
	if err := makeStateDir(l.opts.StateDir); err != nil {
		return err
	}
	if spec.Transport == "" {
		spec.Transport = survivingTransport
	}
	for attempt := 1; ; attempt++ {
		err := l.mountOnce(ctx, spec)
		if !errors.Is(err, errMountdGone) || attempt == mountAttempts || ctx.Err() != nil {
			return err
		}
		klog.V(2).InfoS("mountd has ended in the middle of a mount; it is tried again", "volume", spec.VolumeID)
		select {
		case <-time.After(mountPause):
		case <-ctx.Done():
		}
	}
}

func (l *Launcher) mountOnce(ctx context.Context, spec Spec) error {
	c, err := l.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.conn.SetReadDeadline(pastDeadline) })
	defer stop()
	// From here nobody else mounts this volume.
	if _, err := c.ask(message{Kind: msgReserve, VolumeID: spec.VolumeID}); err != nil {
		return mountError(ctx, spec, err)
	}
	if err := clearMountpoint(spec.Mountpoint); err != nil {
		return err
	}
	held, fd, err := l.mountKernel(spec)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	answer, err := c.ask(message{Kind: msgServe, Held: &held}, fd)
	if err == nil {
		held.Session = answer.Session
		err = awaitAnswer(ctx, spec.Mountpoint)
	}
	if err != nil {
		return errors.Join(mountError(ctx, spec, err), l.tearDown(held, fd))
	}
	l.hold(held, fd)
	klog.V(2).InfoS("Volume mounted", "volume", spec.VolumeID, "path", spec.Path, "mountpoint", spec.Mountpoint)
	return nil
}

func mountError(ctx context.Context, spec Spec, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("volume %s: the serving process is not ready: %w", spec.VolumeID, ctx.Err())
	}
	return err
}

// mountKernel mounts; nobody answers yet.
func (l *Launcher) mountKernel(spec Spec) (held Held, fd int, err error) {
	f, err := fusefs.Mount(spec.Mountpoint, fusefs.MountOptions{
		Source: spec.Path, ReadOnly: spec.ReadOnly, AllowOther: spec.AllowOther, Flags: spec.MountFlags,
		Transport: spec.Transport,
	})
	if err != nil {
		return Held{}, 0, err
	}
	defer f.Close()
	held = Held{Spec: spec, LogDir: l.opts.LogDir, RemoveLog: l.opts.RemoveLogs, Instance: newInstance()}
	if fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return Held{}, 0, errors.Join(fmt.Errorf("FUSE connection: %w", err), detachIfMounted(spec.Mountpoint))
	}
	top, err := fusefs.Top(spec.Mountpoint)
	if err != nil || top == nil {
		return Held{}, 0, errors.Join(errors.New("the mount has disappeared"), err, unix.Close(fd))
	}
	held.Connection = top.Connection
	return held, fd, nil
}

func newInstance() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// tearDown removes what a Mount that fails has made: the mount, and with it
// the connection, by which a server ends that may have been started.
func (l *Launcher) tearDown(held Held, fd int) error {
	err := detachIfMounted(held.Spec.Mountpoint)
	if connectionAlive(fd) {
		// Nobody uses it yet.
		err = errors.Join(err, fusefs.AbortConnection(held.Connection))
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	return errors.Join(err, l.awaitUnserved(ctx, held.Spec.VolumeID))
}

// cleanupTimeout bounds what is done after a caller's context has ended.
const cleanupTimeout = 10 * time.Second

// connect returns a connection to mountd, which is started if need be.
func (l *Launcher) connect(ctx context.Context) (*link, error) {
	path, err := serviceSocket(l.opts.StateDir, mountdName)
	if err != nil {
		return nil, err
	}
	for {
		c, err := dialLink(path)
		if err == nil {
			return c, nil
		}
		if !noListener(err) {
			return nil, fmt.Errorf("connect to mountd: %w", err)
		}
		if !l.opts.External {
			if c, err := l.startMountd(); c != nil || err != nil {
				return c, err
			}
		}
		select {
		case <-time.After(connectPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("mountd does not listen at %s: %w", path, ctx.Err())
		}
	}
}

// startMountd returns nil when there is one already, or a keeper, which is the
// one to start it: it may have taken over and want one of its own program.
func (l *Launcher) startMountd() (*link, error) {
	if kept, err := lockTaken(serviceLock(l.opts.StateDir, keeperName)); kept || err != nil {
		return nil, err
	}
	lock, err := lockNamed(serviceLock(l.opts.StateDir, mountdName))
	if errors.Is(err, errLocked) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	_ = lock.Close()
	cmd, c, err := service{executable: l.opts.Executable, args: l.opts.Args, stateDir: l.opts.StateDir, logDir: l.opts.LogDir, name: mountdName, onDemand: true}.startLinked()
	if err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait() }() // the connection says when it has ended
	return c, nil
}

// ask sends a request and waits for its answer.
func (l *link) ask(m message, fds ...int) (answer message, err error) {
	m.ID = 1
	if err := l.send(m, fds...); err != nil {
		return message{}, fmt.Errorf("%w: %w", errMountdGone, err)
	}
	answer, got, err := l.receive()
	closeAll(got)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || err == nil && answer.Kind == msgBusy:
		return message{}, errMountdGone
	case err != nil:
		return message{}, err
	}
	volumeID := m.VolumeID
	if m.Held != nil {
		volumeID = m.Held.Spec.VolumeID
	}
	return answer, answer.err(volumeID)
}

// Unmount implements Mounter.
func (l *Launcher) Unmount(ctx context.Context, volumeID, mountpoint string) error {
	connection, err := unmountAll(mountpoint)
	if err != nil {
		return err
	}
	if connection == 0 && l.servesElsewhere(ctx, volumeID, mountpoint) {
		return nil
	}
	if err := l.awaitUnserved(ctx, volumeID); err != nil {
		return errors.Join(err, otherMounts(connection))
	}
	klog.V(2).InfoS("Volume unmounted", "volume", volumeID, "mountpoint", mountpoint)
	return nil
}

// Evict implements Mounter.
func (l *Launcher) Evict(ctx context.Context, volumeID string) error {
	status, err := l.Status(ctx, volumeID)
	if errors.Is(err, ErrNotServed) {
		return nil
	}
	if err != nil {
		return err
	}
	if status.Connection == 0 {
		return fmt.Errorf("volume %s: process %d does not know its connection: kill it", volumeID, status.PID)
	}
	if err := fusefs.AbortConnection(status.Connection); err != nil {
		return err
	}
	return l.awaitUnserved(ctx, volumeID)
}

// awaitUnserved waits until nobody serves the volume, and removes what is left
// of it in the state directory.
func (l *Launcher) awaitUnserved(ctx context.Context, volumeID string) error {
	lock, err := awaitLock(ctx, lockPath(l.opts.StateDir, volumeID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there is no state directory: nothing was ever served
	}
	if err != nil {
		return fmt.Errorf("volume %s: its server has not ended: %w", volumeID, err)
	}
	return errors.Join(removeFile(failedPath(l.opts.StateDir, volumeID)), removeState(l.opts.StateDir, volumeID), lock.Close())
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
	return l.control(ctx, volumeID, methodStatus)
}

// Grow implements Mounter.
func (l *Launcher) Grow(ctx context.Context, volumeID string, devices ...string) (Status, error) {
	return l.control(ctx, volumeID, methodGrow, devices...)
}

// Stop tells the process that serves a volume to unmount it and end. It does
// not wait for the end.
func (l *Launcher) Stop(ctx context.Context, volumeID string) error {
	_, err := l.control(ctx, volumeID, methodStop)
	return err
}

// control asks the serving process. One that is just being replaced is waited
// for, within bounds.
func (l *Launcher) control(ctx context.Context, volumeID, method string, devices ...string) (Status, error) {
	within, cancel := context.WithTimeout(ctx, replaceTimeout)
	defer cancel()
	for {
		status, err := callControl(ctx, l.opts.StateDir, volumeID, method, devices...)
		if !errors.Is(err, ErrNotServed) {
			return status, err
		}
		_, locked, lockErr := findServer(l.opts.StateDir, volumeID)
		if lockErr != nil || !locked {
			return status, errors.Join(l.whyNotServed(volumeID, err), lockErr)
		}
		select {
		case <-time.After(connectPoll):
		case <-within.Done():
			return status, fmt.Errorf("volume %s: its server is being started: %w", volumeID, within.Err())
		}
	}
}

// replaceTimeout is how long a question waits for a server that is being
// started.
const replaceTimeout = 5 * time.Second

// whyNotServed adds to an error what mountd has written down.
func (l *Launcher) whyNotServed(volumeID string, err error) error {
	text, readErr := os.ReadFile(failedPath(l.opts.StateDir, volumeID))
	if readErr != nil {
		return err
	}
	return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(text)))
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
	err = errors.Join(removeFile(failedPath(l.opts.StateDir, volumeID)), removeFile(devicesPath(l.opts.StateDir, volumeID)))
	if l.opts.LogDir != "" {
		err = errors.Join(err, removeFile(logFile(l.opts.LogDir, stateName(volumeID))))
	}
	return errors.Join(err, removeState(l.opts.StateDir, volumeID), lock.Close())
}
