package mountd

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// Between the end of a server and its successor's first answer.

// unanswered is how many requests the kernel has for a mount that nobody has
// answered yet.
func unanswered(t *testing.T, mountpoint string) int {
	t.Helper()
	const control = "/sys/fs/fuse/connections"
	mounted, err := fusefs.IsMountPoint(control)
	must(t, err)
	if !mounted {
		must(t, unix.Mount("fusectl", control, "fusectl", 0, ""))
	}
	top, err := fusefs.Top(mountpoint)
	must(t, err)
	b, err := os.ReadFile(filepath.Join(control, strconv.Itoa(top.Connection), "waiting"))
	must(t, err)
	count, err := strconv.Atoi(strings.TrimSpace(string(b)))
	must(t, err)
	return count
}

// ceph/ceph-csi#2204: writes fail in the seconds without a server, and what is
// mounted turns read-only. Here nobody restarts the server until the write is
// seen to wait, however long that is; then it succeeds.
func TestWriteWaitsForTheNextServer(t *testing.T) {
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	m := n.mountd()
	n.freeze(m)
	n.kill(n.running())
	written := make(chan error, 1)
	go func() {
		_, err := u.deleted.WriteAt([]byte("00000001"), 0)
		written <- err
	}()
	n.eventually("the write waits", func() bool { return unanswered(t, n.spec.Mountpoint) > 0 })
	select {
	case err := <-written:
		t.Errorf("the write did not wait: %v", err)
	default:
	}
	must(t, unix.Kill(m.pid, unix.SIGCONT))
	select {
	case err := <-written:
		must(t, err)
	case <-within(t).Done():
		t.Fatal("the write waits for ever")
	}
	u.check()
	status, err := n.l.Status(within(t), n.spec.VolumeID)
	must(t, err)
	if status.ReadOnly || status.Restarts != 1 {
		t.Errorf("status %+v", status)
	}
	u.leave()
}

// juicedata/juicefs-csi-driver#343: lack of memory in one place breaks all
// mounts. A server that ends takes nobody with it, and with
// awslabs/mountpoint-s3#1206 it is said what it died of, memory included.
func TestServerDiesAlone(t *testing.T) {
	n := newRealNode(t)
	n.mount()
	other := newVolumeOn(n, "vol-2")
	must(t, n.l.Mount(within(t), other))
	defer func() { must(t, n.l.Unmount(within(t), other.VolumeID, other.Mountpoint)) }()
	before, err := n.l.Status(within(t), other.VolumeID)
	must(t, err)
	u := n.newUser()
	n.kill(n.running())
	must(t, os.Mkdir(filepath.Join(other.Mountpoint, "d"), 0o755))
	u.check()
	after, err := n.l.Status(within(t), other.VolumeID)
	must(t, err)
	if after.PID != before.PID || after.Restarts != 0 {
		t.Errorf("the other volume's server: before %+v, after %+v", before, after)
	}
	u.close()
	n.unmount()
}

// The kernel kills for lack of memory with SIGKILL; that it was for this is
// what the cgroup says.
func TestDeathForLackOfMemory(t *testing.T) {
	root := t.TempDir()
	must(t, os.WriteFile(filepath.Join(root, cgroupProcs), nil, 0o600))
	groups := cgroups{root: root}
	events := filepath.Join(root, cgroupParent, "vol-1", cgroupMemoryEvents)
	for i, c := range []struct {
		kills  string // what the group counts after the death
		memory bool
	}{{"oom_kill 0\n", false}, {"low 0\noom 1\noom_kill 1\n", true}, {"oom_kill 1\n", false}, {"oom_kill 2\n", true}} {
		g := groups.open("vol-1")
		cmd := exec.Command("sleep", "1000")
		must(t, cmd.Start())
		must(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
		must(t, os.WriteFile(events, []byte(c.kills), 0o600))
		log, err := os.Open(os.DevNull)
		must(t, err)
		d := &daemon{cmd: cmd, group: g, hung: make(chan struct{}), log: log}
		x := d.death()
		must(t, log.Close())
		if x.own != c.memory || strings.Contains(x.String(), "out of memory") != c.memory {
			t.Errorf("death %d: %+v, want one for lack of memory: %v", i, x, c.memory)
		}
	}
}

// GoogleCloudPlatform/gcs-fuse-csi-driver#257: the filesystem hangs when it is
// told to end while there is something to write. What the kernel has not
// written yet, of a file and of a mapping, arrives before the server ends.
func TestSignalWithDirtyPages(t *testing.T) {
	n := newRealNode(t)
	n.spec.Cache = string(fusefs.CacheWriteback)
	n.mount()
	content := bytes.Repeat([]byte("unwritten"), 100_000)
	name := filepath.Join(n.spec.Mountpoint, "written")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	_, err = f.Write(content)
	must(t, err)
	mapped, err := os.OpenFile(filepath.Join(n.spec.Mountpoint, "mapped"), os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	must(t, mapped.Truncate(int64(len(content))))
	mem, err := unix.Mmap(int(mapped.Fd()), 0, len(content), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	copy(mem, content)
	p := n.running()
	must(t, unix.Kill(p.pid, unix.SIGTERM))
	n.eventually("the mount is out of sight", func() bool {
		mounted, err := fusefs.IsMountPoint(n.spec.Mountpoint)
		must(t, err)
		return !mounted
	})
	must(t, unix.Munmap(mem))
	must(t, mapped.Close())
	must(t, f.Close())
	must(t, p.wait(within(t)))
	n.checkMedium("clean")
	n.mount()
	for _, name := range []string{"written", "mapped"} {
		got, err := os.ReadFile(filepath.Join(n.spec.Mountpoint, name))
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s holds %d bytes, %v; they should be the %d that were written", name, len(got), err, len(content))
		}
	}
	n.unmount()
}

// juicedata/juicefs-csi-driver#343 again: whoever gives up waiting can. A caller
// that is killed ends although nobody answers it, and the volume goes on.
func TestCallerGivesUpInTheGap(t *testing.T) {
	n := newRealNode(t)
	n.mount()
	u := n.newUser()
	// Started now: this process has files open on the volume, which a child
	// closes, and that might wait for the server.
	caller := exec.Command("sh", "-c", `read go && exec mkdir "$0"`, filepath.Join(n.spec.Mountpoint, "given up"))
	stdin, err := caller.StdinPipe()
	must(t, err)
	must(t, caller.Start())
	m := n.mountd()
	n.freeze(m)
	n.kill(n.running())
	_, err = stdin.Write([]byte("go\n"))
	must(t, err)
	n.eventually("the call waits", func() bool { return unanswered(t, n.spec.Mountpoint) > 0 })
	must(t, caller.Process.Kill())
	if err := caller.Wait(); err == nil {
		t.Error("the call has succeeded without a server")
	}
	must(t, unix.Kill(m.pid, unix.SIGCONT))
	u.check()
	u.leave()
}
