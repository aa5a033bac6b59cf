package nvfs_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// prepared is an unmounted volume with what prepareTree makes, that a test
// can return to.
type prepared struct {
	clock  testClock
	space  *record.Space
	base   *record.Base
	empty  nvfs.StatFS
	before string // dump
}

func newPrepared(t *testing.T, size uint64) *prepared {
	t.Helper()
	p := &prepared{space: record.New(size, size)}
	format(t, p.space, mkfs.Options{BytesPerInode: 8192})
	m := mount(t, p.space, p.clock.now)
	p.empty = m.totals()
	if err := prepareTree(m); err != nil {
		t.Fatal(err)
	}
	var err error
	if p.before, err = m.dump(); err != nil {
		t.Fatal(err)
	}
	if err := m.unmount(); err != nil {
		t.Fatal(err)
	}
	p.base = p.space.Freeze()
	p.clock.tick()
	return p
}

// TestAbortAfterPanic lets an operation panic at each of its fences, and in
// some of its stores: the volume must stay usable, or be usable after a
// remount when the panic came in the middle of a commit.
func TestAbortAfterPanic(t *testing.T) {
	singleThreaded(t)
	t.Parallel()
	p := newPrepared(t, 16<<20)
	for _, c := range opCases() {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			for k, finished := 0, false; !finished; k++ {
				var err error
				if finished, err = p.panicAt(&c, (*record.Space).AtFence, k); err != nil {
					t.Fatalf("panic at fence %d: %v", k, err)
				}
			}
			for k, finished := 0, false; !finished; k += 5 {
				var err error
				if finished, err = p.panicAt(&c, (*record.Space).AtStore, k); err != nil {
					t.Fatalf("panic in store %d: %v", k, err)
				}
			}
		})
	}
}

var errPanic = errors.New("panic of the test")

// panicAt runs an operation that panics at the k-th point that hook stands
// for. The same operation must then do as if the first attempt had not been.
func (p *prepared) panicAt(c *opCase, hook func(*record.Space, func()), k int) (finished bool, err error) {
	p.space.Reset()
	armed, n := false, 0
	hook(p.space, func() {
		if armed {
			if n == k {
				panic(errPanic)
			}
			n++
		}
	})
	m, err := tryMount(p.space, p.clock.now)
	hook(p.space, nil) // later mounts have none
	if err != nil {
		return false, err
	}
	m.totals()
	armed = true
	finished = m.survive(func() error { return c.run(m) })
	armed = false
	if finished {
		return true, m.unmount()
	}
	p.space.Lint() // what the panic left half-way is no finding
	if _, err := m.dump(); err != nil && !m.fs.ReadOnly() {
		return false, err
	}
	if !m.fs.ReadOnly() {
		if err := c.run(m); !confined(err) || errors.Is(err, syscall.EIO) {
			return false, fmt.Errorf("the next operation: %w", err)
		}
	} else {
		m.End()
		m.Close()
		if err := m.fs.Unmount(); err != nil {
			return false, err
		}
		if m, err = tryMount(p.space, p.clock.now); err != nil {
			return false, err
		}
	}
	if err := m.unmount(); err != nil {
		return false, err
	}
	return false, empties(p.space, p.clock.now, p.empty)
}

// survive runs f like a server that outlives a panic; it reports whether f
// came to its end.
func (m *mounted) survive(f func() error) (finished bool) {
	defer func() {
		if v := recover(); v != nil {
			if v != errPanic {
				panic(v)
			}
			m.Abort()
		}
	}()
	if err := f(); err != nil {
		panic(err)
	}
	return true
}
