package mountd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// newRealNode is newNode with a real volume, which keeps its content when a
// server dies.
func newRealNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t, "")
	makeVolume(t, n.spec.Path+realSuffix)
	return n
}

// user is an application that has a file open, and a deleted one.
type user struct {
	n             *node
	file, deleted *os.File
	writes        int
}

func (n *node) newUser() *user {
	n.t.Helper()
	u := &user{n: n}
	var err error
	u.file, err = os.OpenFile(filepath.Join(n.spec.Mountpoint, "file"), os.O_RDWR|os.O_CREATE, 0o600)
	must(n.t, err)
	name := filepath.Join(n.spec.Mountpoint, "deleted")
	u.deleted, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	must(n.t, err)
	must(n.t, os.Remove(name))
	n.t.Cleanup(func() { u.close() })
	u.check()
	return u
}

func (u *user) close() {
	u.file.Close()
	u.deleted.Close()
}

// leave ends the use of the volume, which must then unmount and be clean.
func (u *user) leave() {
	u.n.t.Helper()
	u.close()
	u.n.unmount()
	u.n.checkMedium("clean")
}

// check uses the volume in several ways, none of which may fail.
func (u *user) check() {
	u.n.t.Helper()
	u.writes++
	for _, f := range []*os.File{u.file, u.deleted} {
		_, err := f.WriteAt(fmt.Appendf(nil, "%08d", u.writes), int64(u.writes-1)*8)
		must(u.n.t, err)
		var want strings.Builder
		for i := range u.writes {
			fmt.Fprintf(&want, "%08d", i+1)
		}
		got := make([]byte, u.writes*8)
		_, err = f.ReadAt(got, 0)
		must(u.n.t, err)
		if string(got) != want.String() {
			u.n.t.Errorf("read %q, want %q", got, want.String())
		}
	}
	name := filepath.Join(u.n.spec.Mountpoint, fmt.Sprintf("d%d", u.writes))
	must(u.n.t, os.Mkdir(name, 0o700))
	must(u.n.t, os.Remove(name))
}

// kill kills a process and waits for its end.
func (n *node) kill(p *process) {
	n.t.Helper()
	if p == nil {
		n.t.Fatal("there is no such process")
	}
	must(n.t, p.kill())
	must(n.t, p.wait(within(n.t)))
}

// restarted waits for another process than p at what.
func (n *node) restarted(what string, p *process, find func() *process) *process {
	n.t.Helper()
	var next *process
	n.eventually("another "+what, func() bool {
		next = find()
		return next != nil && next.pid != p.pid
	})
	return next
}

func (n *node) mountd() *process { n.t.Helper(); return n.service(mountdName) }
func (n *node) keeper() *process { n.t.Helper(); return n.service(keeperName) }

// heldBy counts the FUSE connections that a process holds.
func heldBy(p *process) int {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.pid))
	count := 0
	for _, name := range links {
		if target, err := os.Readlink(name); err == nil && target == "/dev/fuse" {
			count++
		}
	}
	return count
}

// ceph/ceph-csi#91, #792, #4271: applications get ENOTCONN ("transport
// endpoint is not connected") when the process that serves their mount goes
// away. awslabs/mountpoint-s3#1206: nobody says why it went. GoogleCloudPlatform/
// gcs-fuse-csi-driver#355: nobody notices that it was killed.
func TestServerDies(t *testing.T) {
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	for i := range 3 {
		p := n.running()
		n.kill(p)
		u.check()
		status, err := n.l.Status(within(t), n.spec.VolumeID)
		must(t, err)
		if status.Restarts != i+1 || status.PID == p.pid || !strings.Contains(status.LastDeath, "killed") {
			t.Errorf("after %d kills: %+v", i+1, status)
		}
	}
	u.leave()
	n.checkFiles("vol-1.log")
}

// kubernetes-sigs/blob-csi-driver#693: the restart of the mount proxy killed
// the filesystems that it had started.
func TestMountdDies(t *testing.T) {
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	server := n.running()
	m := n.mountd()
	n.kill(m)
	u.check()
	m = n.restarted("mountd", m, n.mountd)
	if p := n.running(); p.pid != server.pid {
		t.Errorf("process %d serves instead of %d", p.pid, server.pid)
	}
	// The new one looks after what the old one had started.
	n.kill(server)
	u.check()
	// Both at once.
	n.kill(m)
	n.kill(n.restarted("server", server, n.process))
	u.check()
	u.leave()
}

// juicedata/juicefs-csi-driver#1139: after the restart of the keeper its
// socket was missing, and no server could be replaced any more.
func TestKeeperDies(t *testing.T) {
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	k := n.keeper()
	n.kill(k)
	u.check()
	k = n.restarted("keeper", k, n.keeper)
	n.eventually("the new keeper holds the connection", func() bool { return heldBy(k) == 1 })
	// It holds it for others, too.
	n.kill(n.mountd())
	n.kill(n.running())
	u.check()
	u.leave()
}

// Keeper and mountd ending at once leave the server, which goes on, and gives
// its connection to the next mountd.
func TestKeeperAndMountdDie(t *testing.T) {
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	server := n.running()
	n.killServices()
	u.check()
	other := newVolumeOn(n, "vol-2")
	must(t, n.l.Mount(within(t), other)) // brings mountd back
	defer func() { must(t, n.l.Unmount(within(t), other.VolumeID, other.Mountpoint)) }()
	n.eventually("the new keeper holds both connections", func() bool { k := n.keeper(); return k != nil && heldBy(k) == 2 })
	n.kill(server)
	u.check()
	u.leave()
}

// The driver is the second holder: when the whole mountd pod has ended, it
// brings everything back. kubernetes/kubernetes#70013, kadalu#913, #1003 and
// #1055: a FUSE driver cannot be updated without killing the mounts of its
// pods.
func TestAllButTheHolderDie(t *testing.T) {
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	cmd, err := service{executable: os.Args[0], args: []string{"holder"}, stateDir: n.l.opts.StateDir, logDir: n.l.opts.LogDir, name: "@holder"}.start()
	must(t, err)
	defer func() {
		must(t, cmd.Process.Signal(unix.SIGTERM))
		must(t, cmd.Wait())
	}()
	holder := &process{pid: cmd.Process.Pid}
	for range 3 {
		n.eventually("the driver and the keeper hold the connection", func() bool {
			k := n.keeper()
			return k != nil && heldBy(k) == 1 && heldBy(holder) == 1
		})
		n.killAll()
		u.check()
	}
	u.close()
	n.unmount()
	n.eventually("the driver lets go", func() bool { return heldBy(holder) == 0 })
	n.checkMedium("clean")
}

// Nobody is left who holds the connection: users get errors at once, instead
// of hanging, and the volume can be mounted anew.
func TestEverybodyDies(t *testing.T) {
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	n.killAll()
	if _, err := u.file.WriteAt([]byte("x"), 0); !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("write to the dead mount: %v", err)
	}
	if _, err := n.l.Status(within(t), n.spec.VolumeID); !errors.Is(err, ErrNotServed) {
		t.Errorf("status: %v, want ErrNotServed", err)
	}
	u.close()
	n.mount()
	got, err := os.ReadFile(filepath.Join(n.spec.Mountpoint, "file"))
	if err != nil || string(got) != "00000001" {
		t.Errorf("read %q, %v", got, err)
	}
	n.unmount()
	n.checkMedium("clean")
}

// A volume that cannot be recovered is given up in bounded time: a connection
// that is held and not served would hang its users for good (the trap of fd
// keepers that juicedata/juicefs-csi-driver#1139 and its abort job are about).
func TestRecoveryFails(t *testing.T) {
	n := newNode(t, "")
	n.mount()
	must(t, os.WriteFile(n.spec.Path, []byte("damaged"), 0o600))
	n.kill(n.running())
	done := make(chan error, 1)
	go func() { done <- Ping(n.spec.Mountpoint) }()
	select {
	case err := <-done:
		if err != unix.ENOTCONN && err != unix.ECONNABORTED {
			t.Errorf("ping: %v", err)
		}
	case <-within(t).Done():
		t.Fatal("users hang")
	}
	n.eventually("the volume is given up", func() bool { return n.process() == nil && n.mountd() == nil })
	_, err := n.l.Status(within(t), n.spec.VolumeID)
	if !errors.Is(err, ErrNotServed) {
		t.Errorf("status: %v, want ErrNotServed", err)
	}
	checkError(t, err, "both superblocks fail their checksum")
	n.unmount()
	n.checkFiles("vol-1.log")
	must(t, os.WriteFile(n.spec.Path, nil, 0o600))
	n.mount()
	n.unmount()
}

// A server that is alive and does nothing is replaced. kubernetes#31272,
// #101622: hung mounts make the kubelet hang.
func TestServerHangs(t *testing.T) {
	t.Setenv(hangTimeoutEnv, "1s")
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	p := n.running()
	n.freeze(p)
	u.check() // waits for the next server
	status, err := n.l.Status(within(t), n.spec.VolumeID)
	must(t, err)
	if status.PID == p.pid || !strings.Contains(status.LastDeath, "did not get on") {
		t.Errorf("status %+v", status)
	}
	u.close()
	n.unmount()
}

// So is one that is stuck in a request; that is answered EIO by the third
// server.
func TestRequestHangs(t *testing.T) {
	t.Setenv(hangTimeoutEnv, "600ms")
	n := newNode(t, "")
	n.mount()
	if _, err := os.Stat(filepath.Join(n.spec.Mountpoint, "stuck")); !errors.Is(err, unix.EIO) {
		t.Errorf("stat: %v, want EIO", err)
	}
	must(t, os.Mkdir(filepath.Join(n.spec.Mountpoint, "d"), 0o755))
	n.unmount()
}

// A request that ends its server ends the next one, too, and then gets EIO:
// the volume goes on without it.
func TestDeadlyRequest(t *testing.T) {
	n := newNode(t, "")
	n.mount()
	p := n.running()
	if _, err := os.Stat(filepath.Join(n.spec.Mountpoint, "deadly")); !errors.Is(err, unix.EIO) {
		t.Errorf("stat: %v, want EIO", err)
	}
	status, err := n.l.Status(within(t), n.spec.VolumeID)
	must(t, err)
	if status.Restarts != 2 || status.PID == p.pid || !strings.Contains(status.LastDeath, "exit status 9: a deadly request") {
		t.Errorf("status %+v", status)
	}
	must(t, os.Mkdir(filepath.Join(n.spec.Mountpoint, "d"), 0o755)) // still served
	n.unmount()
}

// An upgrade: another keeper takes over, and every server is replaced by one
// of the new program while the volume is in use. kubernetes-sigs/
// blob-csi-driver#115, #1128, ctrox/csi-s3#34, yandex-cloud/k8s-csi-s3#179,
// seaweedfs/seaweedfs-csi-driver#201: an upgrade ends in ENOTCONN.
func TestUpgrade(t *testing.T) {
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	old := n.running()
	oldKeeper, oldMountd := n.keeper(), n.mountd()
	keeper, err := service{executable: os.Args[0], args: []string{"keeper"}, stateDir: n.l.opts.StateDir, logDir: n.l.opts.LogDir, name: keeperName}.start()
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- keeper.Wait() }()
	n.restarted("server", old, n.process)
	u.check()
	must(t, old.wait(within(t)))
	must(t, oldKeeper.wait(within(t)))
	must(t, oldMountd.wait(within(t)))
	if k := n.keeper(); k == nil || k.pid != keeper.Process.Pid {
		t.Error("the new keeper is not in charge")
	}
	status, err := n.l.Status(within(t), n.spec.VolumeID)
	must(t, err)
	if status.Restarts != 0 || status.LastDeath != "" {
		t.Errorf("an exchange counts as a death: %+v", status)
	}
	// The new ones do all that the old ones did.
	n.kill(n.running())
	u.check()
	u.leave()

	// A keeper that was not started on demand stays until it is told to end.
	must(t, keeper.Process.Signal(unix.SIGTERM))
	must(t, <-ended)
	m := n.mountd()
	must(t, unix.Kill(m.pid, unix.SIGTERM))
	must(t, m.wait(within(t)))
}

// Who mounts has started keeper and mountd on demand, and holds the connection as
// well; a keeper that takes over replaces every server nevertheless, each time.
func TestUpgradeBesideTheHolder(t *testing.T) {
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	holder, err := service{executable: os.Args[0], args: []string{"holder"}, stateDir: n.l.opts.StateDir, logDir: n.l.opts.LogDir, name: "@holder"}.start()
	must(t, err)
	for range 4 {
		old := n.running()
		n.startKeeper()
		n.restarted("server", old, n.process)
		u.check()
	}
	u.close()
	n.unmount()
	must(t, holder.Process.Signal(unix.SIGTERM))
	must(t, holder.Wait())
}

// A mountd that is killed in the middle of an upgrade leaves the rest of it to
// the next one.
func TestUpgradeIsInterrupted(t *testing.T) {
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	for range 4 {
		old, oldMountd := n.running(), n.mountd()
		n.startKeeper()
		n.restarted("mountd", oldMountd, n.mountd)
		n.kill(n.mountd())
		n.restarted("server", old, n.process)
		u.check()
		n.eventually("the upgrade is over", func() bool { return len(exchangeDemands(n.l.opts.StateDir)) == 0 })
	}
	u.close()
	n.unmount()
}

// A server that ends when it ought to let go takes what it has read with it. If
// the kernel does not send that again, the connection is aborted; if it does, the
// users notice nothing.
func TestServerClings(t *testing.T) {
	for _, resend := range []bool{true, false} {
		t.Run(fmt.Sprintf("resend=%t", resend), func(t *testing.T) {
			if !resend {
				t.Setenv(oldKernelEnv, "1")
			}
			n := newNode(t, "clinging")
			n.mount()
			old := n.running()
			n.startKeeper()
			if resend {
				n.restarted("server", old, n.process)
				must(t, Ping(n.spec.Mountpoint))
			} else {
				n.eventually("the connection is aborted", func() bool {
					err := Ping(n.spec.Mountpoint)
					return err == unix.ENOTCONN || err == unix.ECONNABORTED
				})
				n.eventually("the volume is given up", func() bool { return n.process() == nil })
				_, err := n.l.Status(within(t), n.spec.VolumeID)
				checkError(t, err, "older than Linux 6.9", "staged again")
			}
			n.unmount()
		})
	}
}

// startKeeper starts a keeper that takes over from the one that runs. It ends
// with the test, and mountd with it.
func (n *node) startKeeper() {
	n.t.Helper()
	keeper, err := service{executable: os.Args[0], args: []string{"keeper"}, stateDir: n.l.opts.StateDir, logDir: n.l.opts.LogDir, name: keeperName}.start()
	must(n.t, err)
	n.t.Cleanup(func() {
		if k := n.keeper(); k != nil && k.pid == keeper.Process.Pid {
			must(n.t, keeper.Process.Signal(unix.SIGTERM))
			defer func() {
				if m := n.mountd(); m != nil {
					must(n.t, m.kill())
					must(n.t, m.wait(within(n.t)))
				}
			}()
		}
		_ = keeper.Wait() // it may have ended, by a successor
	})
}

// A kernel that does not send requests again cannot be helped: the connection
// is aborted, and it is said why.
func TestOldKernel(t *testing.T) {
	ours, theirs, err := linkPair() // any descriptor that is alive
	must(t, err)
	defer ours.Close()
	defer theirs.Close()
	held := Held{Instance: "i", Spec: Spec{VolumeID: "vol-1"}, Session: &fusefs.Session{ConnID: 1}}
	v := newVolume(&supervisor{ctx: t.Context()}, held, int(theirs.Fd()))
	checkError(t, v.after(death{how: "signal: killed"}, true), "signal: killed", "6.9", "staged again")
}

// The same on a mount that is in use: its users get errors at once, the status
// says why, it can be unmounted, and mounted anew with what was acknowledged.
func TestKernelWithoutResend(t *testing.T) {
	t.Setenv(oldKernelEnv, "1")
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	n.kill(n.running())
	if err := Ping(n.spec.Mountpoint); err != unix.ENOTCONN && err != unix.ECONNABORTED {
		t.Errorf("ping: %v", err)
	}
	if _, err := u.file.WriteAt([]byte("x"), 0); !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("write: %v", err)
	}
	n.eventually("the volume is given up", func() bool { return n.process() == nil && n.mountd() == nil })
	_, err := n.l.Status(within(t), n.spec.VolumeID)
	if !errors.Is(err, ErrNotServed) {
		t.Errorf("status: %v, want ErrNotServed", err)
	}
	checkError(t, err, "signal: killed", "older than Linux 6.9", "staged again")
	u.close()
	n.unmount()
	n.mount()
	got, err := os.ReadFile(filepath.Join(n.spec.Mountpoint, "file"))
	if err != nil || string(got) != "00000001" {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := n.l.Status(within(t), n.spec.VolumeID); err != nil {
		t.Errorf("status after a new mount: %v", err)
	}
	n.unmount()
	n.checkMedium("clean")
}

func TestSuspects(t *testing.T) {
	own, other := death{own: true}, death{}
	for name, c := range map[string]struct {
		began death
		died  []death
		want  bool
	}{
		"two by themselves":      {own, []death{own}, true},
		"killed, then by itself": {other, []death{own}, false},
		"killed a few times":     {other, []death{other, other, other}, false},
		"killed all the time":    {other, []death{other, other, other, other, other}, true},
	} {
		var s suspects
		s.began(c.began)
		for _, d := range c.died {
			s.died(d, 7)
			s.died(d, 0)
		}
		if got := len(s.refused()) == 1; got != c.want {
			t.Errorf("%s: refused %v", name, s.refused())
		}
	}
}

// Whoever is not root or the owner of the processes gets nothing, and a peer
// of another version is refused.
func TestLinkProtocol(t *testing.T) {
	ours, theirs, err := linkPair()
	must(t, err)
	defer ours.Close()
	defer theirs.Close()
	_, err = theirs.Write([]byte(`{"protocol":99,"kind":"hello"}`))
	must(t, err)
	_, _, err = ours.receive()
	checkError(t, err, "protocol 99")
	_, err = theirs.Write([]byte("no JSON"))
	must(t, err)
	_, _, err = ours.receive()
	checkError(t, err, "malformed")
	must(t, theirs.Close())
	if _, _, err := ours.receive(); !errors.Is(err, io.EOF) {
		t.Errorf("receive from a peer that has gone: %v", err)
	}
	_, err = serviceSocket("/"+strings.Repeat("long", 30), keeperName)
	checkError(t, err, "shorter state directory")
}

func TestWatchdog(t *testing.T) {
	var w watchdog
	now := time.Unix(1000, 0)
	second := func(turns []uint64, err error) time.Duration {
		now = now.Add(time.Second)
		return w.note(now, turns, err)
	}
	for i, step := range []struct {
		turns []uint64
		err   error
		want  time.Duration
	}{
		{[]uint64{2, 3}, nil, 0}, // the second thread is busy
		{[]uint64{2, 3}, nil, time.Second},
		{[]uint64{4, 3}, nil, 2 * time.Second},
		{[]uint64{4, 5}, nil, 0}, // with another request
		{[]uint64{4, 6}, nil, 0},
		{nil, io.EOF, 0},
		{nil, io.EOF, time.Second},
		{[]uint64{4, 6}, nil, 0},
	} {
		if got := second(step.turns, step.err); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
}
