package mountd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// SupervisorOptions configure RunSupervisor.
type SupervisorOptions struct {
	StateDir string // "" is DefaultStateDir
	LogDir   string // of the keeper; "" lets it write to mountd's standard error
	// Executable is started to serve volumes, with ServeArgs, and as the
	// keeper, with KeeperArgs; "" is ServingProgram.
	Executable            string
	ServeArgs, KeeperArgs []string
	Version               string // of the binary
	// OnDemand starts a keeper when there is none, and ends both when nothing
	// is mounted any more.
	OnDemand bool
	// LinkFD is the descriptor of a connection to a first peer; 0: none.
	LinkFD int
	// HangTimeout is how long a server may work on one request, or not answer
	// at all, until it is killed; 0 is DefaultHangTimeout.
	HangTimeout time.Duration
	// CgroupRoot is where the unified cgroup hierarchy is mounted; "" leaves
	// servers in mountd's own cgroup.
	CgroupRoot string
	// NoResend takes the kernel for one that does not send requests again, which
	// those before Linux 6.9 do not: for tests of what happens there.
	NoResend bool
}

// DefaultHangTimeout is longer than any request takes on a healthy machine.
const DefaultHangTimeout = 30 * time.Second

const (
	keeperDialTimeout = 5 * time.Second
	keeperPoll        = 10 * time.Millisecond
	// keeperAckTimeout bounds the wait for a keeper that is being restarted.
	keeperAckTimeout = 3 * time.Second
)

// supervisor is the state of mountd. Its mutex, those of its volumes, of the
// spare process and of the link to the keeper are never held together, so they
// have no order; that of cgroups is taken last.
type supervisor struct {
	opts     SupervisorOptions
	cgroups  cgroups
	listener *net.UnixListener
	lock     *os.File
	ctx      context.Context

	mu      sync.Mutex
	volumes map[string]*volume // by volume ID
	held    map[string]*volume // by instance
	clients int
	adopted bool // what was there before is known
	// retired: nothing new is begun, for a successor serves what there is, or
	// nothing was left to serve.
	retired bool

	keeper keeperLink
	spare  spare

	ending  chan struct{}
	endOnce sync.Once
}

// RunSupervisor is mountd: it starts, watches and restarts the processes that
// serve volumes until ctx ends, or, on demand, nothing is mounted any more.
// They are left alone when it ends, and found again by the next one.
func RunSupervisor(ctx context.Context, o SupervisorOptions) error {
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	if o.HangTimeout == 0 {
		o.HangTimeout = DefaultHangTimeout
	}
	signal.Ignore(unix.SIGPIPE)
	if err := makeStateDir(o.StateDir); err != nil {
		return err
	}
	setOOMScore("self", keeperOOMScore)
	first, err := inheritLink(o.LinkFD)
	if err != nil {
		return err
	}
	s := &supervisor{opts: o, ctx: ctx, cgroups: cgroups{root: o.CgroupRoot}, volumes: map[string]*volume{}, held: map[string]*volume{}, ending: make(chan struct{})}
	if s.lock, err = lockNamed(serviceLock(o.StateDir, mountdName)); errors.Is(err, errLocked) {
		if first != nil {
			_ = first.send(message{Kind: msgBusy})
		}
		return nil
	}
	if err != nil {
		return err
	}
	if err := writePID(s.lock, os.Getpid()); err != nil {
		return err
	}
	return s.run(ctx, first)
}

func (s *supervisor) run(ctx context.Context, first *link) (err error) {
	defer s.release()
	if s.listener, err = listenLinks(s.opts.StateDir, mountdName); err != nil {
		return err
	}
	if first != nil {
		s.greet(first)
	}
	s.spare.refill(s.launch)
	go s.listen()
	go s.keepKeeper()
	go s.watch()
	select {
	case <-ctx.Done():
	case <-s.ending:
	}
	return nil
}

// release makes room for the next mountd. The lock comes last: whoever gets it
// listens on a socket of its own.
func (s *supervisor) release() {
	if s.listener != nil {
		s.listener.Close() // removes the socket, too
	}
	s.spare.end()
	s.mu.Lock()
	idle := s.idle()
	s.mu.Unlock()
	if idle && s.opts.OnDemand {
		_ = unlockNamed(s.lock)
		return
	}
	_ = s.lock.Close()
}

func (s *supervisor) end() { s.endOnce.Do(func() { close(s.ending) }) }

func (s *supervisor) listen() {
	if err := acceptLinks(s.listener, s.greet); err != nil {
		klog.ErrorS(err, "The socket of mountd failed")
		s.end()
	}
}

// greet serves a peer that mounts. One that comes too late is hung up on, and
// turns to the next mountd.
func (s *supervisor) greet(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		l.Close()
		return
	}
	s.clients++
	go func() {
		s.converse(l)
		s.mu.Lock()
		s.clients--
		s.mu.Unlock()
		s.endIfIdle()
	}()
}

// idle is called with mu held.
func (s *supervisor) idle() bool { return s.adopted && s.clients == 0 && len(s.held) == 0 }

// endIfIdle ends a mountd on demand that has nothing left to do.
func (s *supervisor) endIfIdle() {
	s.mu.Lock()
	done := s.opts.OnDemand && s.idle()
	s.retired = s.retired || done
	s.mu.Unlock()
	if done {
		s.keeper.bye()
		s.end()
	}
}

// converse answers a peer's requests. What fails because this mountd ends gets
// no answer, for it has not failed for good.
func (s *supervisor) converse(l *link) {
	defer l.Close()
	c := client{s: s, link: l}
	defer c.release()
	for {
		m, fds, err := l.receive()
		if err != nil {
			return
		}
		answer := message{Kind: msgAnswer, ID: m.ID}
		session, err := c.execute(m, fds)
		if err != nil && s.leaving() {
			return
		}
		answer.Session = session
		answer.setError(err)
		if err := l.send(answer); err != nil {
			return
		}
		s.spare.refill(s.launch)
	}
}

// client is a peer that mounts a volume.
type client struct {
	s        *supervisor
	link     *link
	reserved string
	lock     *os.File
}

func (c *client) execute(m message, fds []int) (*fusefs.Session, error) {
	switch {
	case m.Kind == msgReserve && len(fds) == 0:
		return nil, c.reserve(m.VolumeID)
	case m.Kind == msgServe && len(fds) == 1 && m.Held != nil && m.Held.Spec.VolumeID == c.reserved && c.lock != nil:
		lock := c.lock
		c.lock = nil
		return c.s.serve(*m.Held, fds[0], lock)
	}
	closeAll(fds)
	return nil, fmt.Errorf("message %s with %d descriptors does not belong here", m.Kind, len(fds))
}

// reserve locks a volume for the peer, so that it may mount.
func (c *client) reserve(volumeID string) error {
	c.release()
	before := c.s.supervised(volumeID)
	lock, err := takeLock(c.s.opts.StateDir, volumeID)
	if errors.Is(err, ErrInUse) && c.s.awaitUnmounted(before) {
		lock, err = takeLock(c.s.opts.StateDir, volumeID)
	}
	if err != nil {
		return err
	}
	c.lock, c.reserved = lock, volumeID
	return nil
}

// supervised is a volume that is served; nil when it is not.
func (s *supervisor) supervised(volumeID string) *volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.volumes[volumeID]
}

// awaitUnmounted waits for the server of a volume that is not mounted any more:
// umount(8) returns before that has closed the volume. It reports whether there
// was one, and has ended.
func (s *supervisor) awaitUnmounted(v *volume) bool {
	if v == nil || v.mounted() {
		return false
	}
	timer := time.NewTimer(readyTimeout)
	defer timer.Stop()
	select {
	case <-v.done:
		return true
	case <-timer.C:
	case <-s.ctx.Done():
	}
	return false
}

func (c *client) release() {
	if c.lock != nil {
		_ = dropLock(c.lock, c.s.opts.StateDir, c.reserved)
		c.lock = nil
	}
}

// serve starts serving a volume that was mounted, and returns its session once
// it answers.
func (s *supervisor) serve(held Held, fd int, lock *os.File) (*fusefs.Session, error) {
	if err := removeFile(failedPath(s.opts.StateDir, held.Spec.VolumeID)); err != nil {
		_ = unix.Close(fd)
		return nil, errors.Join(err, lock.Close())
	}
	v := newVolume(s, held, fd)
	v.lock = lock
	if !s.add(v) {
		_ = unix.Close(fd)
		return nil, errors.Join(errors.New("mountd is being replaced: mount again"), dropLock(lock, s.opts.StateDir, held.Spec.VolumeID))
	}
	go v.run()
	if err := <-v.first; err != nil {
		return nil, err
	}
	s.keeper.await(v, keeperAckTimeout)
	return v.session(), nil
}

func (s *supervisor) add(v *volume) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return false
	}
	s.volumes[v.held.Spec.VolumeID] = v
	s.held[v.held.Instance] = v
	return true
}

// ended forgets a volume that is served no more.
func (s *supervisor) ended(v *volume) {
	s.mu.Lock()
	delete(s.held, v.held.Instance)
	if s.volumes[v.held.Spec.VolumeID] == v {
		delete(s.volumes, v.held.Spec.VolumeID)
		s.cgroups.remove(v.held.Spec.VolumeID)
	}
	s.mu.Unlock()
	s.keeper.drop(v.held.Instance)
	s.endIfIdle()
}

// adopt goes on with a connection that was served before this process
// started. It returns nil for one that is known already, or has ended.
func (s *supervisor) adopt(held Held, fd int) *volume {
	v := newVolume(s, held, fd)
	s.mu.Lock()
	known := s.held[held.Instance]
	if known == nil && !s.retired && connectionAlive(fd) {
		s.volumes[held.Spec.VolumeID] = v
		s.held[held.Instance] = v
		s.mu.Unlock()
		klog.InfoS("Found a volume that was mounted before", "volume", held.Spec.VolumeID, "mountpoint", held.Spec.Mountpoint)
		go v.runAdopted()
		return v
	}
	s.mu.Unlock()
	_ = unix.Close(fd)
	if known != nil && held.Session != nil {
		known.setSession(held.Session)
	}
	return nil
}

// retire ends this mountd for a successor; servers are left alone.
func (s *supervisor) retire() {
	s.mu.Lock()
	s.retired = true
	s.mu.Unlock()
	s.end()
}

// leaving reports whether this mountd is about to end.
func (s *supervisor) leaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retired || s.ctx.Err() != nil
}

// list returns the volumes that are supervised.
func (s *supervisor) list() []*volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*volume, 0, len(s.held))
	for _, v := range s.held {
		all = append(all, v)
	}
	return all
}

// keeperLink is the connection to the keeper, which comes and goes.
type keeperLink struct {
	mu     sync.Mutex
	link   *link // nil: none at present
	nextID uint64
	acks   map[uint64]chan struct{}
	// changed is closed, and made anew, when there is another link.
	changed chan struct{}
}

// put gives the keeper a connection and returns when it holds it, with the link
// by which it got it. Without a keeper at present that is an error.
func (k *keeperLink) put(e holding) (*link, error) {
	k.mu.Lock()
	l := k.link
	if l == nil {
		k.mu.Unlock()
		return nil, errors.New("there is no keeper at present")
	}
	k.nextID++
	id, done := k.nextID, make(chan struct{})
	if k.acks == nil {
		k.acks = map[uint64]chan struct{}{}
	}
	k.acks[id] = done
	k.mu.Unlock()
	if err := l.sendHeld(e, id); err != nil {
		return nil, err
	}
	timer := time.NewTimer(sendTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		return nil, errors.New("the keeper does not answer")
	}
	if k.current() != l {
		return nil, errors.New("the keeper has gone")
	}
	return l, nil
}

// current is the link to the keeper; nil when there is none at present.
func (k *keeperLink) current() *link {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.link
}

// await returns when the keeper holds v.
func (k *keeperLink) await(v *volume, timeout time.Duration) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for {
		changed := k.change()
		if v.isShared() || v.shareSession() == nil {
			return
		}
		select {
		case <-changed:
		case <-v.done:
			return // unmounted again
		case <-deadline.C:
			klog.InfoS("The keeper does not hold a connection yet: the volume would not survive the end of mountd and its server at once", "volume", v.held.Spec.VolumeID)
			return
		}
	}
}

// change returns what is closed when there is another connection.
func (k *keeperLink) change() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changed == nil {
		k.changed = make(chan struct{})
	}
	return k.changed
}

func (k *keeperLink) set(l *link) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.link = l
	for _, done := range k.acks {
		close(done) // the keeper that was to answer has gone
	}
	k.acks = nil
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
}

func (k *keeperLink) acknowledged(id uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if done := k.acks[id]; done != nil {
		close(done)
		delete(k.acks, id)
	}
}

func (k *keeperLink) say(m message) {
	if l := k.current(); l != nil {
		_ = l.send(m) // a keeper that has gone is told everything anew
	}
}

func (k *keeperLink) drop(instance string) { k.say(message{Kind: msgDrop, Instance: instance}) }
func (k *keeperLink) bye()                 { k.say(message{Kind: msgBye}) }

// keepKeeper connects to the keeper, whenever it is lost.
func (s *supervisor) keepKeeper() {
	for s.ctx.Err() == nil {
		l, err := s.findKeeper()
		if err != nil {
			klog.ErrorS(err, "No keeper")
			s.collect() // so that what is served goes on being watched
		} else {
			err = s.follow(l)
			s.keeper.set(nil)
			l.Close()
			if !errors.Is(err, io.EOF) {
				klog.ErrorS(err, "The connection to the keeper has failed")
			}
		}
		select {
		case <-s.ending:
			return
		case <-time.After(keeperPoll):
		}
	}
}

// findKeeper connects to the keeper, and starts one if that is this process's
// task.
func (s *supervisor) findKeeper() (*link, error) {
	path, err := serviceSocket(s.opts.StateDir, keeperName)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(keeperDialTimeout); ; {
		l, err := dialLink(path)
		if err == nil {
			return l, nil
		}
		if !noListener(err) || time.Now().After(deadline) || s.ctx.Err() != nil {
			return nil, err
		}
		if s.opts.OnDemand {
			if l, err := s.startKeeper(); l != nil || err != nil {
				return l, err
			}
		}
		select {
		case <-s.ending:
			return nil, errors.New("mountd ends")
		case <-time.After(keeperPoll):
		}
	}
}

// startKeeper returns nil when there is one already.
func (s *supervisor) startKeeper() (*link, error) {
	lock, err := lockNamed(serviceLock(s.opts.StateDir, keeperName))
	if errors.Is(err, errLocked) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	_ = lock.Close()
	cmd, l, err := service{executable: s.opts.Executable, args: s.opts.KeeperArgs, stateDir: s.opts.StateDir, logDir: s.opts.LogDir, name: keeperName, onDemand: true}.startLinked()
	if err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait() }() // the connection says when it has ended
	klog.V(2).InfoS("Keeper started", "pid", cmd.Process.Pid)
	return l, nil
}

// follow tells the keeper what is held here, and takes what it has, until the
// connection ends.
func (s *supervisor) follow(l *link) error {
	if err := l.send(message{Kind: msgHello, Role: roleMountd}); err != nil {
		return err
	}
	for _, v := range s.list() {
		e, err := v.holding()
		if err != nil {
			continue // it has just ended
		}
		err = l.sendHeld(e, 0)
		_ = unix.Close(e.fd)
		if err != nil {
			return err
		}
	}
	for {
		m, fds, err := l.receive()
		if err != nil {
			return err
		}
		switch {
		case m.Kind == msgPut && m.Held != nil && len(fds) == 1:
			s.adopt(*m.Held, fds[0])
			continue
		case m.Kind == msgSynced:
			s.keeper.set(l)
			s.collect()
		case m.Kind == msgAnswer:
			s.keeper.acknowledged(m.ID)
		case m.Kind == msgRetire:
			s.retire()
		}
		closeAll(fds)
	}
}
