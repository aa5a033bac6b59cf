package mountd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// Protocol is the version of what keeper, mountd, the processes that serve and
// those that mount say to each other: one JSON object in each packet of a
// SOCK_SEQPACKET Unix socket, with the descriptors that belong to it
// (SCM_RIGHTS). A peer of another version is refused; members are only ever
// added.
const Protocol = 1

// What a message is. A message with an ID is a request, and is answered by
// one with the same ID.
const (
	msgHello  = "hello"  // the first message on a connection to the keeper: Role
	msgPut    = "put"    // Held and its descriptor: hold this, or a newer session of it
	msgDrop   = "drop"   // Instance: its connection has ended
	msgSynced = "synced" // everything that the sender holds has been put
	msgBye    = "bye"    // mountd has nothing left to do, and the keeper neither
	msgRetire = "retire" // a successor has taken over: end, and leave the servers alone

	msgReserve = "reserve" // VolumeID is going to be mounted
	msgServe   = "serve"   // Held and its descriptor: serve this, newly mounted
	msgBusy    = "busy"    // another mountd runs: ask that one

	msgTask     = "task"     // to a server: Held and Resume, with its connection, lock and log
	msgSession  = "session"  // of a server: Session was negotiated
	msgWaiting  = "waiting"  // of a server: started, and waits for msgGo
	msgGo       = "go"       // to a server: the one before has ended
	msgReady    = "ready"    // of a server: it answers
	msgFailed   = "failed"   // of a server: Error is why it does not
	msgReplayed = "replayed" // of a server: Requests had been sent again and are answered

	msgHandedOver = "handedOver" // of a server: it has let go of the volume, and ends

	msgAnswer = "answer" // Error, or none
)

// Roles of the keeper's peers.
const (
	roleMountd    = "mountd"
	roleHolder    = "holder"
	roleSuccessor = "successor"
)

// message is what one packet carries.
type message struct {
	Protocol int             `json:"protocol"`
	Kind     string          `json:"kind"`
	ID       uint64          `json:"id,omitempty"`
	Role     string          `json:"role,omitempty"`
	VolumeID string          `json:"volumeID,omitempty"`
	Instance string          `json:"instance,omitempty"`
	Held     *Held           `json:"held,omitempty"`
	Resume   *resumption     `json:"resume,omitempty"`
	Session  *fusefs.Session `json:"session,omitempty"`
	Requests int             `json:"requests,omitempty"`
	Error    string          `json:"error,omitempty"`
	// ErrorKind tells errors apart that callers look for.
	ErrorKind string `json:"errorKind,omitempty"`
}

const (
	errorInUse = "inUse"
	errorServe = "serve"
)

// setError makes a message say what went wrong; nil is nothing.
func (m *message) setError(err error) {
	if err == nil {
		return
	}
	m.Error = err.Error()
	var serve *ServeError
	switch {
	case errors.As(err, &serve):
		m.Error, m.ErrorKind = serve.Text, errorServe
	case errors.Is(err, ErrInUse):
		m.ErrorKind = errorInUse
	}
}

// err is the error that a message reports about a volume.
func (m *message) err(volumeID string) error {
	switch {
	case m.Error == "":
		return nil
	case m.ErrorKind == errorServe:
		return &ServeError{VolumeID: volumeID, Text: m.Error}
	case m.ErrorKind == errorInUse:
		return &inUseError{m.Error}
	}
	return errors.New(m.Error)
}

// inUseError is an ErrInUse that another process has put into words.
type inUseError struct{ text string }

func (e *inUseError) Error() string { return e.text }
func (e *inUseError) Unwrap() error { return ErrInUse }

const (
	maxPacket = 64 << 10
	// sendTimeout bounds a send to a peer that does not read.
	sendTimeout = 5 * time.Second
)

// link is one end of a connection that carries messages. send may be called
// concurrently, receive by one goroutine.
type link struct {
	conn *net.UnixConn
	mu   sync.Mutex
	buf  []byte
	oob  []byte
}

func newLink(c *net.UnixConn) *link {
	return &link{conn: c, buf: make([]byte, maxPacket), oob: make([]byte, unix.CmsgSpace(4*4))}
}

// inheritLink takes over a descriptor that the parent has left open; nil for
// 0.
func inheritLink(fd int) (*link, error) {
	if fd <= 0 {
		return nil, nil
	}
	return linkOf(inherit(fd, "link"))
}

// linkOf makes a link of a socket. It closes f.
func linkOf(f *os.File) (*link, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("inherited socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("the inherited socket is no Unix socket"), c.Close())
	}
	return newLink(u), nil
}

// linkPair returns both ends of a new connection: one to use, one to pass to a
// child.
func linkPair() (*link, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link")
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("socket pair: %w", err), theirs.Close())
	}
	return newLink(c.(*net.UnixConn)), theirs, nil
}

// dialLink connects to a socket; the error says that nobody listens if
// noListener does.
func dialLink(path string) (*link, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return newLink(c), nil
}

// noListener reports whether err is that of a socket on which nobody listens.
func noListener(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}

func (l *link) Close() error { return l.conn.Close() }

// send writes one message. The descriptors stay the caller's.
func (l *link) send(m message, fds ...int) error {
	m.Protocol = Protocol
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxPacket {
		return fmt.Errorf("message %s of %d bytes is too long", m.Kind, len(b))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	if _, _, err := l.conn.WriteMsgUnix(b, oob, nil); err != nil {
		return fmt.Errorf("send %s: %w", m.Kind, err)
	}
	return nil
}

// receive returns the next message and its descriptors, which are the
// caller's; io.EOF when the peer has gone.
func (l *link) receive() (message, []int, error) {
	n, oobn, flags, _, err := l.conn.ReadMsgUnix(l.buf, l.oob)
	if err != nil {
		if errors.Is(err, unix.ECONNRESET) {
			err = io.EOF
		}
		return message{}, nil, err
	}
	fds, err := descriptors(l.oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("a message was cut off")
	}
	var m message
	if err == nil {
		err = json.Unmarshal(l.buf[:n], &m)
	}
	if err == nil && m.Protocol != Protocol {
		err = fmt.Errorf("the peer speaks protocol %d, this process %d", m.Protocol, Protocol)
	}
	if err != nil {
		closeAll(fds)
		return message{}, nil, fmt.Errorf("malformed message: %w", err)
	}
	return m, fds, nil
}

func descriptors(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range list {
		more, err := unix.ParseUnixRights(&list[i])
		if err != nil {
			closeAll(fds)
			return nil, err
		}
		fds = append(fds, more...)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Files of keeper and mountd in the state directory. No volume's files begin
// like that.
const (
	keeperName = "@keeper"
	mountdName = "@mountd"
)

// serviceSocket is where keeper or mountd listens.
func serviceSocket(stateDir, name string) (string, error) {
	path := filepath.Join(stateDir, name+".sock")
	if len(path) > maxSocketPath {
		return "", fmt.Errorf("socket path %s is longer than %d bytes: use a shorter state directory", path, maxSocketPath)
	}
	return path, nil
}

func serviceLock(stateDir, name string) string { return filepath.Join(stateDir, name+".lock") }

// listenLinks listens on the socket of keeper or mountd, whose lock the caller
// holds: a socket that is there belongs to one that has died.
func listenLinks(stateDir, name string) (*net.UnixListener, error) {
	path, err := serviceSocket(stateDir, name)
	if err != nil {
		return nil, err
	}
	if err := removeFile(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	return l, nil
}

// acceptLinks gives those who connect, and may, to admit until the listener is
// closed, or fails.
func acceptLinks(listener *net.UnixListener, admit func(*link)) error {
	for {
		c, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := checkPeer(c); err != nil {
			klog.ErrorS(err, "Connection refused")
			c.Close()
			continue
		}
		admit(newLink(c))
	}
}
