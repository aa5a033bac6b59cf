package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// cgroupControllers are those of cgroup v1 that a kubelet wants below its root.
var cgroupControllers = []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd", "unified", "hugetlb", "perf_event", "net_cls", "net_prio"}

// NodeInit is the first argument with which a program that starts nodes is
// called as process 1 of a node; it has to call RunNodeInit with the second one.
const NodeInit = "node-init"

// StartNode starts a node, also one that was stopped or killed; it finds its
// memory and its volumes as they were.
func (c *Cluster) StartNode(ctx context.Context, n Node) error {
	if alive, err := n.running(); err != nil || alive {
		return errors.Join(err, fmt.Errorf("node %s runs: %v", n.Name, alive))
	}
	for _, dir := range []string{n.Memory, filepath.Join(n.Dir, "log")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := c.makeNodeNetwork(ctx, n); err != nil {
		return err
	}
	if err := n.makeCgroups(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	config := filepath.Join(n.Dir, "node.json")
	if err := writeJSON(config, n); err != nil {
		return err
	}
	_, err = startDetached(filepath.Join(n.Dir, "pid"), filepath.Join(n.Dir, "log", "init.log"),
		"unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--propagation", "private",
		"nsenter", "--net=/run/netns/"+n.netns(), "--", self, NodeInit, config)
	return err
}

func (c *Cluster) makeNodeNetwork(ctx context.Context, n Node) error {
	if _, err := os.Stat("/run/netns/" + n.netns()); err == nil {
		return nil // of a node that is started again
	}
	in, cp, veth := inNetns(n.netns()), inNetns(controlPlaneNS), "v-"+n.Name
	commands := [][]string{
		{"ip", "netns", "add", n.netns()},
		append(in, "ip", "link", "set", "lo", "up"),
		{"ip", "link", "add", veth, "netns", controlPlaneNS, "type", "veth", "peer", "name", "eth0", "netns", n.netns()},
		append(cp, "ip", "link", "set", veth, "master", "br0", "up"),
		append(in, "ip", "addr", "add", n.IP+"/24", "dev", "eth0"),
		append(in, "ip", "link", "set", "eth0", "up"),
		append(in, "ip", "route", "add", "default", "via", controlPlaneIP),
		append(in, "sysctl", "-qw", "net.ipv4.ip_forward=1"),
		append(cp, "ip", "route", "replace", n.PodNet+".0/24", "via", n.IP),
	}
	for _, other := range c.Nodes {
		if other.Name != n.Name {
			commands = append(commands, append(in, "ip", "route", "add", other.PodNet+".0/24", "via", other.IP))
		}
	}
	return runAll(ctx, commands...)
}

// makeCgroups makes the group below which the kubelet keeps its own.
func (n Node) makeCgroups() error {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		return n.makeCgroup2(root)
	}
	for _, controller := range cgroupControllers {
		if _, err := os.Stat(filepath.Join(root, controller)); err != nil {
			continue
		}
		dir := filepath.Join(root, controller, n.cgroup())
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if controller != "cpuset" {
			continue
		}
		// A new group has none, and no process could run in it.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(root, controller, file))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, file), value, 0o644)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (n Node) makeCgroup2(root string) error {
	controllers, err := os.ReadFile(root + "/cgroup.controllers")
	if err != nil {
		return err
	}
	dir := filepath.Join(root, n.cgroup())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, where := range []string{root, dir} {
		for _, controller := range splitFields(controllers) {
			if err := os.WriteFile(where+"/cgroup.subtree_control", []byte("+"+controller), 0o644); err != nil {
				return fmt.Errorf("cgroup controller %s: %w", controller, err)
			}
		}
	}
	return nil
}

// removeCgroups removes the groups of a node whose processes have ended.
func (n Node) removeCgroups() error {
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		roots, err := filepath.Glob(pattern + n.cgroup())
		errs = append(errs, err)
		for _, root := range roots {
			errs = append(errs, removeCgroup(root))
		}
	}
	return errors.Join(errs...)
}

// removeCgroup removes a group with all below it, deepest first. Processes that
// were killed keep a group busy for a moment.
func removeCgroup(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil // gone meanwhile
	})
	for i := len(dirs) - 1; i >= 0 && err == nil; i-- {
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(pollInterval) {
			err = syscall.Rmdir(dirs[i])
			if errors.Is(err, syscall.ENOENT) {
				err = nil
			}
			if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
				break
			}
		}
	}
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", root, err)
	}
	return nil
}

// running reports whether the node runs.
func (n Node) running() (bool, error) {
	p, err := readProcess(filepath.Join(n.Dir, "pid"))
	return p.alive(), err
}

// init returns the number, on the machine, of the node's process 1.
func (n Node) init() (int, error) {
	p, err := readProcess(filepath.Join(n.Dir, "pid"))
	if err != nil {
		return 0, err
	}
	if !p.alive() {
		return 0, fmt.Errorf("node %s does not run", n.Name)
	}
	return childOf(p.PID)
}

// Kill ends a node as a power cut does: all its processes at once. Its memory
// and its disk stay.
func (c *Cluster) Kill(n Node) error {
	p, err := readProcess(filepath.Join(n.Dir, "pid"))
	if err != nil || !p.alive() {
		return err
	}
	pid, err := childOf(p.PID)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	// The PID namespace goes with its first process, and waits for the others.
	if !p.await(20 * time.Second) {
		return fmt.Errorf("node %s does not end: process %d", n.Name, p.PID)
	}
	return n.removeCgroups()
}

// StopNode ends a node and its network.
func (c *Cluster) StopNode(ctx context.Context, n Node) error {
	return errors.Join(c.Kill(n), removeNetns(ctx, n.netns()))
}

// Command is the beginning of a command that runs inside the node.
func (n Node) Command() ([]string, error) {
	pid, err := n.init()
	if err != nil {
		return nil, err
	}
	return []string{"nsenter", "-t", strconv.Itoa(pid), "-m", "-u", "-i", "-p", "-n", "--"}, nil
}

// Exec runs a command inside the node and returns its standard output.
func (n Node) Exec(ctx context.Context, argv ...string) (string, error) {
	enter, err := n.Command()
	if err != nil {
		return "", err
	}
	return output(ctx, append(enter, argv...)...)
}

// RestartKubelet ends the kubelet; the node's process 1 starts another.
func (n Node) RestartKubelet(ctx context.Context) error {
	_, err := n.Exec(ctx, "sh", "-c", "kill $(cat /run/kubelet.pid)")
	return err
}

// LoadImage adds an image to a running node.
func (n Node) LoadImage(ctx context.Context, file string) error {
	_, err := n.Exec(ctx, "ctr", "-n", "k8s.io", "images", "import", file)
	return err
}
