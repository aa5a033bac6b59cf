package mountd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// Volume is an open volume. Its methods may be called concurrently, Close only
// when no Worker is in use any more.
type Volume interface {
	fusefs.Filesystem
	// Close marks the volume clean and lets go of its backing.
	Close() error
	// Grow takes the whole backing and further devices into use and returns
	// the new size in bytes. A device that is in use already is no error.
	Grow(devices ...string) (uint64, error)
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

// Resumable is implemented by volumes that can go on where another process has
// ended in the middle of a connection.
type Resumable interface {
	// EndResume is called once everything that the kernel has sent again is
	// answered.
	EndResume() error
	// Orphans lists the files without a name that the kernel may still use.
	Orphans() ([]nvfs.NodeID, error)
	// ReleaseOrphan frees one that it does not.
	ReleaseOrphan(id nvfs.NodeID) error
	// Detach is called instead of Close: a successor goes on, and waits for
	// that. The process ends soon after.
	Detach() error
}

// OpenOptions say how a volume is opened.
type OpenOptions struct {
	// Resume is the connection, by its random ID, that the volume was mounted
	// for before; 0: none.
	Resume uint64
	// Prepared is what ServeOptions.Prepare has returned, now OpenVolume's; nil:
	// nothing.
	Prepared io.Closer
	// OnOrphan is told of files without a name that the kernel may have given
	// up. It returns at once.
	OnOrphan func(nvfs.NodeID)
}

// ServeOptions are what a serving process is started with.
type ServeOptions struct {
	Version  string // of the binary
	StateDir string // "" is DefaultStateDir
	// LinkFD is the descriptor of the connection to mountd, which says what is
	// to be served.
	LinkFD int
	// Threads and Pin place the threads that serve, as in fusefs.Options.
	Threads int
	Pin     []int
	// OpenVolume opens the volume. Its error is shown to whoever mounts.
	OpenVolume func(Spec, OpenOptions) (Volume, error)
	// Prepare does what can be done of OpenVolume while another process serves
	// the volume; nil: nothing.
	Prepare func(Spec) (io.Closer, error)
	// Rehearse opens and closes a volume of its own making, in memory; nil:
	// nothing is rehearsed.
	Rehearse func() error
}

// ErrHandedOver is returned by Serve when the connection was left to a
// successor; the process ends with exit code ExitCode.
var ErrHandedOver = errors.New("the volume was handed over")

// Serve waits for a volume from mountd and serves it until it is unmounted.
// When ctx ends, by a signal for example, Serve unmounts; a mount that is busy
// is only taken out of sight, and served until its last user has gone. It
// returns nil when the volume has been marked clean, or there was none.
func Serve(ctx context.Context, o ServeOptions) error {
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	link, err := inheritLink(o.LinkFD)
	if err != nil {
		return err
	}
	if link == nil {
		return errors.New("no connection to mountd was given: volumes are mounted by nvfs-csi mount, which sees to it that this process is started")
	}
	// The process that reads what this one logs may go away first.
	signal.Ignore(unix.SIGPIPE)
	fusefs.Prepare(fusefs.Options{Threads: o.Threads})
	rehearse(o, link)
	collect := delayCollection()
	defer collect()
	t, err := awaitTask(ctx, link)
	if t == nil || err != nil {
		return errors.Join(err, link.Close())
	}
	setTitle(serveArgs(t.held.Spec))
	if o.Threads == 0 {
		o.Threads = bindToNode(t.held.Spec.NUMANode)
	}
	return serveFiles(ctx, &server{opts: o, held: t.held, resume: t.resume, link: link, fuseFile: t.fuse, collect: collect}, t.lock)
}

// ExitCode is the exit code of a process in which Serve has returned err, 0
// meaning any.
func ExitCode(err error) int {
	if errors.Is(err, ErrHandedOver) {
		return exitHandedOver
	}
	return 0
}

// ServeForeground mounts a volume and serves it in the calling process until
// it is unmounted, or ctx ends. It has nothing to do with mountd.
func ServeForeground(ctx context.Context, spec Spec, o ServeOptions) error {
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	lock, fuseFile, err := prepare(spec, o.StateDir)
	if err != nil {
		return err
	}
	s := &server{opts: o, held: Held{Spec: spec}, resume: resumption{First: true}, fuseFile: fuseFile}
	if err := serveFiles(ctx, s, lock); err != nil {
		return errors.Join(err, detachIfMounted(spec.Mountpoint))
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
			Transport: spec.Transport,
		})
	}
	if err != nil {
		return nil, nil, errors.Join(err, dropLock(lock, stateDir, spec.VolumeID))
	}
	return lock, fuseFile, nil
}

// serveFiles serves a mounted volume; lock may be nil. It closes the files.
func serveFiles(ctx context.Context, s *server, lock *os.File) (err error) {
	volumeID := s.held.Spec.VolumeID
	defer s.fuseFile.Close()
	defer func() { s.tellReady(err) }()
	s.prepareOpen()
	if err := s.awaitGo(); err != nil {
		return err
	}
	if lock != nil {
		// The supervisor still holds the lock, unless it has died, and removes
		// its file itself.
		defer func() {
			if errors.Is(err, ErrHandedOver) {
				if s.letGo {
					err = errors.Join(err, noteLetGo(lock))
				}
				lock.Close()
				s.tellHandedOver()
			} else {
				err = errors.Join(err, dropLock(lock, s.opts.StateDir, volumeID))
			}
		}()
		if err := writePID(lock, os.Getpid()); err != nil {
			return err
		}
	}
	if err := s.run(ctx); err != nil || !s.held.RemoveLog || s.held.LogDir == "" {
		return err
	}
	return removeFile(logFile(s.held.LogDir, stateName(volumeID)))
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
	held       Held
	resume     resumption
	fuseFile   *os.File
	link       *link // to the supervisor; nil: none
	volume     Volume
	transport  fusefs.Transport
	connection int // of the mount; 0: not seen
	orphans    orphans
	replay     *replayNote
	prepared   io.Closer // for OpenVolume; nil: nothing

	collect    func() // garbage, from now on; nil: has not been stopped
	told       sync.Once
	stopping   sync.Once
	handedOver atomic.Bool
	letGo      bool // and everything that was read is answered
	endServing context.CancelFunc

	devices   deviceList // taken into use since the mount
	faults    atomic.Uint64
	lastFault atomic.Pointer[string]
}

func (s *server) run(ctx context.Context) error {
	spec := s.held.Spec
	if err := s.devices.load(s.opts.StateDir, spec.VolumeID, s.held.Instance); err != nil {
		return err
	}
	spec.Devices = s.devices.with(spec.Devices)
	volume, err := s.opts.OpenVolume(spec, OpenOptions{Resume: s.resumedID(), Prepared: s.takePrepared(), OnOrphan: s.orphans.add})
	if err != nil {
		return err
	}
	s.volume = volume
	err = s.serve(ctx)
	if s.handedOver.Load() {
		s.letGo = err == nil
		if r, ok := volume.(Resumable); ok {
			err = errors.Join(err, r.Detach())
		}
		klog.V(2).InfoS("Volume handed over", "volume", spec.VolumeID, "path", spec.Path)
		return errors.Join(ErrHandedOver, err)
	}
	if r, ok := volume.(Resumable); ok && err != nil && connectionAlive(int(s.fuseFile.Fd())) {
		// A successor goes on, with the deleted files that are open.
		return errors.Join(err, r.Detach())
	}
	// The connection may have ended by an error: whatever was acknowledged is
	// durable, so the volume is as clean as after an unmount.
	closeErr := errors.Join(volume.Close(), removeFile(devicesPath(s.opts.StateDir, spec.VolumeID)))
	klog.V(2).InfoS("Volume closed", "volume", spec.VolumeID, "path", spec.Path)
	return errors.Join(err, closeErr)
}

func (s *server) serve(ctx context.Context) error {
	spec := s.held.Spec
	if err := s.findConnection(); err != nil {
		return err
	}
	o := fusefs.Options{
		Transport: spec.Transport,
		Cache:     fusefs.CacheMode(spec.Cache),
		Threads:   s.opts.Threads,
		Pin:       s.opts.Pin,
		OnPanic:   s.fault,
		OnSession: s.saveSession,
		OnReady: func(fusefs.Session) {
			klog.V(2).InfoS("Serving", "volume", spec.VolumeID, "path", spec.Path, "mountpoint", spec.Mountpoint, "flush", s.volume.Flush())
			s.tellReady(nil)
		},
	}
	if err := s.continueConnection(&o); err != nil {
		return err
	}
	defer s.replay.close()
	defer s.orphans.stop()
	t, err := fusefs.NewTransport(s.fuseFile, s.volume, o)
	if err != nil {
		return err
	}
	s.transport = t
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	s.endServing = end
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
	err = t.Serve(serving)
	if cancel() {
		unmounting.Done()
	}
	unmounting.Wait()
	if s.handedOver.Load() && errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, control.Close())
}

// findConnection remembers which mount is this process's own.
func (s *server) findConnection() error {
	top, err := fusefs.Top(s.held.Spec.Mountpoint)
	if err != nil {
		return err
	}
	if top != nil && top.IsNVFS() && top.Source == s.held.Spec.Path {
		s.connection = top.Connection
	}
	return nil
}

// tellReady tells the supervisor, once; later calls are ignored.
func (s *server) tellReady(err error) {
	s.told.Do(func() {
		if s.collect != nil {
			defer s.collect()
		}
		if s.link == nil {
			return
		}
		m := message{Kind: msgReady}
		if err != nil {
			m.Kind, m.Error, m.ErrorKind = msgFailed, err.Error(), errorServe
		}
		// A supervisor that has gone does not want to know.
		_ = s.link.send(m)
	})
}

// stop implements controlTarget: it unmounts this process's mount.
func (s *server) stop() {
	s.stopping.Do(func() {
		spec := s.held.Spec
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
func (s *server) grow(devices []string) error {
	refused, err := s.devices.add(s.opts.StateDir, s.held.Spec.VolumeID, s.held.Instance, devices)
	if err != nil {
		return err
	}
	size, err := s.volume.Grow(devices...)
	if err != nil {
		if !s.volume.ReadOnly() { // else it may have them, and the next mount says so
			err = errors.Join(err, refused())
		}
		return err
	}
	klog.V(2).InfoS("Volume grown", "volume", s.held.Spec.VolumeID, "bytes", size)
	return nil
}

// status implements controlTarget.
func (s *server) status() Status {
	spec := s.held.Spec
	cache := spec.Cache
	if cache == "" {
		cache = string(fusefs.CacheThrough)
	}
	return Status{
		Protocol:        ControlProtocol,
		Version:         s.opts.Version,
		PID:             os.Getpid(),
		VolumeID:        spec.VolumeID,
		Path:            spec.Path,
		Devices:         s.devices.with(spec.Devices),
		Mountpoint:      spec.Mountpoint,
		Flush:           s.volume.Flush(),
		Cache:           cache,
		Transport:       s.transport.Name(),
		TransportReason: s.transport.Reason(),
		Emulated:        spec.Emulated || s.volume.Emulated(),
		ReadOnly:        spec.ReadOnly || s.volume.ReadOnly(),
		Health:          s.health(),
		SizeBytes:       s.volume.SizeBytes(),
		Connection:      max(s.connection, s.held.Connection),
		Restarts:        s.resume.Restarts,
		LastDeath:       s.resume.LastDeath,
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
	klog.ErrorS(nil, "Request failed by an internal fault", "volume", s.held.Spec.VolumeID, "fault", text, "stack", string(f.Stack))
}
