package mountd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// What a server does to go on where another one has ended.

// goTimeout bounds how long a server waits for the end of the one before.
const goTimeout = 2 * exchangeTimeout

// awaitGo waits, if that was asked for, until the server before has ended.
func (s *server) awaitGo() error {
	if !s.resume.Wait || s.link == nil {
		return nil
	}
	if err := s.link.send(message{Kind: msgWaiting}); err != nil {
		return err
	}
	m, fds, err := s.link.receiveWithin(goTimeout)
	closeAll(fds)
	if err != nil || m.Kind != msgGo {
		return errors.Join(errors.New("the supervisor did not say go"), err)
	}
	return nil
}

// receiveWithin is receive that waits no longer than d.
func (l *link) receiveWithin(d time.Duration) (message, []int, error) {
	if err := l.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		return message{}, nil, err
	}
	defer l.conn.SetReadDeadline(time.Time{})
	return l.receive()
}

// resumedID is the ID of the connection that is continued; 0: none.
func (s *server) resumedID() uint64 {
	if s.resume.First || s.held.Session == nil {
		return 0
	}
	return s.held.Session.ConnID
}

// continueConnection adds to the options of a transport what it takes to go on
// with a connection that another process has served.
func (s *server) continueConnection(o *fusefs.Options) error {
	o.Session = s.held.Session
	if s.resume.First {
		return nil
	}
	note, err := openReplayNote(s.opts.StateDir, s.held.Spec.VolumeID)
	if err != nil {
		return err
	}
	s.replay = note
	o.Resume = &fusefs.Resume{Refuse: s.resume.Refuse, Executing: note.executing, Done: s.replayed}
	return nil
}

// sessionTimeout bounds how long the supervisor takes to save a session.
const sessionTimeout = 10 * time.Second

// saveSession makes sure that a successor knows the session before the kernel
// does.
func (s *server) saveSession(session fusefs.Session) error {
	if s.link == nil {
		return nil
	}
	if err := s.link.send(message{Kind: msgSession, Session: &session}); err != nil {
		return fmt.Errorf("save the session: %w", err)
	}
	m, fds, err := s.link.receiveWithin(sessionTimeout)
	closeAll(fds)
	if err != nil || m.Kind != msgAnswer {
		return errors.Join(errors.New("the supervisor has not saved the session"), err)
	}
	return nil
}

// replayed is called when everything that was sent again is answered, before
// anything else is.
func (s *server) replayed(requests int) {
	klog.V(2).InfoS("Went on with a connection", "volume", s.held.Spec.VolumeID, "requestsSentAgain", requests)
	if s.link != nil {
		_ = s.link.send(message{Kind: msgReplayed, Requests: requests})
	}
	if r, ok := s.volume.(Resumable); ok {
		s.orphans.start(r, s.fuseFile.Fd())
	}
}

// replayNote is the file in which a server notes which request it is about to
// execute of those that were sent again: if it does not survive that, it is
// known which request it was.
type replayNote struct{ f *os.File }

func openReplayNote(stateDir, volumeID string) (*replayNote, error) {
	f, err := os.OpenFile(replayPath(stateDir, volumeID), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("note of the request being executed: %w", err)
	}
	return &replayNote{f}, nil
}

func (n *replayNote) executing(unique uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], unique)
	if _, err := n.f.WriteAt(b[:], 0); err != nil {
		klog.ErrorS(err, "The request being executed is not noted")
	}
}

func (n *replayNote) close() {
	if n != nil {
		n.f.Close()
	}
}

// orphans are files without a name of a connection that was taken over. How
// often the kernel has looked them up is not known, so it is asked whether it
// still uses them.
type orphans struct {
	mu     sync.Mutex
	queue  []nvfs.NodeID
	wake   chan struct{} // nil before start
	ending chan struct{}
	wg     sync.WaitGroup
}

// add queues a file of which the last user may have gone.
func (o *orphans) add(id nvfs.NodeID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue = append(o.queue, id)
	if o.wake != nil {
		select {
		case o.wake <- struct{}{}:
		default:
		}
	}
}

// start ends the resumption, for which nobody has to wait, asks about all that
// were there before, and then about those that are added, until stop.
func (o *orphans) start(r Resumable, fd uintptr) {
	o.mu.Lock()
	o.wake, o.ending = make(chan struct{}, 1), make(chan struct{})
	o.mu.Unlock()
	o.wg.Add(1)
	go func() {
		defer o.wg.Done()
		if err := r.EndResume(); err != nil {
			klog.ErrorS(err, "The volume keeps answers that nobody asks for")
		}
		if o.stopping() {
			return
		}
		list, err := r.Orphans()
		if err != nil {
			klog.ErrorS(err, "Deleted files are kept until the volume is unmounted")
		}
		for {
			for _, id := range list {
				if o.stopping() {
					return
				}
				o.release(r, fd, id)
			}
			if list = o.take(); list != nil {
				continue
			}
			select {
			case <-o.wake:
			case <-o.ending:
				return
			}
		}
	}()
}

func (o *orphans) stopping() bool {
	select {
	case <-o.ending:
		return true
	default:
		return false
	}
}

func (o *orphans) take() []nvfs.NodeID {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.queue
	o.queue = nil
	return list
}

func (o *orphans) release(r Resumable, fd uintptr, id nvfs.NodeID) {
	used, err := fusefs.Referenced(fd, id)
	if err == nil && !used {
		err = r.ReleaseOrphan(id)
	}
	if err != nil {
		klog.V(2).InfoS("A deleted file is kept until the volume is unmounted", "node", uint64(id), "reason", err.Error())
	}
}

func (o *orphans) stop() {
	o.mu.Lock()
	ending := o.ending
	o.mu.Unlock()
	if ending != nil {
		close(ending)
		o.wg.Wait()
	}
}

// handOver implements controlTarget: the process ends, and leaves the
// connection to a successor.
func (s *server) handOver() {
	s.handedOver.Store(true)
	s.endServing()
}

// tellHandedOver tells the supervisor that a successor may go on.
func (s *server) tellHandedOver() {
	if s.link != nil {
		// One that has gone does not want to know; the next one has the lock.
		_ = s.link.send(message{Kind: msgHandedOver})
	}
}

// progress implements controlTarget.
func (s *server) progress() []uint64 {
	if p, ok := s.transport.(fusefs.Progress); ok {
		return p.Progress()
	}
	return nil
}
