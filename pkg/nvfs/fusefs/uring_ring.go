package fusefs

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What of <linux/io_uring.h> is used here.
const (
	setupSQE128       = 1 << 10
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13
	setupNoSQArray    = 1 << 16

	featSingleMmap = 1 << 0

	offRing = 0
	offSQEs = 0x10000000

	enterGetEvents      = 1 << 0
	enterRegisteredRing = 1 << 4

	registerFiles   = 2
	registerRingFDs = 20

	opcodeRead     = 22
	opcodeUringCmd = 46

	sqeFixedFile = 1 << 0
)

// ringParams is struct io_uring_params.
type ringParams struct {
	SQEntries, CQEntries, Flags, SQThreadCPU, SQThreadIdle, Features, WQFD uint32
	_                                                                      [3]uint32
	SQ, CQ                                                                 ringOffsets
}

// ringOffsets are struct io_sqring_offsets and io_cqring_offsets, which have
// these members in common. Last is the completion ring's array of entries; of
// a submission ring it must not be used: without an index array it is 0, the
// place of the ring's head.
type ringOffsets struct {
	Head, Tail, Mask, Entries, _, Last, _, _ uint32
	_                                        uint64
}

// sqe is a submission entry of 128 bytes. Op is the operation of a command,
// or an offset; the last members are the argument of a FUSE command.
type sqe struct {
	Opcode, Flags uint8
	_             uint16
	FD            int32
	Op            uint64
	Addr          uint64
	Len           uint32
	_             uint32
	UserData      uint64
	_             uint64

	CmdFlags uint64
	CommitID uint64
	QID      uint16
	_        [62]byte
}

// cqe is a completion entry.
type cqe struct {
	UserData uint64
	Res      int32
	_        uint32
}

// ring is an io_uring. Only the thread that made it may use it. The file with
// the number 0 is registered in it.
type ring struct {
	fd      int
	handle  uintptr // its number among the thread's registered rings
	mem     []byte
	sqeMem  []byte
	sqHead  *uint32
	sqTail  *uint32
	sqes    []sqe
	cqHead  *uint32
	cqTail  *uint32
	cqes    []cqe
	pending uint32 // entries filled but not submitted
}

// newRing makes a ring of at least the given number of entries for the calling
// thread, in which file is registered.
func newRing(entries int, file int) (_ *ring, err error) {
	p := ringParams{Flags: setupSQE128 | setupSingleIssuer | setupDeferTaskrun | setupNoSQArray}
	fd, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
	if e != 0 {
		return nil, setupError(e)
	}
	r := &ring{fd: int(fd)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if p.Features&featSingleMmap == 0 {
		return nil, errors.New("io_uring: the kernel maps the two rings apart")
	}
	if err := r.mmap(&p); err != nil {
		return nil, err
	}
	fds := [1]int32{int32(file)}
	if _, err := r.register(registerFiles, unsafe.Pointer(&fds), 1); err != nil {
		return nil, fmt.Errorf("io_uring: register /dev/fuse: %w", err)
	}
	// struct io_uring_rsrc_update; an offset of all ones means any.
	update := struct {
		Offset, _ uint32
		Data      uint64
	}{Offset: ^uint32(0), Data: uint64(fd)}
	if _, err := r.register(registerRingFDs, unsafe.Pointer(&update), 1); err != nil {
		return nil, fmt.Errorf("io_uring: register the ring: %w", err)
	}
	r.handle = uintptr(update.Offset)
	return r, nil
}

// setupError says what is in the way of an io_uring.
func setupError(e unix.Errno) error {
	switch e {
	case unix.EPERM:
		return fmt.Errorf("io_uring is not permitted (kernel.io_uring_disabled, or a seccomp profile): %w", e)
	case unix.ENOMEM:
		return fmt.Errorf("io_uring: no memory, or the limit of locked memory (ulimit -l) is too low: %w", e)
	case unix.ENOSYS, unix.EINVAL:
		return fmt.Errorf("the kernel's io_uring lacks what FUSE needs (Linux 6.14 has it): %w", e)
	}
	return fmt.Errorf("io_uring: %w", e)
}

func (r *ring) mmap(p *ringParams) (err error) {
	sqSize := uintptr(p.SQ.Entries) + 4
	cqSize := uintptr(p.CQ.Last) + uintptr(p.CQEntries)*unsafe.Sizeof(cqe{})
	const flags = unix.MAP_SHARED | unix.MAP_POPULATE
	if r.mem, err = unix.Mmap(r.fd, offRing, int(max(sqSize, cqSize)), unix.PROT_READ|unix.PROT_WRITE, flags); err != nil {
		return fmt.Errorf("io_uring: map the rings: %w", err)
	}
	r.sqeMem, err = unix.Mmap(r.fd, offSQEs, int(p.SQEntries)*int(unsafe.Sizeof(sqe{})), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return fmt.Errorf("io_uring: map the submission entries: %w", err)
	}
	word := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.mem[off])) }
	r.sqHead, r.sqTail = word(p.SQ.Head), word(p.SQ.Tail)
	r.cqHead, r.cqTail = word(p.CQ.Head), word(p.CQ.Tail)
	r.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(unsafe.SliceData(r.sqeMem))), p.SQEntries)
	r.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&r.mem[p.CQ.Last])), p.CQEntries)
	return nil
}

func (r *ring) register(opcode uintptr, arg unsafe.Pointer, n int) (int, error) {
	res, _, e := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), opcode, uintptr(arg), uintptr(n), 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(res), nil
}

// close ends the ring. Commands that wait in it for requests are cancelled by
// the kernel some time later.
func (r *ring) close() error {
	var errs []error
	for _, mem := range [][]byte{r.mem, r.sqeMem} {
		if mem != nil {
			errs = append(errs, unix.Munmap(mem))
		}
	}
	return errors.Join(append(errs, unix.Close(r.fd))...)
}

// next returns an empty submission entry. There is always room: everything
// that can be under way at a time has one.
func (r *ring) next() *sqe {
	tail := *r.sqTail + r.pending
	if tail-atomic.LoadUint32(r.sqHead) >= uint32(len(r.sqes)) {
		panic("io_uring: more submissions than entries")
	}
	r.pending++
	s := &r.sqes[tail&uint32(len(r.sqes)-1)]
	*s = sqe{}
	return s
}

// enter submits what is pending and waits until there are at least wait
// completions. It may return early, for a signal.
//
// The call blocks and must not hold up the garbage collector, so it goes
// through the scheduler.
func (r *ring) enter(wait int) error {
	atomic.StoreUint32(r.sqTail, *r.sqTail+r.pending)
	r.pending = 0
	for {
		// What an interrupted call has not taken is submitted by the next.
		submit := *r.sqTail - atomic.LoadUint32(r.sqHead)
		_, _, e := unix.Syscall6(unix.SYS_IO_URING_ENTER, r.handle, uintptr(submit), uintptr(wait),
			enterGetEvents|enterRegisteredRing, 0, 0)
		switch e {
		case 0, unix.EINTR:
			if *r.sqTail == atomic.LoadUint32(r.sqHead) {
				return nil
			}
		case unix.EAGAIN, unix.EBUSY: // short of memory, or of room for completions
			if wait > 0 && r.completed() {
				return nil
			}
		default:
			return fmt.Errorf("io_uring_enter: %w", e)
		}
	}
}

// completed reports whether a completion waits to be taken.
func (r *ring) completed() bool { return *r.cqHead != atomic.LoadUint32(r.cqTail) }

// take returns the next completion; false when there is none.
func (r *ring) take() (cqe, bool) {
	head := *r.cqHead
	if head == atomic.LoadUint32(r.cqTail) {
		return cqe{}, false
	}
	c := r.cqes[head&uint32(len(r.cqes)-1)]
	atomic.StoreUint32(r.cqHead, head+1)
	return c, true
}

// takeRefused takes the completions up to the first that is no error. Those of
// commands that fail at once come before all others.
func (r *ring) takeRefused() []cqe {
	var refused []cqe
	for r.completed() && r.cqes[*r.cqHead&uint32(len(r.cqes)-1)].Res < 0 {
		c, _ := r.take()
		refused = append(refused, c)
	}
	return refused
}
