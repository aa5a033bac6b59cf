package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/numa"
)

const (
	// DefaultInterval is how often the health of the memory is looked at, and
	// whether the kubelet is still the same.
	DefaultInterval = 10 * time.Second
	// retryInterval is how soon what has failed is tried again.
	retryInterval = time.Second
	// sourceTimeout bounds one question for the health of the memory.
	sourceTimeout = 10 * time.Second
)

// Options say where everything is.
type Options struct {
	Dir      string        // the kubelet's directory for device plugins
	SysFS    string        // /sys when empty
	Interval time.Duration // DefaultInterval when 0
}

// Source returns the NUMA nodes that have persistent memory, each with whether any
// of it can be used. It must not return the node -1.
type Source func(ctx context.Context) (map[int]bool, error)

// plugin is what Run works on.
type plugin struct {
	Options
	source    Source
	resources map[int]*resource
	watch     *dirWatch
	logged    string // the last problem, which is not logged again
}

// Run offers the resources to the kubelet until ctx ends. Nothing that fails ends
// it: the kubelet may come later, and so may memory. A NUMA node whose memory
// disappears stays, with all tokens unhealthy.
func Run(ctx context.Context, o Options, source Source) {
	if o.SysFS == "" {
		o.SysFS = string(numa.System)
	}
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	p := &plugin{Options: o, source: source, resources: map[int]*resource{}}
	defer p.end()
	for {
		// Before the sockets are looked at, or what changes meanwhile is missed.
		watchErr := p.watchDir()
		err := errors.Join(watchErr, p.refresh(ctx), p.keep(ctx))
		if ctx.Err() != nil {
			return
		}
		p.log(err)
		p.wait(ctx, err != nil)
		if ctx.Err() != nil {
			return
		}
	}
}

func (p *plugin) end() {
	for _, r := range p.resources {
		r.remove()
	}
	if p.watch != nil {
		p.watch.close()
	}
}

func (p *plugin) watchDir() error {
	if p.watch != nil && p.watch.alive() {
		return nil
	}
	if p.watch != nil {
		p.watch.close()
		p.watch = nil
	}
	watch, err := watchDir(p.Dir)
	if err != nil {
		return err
	}
	p.watch = watch
	return nil
}

// refresh asks for the memory. When nobody can say how it is, it stays as it was.
func (p *plugin) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	nodes, err := p.source(ctx)
	if err != nil {
		return fmt.Errorf("NUMA nodes with persistent memory: %w", err)
	}
	for node, healthy := range nodes {
		if r := p.resources[node]; r != nil {
			r.setHealthy(healthy)
			continue
		}
		near := numa.Topology(p.SysFS).Nearest(node)
		klog.InfoS("A NUMA node has persistent memory", "numaNode", node, "hint", near, "healthy", healthy)
		p.resources[node] = newResource(p.Dir, node, near, healthy)
	}
	for node, r := range p.resources {
		if _, there := nodes[node]; !there {
			r.setHealthy(false)
		}
	}
	return nil
}

func (p *plugin) keep(ctx context.Context) error {
	var errs []error
	for _, r := range p.resources {
		errs = append(errs, r.keep(ctx, filepath.Join(p.Dir, "kubelet.sock")))
	}
	return errors.Join(errs...)
}

// log logs a problem once.
func (p *plugin) log(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if err != nil && text != p.logged {
		klog.ErrorS(err, "The kubelet does not know all NUMA nodes with persistent memory; it is told as soon as possible", "directory", p.Dir)
	}
	p.logged = text
}

// wait returns when there may be something to do.
func (p *plugin) wait(ctx context.Context, failed bool) {
	after := p.Interval
	if failed {
		after = min(after, retryInterval)
	}
	timer := time.NewTimer(after)
	defer timer.Stop()
	var changed chan struct{}
	if p.watch != nil {
		changed = p.watch.changed
	}
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-changed:
	}
}
