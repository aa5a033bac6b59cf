package fusefs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Commands of FUSE over io_uring.
const (
	cmdRegister       = 1
	cmdCommitAndFetch = 2
)

// wakeUp is the user data of the read that wakes a queue's thread; those of
// commands are numbers of entries.
const wakeUp = ^uint64(0)

// shortMessage is the length up to which a request is copied before it is
// executed. Longer ones are WRITE and SETXATTR, which have no reply that
// would be written over the message.
const shortMessage = 8 << 10

// ringThread serves the requests of one CPU, on that CPU: the caller waits on
// it, so it can run without another CPU being woken. It is the only one to
// touch its members, but for those of late.
type ringThread struct {
	u       *uring
	plan    queuePlan
	entries []entry
	x       *executor
	ring    *ring
	message []byte
	// live counts the entries that the kernel knows of.
	live int

	wake     *os.File // an eventfd
	wakeRead [8]byte
	late     struct {
		sync.Mutex
		done []int // entries whose long request has been executed
	}
	lateTaken []int
}

func newRingThread(u *uring, plan queuePlan, x *executor) (*ringThread, error) {
	wake, err := newEvent()
	if err != nil {
		return nil, err
	}
	t := &ringThread{u: u, plan: plan, x: x, wake: wake, message: make([]byte, shortMessage)}
	for _, qid := range plan.queues {
		for i := range u.mem.depth {
			t.entries = append(t.entries, newEntry(qid, u.mem.entry(qid, i)))
		}
	}
	t.late.done = make([]int, 0, len(t.entries))
	t.lateTaken = make([]int, 0, len(t.entries))
	return t, nil
}

func newEvent() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return os.NewFile(uintptr(fd), "eventfd"), nil
}

// signal adds to an eventfd. It does not block, however often it is called.
func signal(event *os.File) error {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, err := event.Write(one[:])
	return err
}

// run is the thread. It reports on prepared that its ring is there, waits for
// begin, and reports on begun that its entries are the kernel's. It is never
// unlocked from its OS thread, whose attributes it changes.
func (t *ringThread) run(prepared chan<- error, begin <-chan bool, begun chan<- error) error {
	runtime.LockOSThread()
	if err := t.prepare(); err != nil {
		prepared <- err
		return nil
	}
	prepared <- nil
	if !<-begin {
		return t.ring.close()
	}
	err := t.registerAll()
	begun <- err
	if err != nil {
		return t.ring.close()
	}
	return errors.Join(t.serve(), t.ring.close())
}

func (t *ringThread) prepare() (err error) {
	if t.plan.cpu != anyCPU {
		if err := pin(t.plan.cpu); err != nil {
			return err
		}
	}
	beServingThread()
	// A command and a completion for each entry and for the wake-up.
	t.ring, err = newRing(len(t.entries)+1, int(t.u.fd.Fd()))
	return err
}

// registerAll gives the entries to the kernel. It may accept fewer, but one of
// each queue at least: else it does not use the queues at all.
func (t *ringThread) registerAll() error {
	t.armWake()
	accepted := map[uint16]int{}
	for i := range t.entries {
		s := t.command(cmdRegister, i)
		s.Addr, s.Len = t.entries[i].iovecs(t.u.payload)
		accepted[t.entries[i].qid]++
	}
	if err := t.ring.enter(0); err != nil {
		return err
	}
	// What is accepted completes with the first request, which may have come
	// already when this is the last of all queues.
	refused := t.ring.takeRefused()
	for _, c := range refused {
		if c.UserData == wakeUp {
			return fmt.Errorf("io_uring: read an eventfd: %w", unix.Errno(-c.Res))
		}
		qid := t.entries[c.UserData].qid
		if accepted[qid]--; accepted[qid] == 0 {
			return fmt.Errorf("FUSE over io_uring: the kernel refuses queue %d: %w", qid, unix.Errno(-c.Res))
		}
	}
	t.live = len(t.entries) - len(refused)
	return nil
}

func (t *ringThread) armWake() {
	s := t.ring.next()
	s.Opcode, s.FD = opcodeRead, int32(t.wake.Fd())
	s.Addr, s.Len = addressOf(t.wakeRead[:]), uint32(len(t.wakeRead))
	s.UserData = wakeUp
}

// command prepares a command about an entry.
func (t *ringThread) command(op uint64, i int) *sqe {
	s := t.ring.next()
	s.Opcode, s.Flags, s.FD = opcodeUringCmd, sqeFixedFile, 0
	s.Op, s.QID, s.UserData = op, t.entries[i].qid, uint64(i)
	return s
}

// serve executes requests until the connection is gone or the transport is
// stopping.
func (t *ringThread) serve() error {
	for t.live > 0 {
		c, ok := t.ring.take()
		if !ok {
			if err := t.ring.enter(1); err != nil {
				return err
			}
			continue
		}
		if c.UserData == wakeUp {
			if t.u.stopping.Load() {
				return nil
			}
			for _, i := range t.takeLate() {
				t.commit(i)
			}
			t.armWake()
			continue
		}
		if c.Res < 0 {
			t.lost(int(c.UserData), unix.Errno(-c.Res))
			continue
		}
		t.request(int(c.UserData))
	}
	return nil
}

// lost is told of an entry that the kernel gives up.
func (t *ringThread) lost(i int, e unix.Errno) {
	t.live--
	switch e {
	case unix.ENOTCONN, unix.ECONNABORTED, unix.ECANCELED: // the connection ends
	default:
		klog.ErrorS(e, "The kernel gives up an entry of a FUSE queue", "queue", t.entries[i].qid, "unique", t.entries[i].unique, "left", t.live)
	}
}

// request serves the request in an entry, or hands it to a thread that may
// take its time.
func (t *ringThread) request(i int) {
	e := &t.entries[i]
	if fixed, payload, ok := e.sizes(); ok && t.u.long.takes(e, t.x) {
		e.unique = e.in().Unique
		t.u.long.give(longRequest{t, i, e.inPlace(fixed, payload)})
		return
	}
	t.execute(i)
	t.commit(i)
	if t.x.shared {
		// Nobody may use the executor before the kernel has the reply.
		if err := t.ring.enter(0); err != nil {
			klog.ErrorS(err, "Replying failed")
		}
	}
	t.x.release()
}

// execute executes the request in an entry and leaves the reply there. The
// executor must be released once the kernel has it.
func (t *ringThread) execute(i int) {
	e := &t.entries[i]
	e.unique = e.in().Unique
	fixed, payload, ok := e.sizes()
	t.x.acquire()
	if !ok {
		e.fail(unix.EIO)
		return
	}
	msg, ok := e.copied(fixed, payload, t.message)
	if !ok {
		msg = e.inPlace(fixed, payload)
	}
	t.x.execute(t.u, e, msg)
}

// commit prepares the command that gives the kernel the reply in an entry and
// waits for the next request.
func (t *ringThread) commit(i int) {
	t.command(cmdCommitAndFetch, i).CommitID = t.entries[i].unique
}

// finished is called by another thread that has executed the long request in
// an entry.
func (t *ringThread) finished(i int) {
	t.late.Lock()
	t.late.done = append(t.late.done, i)
	t.late.Unlock()
	if err := signal(t.wake); err != nil {
		klog.ErrorS(err, "Waking a FUSE thread failed")
	}
}

// takeLate returns the entries whose long requests have been executed, until
// the next call.
func (t *ringThread) takeLate() []int {
	t.late.Lock()
	defer t.late.Unlock()
	t.lateTaken = append(t.lateTaken[:0], t.late.done...)
	t.late.done = t.late.done[:0]
	return t.lateTaken
}
