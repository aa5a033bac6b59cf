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
	methodGrow   = "grow"   // use the whole backing, and further devices
	methodStop   = "stop"   // unmount and end; answered before that begins

	methodProgress = "progress" // how far the threads have come
	methodRequests = "requests" // what the kernel has asked for
	methodHandOver = "handover" // end, and leave the connection to a successor; answered before that begins
	methodHand     = "hand"     // the connection itself, its descriptor along with the answer
)

const (
	maxControlLine = 64 << 10
	// controlIdle is how long a client may keep a connection open without
	// asking anything.
	controlIdle = 10 * time.Second
	// controlTimeout bounds an exchange whose context has no deadline.
	controlTimeout = 30 * time.Second
	// growTimeout is that of a growth onto further devices, which are read
	// throughout to prove that they are blank.
	growTimeout = 10 * time.Minute
)

type controlRequest struct {
	Protocol int    `json:"protocol"`
	Method   string `json:"method"`
	// Devices are further devices that methodGrow takes into use.
	Devices []string `json:"devices,omitempty"`
}

type controlResponse struct {
	Protocol int     `json:"protocol"`
	Error    string  `json:"error,omitempty"`
	Status   *Status `json:"status,omitempty"`
	// Turns are the counters of methodProgress, see fusefs.Progress.
	Turns    []uint64       `json:"turns,omitempty"`
	Requests []RequestStats `json:"requests,omitempty"`
	Held     *Held          `json:"held,omitempty"`

	file *os.File // to be passed along
}

// controlTarget is what a control server speaks for.
type controlTarget interface {
	status() Status
	grow(devices []string) error
	stop()
	handOver()
	progress() []uint64
	requests() []RequestStats
	servedConnection() (*Held, *os.File)
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
		err := writeResponse(c, resp)
		if after != nil {
			after()
		}
		if err != nil {
			return
		}
	}
}

// writeResponse writes a line, and the descriptor that belongs to it.
func writeResponse(c *net.UnixConn, resp controlResponse) error {
	b, err := json.Marshal(resp)
	if err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(append(b, '\n'), rights(resp.file), nil)
	return err
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
		if err := s.target.grow(req.Devices); err != nil {
			return controlResponse{Error: err.Error()}, nil
		}
	case methodStop:
		after = s.target.stop
	case methodHandOver:
		after = s.target.handOver
	case methodProgress:
		return controlResponse{Turns: s.target.progress()}, nil
	case methodRequests:
		return controlResponse{Requests: s.target.requests()}, nil
	case methodHand:
		held, f := s.target.servedConnection()
		return controlResponse{Held: held, file: f}, nil
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
func callControl(ctx context.Context, stateDir, volumeID, method string, devices ...string) (Status, error) {
	resp, err := askControl(ctx, stateDir, volumeID, method, devices...)
	switch {
	case err != nil:
		return Status{}, err
	case resp.Status == nil:
		return Status{}, fmt.Errorf("%s of volume %s: the answer (protocol %d) has no status", method, volumeID, resp.Protocol)
	}
	return *resp.Status, nil
}

// askControl is callControl for any answer.
func askControl(ctx context.Context, stateDir, volumeID, method string, devices ...string) (controlResponse, error) {
	path, err := socketPath(stateDir, volumeID)
	if err != nil {
		return controlResponse{}, err
	}
	limit := controlTimeout
	if len(devices) > 0 {
		limit = growTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	resp, fds, err := askSocket(ctx, path, method, devices...)
	closeAll(fds)
	switch {
	case errors.Is(err, ErrNotServed):
		return controlResponse{}, fmt.Errorf("volume %s: %w", volumeID, err)
	case err != nil && ctx.Err() != nil:
		return controlResponse{}, fmt.Errorf("%s of volume %s: no answer: %w", method, volumeID, ctx.Err())
	case err != nil:
		return controlResponse{}, fmt.Errorf("%s of volume %s: %w", method, volumeID, err)
	case resp.Error != "":
		return controlResponse{}, fmt.Errorf("%s of volume %s: %s", method, volumeID, resp.Error)
	}
	return resp, nil
}

// askSocket asks the process that listens on a control socket. Descriptors
// are the caller's.
func askSocket(ctx context.Context, path, method string, devices ...string) (controlResponse, []int, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if noListener(err) {
		return controlResponse{}, nil, ErrNotServed
	}
	if err != nil {
		return controlResponse{}, nil, fmt.Errorf("control socket: %w", err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(pastDeadline) })
	defer stop()
	return exchange(c.(*net.UnixConn), controlRequest{Protocol: ControlProtocol, Method: method, Devices: devices})
}

func exchange(c *net.UnixConn, req controlRequest) (resp controlResponse, fds []int, err error) {
	if err := json.NewEncoder(c).Encode(req); err != nil {
		return resp, nil, err
	}
	line, fds, err := readLine(c)
	if err == nil {
		err = json.Unmarshal(line, &resp)
	}
	if err != nil {
		closeAll(fds)
		return resp, nil, fmt.Errorf("malformed answer: %w", err)
	}
	return resp, fds, nil
}

// readLine reads one line, and the descriptors that come with it.
func readLine(c *net.UnixConn) (line []byte, fds []int, err error) {
	buf, oob := make([]byte, maxControlLine), make([]byte, unix.CmsgSpace(4*4))
	for n := 0; ; {
		m, oobn, _, _, err := c.ReadMsgUnix(buf[n:], oob)
		if err != nil || m == 0 {
			closeAll(fds)
			return nil, nil, errors.Join(errors.New("the serving process hung up"), err)
		}
		more, err := descriptors(oob[:oobn])
		fds = append(fds, more...)
		if n += m; err != nil || n == len(buf) {
			closeAll(fds)
			return nil, nil, errors.Join(errors.New("the answer is too long"), err)
		}
		if buf[n-1] == '\n' {
			return buf[:n], fds, nil
		}
	}
}
