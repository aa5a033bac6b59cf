package mountd

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// watchesPerTimeout is how often a server is looked at until it counts as
// hung.
const watchesPerTimeout = 6

// watchdog notices a server that is alive but does not get on: its control
// socket does not answer, or one of its threads has been busy with the same
// request for too long.
type watchdog struct {
	mu    sync.Mutex
	turns []uint64 // of each thread, as last seen
	since []time.Time
	mute  time.Time // since when it has not answered; zero: it does
}

// reset begins anew with another server.
func (w *watchdog) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turns, w.since, w.mute = nil, nil, time.Time{}
}

// note takes what the server says, and returns for how long it has not got on.
func (w *watchdog) note(now time.Time, turns []uint64, err error) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if w.mute.IsZero() {
			w.mute = now
		}
		return now.Sub(w.mute)
	}
	w.mute = time.Time{}
	var longest time.Duration
	since := make([]time.Time, len(turns))
	for i, turn := range turns {
		since[i] = now
		if busy := turn%2 == 1; busy && i < len(w.turns) && w.turns[i] == turn {
			since[i] = w.since[i]
			longest = max(longest, now.Sub(since[i]))
		}
	}
	w.turns, w.since = turns, since
	return longest
}

// watch looks at all servers until mountd ends.
func (s *supervisor) watch() {
	tick := time.NewTicker(s.opts.HangTimeout / watchesPerTimeout)
	defer tick.Stop()
	for {
		select {
		case <-s.ending:
			return
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		var wg sync.WaitGroup
		for _, v := range s.list() {
			wg.Go(func() { s.look(v) })
		}
		wg.Wait()
	}
}

// look kills a server that hangs. What it was doing is sent again to the next
// one.
func (s *supervisor) look(v *volume) {
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.HangTimeout/watchesPerTimeout)
	defer cancel()
	proc, locked, err := findServer(s.opts.StateDir, v.id())
	if err != nil || proc == nil || !locked {
		return // between two servers, or in another PID namespace
	}
	defer proc.Close()
	resp, err := askControl(ctx, s.opts.StateDir, v.id(), methodProgress)
	if s.ctx.Err() != nil {
		return
	}
	stuck := v.watch.note(time.Now(), resp.Turns, err)
	if stuck < s.opts.HangTimeout {
		return
	}
	klog.ErrorS(err, "A server hangs and is killed", "volume", v.id(), "pid", proc.pid, "for", stuck)
	v.mu.Lock()
	if v.daemon != nil && v.daemon.cmd.Process.Pid == proc.pid {
		select {
		case <-v.daemon.hung:
		default:
			close(v.daemon.hung)
		}
	}
	v.mu.Unlock()
	if err := proc.kill(); err != nil {
		klog.ErrorS(err, "A server that hangs cannot be killed; its connection is aborted", "volume", v.id())
		v.abort()
	}
	v.watch.reset()
}
