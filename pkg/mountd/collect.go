package mountd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// collectTimeout bounds the question to one server.
const collectTimeout = 2 * time.Second

// collect finds servers that neither keeper nor mountd know of, because both
// ended at once: a server holds its own connection, and gives it away when it
// is asked.
func (s *supervisor) collect() {
	sockets, err := filepath.Glob(filepath.Join(s.opts.StateDir, "*.sock"))
	if err != nil {
		klog.ErrorS(err, "Servers cannot be looked for")
	}
	known := map[string]bool{}
	for _, v := range s.list() {
		known[stateName(v.id())] = true
	}
	for _, socket := range sockets {
		name := strings.TrimSuffix(filepath.Base(socket), ".sock")
		if strings.HasPrefix(name, "@") || known[name] {
			continue
		}
		held, fd, err := s.askFor(socket)
		if err != nil {
			// A server in the foreground has nothing to give, and one that has
			// died leaves its socket.
			klog.V(2).InfoS("A server is not supervised", "socket", socket, "reason", err.Error())
			continue
		}
		if v := s.adopt(held, fd); v != nil {
			go func() { _ = v.shareSession() }() // else with the next keeper
		}
	}
	s.mu.Lock()
	first := !s.adopted
	s.adopted = true
	s.mu.Unlock()
	if demands := exchangeDemands(s.opts.StateDir); first && len(demands) > 0 {
		go s.exchangeAll(demands)
	}
	s.endIfIdle()
}

// askFor gets a server's connection from it.
func (s *supervisor) askFor(socket string) (held Held, fd int, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, collectTimeout)
	defer cancel()
	resp, fds, err := askSocket(ctx, socket, methodHand)
	if err != nil {
		return Held{}, 0, err
	}
	if resp.Held == nil || len(fds) != 1 {
		closeAll(fds)
		return Held{}, 0, errors.New("it holds no connection")
	}
	return *resp.Held, fds[0], nil
}

// servedConnection is what a server gives away of its connection.
func (s *server) servedConnection() (*Held, *os.File) {
	if s.held.Instance == "" || s.transport == nil {
		return nil, nil
	}
	held := s.held
	held.Session = s.transport.Session()
	return &held, s.fuseFile
}

// rights is what passes a descriptor of the file along; nothing for nil.
func rights(f *os.File) []byte {
	if f == nil {
		return nil
	}
	return unix.UnixRights(int(f.Fd()))
}
