package mountd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// task is what a serving process is to do.
type task struct {
	held   Held
	resume resumption
	fuse   *os.File // the connection
	lock   *os.File // of the volume
}

// awaitTask waits until mountd has a volume to serve. From then on the process
// logs to the volume's log. It returns nil when mountd has none, having ended,
// or ctx ends.
func awaitTask(ctx context.Context, l *link) (*task, error) {
	stop := context.AfterFunc(ctx, func() { l.conn.SetReadDeadline(pastDeadline) })
	m, fds, err := l.receive()
	if !stop() || errors.Is(err, io.EOF) {
		closeAll(fds)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if m.Kind != msgTask || m.Held == nil || m.Resume == nil || len(fds) != 3 {
		closeAll(fds)
		return nil, fmt.Errorf("message %s with %d descriptors is no task", m.Kind, len(fds))
	}
	t := &task{held: *m.Held, resume: *m.Resume, fuse: os.NewFile(uintptr(fds[0]), "/dev/fuse"), lock: os.NewFile(uintptr(fds[1]), "lock")}
	return t, logTo(fds[2])
}

// logTo makes a descriptor standard output and standard error, and closes it.
func logTo(fd int) error {
	defer unix.Close(fd)
	for _, std := range []int{unix.Stdout, unix.Stderr} {
		if err := unix.Dup3(fd, std, 0); err != nil {
			return fmt.Errorf("log: %w", err)
		}
	}
	return nil
}
