package mountd

import (
	"sync"

	"k8s.io/klog/v2"
)

// spare is a serving process that is started ahead of need, because the start
// takes longer than all else that a mount, or going on after the death of a
// server, consists of. There is at most one; it holds a few MiB.
type spare struct {
	mu     sync.Mutex
	ready  *daemon // nil: none at present
	coming bool    // one is being started
	ended  bool
	wg     sync.WaitGroup
}

// take returns the spare process, which then is the caller's; nil when there
// is none.
func (p *spare) take() *daemon {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.ready
	p.ready = nil
	if d != nil && !d.running() {
		d.close()
		return nil
	}
	return d
}

// refill starts a spare process in the background where there is none.
func (p *spare) refill(launch func() (*daemon, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.coming || p.ended || p.ready != nil && p.ready.running() {
		return
	}
	if p.ready != nil {
		p.ready.close() // it has died
		p.ready = nil
	}
	p.coming = true
	p.wg.Go(func() {
		d, err := launch()
		if err != nil {
			klog.V(2).InfoS("No spare serving process", "reason", err.Error())
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ready, p.coming = d, false
	})
}

// end ends the spare process, for good.
func (p *spare) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.wg.Wait()
	if d := p.take(); d != nil {
		d.kill()
		d.close()
	}
}
