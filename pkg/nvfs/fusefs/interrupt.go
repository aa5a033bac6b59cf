package fusefs

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A thread that waits in read(2) for a request can be stopped by a signal
// only. The runtime installs its handlers such that the kernel restarts what
// a signal interrupts, so one signal that nothing else uses is set to
// interrupt for good; the runtime ignores it otherwise.

const (
	interruptSignal = 64 // SIGRTMAX
	saRestart       = 0x10000000
)

// sigaction is the kernel's structure on 64-bit machines.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// enableInterrupt makes interruptSignal interrupt system calls.
func enableInterrupt() error {
	var act sigaction
	if err := rtSigaction(nil, &act); err != nil {
		return err
	}
	if act.handler <= 1 { // the default, which kills, or ignored
		return errors.New("the runtime does not handle the signal that stops FUSE threads")
	}
	act.flags &^= saRestart
	return rtSigaction(&act, nil)
}

func rtSigaction(act, old *sigaction) error {
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, interruptSignal,
		uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(act.mask), 0, 0)
	if e != 0 {
		return fmt.Errorf("sigaction: %w", e)
	}
	return nil
}

// interruptible is an OS thread by number; 0 when it has ended or not begun.
type interruptible struct{ tid atomic.Int32 }

// begin makes the calling thread, to which its goroutine is locked,
// interruptible until end.
func (i *interruptible) begin() { i.tid.Store(int32(unix.Gettid())) }
func (i *interruptible) end()   { i.tid.Store(0) }

// interrupt ends the system call that the thread is in, if it is one that
// waits. A thread that is about to wait is missed.
func (i *interruptible) interrupt() {
	if tid := i.tid.Load(); tid != 0 {
		// ESRCH: it has just ended.
		_ = unix.Tgkill(os.Getpid(), int(tid), interruptSignal)
	}
}
