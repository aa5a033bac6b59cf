package mountd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// The keeper does as little as possible, so that nothing can make it fail: it
// holds the FUSE connections of a node, hands them to whoever may have them,
// and restarts mountd, which does the rest.

// KeeperOptions configure RunKeeper.
type KeeperOptions struct {
	StateDir string // "" is DefaultStateDir
	LogDir   string // of mountd; "" lets it write to the keeper's standard error
	// Executable is started as mountd with Args; "" is ServingProgram.
	Executable string
	Args       []string
	// OnDemand ends the keeper when nothing is mounted any more; otherwise it
	// stays, and takes over from a keeper that runs already.
	OnDemand bool
	// LinkFD is the descriptor of a connection to a first peer; 0: none.
	LinkFD int
}

const (
	keeperOOMScore = -1000
	sweepInterval  = 5 * time.Second
	// restartPause is ten times as long for a mountd that has failed early, so
	// that it does not use up a CPU.
	restartPause = 50 * time.Millisecond
	failedEarly  = time.Second
	// retireTimeout bounds how long a predecessor takes to hand everything
	// over.
	retireTimeout = 10 * time.Second
)

// keeper is the state of RunKeeper.
type keeper struct {
	opts     KeeperOptions
	held     holdings
	listener *net.UnixListener
	lock     *os.File

	mu      sync.Mutex
	peers   map[*keeperPeer]struct{}
	retired bool
	// ending is closed when the keeper is to end.
	ending  chan struct{}
	endOnce sync.Once
}

type keeperPeer struct {
	*link
	role string
}

// RunKeeper holds FUSE connections until ctx ends, a successor has taken over,
// or, on demand, there are none any more. The connections it holds end with it
// unless others hold them, too.
func RunKeeper(ctx context.Context, o KeeperOptions) error {
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	signal.Ignore(unix.SIGPIPE)
	if err := makeStateDir(o.StateDir); err != nil {
		return err
	}
	setOOMScore("self", keeperOOMScore)
	k := &keeper{opts: o, peers: map[*keeperPeer]struct{}{}, ending: make(chan struct{})}
	if done, err := k.claim(ctx); done || err != nil {
		return err
	}
	defer k.release()
	if err := writePID(k.lock, os.Getpid()); err != nil {
		return err
	}
	first, err := inheritLink(o.LinkFD)
	if err != nil {
		return err
	}
	if k.listener, err = listenLinks(o.StateDir, keeperName); err != nil {
		return err
	}
	if first != nil {
		k.admit(first)
	}
	go k.listen()
	go k.superviseMountd(ctx)
	k.wait(ctx)
	return nil
}

// claim makes this process the node's only keeper. It takes over from one that
// runs, but on demand: then there is nothing to do.
func (k *keeper) claim(ctx context.Context) (done bool, err error) {
	k.lock, err = lockNamed(serviceLock(k.opts.StateDir, keeperName))
	if err == nil {
		return false, nil
	}
	if !errors.Is(err, errLocked) || k.opts.OnDemand {
		if errors.Is(err, errLocked) {
			return true, nil
		}
		return false, err
	}
	if err := k.succeed(); err != nil {
		return false, fmt.Errorf("take over from the keeper that runs: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, retireTimeout)
	defer cancel()
	k.lock, err = awaitLock(ctx, serviceLock(k.opts.StateDir, keeperName))
	return false, err
}

// succeed fetches everything from the keeper that runs, which then retires.
func (k *keeper) succeed() error {
	path, err := serviceSocket(k.opts.StateDir, keeperName)
	if err != nil {
		return err
	}
	l, err := dialLink(path)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.conn.SetReadDeadline(time.Now().Add(retireTimeout)); err != nil {
		return err
	}
	if err := l.send(message{Kind: msgHello, Role: roleSuccessor}); err != nil {
		return err
	}
	for {
		m, fds, err := l.receive()
		if err != nil {
			return err
		}
		if m.Kind == msgSynced {
			klog.InfoS("Took over from another keeper", "connections", k.held.len())
			if err := demandExchange(k.opts.StateDir); err != nil {
				return err
			}
			return l.send(message{Kind: msgRetire})
		}
		if _, err := k.held.accept(m, fds); err != nil {
			return err
		}
	}
}

// wait returns when the keeper is to end. As the first process of a container
// it must not go before those that were started in it have.
func (k *keeper) wait(ctx context.Context) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	defer signal.Stop(children)
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.ending:
			return
		case <-children:
			if os.Getpid() == 1 {
				reapOrphans()
			}
		case <-tick.C:
			if os.Getpid() == 1 {
				reapOrphans()
			}
			for _, instance := range k.held.sweep() {
				k.broadcast(nil, message{Kind: msgDrop, Instance: instance}, -1)
			}
		}
	}
}

// reapOrphans takes note of the end of processes whose parent has gone. mountd
// itself is waited for by who started it, so its end is left alone here.
func reapOrphans() {
	for {
		var info unix.Siginfo
		if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
			return
		}
		pid := siginfoPID(&info)
		if pid == 0 || pid == int(mountdPID.Load()) {
			return
		}
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
}

// release gives up being the keeper.
func (k *keeper) release() {
	k.mu.Lock()
	retired := k.retired
	for p := range k.peers {
		p.Close()
	}
	k.mu.Unlock()
	if k.listener != nil && !retired {
		k.listener.Close() // removes the socket, too
	}
	if k.lock != nil && !retired {
		k.removeLog()
		_ = unlockNamed(k.lock)
	}
}

// removeLog removes a log that says nothing.
func (k *keeper) removeLog() {
	for _, name := range []string{keeperName, mountdName} {
		removeEmptyLog(k.opts.LogDir, name)
	}
}

func (k *keeper) end() { k.endOnce.Do(func() { close(k.ending) }) }

func (k *keeper) listen() {
	if err := acceptLinks(k.listener, k.admit); err != nil {
		klog.ErrorS(err, "The keeper's socket failed")
		k.end()
	}
}

// admit serves a peer.
func (k *keeper) admit(l *link) {
	p := &keeperPeer{link: l}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.retired {
		l.Close()
		return
	}
	k.peers[p] = struct{}{}
	go k.serve(p)
}

func (k *keeper) serve(p *keeperPeer) {
	err := k.converse(p)
	k.mu.Lock()
	delete(k.peers, p)
	k.mu.Unlock()
	p.Close()
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		klog.ErrorS(err, "Peer failed", "role", p.role)
	}
}

// converse tells a peer what is held, and takes what it has.
func (k *keeper) converse(p *keeperPeer) error {
	for {
		m, fds, err := p.receive()
		if err != nil {
			return err
		}
		switch m.Kind {
		case msgHello:
			k.mu.Lock()
			p.role = m.Role
			k.mu.Unlock()
			if err := p.sendAll(&k.held); err != nil {
				return err
			}
		case msgSynced:
		case msgBye:
			if k.opts.OnDemand && k.held.len() == 0 {
				k.end()
			}
		case msgRetire:
			k.retire()
			return nil
		default:
			if err := k.take(p, m, fds); err != nil {
				return err
			}
		}
	}
}

// take holds or drops what a peer says, and tells the others.
func (k *keeper) take(p *keeperPeer, m message, fds []int) error {
	news, err := k.held.accept(m, fds)
	if err != nil {
		return err
	}
	if m.ID != 0 {
		if err := p.send(message{Kind: msgAnswer, ID: m.ID}); err != nil {
			return err
		}
	}
	if !news {
		return nil
	}
	if m.Kind == msgDrop {
		k.broadcast(p, message{Kind: msgDrop, Instance: m.Instance}, -1)
		return nil
	}
	e, err := k.held.get(m.Held.Instance)
	if err != nil {
		return nil // dropped since
	}
	k.broadcast(p, message{Kind: msgPut, Held: &e.Held}, e.fd)
	return unix.Close(e.fd)
}

// broadcast tells all peers but one. A peer that does not read is cut off; it
// comes back and gets everything.
func (k *keeper) broadcast(but *keeperPeer, m message, fd int) {
	k.mu.Lock()
	var to []*keeperPeer
	for p := range k.peers {
		if p != but && p.role != "" {
			to = append(to, p)
		}
	}
	k.mu.Unlock()
	for _, p := range to {
		var err error
		if fd >= 0 {
			err = p.send(m, fd)
		} else {
			err = p.send(m)
		}
		if err != nil {
			p.Close()
		}
	}
}

// retire gives everything up to a successor. The servers that were started in
// this process's container end with it, so it stays until they have.
func (k *keeper) retire() {
	k.mu.Lock()
	k.retired = true
	peers := k.peers
	k.peers = map[*keeperPeer]struct{}{}
	k.mu.Unlock()
	k.listener.Close()
	for p := range peers {
		if p.role == roleMountd {
			_ = p.send(message{Kind: msgRetire})
		} else if p.role != roleSuccessor {
			p.Close()
		}
	}
	_ = k.lock.Close()
	klog.InfoS("A successor has taken over")
	go func() {
		awaitChildren()
		k.end()
	}()
}

// awaitChildren returns when this process has no children left.
func awaitChildren() {
	for {
		_, err := unix.Wait4(-1, nil, 0, nil)
		if err != nil && err != unix.EINTR {
			return
		}
	}
}

func setOOMScore(pid string, score int) {
	if err := os.WriteFile("/proc/"+pid+"/oom_score_adj", []byte(strconv.Itoa(score)), 0); err != nil {
		klog.V(2).InfoS("The OOM score stays as it is", "process", pid, "reason", err.Error())
	}
}
