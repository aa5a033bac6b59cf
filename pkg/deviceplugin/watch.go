package deviceplugin

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// dirWatch says when files come to a directory or leave it.
type dirWatch struct {
	file    *os.File
	changed chan struct{} // capacity 1: something has changed
	ended   chan struct{} // closed when nothing more will be said
}

// watchDir watches a directory until close is called or the directory is gone.
func watchDir(dir string) (*dirWatch, error) {
	// Non-blocking, so that Close ends a Read.
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	w := &dirWatch{file: os.NewFile(uintptr(fd), "inotify"), changed: make(chan struct{}, 1), ended: make(chan struct{})}
	const events = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(fd, dir, events); err != nil {
		_ = w.file.Close()
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	go w.run()
	return w, nil
}

func (w *dirWatch) run() {
	defer close(w.ended)
	// What has happened does not matter, only that something has.
	buf := make([]byte, 4<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return
		}
		select {
		case w.changed <- struct{}{}:
		default:
		}
		if lastIsIgnored(buf[:n]) {
			return
		}
	}
}

// lastIsIgnored reports whether the last of these events says that the watch has
// ended with its directory. That event has no name and follows all others.
func lastIsIgnored(events []byte) bool {
	if len(events) < unix.SizeofInotifyEvent {
		return false
	}
	last := events[len(events)-unix.SizeofInotifyEvent:]
	mask := uint32(last[4]) | uint32(last[5])<<8 | uint32(last[6])<<16 | uint32(last[7])<<24
	name := last[12] | last[13] | last[14] | last[15]
	return name == 0 && mask&^unix.IN_ISDIR == unix.IN_IGNORED
}

// alive reports whether the watch still says something.
func (w *dirWatch) alive() bool {
	select {
	case <-w.ended:
		return false
	default:
		return true
	}
}

func (w *dirWatch) close() {
	_ = w.file.Close()
	<-w.ended
}
