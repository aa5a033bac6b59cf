package mountd

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"k8s.io/klog/v2"
)

// DefaultCgroupRoot is where the kernel's unified cgroup hierarchy belongs.
// Serving processes get groups of their own below it: a limit of memory or of
// CPUs that is meant for who has started them, a container for example, must
// not end or slow down the filesystem of others.
const DefaultCgroupRoot = "/sys/fs/cgroup"

const (
	cgroupParent = "nvfs-csi"
	cgroupProcs  = "cgroup.procs"
	// cgroupMemoryEvents is the file that counts processes killed for lack of
	// memory.
	cgroupMemoryEvents = "memory.events"
)

// cgroups makes the groups; disabled when they cannot be made.
type cgroups struct {
	root string // "": disabled

	// mu makes sure that the parent is not removed, as the last volume's group
	// is, while another one's is made.
	mu sync.Mutex
}

// cgroup is one volume's group; nil when there is none.
type cgroup struct {
	dir   string
	kills int // for lack of memory, before the process was started
}

// open returns a volume's group, which is made if need be; nil when that
// cannot be.
func (c *cgroups) open(volumeID string) *cgroup {
	c.mu.Lock()
	defer c.mu.Unlock()
	parent := c.makeParent()
	if parent == "" {
		return nil
	}
	g := &cgroup{dir: filepath.Join(parent, stateName(volumeID))}
	if err := os.Mkdir(g.dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		klog.V(2).InfoS("The serving process gets no cgroup of its own", "volume", volumeID, "reason", err.Error())
		return nil
	}
	g.kills = g.oomKills()
	return g
}

// makeParent returns the group that all others are made in; "" when there is
// none.
func (c *cgroups) makeParent() string {
	parent := c.parent()
	if parent == "" {
		return ""
	}
	if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		klog.V(2).InfoS("Serving processes stay in the cgroup of mountd: it cannot make others", "reason", err.Error())
		return ""
	}
	// Fails where memory is not accounted for; then it is not known whether a
	// process was killed for lack of it.
	_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0)
	return parent
}

// parent is where the group of all belongs, which need not be there yet; ""
// when groups are disabled, or there is no unified hierarchy.
func (c *cgroups) parent() string {
	if c.root == "" {
		return ""
	}
	// The second is where both hierarchies are mounted.
	for _, root := range []string{c.root, filepath.Join(c.root, "unified")} {
		if _, err := os.Stat(filepath.Join(root, cgroupProcs)); err == nil {
			return filepath.Join(root, cgroupParent)
		}
	}
	klog.V(2).InfoS("Serving processes stay in the cgroup of mountd: no unified cgroup hierarchy", "root", c.root)
	return ""
}

// add moves a process that has just been started to the group.
func (g *cgroup) add(volumeID string, pid int) {
	if g == nil {
		return
	}
	if err := os.WriteFile(filepath.Join(g.dir, cgroupProcs), []byte(strconv.Itoa(pid)), 0); err != nil {
		klog.V(2).InfoS("The serving process stays in the cgroup of mountd", "volume", volumeID, "reason", err.Error())
	}
}

// outOfMemory reports whether a process of the group was killed for lack of
// memory since open.
func (g *cgroup) outOfMemory() bool { return g != nil && g.oomKills() > g.kills }

func (g *cgroup) oomKills() int {
	f, err := os.Open(filepath.Join(g.dir, cgroupMemoryEvents))
	if err != nil {
		return 0 // memory is not accounted for
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "oom_kill "); ok {
			n, _ := strconv.Atoi(text)
			return n
		}
	}
	return 0
}

// remove removes the group of a volume that is served no more, whichever mountd
// has made it, and the parent with the last one.
func (c *cgroups) remove(volumeID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	parent := c.parent()
	if parent == "" {
		return
	}
	_ = os.Remove(filepath.Join(parent, stateName(volumeID)))
	_ = os.Remove(parent) // fails while there are others
}
