package mountd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"
)

// A server is exchanged while its volume is in use. The new one is started
// first and waits; then the old one answers what it has read and lets go of the
// volume; then the new one opens the volume and reads on. Nothing is sent again,
// and users notice a pause, the shorter because neither the start of the new
// process nor the end of the old one lies in it.

// exchangeTimeout bounds how long an old server takes to let go, and then to
// end.
const exchangeTimeout = 10 * time.Second

// pause is how long users waited, and for what.
type pause struct {
	start    time.Time // the old server was asked to let go
	released time.Time // it has
}

// exchangeFor replaces a server of this process's own. It returns nil without
// an error when that has ended, but the new one does not answer.
func (v *volume) exchangeFor(old *daemon) (*daemon, error) {
	v.mu.Lock()
	lock := v.lock
	v.mu.Unlock()
	next, err := v.standby(lock)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(v.s.ctx, exchangeTimeout)
	defer cancel()
	p := pause{start: time.Now()}
	if _, err := callControl(ctx, v.s.opts.StateDir, v.id(), methodHandOver); err != nil {
		return nil, errors.Join(err, v.stopServer(next))
	}
	// It lets go before it ends, which may take as long again. One of an older
	// version just ends.
	if err := old.expect(ctx, msgHandedOver, func(message) error { return nil }); err != nil && old.running() {
		return nil, errors.Join(errors.New("the old server does not let go"), err, v.stopServer(next))
	}
	p.released = time.Now()
	next, err = v.takeOver(next, p)
	old.end(exchangeTimeout)
	return next, err
}

// standby starts a server that waits until it is told to go.
func (v *volume) standby(lock *os.File) (*daemon, error) {
	v.mu.Lock()
	held := v.held
	r := resumption{Wait: true, Restarts: v.restarts}
	v.mu.Unlock()
	if held.Session == nil {
		return nil, errors.New("its session is not known yet")
	}
	next, err := v.s.startDaemon(held, r, v.fd, lock)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(v.s.ctx, readyTimeout)
	defer cancel()
	if err := next.expect(ctx, msgWaiting, func(message) error { return nil }); err != nil {
		next.kill()
		next.close()
		return nil, err
	}
	return next, nil
}

// takeOver lets a server that waits go; the one before has let go, or ended.
func (v *volume) takeOver(next *daemon, p pause) (*daemon, error) {
	v.mu.Lock()
	lock := v.lock
	v.mu.Unlock()
	if !v.sendsAgain() && !hasLetGo(lock) {
		// What it had read is lost, and who waits for it would wait for ever.
		return nil, v.stopServer(next)
	}
	v.mu.Lock()
	v.daemon = next
	v.mu.Unlock()
	v.watch.reset()
	err := next.link.send(message{Kind: msgGo})
	if err == nil {
		err = v.awaitReady(next)
	}
	if err != nil {
		klog.ErrorS(err, "The new server of a volume has failed", "volume", v.id())
		return nil, v.stopServer(next)
	}
	klog.InfoS("The server of a volume was replaced", "volume", v.id(), "pid", next.cmd.Process.Pid, "pause", time.Since(p.start), "ofItLettingGo", p.released.Sub(p.start))
	v.s.spare.refill(v.s.launch)
	return next, nil
}

// exchangeStranger replaces a server that another mountd has started, and that
// holds the volume's lock: the new one gets the lock file and, once the old one
// has let go, the lock. It returns nil without an error when that has happened,
// but the new one does not answer.
func (v *volume) exchangeStranger() (*daemon, error) {
	lock, err := os.OpenFile(lockPath(v.s.opts.StateDir, v.id()), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("volume lock: %w", err)
	}
	next, err := v.standby(lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	ctx, cancel := context.WithTimeout(v.s.ctx, exchangeTimeout)
	defer cancel()
	p := pause{start: time.Now()}
	_, err = callControl(ctx, v.s.opts.StateDir, v.id(), methodHandOver)
	for err == nil {
		if err = lockFile(lock); err == nil || !errors.Is(err, errLocked) {
			break
		}
		select {
		case <-time.After(time.Millisecond):
			err = nil
		case <-ctx.Done():
			err = errors.New("the old server does not let go")
		}
	}
	if err != nil {
		return nil, errors.Join(err, v.stopServer(next), lock.Close())
	}
	v.mu.Lock()
	v.lock = lock
	v.mu.Unlock()
	p.released = time.Now()
	return v.takeOver(next, p)
}

// A keeper that takes over demands, by a file, that the servers of its
// predecessor are exchanged. The file is there until they are, so a mountd that
// ends in the middle of it leaves the rest to the next one. Each demand has a file
// of its own: a mountd that is done removes what it found when it began, and not
// what the next keeper has just demanded.

const exchangePrefix = "@exchange-"

func demandExchange(stateDir string) error {
	if err := os.WriteFile(filepath.Join(stateDir, exchangePrefix+newInstance()), nil, 0o600); err != nil {
		return fmt.Errorf("demand that servers are exchanged: %w", err)
	}
	return nil
}

// exchangeDemands lists the files of demands.
func exchangeDemands(stateDir string) []string {
	demands, err := filepath.Glob(filepath.Join(stateDir, exchangePrefix+"*"))
	if err != nil {
		klog.ErrorS(err, "Whether servers are to be exchanged is not known")
	}
	return demands
}

// exchangeAll replaces all servers by ones of this binary, one after the
// other, and fulfils the demands.
func (s *supervisor) exchangeAll(demands []string) {
	for _, v := range s.list() {
		if s.leaving() {
			return
		}
		if session := v.session(); session != nil && !session.CanContinue() {
			klog.InfoS("A server goes on as it is until its volume is unmounted: a connection over its transport cannot be handed over", "volume", v.id(), "transport", session.Transport)
			continue
		}
		status, err := callControl(s.ctx, s.opts.StateDir, v.id(), methodStatus)
		if err != nil {
			klog.ErrorS(err, "A server is not replaced", "volume", v.id())
			continue
		}
		select {
		case v.exchange <- struct{}{}:
		default:
		}
		if err := s.awaitOther(v, status.PID); err != nil {
			klog.ErrorS(err, "A server is not replaced", "volume", v.id())
		}
	}
	if s.leaving() {
		return
	}
	for _, demand := range demands {
		if err := removeFile(demand); err != nil {
			klog.ErrorS(err, "The next mountd exchanges the servers once more")
		}
	}
}

// awaitOther returns when another process than pid serves the volume.
func (s *supervisor) awaitOther(v *volume, pid int) error {
	ctx, cancel := context.WithTimeout(s.ctx, exchangeTimeout)
	defer cancel()
	for {
		status, err := callControl(ctx, s.opts.StateDir, v.id(), methodStatus)
		if err == nil && status.PID != pid {
			return nil
		}
		select {
		case <-v.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("process %d still serves it", pid)
		case <-time.After(keeperPoll):
		}
	}
}
