package mountd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// Volume is an open volume. Its methods may be called concurrently, Close only
// when no Worker is in use any more.
type Volume interface {
	fusefs.Filesystem
	// Close marks the volume clean and lets go of its backing.
	Close() error
	// Grow takes the whole backing into use and returns the new size in
	// bytes.
	Grow() (uint64, error)
	// Emulated reports that nothing on the volume survives a power cut: it was
	// declared so, or its memory is volatile.
	Emulated() bool
	// Health is "" or says what is wrong.
	Health() string
	// Flush is the flush mode in force and why it was chosen.
	Flush() string
	// ReadOnly reports that the volume takes no changes, by option or because
	// it is damaged.
	ReadOnly() bool
	SizeBytes() uint64
}

// ServeOptions are what a serving process is started with.
type ServeOptions struct {
	Spec     Spec
	Version  string // of the binary
	StateDir string // "" is DefaultStateDir
	// FuseFD is the descriptor of the mounted /dev/fuse; ReadyFD of the pipe
	// on which readiness or the reason of failure is told; LockFD of the
	// volume's lock. ReadyFD and LockFD may be 0: none.
	FuseFD, ReadyFD, LockFD int
	// Threads and Pin place the threads that serve, as in fusefs.Options.
	Threads int
	Pin     []int
	// RemoveLog is a file that is removed when all has gone well: the log that
	// this process writes; "" is none.
	RemoveLog string
	// OpenVolume opens the volume. Its error is shown to whoever mounts.
	OpenVolume func(Spec) (Volume, error)
}

// readiness is the one line that a serving process writes to its ready pipe.
type readiness struct {
	Error string `json:"error,omitempty"`
}

// Serve serves a volume until it is unmounted. When ctx ends, by a signal for
// example, Serve unmounts; a mount that is busy is only taken out of sight,
// and served until its last user has gone. It returns nil when the volume has
// been marked clean.
func Serve(ctx context.Context, o ServeOptions) error {
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	fuseFile, ready, lock := inherit(o.FuseFD, "/dev/fuse"), inherit(o.ReadyFD, "ready"), inherit(o.LockFD, "lock")
	if fuseFile == nil {
		return errors.New("no /dev/fuse descriptor was given: volumes are mounted by nvfs-csi mount, which starts this process")
	}
	// The process that reads what this one logs may go away first.
	signal.Ignore(unix.SIGPIPE)
	return serveFiles(ctx, o, fuseFile, ready, lock)
}

// ServeForeground mounts a volume and serves it in the calling process until
// it is unmounted, or ctx ends. The descriptors of o are not used.
func ServeForeground(ctx context.Context, o ServeOptions) error {
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	lock, fuseFile, err := prepare(o.Spec, o.StateDir)
	if err != nil {
		return err
	}
	if err := serveFiles(ctx, o, fuseFile, nil, lock); err != nil {
		return errors.Join(err, detachIfMounted(o.Spec.Mountpoint))
	}
	return nil
}

// prepare locks and mounts a volume, for a process that then serves it.
func prepare(spec Spec, stateDir string) (lock, fuseFile *os.File, err error) {
	if err := spec.check(); err != nil {
		return nil, nil, err
	}
	if err := makeStateDir(stateDir); err != nil {
		return nil, nil, err
	}
	if lock, err = takeLock(stateDir, spec.VolumeID); err != nil {
		return nil, nil, err
	}
	if err = clearMountpoint(spec.Mountpoint); err == nil {
		fuseFile, err = fusefs.Mount(spec.Mountpoint, fusefs.MountOptions{
			Source: spec.Path, ReadOnly: spec.ReadOnly, AllowOther: spec.AllowOther, Flags: spec.MountFlags,
		})
	}
	if err != nil {
		return nil, nil, errors.Join(err, dropLock(lock, stateDir, spec.VolumeID))
	}
	return lock, fuseFile, nil
}

// serveFiles serves a mounted volume; ready and lock may be nil. It closes the
// files.
func serveFiles(ctx context.Context, o ServeOptions, fuseFile, ready, lock *os.File) (err error) {
	defer fuseFile.Close()
	s := &server{opts: o, ready: ready}
	defer func() { s.tellReady(err) }()
	if lock != nil {
		// A process that has started this one and is not done with the mount
		// still holds the lock, and removes its file itself.
		defer func() { err = errors.Join(err, dropLock(lock, o.StateDir, o.Spec.VolumeID)) }()
		if err := writePID(lock, os.Getpid()); err != nil {
			return err
		}
	}
	if err := s.run(ctx, fuseFile); err != nil || o.RemoveLog == "" {
		return err
	}
	return removeFile(o.RemoveLog)
}

// inherit takes over a descriptor that the parent has left open; nil for 0.
func inherit(fd int, name string) *os.File {
	if fd <= 0 {
		return nil
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name)
}

// server is the life of one serving process.
type server struct {
	opts       ServeOptions
	volume     Volume
	transport  fusefs.Transport
	connection int // of the mount; 0: not seen

	ready    *os.File
	told     sync.Once
	stopping sync.Once

	faults    atomic.Uint64
	lastFault atomic.Pointer[string]
}

func (s *server) run(ctx context.Context, fuseFile *os.File) error {
	spec := s.opts.Spec
	volume, err := s.opts.OpenVolume(spec)
	if err != nil {
		return err
	}
	s.volume = volume
	err = s.serve(ctx, fuseFile)
	// The connection may have ended by an error: whatever was acknowledged is
	// durable, so the volume is as clean as after an unmount.
	closeErr := volume.Close()
	klog.V(2).InfoS("Volume closed", "volume", spec.VolumeID, "path", spec.Path)
	return errors.Join(err, closeErr)
}

func (s *server) serve(ctx context.Context, fuseFile *os.File) error {
	spec := s.opts.Spec
	if err := s.findConnection(); err != nil {
		return err
	}
	t, err := fusefs.NewTransport(fuseFile, s.volume, fusefs.Options{
		Transport: spec.Transport,
		Cache:     fusefs.CacheMode(spec.Cache),
		Threads:   s.opts.Threads,
		Pin:       s.opts.Pin,
		OnPanic:   s.fault,
		OnReady: func(fusefs.Session) {
			klog.V(2).InfoS("Serving", "volume", spec.VolumeID, "path", spec.Path, "mountpoint", spec.Mountpoint, "flush", s.volume.Flush())
			s.tellReady(nil)
		},
	})
	if err != nil {
		return err
	}
	s.transport = t
	control, err := listenControl(s.opts.StateDir, spec.VolumeID, s)
	if err != nil {
		return err
	}
	// A signal makes the kernel end the connection; until then requests are
	// answered.
	var unmounting sync.WaitGroup
	unmounting.Add(1)
	cancel := context.AfterFunc(ctx, func() {
		defer unmounting.Done()
		s.stop()
	})
	err = t.Serve(context.WithoutCancel(ctx))
	if cancel() {
		unmounting.Done()
	}
	unmounting.Wait()
	return errors.Join(err, control.Close())
}

// findConnection remembers which mount is this process's own.
func (s *server) findConnection() error {
	top, err := fusefs.Top(s.opts.Spec.Mountpoint)
	if err != nil {
		return err
	}
	if top != nil && top.IsNVFS() && top.Source == s.opts.Spec.Path {
		s.connection = top.Connection
	}
	return nil
}

// tellReady writes to the ready pipe, once; later calls are ignored.
func (s *server) tellReady(err error) {
	s.told.Do(func() {
		if s.ready == nil {
			return
		}
		var r readiness
		if err != nil {
			r.Error = err.Error()
		}
		// A parent that has gone does not want to know.
		_ = json.NewEncoder(s.ready).Encode(r)
		s.ready.Close()
	})
}

// stop implements controlTarget: it unmounts this process's mount.
func (s *server) stop() {
	s.stopping.Do(func() {
		spec := s.opts.Spec
		top, err := fusefs.Top(spec.Mountpoint)
		if err != nil {
			klog.ErrorS(err, "Unmounting failed", "volume", spec.VolumeID)
			return
		}
		if top == nil || s.connection == 0 || top.Connection != s.connection {
			klog.InfoS("The volume is not what is mounted at its mount point; it is served until it is unmounted elsewhere", "volume", spec.VolumeID, "mountpoint", spec.Mountpoint)
			return
		}
		err = fusefs.Unmount(spec.Mountpoint)
		if errors.Is(err, unix.EBUSY) {
			klog.InfoS("The mount is busy; it is detached, and served until its last user has gone", "volume", spec.VolumeID, "mountpoint", spec.Mountpoint)
			err = fusefs.Detach(spec.Mountpoint)
		}
		if err != nil {
			klog.ErrorS(err, "Unmounting failed", "volume", spec.VolumeID)
		}
	})
}

// grow implements controlTarget.
func (s *server) grow() error {
	size, err := s.volume.Grow()
	if err != nil {
		return err
	}
	klog.V(2).InfoS("Volume grown", "volume", s.opts.Spec.VolumeID, "bytes", size)
	return nil
}

// status implements controlTarget.
func (s *server) status() Status {
	spec := s.opts.Spec
	cache := spec.Cache
	if cache == "" {
		cache = string(fusefs.CacheThrough)
	}
	return Status{
		Protocol:   ControlProtocol,
		Version:    s.opts.Version,
		PID:        os.Getpid(),
		VolumeID:   spec.VolumeID,
		Path:       spec.Path,
		Mountpoint: spec.Mountpoint,
		Flush:      s.volume.Flush(),
		Cache:      cache,
		Transport:  s.transport.Name(),
		Emulated:   spec.Emulated || s.volume.Emulated(),
		ReadOnly:   spec.ReadOnly || s.volume.ReadOnly(),
		Health:     s.health(),
		SizeBytes:  s.volume.SizeBytes(),
	}
}

// health is the volume's own, else tells of requests that failed by a fault.
func (s *server) health() string {
	if h := s.volume.Health(); h != "" {
		return h
	}
	if last := s.lastFault.Load(); last != nil {
		return fmt.Sprintf("%d requests failed by an internal fault, the last one: %s", s.faults.Load(), *last)
	}
	return ""
}

// fault records a request that ended in a panic or a memory fault.
func (s *server) fault(f fusefs.Fault) {
	text := f.String()
	s.faults.Add(1)
	s.lastFault.Store(&text)
	klog.ErrorS(nil, "Request failed by an internal fault", "volume", s.opts.Spec.VolumeID, "fault", text, "stack", string(f.Stack))
}
