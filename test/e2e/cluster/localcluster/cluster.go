package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// upTimeout bounds the start of a cluster; it takes about 20 seconds on an idle
// machine with two CPUs.
const upTimeout = 6 * time.Minute

// Up starts the cluster, with an image of the driver from the binaries in the
// repository, and waits until both nodes are ready. What it has started is taken
// down again when it fails.
func (c *Cluster) Up(ctx context.Context, repository string, log func(format string, args ...any)) (err error) {
	if c.Exists() {
		return fmt.Errorf("%s exists: there is a cluster, or the rest of one; take it down first", c.Dir)
	}
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	if err := os.MkdirAll(c.Images(), 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Down(context.WithoutCancel(ctx)))
		}
	}()
	if err := c.rememberTraces(); err != nil {
		return err
	}
	log("making images")
	if err := errors.Join(c.buildSystemImages(), c.AddDriverImage(repository)); err != nil {
		return err
	}
	if err := c.writePKI(); err != nil {
		return err
	}
	log("starting the control plane")
	if err := c.startControlPlane(ctx); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		log("starting node %s", n.Name)
		if err := c.StartNode(ctx, n); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return c.AwaitNodes(ctx)
}

// AwaitNodes waits until all nodes are ready.
func (c *Cluster) AwaitNodes(ctx context.Context) error {
	for _, n := range c.Nodes {
		err := poll(ctx, "node "+n.Name, func() (bool, error) {
			if alive, err := n.running(); err != nil || !alive {
				return false, errors.Join(err, fmt.Errorf("node %s has ended: %s", n.Name, tail(filepath.Join(n.Dir, "log", "init.log"), 20)))
			}
			return c.kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=1s", "node/"+n.Name) == nil, nil
		})
		if err != nil {
			return fmt.Errorf("%w\n%s", err, tail(filepath.Join(n.Dir, "log", "kubelet.log"), 20))
		}
	}
	return nil
}

// Down ends everything that belongs to the cluster and removes its files. The
// error lists what it could not remove.
func (c *Cluster) Down(ctx context.Context) error {
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, c.StopNode(ctx, n))
	}
	errs = append(errs, c.stopControlPlane()...)
	errs = append(errs, removeNetns(ctx, controlPlaneNS), os.RemoveAll(memoryDir), c.removeTraces())
	if err := errors.Join(errs...); err != nil {
		return err // the files say what is left
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		return err
	}
	return c.leftovers()
}

func removeNetns(ctx context.Context, name string) error {
	if _, err := os.Stat("/run/netns/" + name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return run(ctx, "ip", "netns", "del", name)
}

// leftovers returns an error that names whatever of a cluster is still there.
func (c *Cluster) leftovers() error {
	var left []string
	for _, pattern := range []string{"/run/netns/" + prefix + "*", "/sys/fs/cgroup/" + prefix + "*", "/sys/fs/cgroup/*/" + prefix + "*", memoryDir, c.Dir} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		left = append(left, found...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for _, line := range strings.Split(string(mounts), "\n") {
		if strings.Contains(line, c.Dir+"/") || strings.Contains(line, memoryDir) {
			left = append(left, "mount "+line)
		}
	}
	processes, err := c.processes()
	if err != nil {
		return err
	}
	left = append(left, processes...)
	if len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
	}
	return nil
}

// processes returns the processes that name a file of the cluster in their
// command line, other than this one.
func (c *Cluster) processes() ([]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || filepath.Dir(file) == fmt.Sprintf("/proc/%d", os.Getpid()) {
			continue // ended meanwhile
		}
		argv := strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
		for _, arg := range argv {
			if strings.Contains(arg, c.Dir+"/") || strings.Contains(arg, "/run/netns/"+prefix) || strings.Contains(arg, NodeMemory) {
				found = append(found, filepath.Base(filepath.Dir(file))+" "+strings.Join(argv, " "))
				break
			}
		}
	}
	return found, nil
}

// traces are directories of the machine over which nodes mount their own.
var traces = []string{"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/lib/csi.nvfs.dev", "/var/log/pods", "/var/log/containers", "/etc/cni/net.d", "/etc/cni"}

// rememberTraces notes which of them did not exist before.
func (c *Cluster) rememberTraces() error {
	var made []string
	for _, dir := range traces {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			made = append(made, dir)
		}
	}
	for _, dir := range made {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return writeJSON(c.path("traces.json"), made)
}

func (c *Cluster) removeTraces() error {
	var made []string
	if err := readJSON(c.path("traces.json"), &made); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var errs []error
	for _, dir := range made {
		// Not empty means that somebody has written past a mount.
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
