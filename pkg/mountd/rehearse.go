package mountd

import (
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// rehearse does what a process will do when it gets a volume, while it waits
// for one: so the program has been read in, and what is computed at first use
// is there. That takes half as long as all of a mount. Nothing depends on it.
func rehearse(o ServeOptions, l *link) {
	if o.Rehearse == nil || l.waiting() {
		return
	}
	if err := errors.Join(rehearseLink(), o.Rehearse()); err != nil {
		klog.V(2).InfoS("The first volume of this process will take a little longer", "reason", err.Error())
	}
}

// delayCollection lets no garbage be collected until the function that it
// returns is called, so that none of a mount's time goes into it: the tables of
// a large volume alone would start it, and have to be searched.
func delayCollection() func() {
	runtime.GC()
	percent := debug.SetGCPercent(-1)
	return sync.OnceFunc(func() { debug.SetGCPercent(percent) })
}

// rehearseLink sends a task to this process itself.
func rehearseLink() error {
	ours, f, err := linkPair()
	if err != nil {
		return err
	}
	defer ours.Close()
	theirs, err := linkOf(f)
	if err != nil {
		return err
	}
	defer theirs.Close()
	if err := ours.send(message{Kind: msgTask, Held: &Held{}, Resume: &resumption{}}, int(os.Stderr.Fd())); err != nil {
		return err
	}
	_, fds, err := theirs.receive()
	closeAll(fds)
	return err
}

// waiting reports whether a message can be received at once, or the peer has
// hung up.
func (l *link) waiting() bool {
	raw, err := l.conn.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	err = errors.Join(raw.Control(func(fd uintptr) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	}), err)
	return err == nil && n > 0
}
