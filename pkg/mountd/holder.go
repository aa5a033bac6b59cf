package mountd

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// A process that mounts and stays, the driver, holds every connection as well
// as the keeper does. Each tells the other what it holds when it comes back,
// so either of them may end at any time.

// holder is the second holder.
type holder struct {
	launcher *Launcher
	held     holdings
	wake     chan struct{}

	mu     sync.Mutex
	mountd *link // keeps it from ending; nil: none
}

const (
	holderPause    = 20 * time.Millisecond
	holderMaxPause = 250 * time.Millisecond
	// holderGrace is longer than the keeper takes to tell mountd something.
	holderGrace = 2 * time.Second
)

// Hold makes the launcher a second holder of all connections until ctx ends.
// It is called once, before the first Mount. What it returns waits for the
// end.
func (l *Launcher) Hold(ctx context.Context) (wait func()) {
	h := &holder{launcher: l, wake: make(chan struct{}, 1)}
	l.holder = h
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.run(ctx)
	}()
	return func() { <-done }
}

// hold keeps a connection that was just mounted.
func (l *Launcher) hold(held Held, fd int) {
	if l.holder == nil {
		return
	}
	h := holding{held, fd}
	own, err := h.dup()
	if err != nil {
		klog.ErrorS(err, "The driver does not hold a connection", "volume", held.Spec.VolumeID)
		return
	}
	l.holder.held.put(held, own.fd)
	select {
	case l.holder.wake <- struct{}{}:
	default:
	}
}

// run keeps in touch with the keeper.
func (h *holder) run(ctx context.Context) {
	pause := holderPause
	for ctx.Err() == nil {
		err := h.follow(ctx)
		if err != nil && !errors.Is(err, io.EOF) && !noListener(err) && ctx.Err() == nil {
			klog.ErrorS(err, "The connection to the keeper has failed")
		}
		if errors.Is(err, io.EOF) {
			pause = holderPause
		}
		h.held.sweep()
		if h.held.len() == 0 {
			// Nothing to lose: the next mount brings a keeper.
			select {
			case <-h.wake:
			case <-time.After(holderMaxPause):
			case <-ctx.Done():
			}
			continue
		}
		h.revive(ctx)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, holderMaxPause)
	}
	h.release()
}

// revive brings mountd back, which brings the keeper back, when all of them
// have ended; it is up to others when they are started by others. mountd is
// kept from ending before it has been told that there is something to do.
func (h *holder) revive(ctx context.Context) {
	if h.launcher.opts.External {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keeperDialTimeout)
	defer cancel()
	c, err := h.launcher.connect(ctx)
	if err != nil {
		klog.ErrorS(err, "mountd does not come back")
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mountd != nil {
		h.mountd.Close() // it may be of one that has died since
	}
	h.mountd = c
}

// release lets mountd end when it has nothing to do.
func (h *holder) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mountd != nil {
		h.mountd.Close()
		h.mountd = nil
	}
}

// follow tells the keeper what is held here, and takes what it has, until the
// connection ends.
func (h *holder) follow(ctx context.Context) error {
	path, err := serviceSocket(h.launcher.opts.StateDir, keeperName)
	if err != nil {
		return err
	}
	l, err := dialLink(path)
	if err != nil {
		return err
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.conn.SetReadDeadline(pastDeadline) })
	defer stop()
	if err := l.send(message{Kind: msgHello, Role: roleHolder}); err != nil {
		return err
	}
	if err := l.sendAll(&h.held); err != nil {
		return err
	}
	// mountd has been told, or is within that time.
	grace := time.AfterFunc(holderGrace, h.release)
	defer grace.Stop()
	for {
		m, fds, err := l.receive()
		if err != nil {
			return err
		}
		if m.Kind == msgSynced {
			continue
		}
		if m.Kind == msgPut || m.Kind == msgDrop {
			if _, err := h.held.accept(m, fds); err != nil {
				return err
			}
			continue
		}
		closeAll(fds)
	}
}
