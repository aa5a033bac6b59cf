package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	callTimeout = 60 * time.Second
	// settleTimeout bounds the wait for something that happens by itself.
	settleTimeout = 60 * time.Second
	// poll is not shorter: looking through all processes takes a CPU that the
	// applications want.
	poll = 10 * time.Millisecond
)

// node is a node of a cluster: the driver and the keeper in two pods, and this
// test as their kubelet, which starts each again when it has ended.
type node struct {
	t   *testing.T
	dir string

	mu      sync.Mutex
	keepers []*exec.Cmd // the newest last
	driver  *exec.Cmd
	conn    *grpc.ClientConn
	volumes []*volume
	cycled  *volume  // mounted and unmounted all the time; nil: none
	ids     []string // of all volumes that there were
}

func newNode(t *testing.T) *node {
	dir, err := os.MkdirTemp("/dev/shm", "nvfs-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir}
	t.Cleanup(n.remove)
	n.startKeeper()
	n.startDriver()
	n.conn, err = grpc.NewClient("unix://"+filepath.Join(dir, "csi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
			BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}}))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) runDir() string { return filepath.Join(n.dir, "run") }

// start starts a process that writes to a log of its own.
func (n *node) start(name string, args ...string) *exec.Cmd {
	log, err := os.OpenFile(filepath.Join(n.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	return cmd
}

// startKeeper starts a keeper as the first process of a container: with PIDs
// and mounts of its own, so that everything that it has started ends with it,
// and that it sees no mount of the host made since.
func (n *node) startKeeper() {
	cmd := n.start("keeper", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child", os.Args[0], containerArg,
		program, "keeper", "--v=2", "--state-dir", n.runDir(), "--log-dir", filepath.Join(n.runDir(), "log"), "--hang-timeout", "20s")
	n.mu.Lock()
	n.keepers = append(n.keepers, cmd)
	n.mu.Unlock()
}

func (n *node) startDriver() {
	cmd := n.start("driver", program, "node", "--v=2", "--endpoint=unix://"+filepath.Join(n.dir, "csi.sock"), "--node-id=node-1",
		"--state-dir="+filepath.Join(n.dir, "state"), "--kubelet-dir="+filepath.Join(n.dir, "kubelet"), "--run-dir="+n.runDir(),
		"--calibration-file="+filepath.Join(n.dir, "calibration.json"), "--external-mountd",
		"--emulate=dir="+filepath.Join(n.dir, "region0")+",numa=0,size=3Gi,align=16Mi")
	n.mu.Lock()
	n.driver = cmd
	n.mu.Unlock()
}

// keeperPID is the keeper in charge, as the host numbers it.
func (n *node) keeperPID() int {
	n.mu.Lock()
	cmd := n.keepers[len(n.keepers)-1]
	n.mu.Unlock()
	for _, pid := range n.processes("keeper") {
		if parentOf(pid) == cmd.Process.Pid {
			return pid
		}
	}
	return 0
}

// await waits for a condition.
func (n *node) await(what string, condition func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(settleTimeout); !condition(); time.Sleep(poll) {
		if time.Now().After(deadline) {
			n.t.Fatalf("not within %s: %s\n%s", settleTimeout, what, n.logs())
		}
	}
}

// awaitHolders waits until keeper and driver hold every connection: only then
// may either of them end.
func (n *node) awaitHolders() {
	n.t.Helper()
	n.await("keeper and driver hold all connections", func() bool {
		n.mu.Lock()
		driver := n.driver.Process.Pid
		n.mu.Unlock()
		byKeeper, byDriver := connectionsOf(n.keeperPID()), connectionsOf(driver)
		return !slices.ContainsFunc(n.volumes, func(v *volume) bool {
			return !slices.Contains(byKeeper, v.connection) || !slices.Contains(byDriver, v.connection)
		})
	})
}

// killKeeper ends the mountd pod: the keeper and all that it has started.
func (n *node) killKeeper() {
	n.awaitHolders()
	pid := n.keeperPID()
	n.kill(pid)
	n.mu.Lock()
	cmd := n.keepers[len(n.keepers)-1]
	n.mu.Unlock()
	_ = cmd.Wait() // killed
	n.startKeeper()
	n.awaitHolders()
}

func (n *node) killDriver() {
	n.awaitHolders()
	n.mu.Lock()
	cmd := n.driver
	n.mu.Unlock()
	n.kill(cmd.Process.Pid)
	_ = cmd.Wait() // killed
	n.startDriver()
	n.awaitHolders()
}

func (n *node) killMountd() {
	var pid int
	n.await("mountd runs", func() bool {
		pids := n.processes("mountd")
		if len(pids) > 0 {
			pid = pids[0]
		}
		return pid != 0
	})
	n.kill(pid)
}

func (n *node) kill(pid int) {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		n.t.Errorf("kill %d: %v", pid, err)
	}
}

// upgrade replaces the mountd pod while the volumes are in use, as a rolling
// update with a surge does: the new one runs before the old one is told to end.
func (n *node) upgrade() {
	n.awaitHolders()
	before := map[*volume]int{}
	for _, v := range n.volumes {
		before[v] = v.server()
	}
	n.mu.Lock()
	old := n.keepers[len(n.keepers)-1]
	n.mu.Unlock()
	n.startKeeper()
	n.await("all servers are exchanged", func() bool {
		return !slices.ContainsFunc(n.volumes, func(v *volume) bool {
			pid := v.server()
			return pid == 0 || pid == before[v]
		})
	})
	// The old keeper ends by itself, once nothing of its own runs any more.
	n.await("the old keeper has ended", func() bool { return ended(old.Process.Pid) })
	_ = old.Wait()
	n.awaitHolders()
}

// processes lists those of the program that run on this node.
func (n *node) processes(command string) []int {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var pids []int
	for _, name := range lines {
		line, err := os.ReadFile(name)
		args := strings.Split(string(line), "\x00")
		if err != nil || len(args) < 2 || args[1] != command || !strings.Contains(string(line), n.dir) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func parentOf(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

// connectionsOf lists the FUSE connections that a process holds.
func connectionsOf(pid int) []string {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	var held []string
	for _, name := range links {
		info, _ := os.ReadFile(name) // it may just be closed
		if _, rest, ok := strings.Cut(string(info), "fuse_connection:\t"); ok {
			held = append(held, strings.TrimSpace(rest))
		}
	}
	return held
}

// connectionAt is the connection that is mounted at a path.
func connectionAt(path string) (string, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(info)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == path {
			_, minor, _ := strings.Cut(fields[2], ":")
			return minor, nil
		}
	}
	return "", fmt.Errorf("%s is no mount point", path)
}

// ended reports whether a process has ended, be it waited for or not.
func ended(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(b), ") Z ")
}

// logs is the end of what all processes have logged.
func (n *node) logs() string {
	names, _ := filepath.Glob(filepath.Join(n.dir, "*.log"))
	more, _ := filepath.Glob(filepath.Join(n.runDir(), "log", "*.log"))
	var all strings.Builder
	for _, name := range append(names, more...) {
		b, _ := os.ReadFile(name)
		fmt.Fprintf(&all, "--- %s\n%s", filepath.Base(name), b[max(0, len(b)-6<<10):])
	}
	return all.String()
}

// openFiles lists what keeper, mountd and the driver have open of any volume:
// connections, devices, locks and logs.
func (n *node) openFiles() (open []string) {
	for _, command := range []string{"keeper", "mountd", "node"} {
		for _, pid := range n.processes(command) {
			links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
			for _, link := range links {
				target, _ := os.Readlink(link) // it may just be closed
				ofVolume := func(id string) bool { return strings.Contains(target, id) }
				if target == "/dev/fuse" || slices.ContainsFunc(n.ids, ofVolume) {
					open = append(open, command+": "+target)
				}
			}
		}
	}
	return open
}

// remove ends everything, whatever the test has left.
func (n *node) remove() {
	if n.conn != nil {
		n.conn.Close()
	}
	if n.t.Failed() {
		n.t.Log(n.logs())
	}
	for _, m := range slices.Backward(n.mounts()) {
		n.t.Errorf("left mounted: %s", m)
		_ = unix.Unmount(m, unix.MNT_DETACH)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, cmd := range append(n.keepers, n.driver) {
		if cmd != nil && cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // unshare kills what it has started
			_ = cmd.Wait()
		}
	}
	if err := os.RemoveAll(n.dir); err != nil {
		n.t.Error(err)
	}
}

// mounts lists the mounts of this node.
func (n *node) mounts() []string {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(info)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], n.dir+"/") {
			found = append(found, fields[4])
		}
	}
	return found
}

// volume is a volume and where it is mounted.
type volume struct {
	n               *node
	id              string
	context         map[string]string
	staging, target string
	connection      string       // of the mount; it must stay the same
	doing           atomic.Value // a phase
}

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

// call repeats a call to the driver, as the kubelet does, until it succeeds:
// the driver may be killed in the middle of it.
func (n *node) call(what string, f func(ctx context.Context) error) error {
	var err error
	for deadline := time.Now().Add(settleTimeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		err = f(ctx)
		cancel()
		if err == nil {
			return nil
		}
		if code := status.Code(err); code == codes.FailedPrecondition || code == codes.InvalidArgument {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return fmt.Errorf("%s does not succeed: %w", what, err)
}

// createVolume makes a volume; parameters are those of its class.
func (n *node) createVolume(name string, size int64, parameters map[string]string) *volume {
	v := &volume{n: n,
		staging: filepath.Join(n.dir, "kubelet/plugins", name, "globalmount"),
		target:  filepath.Join(n.dir, "kubelet/pods", name, "mount")}
	for _, dir := range []string{filepath.Dir(v.staging), filepath.Dir(v.target)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			n.t.Fatal(err)
		}
	}
	err := n.call("create "+name, func(ctx context.Context) error {
		resp, err := csi.NewControllerClient(n.conn).CreateVolume(ctx, &csi.CreateVolumeRequest{Name: name,
			Parameters:    parameters,
			CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{capability()}})
		v.id, v.context = resp.GetVolume().GetVolumeId(), resp.GetVolume().GetVolumeContext()
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.ids = append(n.ids, v.id)
	return v
}

// mustUp mounts a volume that is to stay mounted.
func (n *node) mustUp(v *volume) {
	n.t.Helper()
	err := v.up()
	if err == nil {
		v.connection, err = connectionAt(v.staging)
	}
	if err == nil {
		// The kernel asks the server at the first close of a file, and learns
		// that it need not. Otherwise it would ask when this process, which has
		// files open there, starts the keeper after a kill: a child closes them,
		// and would wait for a server that only the keeper can bring back. So it is
		// with the poll by which the runtime, holding up all other descriptors that
		// it waits for, finds out that the file is always ready.
		err = os.WriteFile(filepath.Join(v.target, "first"), nil, 0o600)
	}
	if err != nil {
		n.t.Fatalf("%v\n%s", err, n.logs())
	}
}

// What is being done with a volume.
const (
	phaseIdle        = "left alone"
	phaseStaged      = "staged"
	phasePublished   = "published"
	phaseUsed        = "used"
	phaseUnpublished = "unpublished"
	phaseUnstaged    = "unstaged"
)

func (v *volume) enter(phase string) { v.doing.Store(phase) }

func (v *volume) phase() string {
	if p, ok := v.doing.Load().(string); ok {
		return p
	}
	return phaseIdle
}

// up stages and publishes.
func (v *volume) up() error {
	v.enter(phaseStaged)
	err := v.n.call("stage", v.stage)
	if err != nil {
		return err
	}
	v.enter(phasePublished)
	return v.n.call("publish", v.publish)
}

func (v *volume) stage(ctx context.Context) error {
	_, err := csi.NewNodeClient(v.n.conn).NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: capability(), VolumeContext: v.context})
	return err
}

func (v *volume) publish(ctx context.Context) error {
	_, err := csi.NewNodeClient(v.n.conn).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: v.target, VolumeCapability: capability(), VolumeContext: v.context})
	return err
}

// down unpublishes and unstages.
func (v *volume) down() error {
	client := csi.NewNodeClient(v.n.conn)
	defer v.enter(phaseIdle)
	v.enter(phaseUnpublished)
	err := v.n.call("unpublish", func(ctx context.Context) error {
		_, err := client.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target})
		return err
	})
	v.enter(phaseUnstaged)
	return errors.Join(err, v.n.call("unstage", func(ctx context.Context) error {
		_, err := client.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
		return err
	}))
}

// server is the process that serves the volume; 0: none at present.
func (v *volume) server() int {
	newest := 0
	for pid, args := range v.n.servers() {
		if slices.Contains(args, v.id) {
			newest = max(newest, pid)
		}
	}
	return newest
}

// servers are the processes that serve volumes of this node, with their
// arguments. One that waits for a volume is not among them.
func (n *node) servers() map[int][]string {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	found := map[int][]string{}
	for _, name := range lines {
		line, err := os.ReadFile(name)
		args := strings.Split(string(line), "\x00")
		if err != nil || len(args) < 2 || args[1] != "serve" || !slices.Contains(args, "--volume") || !strings.Contains(string(line), n.dir) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			found[pid] = args
		}
	}
	return found
}

// device is the file that the volume lies on.
func (v *volume) device() (string, error) {
	found, err := filepath.Glob(filepath.Join(v.n.dir, "region0", "*"+v.id+"*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("devices of volume %s: %q, %w", v.id, found, err)
	}
	return found[0], nil
}
