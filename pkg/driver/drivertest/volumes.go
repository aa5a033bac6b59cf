package drivertest

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// Volumes is a driver.VolumeFormatter in memory. Like persistent memory it
// keeps what was on a path when the namespace is destroyed and made again. It
// is safe for concurrent use.
type Volumes struct {
	mu       sync.Mutex
	content  map[string]driver.Found
	probeE   map[string]error
	formatE  []error
	formats  int
	zeroE    []error
	zeroFrom []uint64
	gate     chan struct{}
	entered  chan struct{}
	step     uint64
	steps    int
}

var _ driver.VolumeFormatter = (*Volumes)(nil)

// NewVolumes returns a formatter on which everything is blank.
func NewVolumes() *Volumes {
	return &Volumes{content: map[string]driver.Found{}, probeE: map[string]error{}, step: 1 << 30, steps: 1}
}

// Probe implements driver.VolumeFormatter.
func (v *Volumes) Probe(ctx context.Context, path string) (driver.Found, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.probeE[path]; err != nil {
		return driver.Found{}, err
	}
	if found, ok := v.content[path]; ok {
		return found, ctx.Err()
	}
	return driver.Found{Content: driver.ContentBlank}, ctx.Err()
}

// Format implements driver.VolumeFormatter.
func (v *Volumes) Format(ctx context.Context, path string, options driver.FormatOptions) error {
	if entered := v.takeEntered(); entered != nil {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.formatE) > 0 {
		err := v.formatE[0]
		v.formatE = v.formatE[1:]
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if found, ok := v.content[path]; ok && found.Content != driver.ContentBlank && !options.Wipe {
		return errors.New("not blank")
	}
	v.formats++
	v.content[path] = driver.Found{Content: driver.ContentNVFS, VolumeID: options.VolumeID, Params: maps.Clone(options.Params)}
	return nil
}

// Zero implements driver.VolumeFormatter. With Hold it waits before each step.
func (v *Volumes) Zero(ctx context.Context, path string, from uint64, progress func(to uint64)) error {
	v.mu.Lock()
	v.zeroFrom = append(v.zeroFrom, from)
	gate, step, steps := v.gate, v.step, v.steps
	v.mu.Unlock()
	for i := range steps {
		if gate != nil {
			select {
			case <-gate:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		progress(from + uint64(i+1)*step)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.zeroE) > 0 {
		err := v.zeroE[0]
		v.zeroE = v.zeroE[1:]
		return err
	}
	delete(v.content, path)
	return ctx.Err()
}

// Put says what is at path.
func (v *Volumes) Put(path string, found driver.Found) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.content[path] = found
}

// FailProbe lets probes of path fail; nil ends that.
func (v *Volumes) FailProbe(path string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.probeE[path] = err
}

// FailFormat lets the next Format fail.
func (v *Volumes) FailFormat(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.formatE = append(v.formatE, err)
}

// HoldFormat lets the next Format wait until its context ends. The channel is
// closed when it has begun.
func (v *Volumes) HoldFormat() (entered <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.entered = make(chan struct{})
	return v.entered
}

func (v *Volumes) takeEntered() chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	entered := v.entered
	v.entered = nil
	return entered
}

// FailZero lets the next Zero fail at its end.
func (v *Volumes) FailZero(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.zeroE = append(v.zeroE, err)
}

// Hold makes an erasure take this many steps of 1 GiB, each of which waits
// until one value is sent to, or the channel closed by, the caller.
func (v *Volumes) Hold(steps int) chan<- struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	gate := make(chan struct{})
	v.gate, v.steps = gate, steps
	return gate
}

// Formats returns how many volumes were formatted.
func (v *Volumes) Formats() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.formats
}

// ZeroedFrom returns at which offsets erasures began.
func (v *Volumes) ZeroedFrom() []uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]uint64(nil), v.zeroFrom...)
}
