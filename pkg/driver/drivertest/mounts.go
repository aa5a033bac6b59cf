// Package drivertest has what tests of the driver need: fakes of what it works
// with, and the CSI sanity suite as a function.
package drivertest

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
)

// Mounts is a mount table in memory. Unlike mount.FakeMounter, mounts can lie
// on top of each other, a bind mount keeps the type of its source, and mounts
// can be dead or hang. It is safe for concurrent use.
type Mounts struct {
	mount.Interface // nil: what the driver does not use panics

	mu       sync.Mutex
	table    []mount.MountPoint
	bad      map[string]error // path -> what every question is answered with
	hang     map[string]chan struct{}
	counting map[string]chan struct{}
	failures map[string]error // path -> what Mount says, once
	busy     map[string]error // path -> what Unmount says
	log      []string
}

// NewMounts returns an empty mount table.
func NewMounts() *Mounts {
	return &Mounts{bad: map[string]error{}, hang: map[string]chan struct{}{}, counting: map[string]chan struct{}{}, failures: map[string]error{}, busy: map[string]error{}}
}

// Mount implements mount.Interface for bind mounts.
func (m *Mounts) Mount(source, target, fstype string, options []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	source, target = real(source), real(target)
	m.log = append(m.log, "mount "+target)
	if err := m.failures[target]; err != nil {
		delete(m.failures, target)
		return err
	}
	mp := mount.MountPoint{Device: source, Path: target, Type: fstype}
	if slices.Contains(options, "bind") {
		below := m.top(source)
		if below == nil {
			return fmt.Errorf("%s is not a mount point: this bind mount would show an empty directory", source)
		}
		mp.Device, mp.Type = below.Device, below.Type
		if err := m.bad[source]; err != nil {
			m.bad[target] = err
		}
	}
	for _, option := range options {
		if option != "bind" {
			mp.Opts = append(mp.Opts, option)
		}
	}
	m.table = append(m.table, mp)
	return nil
}

// Unmount implements mount.Interface.
func (m *Mounts) Unmount(target string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	target = real(target)
	m.log = append(m.log, "unmount "+target)
	if err := m.busy[target]; err != nil {
		return err
	}
	for i := len(m.table) - 1; i >= 0; i-- {
		if m.table[i].Path == target {
			m.table = slices.Delete(m.table, i, i+1)
			if m.top(target) == nil {
				delete(m.bad, target)
			}
			return nil
		}
	}
	return fmt.Errorf("%s: %w", target, unix.EINVAL)
}

// List implements mount.Interface.
func (m *Mounts) List() ([]mount.MountPoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.table), nil
}

// Statfs stands for statfs(2).
func (m *Mounts) Statfs(path string, buf *unix.Statfs_t) error {
	m.mu.Lock()
	counting := m.counting[real(path)]
	m.mu.Unlock()
	if counting != nil {
		<-counting
	}
	if err := m.Ping(path); err != nil {
		return err
	}
	*buf = unix.Statfs_t{Bsize: 4096, Blocks: 1000, Bfree: 600, Bavail: 500, Files: 100, Ffree: 90}
	return nil
}

// Ping stands for mountd.Ping.
func (m *Mounts) Ping(path string) error {
	m.mu.Lock()
	hang, bad, top := m.hang[real(path)], m.bad[real(path)], m.top(real(path))
	m.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if bad != nil {
		return bad
	}
	if top == nil {
		return errors.New("the driver looks into a directory that is not mounted")
	}
	return nil
}

// Add puts a mount on top of what is at path.
func (m *Mounts) Add(device, path, fstype string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.table = append(m.table, mount.MountPoint{Device: device, Path: real(path), Type: fstype})
}

// Break lets every question at path fail with err; nil repairs it.
func (m *Mounts) Break(path string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bad[real(path)] = err
}

// Hang lets every question at path wait until the returned function is called.
func (m *Mounts) Hang(path string) (release func()) { return m.gate(m.hang, path) }

// Count lets statfs at path wait until the returned function is called, as a
// volume does whose totals are not known yet.
func (m *Mounts) Count(path string) (release func()) { return m.gate(m.counting, path) }

func (m *Mounts) gate(gates map[string]chan struct{}, path string) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gate := make(chan struct{})
	gates[real(path)] = gate
	return func() { close(gate) }
}

// FailMount lets the next mount at path fail.
func (m *Mounts) FailMount(path string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures[real(path)] = err
}

// FailUnmount lets unmounts at path fail; nil ends that.
func (m *Mounts) FailUnmount(path string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy[real(path)] = err
}

// At returns how many mounts are at path, and the topmost.
func (m *Mounts) At(path string) (n int, top mount.MountPoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mp := range m.table {
		if mp.Path == real(path) {
			n, top = n+1, mp
		}
	}
	return n, top
}

// TakeLog returns the changes since it was last called, as "mount PATH" and
// "unmount PATH".
func (m *Mounts) TakeLog() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	log := m.log
	m.log = nil
	return log
}

// Reboot forgets all mounts.
func (m *Mounts) Reboot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.table, m.bad = nil, map[string]error{}
}

// breakDevice lets all mounts of a device fail.
func (m *Mounts) breakDevice(device string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mp := range m.table {
		if mp.Device == device {
			m.bad[mp.Path] = err
		}
	}
}

func (m *Mounts) top(path string) *mount.MountPoint {
	for i := len(m.table) - 1; i >= 0; i-- {
		if m.table[i].Path == path {
			return &m.table[i]
		}
	}
	return nil
}

// real is how the kernel would show the path.
func real(path string) string {
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return filepath.Clean(path)
	}
	return filepath.Join(parent, filepath.Base(path))
}
