package mountd

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// What fails in a mountd that is about to end is no failure of the mount: who
// asked turns to the next mountd.
func TestLeavingMountdGivesNoAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		onDemand bool
		leave    func(*supervisor, context.CancelFunc)
	}{
		"terminated":   {false, func(_ *supervisor, cancel context.CancelFunc) { cancel() }},
		"replaced":     {false, func(s *supervisor, _ context.CancelFunc) { s.retire() }},
		"nothing left": {true, func(s *supervisor, _ context.CancelFunc) { <-s.ending }}, // with its first peer
	} {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s := &supervisor{ctx: ctx, opts: SupervisorOptions{StateDir: t.TempDir(), OnDemand: c.onDemand}, adopted: true, ending: make(chan struct{})}
		s.spare.end() // there is no program to start
		checkError(t, askUnreserved(t, s), "does not belong here")
		c.leave(s, cancel)
		if err := askUnreserved(t, s); !errors.Is(err, errMountdGone) {
			t.Errorf("%s: %v, want %v", name, err, errMountdGone)
		}
	}
}

// askUnreserved is a peer that makes a request which cannot be granted.
func askUnreserved(t *testing.T, s *supervisor) error {
	t.Helper()
	ours, theirs, err := linkPair()
	must(t, err)
	defer ours.Close()
	fd, err := unix.Dup(int(theirs.Fd()))
	must(t, err)
	l, err := inheritLink(fd)
	must(t, err)
	must(t, theirs.Close())
	s.greet(l)
	_, err = ours.ask(message{Kind: msgServe, VolumeID: "vol-1"})
	return err
}

// A mountd that ends because nothing is mounted is not in the way of the next
// mount.
func TestMountAsMountdEnds(t *testing.T) {
	n := newNode(t, "")
	for range 5 {
		must(t, os.WriteFile(n.spec.Path, []byte("damaged"), 0o600))
		checkError(t, n.l.Mount(within(t), n.spec), "volume is damaged")
		must(t, os.WriteFile(n.spec.Path, nil, 0o600))
		for range 3 {
			n.mount()
			n.unmount()
		}
	}
}

// umount(8) returns before a large volume is closed; it can be mounted again
// nevertheless.
func TestMountRightAfterUmount(t *testing.T) {
	n := newNode(t, "large")
	other := newVolumeOn(n, "vol-2") // keeps mountd
	must(t, n.l.Mount(within(t), other))
	n.mount()
	p := n.running()
	must(t, fusefs.Unmount(n.spec.Mountpoint))
	n.mount()
	if now := n.running(); now.pid == p.pid {
		t.Error("the process that was to end serves")
	}
	n.unmount()
	n.checkMedium("clean")
	must(t, n.l.Unmount(within(t), other.VolumeID, other.Mountpoint))
}

// A volume is served by the program that is there when it is mounted, not by
// one that was there when the spare process was started.
func TestSpareOfAReplacedProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "nvfs")
	install := func() {
		must(t, exec.Command("cp", "/bin/cat", program+".new").Run())
		must(t, os.Rename(program+".new", program))
	}
	install()
	s := &supervisor{opts: SupervisorOptions{Executable: program, StateDir: t.TempDir()}}
	spare := func() *daemon {
		cmd := exec.Command(program)
		in, err := cmd.StdinPipe()
		must(t, err)
		must(t, cmd.Start())
		ours, theirs, err := linkPair()
		must(t, err)
		must(t, theirs.Close())
		d := &daemon{cmd: cmd, link: ours, exited: make(chan struct{})}
		go func() {
			_ = cmd.Wait()
			in.Close()
			close(d.exited)
		}()
		return d
	}
	s.spare.ready = spare()
	d := s.takeSpare()
	if d == nil {
		t.Fatal("the spare process is not used")
	}
	install()
	s.spare.ready = d
	if got := s.takeSpare(); got != nil {
		t.Error("a process of the program before is used")
	}
	if d.running() {
		t.Error("it is left behind")
	}
}

// A volume that is unmounted before its new server has come to say that it
// answers is closed by that server all the same.
func TestUnmountedBeforeReady(t *testing.T) {
	fuse, err := os.Open("/dev/fuse") // not mounted, as after the end of a connection
	must(t, err)
	defer fuse.Close()
	ours, theirs, err := linkPair()
	must(t, err)
	defer ours.Close()
	defer theirs.Close()
	v := newVolume(&supervisor{ctx: t.Context()}, Held{Session: &fusefs.Session{}}, int(fuse.Fd()))
	d := &daemon{link: ours, exited: make(chan struct{}), cmd: &exec.Cmd{}}
	returned := make(chan error)
	go func() { returned <- v.awaitReady(d) }()
	select {
	case err := <-returned:
		t.Errorf("not waited for: %v", err)
	case <-time.After(10 * abandonPoll):
		close(d.exited)
		if err := <-returned; err == nil {
			t.Error("it is said to be ready")
		}
	}
}
