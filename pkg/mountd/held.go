package mountd

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// Held is a FUSE connection as it is kept for the processes that serve it, one
// after the other: everything that a successor needs but the descriptor, which
// goes along with it.
type Held struct {
	Instance string `json:"instance"` // one mount of a volume; random
	Spec     Spec   `json:"spec"`
	// Connection is the connection's number in /sys/fs/fuse/connections; 0
	// when it is not known.
	Connection int `json:"connection"`
	// Session is what was negotiated; nil before that.
	Session *fusefs.Session `json:"session,omitempty"`
	// LogDir gets the log of the serving processes; RemoveLog removes it when
	// the volume was unmounted without any error.
	LogDir    string `json:"logDir,omitempty"`
	RemoveLog bool   `json:"removeLog,omitempty"`
}

// connectionAlive reports whether a connection is still mounted and was not
// aborted. It never waits on the descriptor: whoever does is woken by each
// request.
func connectionAlive(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd)}}
	for {
		n, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		return err == nil && (n == 0 || fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) == 0)
	}
}

// holdings are the connections that a process holds. It is safe for concurrent
// use.
type holdings struct {
	mu      sync.Mutex
	entries map[string]*holding // by instance
}

type holding struct {
	Held
	fd int
}

// put holds a connection, or takes note of the session of one that is held,
// and reports whether that is new. fd becomes the holdings'; a connection that
// has ended is not held.
func (h *holdings) put(held Held, fd int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.entries[held.Instance]
	if known == nil {
		if !connectionAlive(fd) {
			_ = unix.Close(fd)
			return false
		}
		if h.entries == nil {
			h.entries = map[string]*holding{}
		}
		h.entries[held.Instance] = &holding{held, fd}
		return true
	}
	_ = unix.Close(fd)
	if known.Session != nil || held.Session == nil {
		return false
	}
	known.Session = held.Session
	return true
}

// drop lets go of a connection, and reports whether it was held.
func (h *holdings) drop(instance string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.entries[instance]
	if known == nil {
		return false
	}
	_ = unix.Close(known.fd)
	delete(h.entries, instance)
	return true
}

// sweep lets go of connections that have ended, and returns their instances.
func (h *holdings) sweep() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var gone []string
	for instance, e := range h.entries {
		if !connectionAlive(e.fd) {
			_ = unix.Close(e.fd)
			delete(h.entries, instance)
			gone = append(gone, instance)
		}
	}
	return gone
}

func (h *holdings) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.entries)
}

// get returns a held connection with a descriptor of the caller's own.
func (h *holdings) get(instance string) (holding, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[instance]
	if e == nil {
		return holding{}, fmt.Errorf("connection %s is not held", instance)
	}
	return e.dup()
}

// all returns what is held, with descriptors of the caller's own. One that
// cannot be duplicated is left out.
func (h *holdings) all() []holding {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []holding
	for _, e := range h.entries {
		if d, err := e.dup(); err == nil {
			list = append(list, d)
		}
	}
	return list
}

func (h *holding) dup() (holding, error) {
	fd, err := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return holding{}, fmt.Errorf("duplicate a FUSE connection: %w", err)
	}
	return holding{h.Held, fd}, nil
}

// sendHeld puts a connection to a peer.
func (l *link) sendHeld(e holding, id uint64) error {
	return l.send(message{Kind: msgPut, ID: id, Held: &e.Held}, e.fd)
}

// sendAll puts everything that is held, and says so.
func (l *link) sendAll(h *holdings) error {
	for _, e := range h.all() {
		err := l.sendHeld(e, 0)
		_ = unix.Close(e.fd)
		if err != nil {
			return err
		}
	}
	return l.send(message{Kind: msgSynced})
}

// accept takes what a peer puts or drops, and reports whether it was news.
func (h *holdings) accept(m message, fds []int) (news bool, err error) {
	switch {
	case m.Kind == msgPut && m.Held != nil && len(fds) == 1:
		return h.put(*m.Held, fds[0]), nil
	case m.Kind == msgDrop && len(fds) == 0:
		return h.drop(m.Instance), nil
	}
	closeAll(fds)
	return false, fmt.Errorf("message %s with %d descriptors does not belong here", m.Kind, len(fds))
}
