package mountd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// Limits of a recovery.
const (
	// readyTimeout is how long a server may take until it answers.
	readyTimeout = 15 * time.Second
	abandonPoll  = 20 * time.Millisecond
	// maxFailures is how many servers may end one after the other before the
	// requests that were sent again are answered, when they ended by
	// themselves; maxKilled when they were killed.
	maxFailures = 4
	maxKilled   = 40
	// settled is how long a server must have lived for its death to be a new
	// one and not the last one repeated.
	settled = 10 * time.Second
	// maxDelay is the longest pause before a server is restarted.
	maxDelay = time.Second
)

// pastDeadline ends a wait at once.
var pastDeadline = time.Unix(1, 0)

// volume is one mount of a volume, under supervision. Its goroutine starts one
// serving process after the other until the connection has ended.
type volume struct {
	s     *supervisor
	fd    int
	first chan error    // how the first server did; one value
	done  chan struct{} // closed when the connection has ended, and nobody serves the volume

	mu       sync.Mutex
	held     Held
	closed   bool
	lock     *os.File // nil while another process's server runs
	daemon   *daemon  // nil while none of this process's own runs
	sharedBy *link    // by which the keeper has got the session
	restarts int
	last     death

	suspects suspects
	failures int // of servers in the present recovery
	weight   int
	crashes  int // of servers that served, by themselves, soon after their start
	exchange chan struct{}
	watch    watchdog
}

func newVolume(s *supervisor, held Held, fd int) *volume {
	return &volume{s: s, held: held, fd: fd, first: make(chan error, 1), done: make(chan struct{}), exchange: make(chan struct{}, 1)}
}

func (v *volume) id() string { return v.held.Spec.VolumeID }

// setSession takes note of the session, and of its change when the server has
// to use another transport than it had negotiated.
func (v *volume) setSession(session *fusefs.Session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.held.Session == nil || v.held.Session.ConnID == session.ConnID {
		v.held.Session = session
	}
}

func (v *volume) session() *fusefs.Session {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.held.Session
}

// mounted reports whether the connection has not ended.
func (v *volume) mounted() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.closed && connectionAlive(v.fd)
}

// holding is the connection with a descriptor of the caller's own.
func (v *volume) holding() (holding, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return holding{}, errors.New("the connection has ended")
	}
	h := holding{v.held, v.fd}
	return h.dup()
}

// shareSession gives the connection, with its session, to the keeper.
func (v *volume) shareSession() error {
	e, err := v.holding()
	if err != nil {
		return err
	}
	defer unix.Close(e.fd)
	l, err := v.s.keeper.put(e)
	if err != nil {
		return err
	}
	if e.Session != nil {
		v.mu.Lock()
		v.sharedBy = l
		v.mu.Unlock()
	}
	return nil
}

// isShared reports whether the keeper that there is at present has got the
// session.
func (v *volume) isShared() bool {
	current := v.s.keeper.current()
	v.mu.Lock()
	defer v.mu.Unlock()
	return current != nil && v.sharedBy == current
}

// run serves a volume that was just mounted; it owns the lock.
func (v *volume) run() {
	defer v.finish()
	d, err := v.start(resumption{First: true})
	if err == nil {
		err = v.awaitReady(d)
	}
	if err != nil && v.session() == nil {
		// The kernel has not been told anything: there is no connection to go
		// on with.
		v.first <- errors.Join(err, v.stopServer(d))
		return
	}
	if err == nil {
		v.first <- nil
		err = v.attend(d)
	} else {
		err = v.after(v.failed(d, err), false)
	}
	v.goOn(err)
}

// failed says how a server ended that did not come to answer, and ends it if
// it has not.
func (v *volume) failed(d *daemon, err error) death {
	var x death
	if d.running() {
		d.kill()
		x = death{pid: d.cmd.Process.Pid, how: err.Error(), own: true}
	} else {
		x = d.death()
		var reason *ServeError
		if errors.As(err, &reason) && d.cmd.ProcessState.Exited() {
			x.how, x.words = reason.Text, ""
		}
	}
	d.close()
	v.mu.Lock()
	v.daemon = nil
	v.mu.Unlock()
	return x
}

// runAdopted serves a volume that another mountd has looked after: its server
// may run, or have died with nobody watching.
func (v *volume) runAdopted() {
	defer v.finish()
	d, err := v.awaitStranger()
	if d != nil {
		err = v.attend(d)
	}
	v.goOn(err)
}

// goOn starts one server after the other. The error is why there is no point
// in that any more; errEnded when the volume was unmounted.
func (v *volume) goOn(err error) {
	for err == nil {
		err = v.serveAgain()
	}
	if !errors.Is(err, errEnded) && !v.s.leaving() {
		v.giveUp(err)
	}
	select {
	case v.first <- err: // who mounts may still be waiting
	default:
	}
}

// errEnded means that the volume was unmounted.
var errEnded = errors.New("the volume was unmounted")

// finish lets go of everything.
func (v *volume) finish() {
	v.mu.Lock()
	v.closed = true
	lock := v.lock
	v.lock = nil
	v.mu.Unlock()
	_ = unix.Close(v.fd)
	defer close(v.done)
	if v.s.leaving() {
		// The next mountd goes on with what there is.
		if lock != nil {
			_ = lock.Close()
		}
		return
	}
	if lock != nil {
		if err := dropLock(lock, v.s.opts.StateDir, v.id()); err != nil {
			klog.ErrorS(err, "State files are left", "volume", v.id())
		}
	}
	v.s.ended(v)
}

// start starts a server; the volume's lock is held.
func (v *volume) start(r resumption) (*daemon, error) {
	v.mu.Lock()
	held, lock := v.held, v.lock
	r.Restarts = v.restarts
	if v.restarts > 0 && v.last.how != "" {
		r.LastDeath = v.last.String()
	}
	v.mu.Unlock()
	d, err := v.s.startDaemon(held, r, v.fd, lock)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	v.daemon = d
	v.mu.Unlock()
	v.watch.reset()
	return d, nil
}

// awaitReady returns when a server answers. One of which the connection has
// ended before it said so may be closing the volume, and is waited for.
func (v *volume) awaitReady(d *daemon) error {
	err := v.expectReady(d)
	if err == nil || v.session() == nil || connectionAlive(v.fd) {
		return err
	}
	timer := time.NewTimer(readyTimeout)
	defer timer.Stop()
	select {
	case <-d.exited:
	case <-timer.C:
	}
	return err
}

func (v *volume) expectReady(d *daemon) error {
	ctx, cancel := context.WithTimeout(v.s.ctx, readyTimeout)
	defer cancel()
	go func() {
		// Who mounts may give up: then there is nothing to get ready for.
		tick := time.NewTicker(abandonPoll)
		defer tick.Stop()
		for ctx.Err() == nil && connectionAlive(v.fd) {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		cancel()
	}()
	return d.expect(ctx, msgReady, func(m message) error {
		switch m.Kind {
		case msgSession:
			v.setSession(m.Session)
			if err := v.shareSession(); err != nil {
				// This process holds it, and tells the keeper when there is one.
				klog.V(2).InfoS("The keeper does not know the session yet", "volume", v.id(), "reason", err.Error())
			}
			return d.link.send(message{Kind: msgAnswer})
		case msgReplayed:
			klog.V(2).InfoS("Requests that were sent again are answered", "volume", v.id(), "requests", m.Requests)
		}
		return nil
	})
}

// stopServer ends a server that has failed, and lets go of it.
func (v *volume) stopServer(d *daemon) error {
	if d == nil {
		return nil
	}
	d.kill()
	d.close()
	v.mu.Lock()
	v.daemon = nil
	v.mu.Unlock()
	return nil
}

// attend returns when a server that answers has ended, with errEnded when
// there is nothing left to serve.
func (v *volume) attend(d *daemon) error {
	started := time.Now()
	for {
		select {
		case <-d.exited:
			if time.Since(started) > settled {
				v.crashes = 0
			}
			return v.died(d, true)
		case <-v.exchange:
			next, err := v.exchangeFor(d)
			if err != nil {
				klog.ErrorS(err, "The server of a volume goes on instead of being replaced", "volume", v.id())
				continue
			}
			d.close()
			if next == nil {
				return v.died(d, true)
			}
			d, started = next, time.Now()
		}
	}
}

// died decides what follows the end of a server; served tells whether it had
// answered the requests that were sent again to it.
func (v *volume) died(d *daemon, served bool) error {
	x := d.death()
	d.close()
	v.mu.Lock()
	v.daemon = nil
	v.mu.Unlock()
	return v.after(x, served)
}

func (v *volume) after(x death, served bool) error {
	if !connectionAlive(v.fd) || v.s.leaving() {
		return errEnded // or the next mountd goes on
	}
	v.mu.Lock()
	v.restarts++
	v.last = x
	v.mu.Unlock()
	klog.InfoS("A serving process has ended and is replaced", "volume", v.id(), "pid", x.pid, "how", x.String(), "recovering", !served)
	if s := v.session(); s != nil && !s.CanContinue() {
		return fmt.Errorf("its server ended (%s), and a connection over transport %s ends with it: the volume has to be staged again; transport dev lets it live on", x.String(), s.Transport)
	} else if !v.sendsAgain() {
		return fmt.Errorf("its server ended (%s), and this kernel, older than Linux 6.9, does not let another one go on: the volume has to be staged again", x.String())
	}
	if served {
		v.suspects.began(x)
		v.failures, v.weight = 0, 0
		if x.own {
			v.crashes++
		}
		return nil
	}
	v.suspects.died(x, v.replaying())
	v.failures++
	if x.own {
		v.weight++
	}
	if v.weight >= maxFailures || v.failures >= maxKilled {
		return fmt.Errorf("%d servers one after the other could not go on with it; the last one: %s", v.failures, x.String())
	}
	return nil
}

// sendsAgain reports whether the kernel sends a server what the one before had
// read and not answered.
func (v *volume) sendsAgain() bool {
	s := v.session()
	return s == nil || s.CanResume() && !v.s.opts.NoResend
}

// replaying is the request that the last server was executing when it ended,
// of those that had been sent again; 0: none.
func (v *volume) replaying() uint64 {
	b, err := os.ReadFile(replayPath(v.s.opts.StateDir, v.id()))
	if err != nil || len(b) < 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// delay is how long to wait before the next server is started.
func (v *volume) delay() time.Duration {
	n := v.crashes + v.weight
	if n <= 1 {
		return 0
	}
	return min(maxDelay, 10*time.Millisecond<<min(n, 10))
}

// serveAgain starts a server that goes on where the last one ended, and
// returns when that has ended, too.
func (v *volume) serveAgain() error {
	select {
	case <-time.After(v.delay()):
	case <-v.s.ctx.Done():
		return errEnded
	}
	if !connectionAlive(v.fd) || v.s.leaving() {
		return errEnded
	}
	d, err := v.start(resumption{Refuse: v.suspects.refused()})
	if err != nil {
		return v.after(death{how: err.Error(), own: true}, false)
	}
	if err := v.awaitReady(d); err != nil {
		if v.s.leaving() {
			return errEnded
		}
		return v.after(v.failed(d, err), false)
	}
	select {
	case v.first <- nil: // who mounts may still be waiting
	default:
	}
	v.s.spare.refill(v.s.launch)
	return v.attend(d)
}

// giveUp ends a connection that nobody can serve: its users get errors instead
// of waiting.
func (v *volume) giveUp(reason error) {
	klog.ErrorS(reason, "A volume cannot be served any more; its connection is aborted", "volume", v.id(), "mountpoint", v.held.Spec.Mountpoint)
	if err := os.WriteFile(failedPath(v.s.opts.StateDir, v.id()), []byte(reason.Error()), 0o600); err != nil {
		klog.ErrorS(err, "The reason is not kept", "volume", v.id())
	}
	v.abort()
}

// abort ends the connection. Without its number it ends by itself, once all
// that hold it have let go.
func (v *volume) abort() {
	if v.held.Connection == 0 || !connectionAlive(v.fd) {
		return
	}
	if err := fusefs.AbortConnection(v.held.Connection); err != nil {
		klog.ErrorS(err, "Abort failed", "volume", v.id())
	}
}

// awaitStranger waits for the end of a server that another mountd has started,
// and then holds the volume's lock. It returns the server that has replaced it,
// if one has.
func (v *volume) awaitStranger() (*daemon, error) {
	for {
		ctx, cancel := context.WithCancel(v.s.ctx)
		ended := make(chan struct{})
		var lock *os.File
		var err error
		go func() {
			defer close(ended)
			lock, err = awaitLock(ctx, lockPath(v.s.opts.StateDir, v.id()))
		}()
		exchange := false
		select {
		case <-ended:
		case <-v.exchange:
			exchange = true
		}
		cancel()
		<-ended
		switch {
		case err == nil:
			v.mu.Lock()
			v.lock = lock
			v.mu.Unlock()
			return nil, v.after(unknownDeath(0), v.replaying() == 0)
		case !exchange:
			return nil, errEnded // this mountd ends; the next one goes on
		}
		d, err := v.exchangeStranger()
		if err == nil && d == nil {
			return nil, v.after(death{how: "it ended instead of letting go, or the one that was to replace it does not answer", own: true}, true)
		}
		if err == nil {
			return d, nil
		}
		klog.ErrorS(err, "The server of a volume goes on instead of being replaced", "volume", v.id())
	}
}
