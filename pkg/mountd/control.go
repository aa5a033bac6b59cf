package mountd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// ControlProtocol is the version of the control protocol: one JSON object per
// line and direction over a Unix socket, answered in order. A server refuses
// other versions; members are only ever added.
const ControlProtocol = 1

// Methods of the control protocol.
const (
	methodStatus = "status" // what the process serves, and how it is
	methodGrow   = "grow"   // use the whole backing
	methodStop   = "stop"   // unmount and end; answered before that begins
)

const (
	maxControlLine = 64 << 10
	// controlIdle is how long a client may keep a connection open without
	// asking anything.
	controlIdle = 10 * time.Second
	// controlTimeout bounds an exchange whose context has no deadline.
	controlTimeout = 30 * time.Second
)

type controlRequest struct {
	Protocol int    `json:"protocol"`
	Method   string `json:"method"`
}

type controlResponse struct {
	Protocol int     `json:"protocol"`
	Error    string  `json:"error,omitempty"`
	Status   *Status `json:"status,omitempty"`
}

// controlTarget is what a control server speaks for.
type controlTarget interface {
	status() Status
	grow() error
	stop()
}

// controlServer answers on a volume's control socket.
type controlServer struct {
	target   controlTarget
	listener *net.UnixListener
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[*net.UnixConn]struct{}
	closed bool
}

// listenControl starts a server. A socket left by a process that died is
// replaced; the caller holds the volume's lock.
func listenControl(stateDir, volumeID string, target controlTarget) (*controlServer, error) {
	path, err := socketPath(stateDir, volumeID)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	s := &controlServer{target: target, listener: l, conns: map[*net.UnixConn]struct{}{}}
	s.wg.Add(1)
	go s.accept()
	return s, nil
}

// Close removes the socket and ends all connections.
func (s *controlServer) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	err := s.listener.Close() // removes the socket, too
	s.wg.Wait()
	return err
}

func (s *controlServer) accept() {
	defer s.wg.Done()
	for {
		c, err := s.listener.AcceptUnix()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				klog.ErrorS(err, "Control socket failed")
			}
			return
		}
		if s.add(c) {
			go s.serve(c)
		}
	}
}

func (s *controlServer) add(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.Close()
		return false
	}
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	return true
}

func (s *controlServer) remove(c *net.UnixConn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	c.Close()
	s.wg.Done()
}

func (s *controlServer) serve(c *net.UnixConn) {
	defer s.remove(c)
	if err := checkPeer(c); err != nil {
		klog.ErrorS(err, "Control connection refused")
		return
	}
	lines := bufio.NewScanner(c)
	lines.Buffer(nil, maxControlLine)
	for {
		if err := c.SetDeadline(time.Now().Add(controlIdle)); err != nil || !lines.Scan() {
			return
		}
		resp, after := s.answer(lines.Bytes())
		resp.Protocol = ControlProtocol
		// Growing may have taken longer than the deadline.
		if err := c.SetDeadline(time.Now().Add(controlIdle)); err != nil {
			return
		}
		err := json.NewEncoder(c).Encode(resp)
		if after != nil {
			after()
		}
		if err != nil {
			return
		}
	}
}

// answer executes a request. What it returns as after, if anything, is done
// once the answer is on its way: the process may end by it.
func (s *controlServer) answer(line []byte) (resp controlResponse, after func()) {
	var req controlRequest
	if err := json.Unmarshal(line, &req); err != nil {
		return controlResponse{Error: fmt.Sprintf("malformed request: %v", err)}, nil
	}
	if req.Protocol != ControlProtocol {
		return controlResponse{Error: fmt.Sprintf("control protocol %d is not supported: this process speaks %d", req.Protocol, ControlProtocol)}, nil
	}
	switch req.Method {
	case methodStatus:
	case methodGrow:
		if err := s.target.grow(); err != nil {
			return controlResponse{Error: err.Error()}, nil
		}
	case methodStop:
		after = s.target.stop
	default:
		return controlResponse{Error: fmt.Sprintf("unknown method %q", req.Method)}, nil
	}
	st := s.target.status()
	return controlResponse{Status: &st}, after
}

// checkPeer admits root and the user this process runs as.
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("peer credentials: %w", credErr)
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d (process %d) may not control volumes", cred.Uid, cred.Pid)
	}
	return nil
}

// callControl asks a volume's serving process; ErrNotServed when there is
// none.
func callControl(ctx context.Context, stateDir, volumeID, method string) (Status, error) {
	path, err := socketPath(stateDir, volumeID)
	if err != nil {
		return Status{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return Status{}, fmt.Errorf("volume %s: %w", volumeID, ErrNotServed)
	}
	if err != nil {
		return Status{}, fmt.Errorf("control socket of volume %s: %w", volumeID, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	resp, err := exchange(c, controlRequest{Protocol: ControlProtocol, Method: method})
	switch {
	case err != nil && ctx.Err() != nil:
		return Status{}, fmt.Errorf("%s of volume %s: no answer: %w", method, volumeID, ctx.Err())
	case err != nil:
		return Status{}, fmt.Errorf("%s of volume %s: %w", method, volumeID, err)
	case resp.Error != "":
		return Status{}, fmt.Errorf("%s of volume %s: %s", method, volumeID, resp.Error)
	case resp.Status == nil:
		return Status{}, fmt.Errorf("%s of volume %s: the answer (protocol %d) has no status", method, volumeID, resp.Protocol)
	}
	return *resp.Status, nil
}

func exchange(c net.Conn, req controlRequest) (controlResponse, error) {
	var resp controlResponse
	if err := json.NewEncoder(c).Encode(req); err != nil {
		return resp, err
	}
	lines := bufio.NewScanner(c)
	lines.Buffer(nil, maxControlLine)
	if !lines.Scan() {
		if err := lines.Err(); err != nil {
			return resp, err
		}
		return resp, errors.New("the serving process hung up")
	}
	if err := json.Unmarshal(lines.Bytes(), &resp); err != nil {
		return resp, fmt.Errorf("malformed answer: %w", err)
	}
	return resp, nil
}
