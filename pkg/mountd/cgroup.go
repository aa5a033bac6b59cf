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

	once   sync.Once
	parent string // "": none
}

// cgroup is one volume's group; nil when there is none.
type cgroup struct {
	dir   string
	kills int // for lack of memory, before the process was started
}

// open returns a volume's group, which is made if need be; nil when that
// cannot be.
func (c *cgroups) open(volumeID string) *cgroup {
	c.once.Do(c.makeParent)
	if c.parent == "" {
		return nil
	}
	g := &cgroup{dir: filepath.Join(c.parent, stateName(volumeID))}
	if err := os.MkdirAll(g.dir, 0o755); err != nil {
		klog.V(2).InfoS("The serving process gets no cgroup of its own", "volume", volumeID, "reason", err.Error())
		return nil
	}
	g.kills = g.oomKills()
	return g
}

func (c *cgroups) makeParent() {
	if c.root == "" {
		return
	}
	root := c.root
	if _, err := os.Stat(filepath.Join(root, cgroupProcs)); err != nil {
		// Where both hierarchies are mounted.
		root = filepath.Join(root, "unified")
	}
	if _, err := os.Stat(filepath.Join(root, cgroupProcs)); err != nil {
		klog.V(2).InfoS("Serving processes stay in the cgroup of mountd: no unified cgroup hierarchy", "root", c.root)
		return
	}
	parent := filepath.Join(root, cgroupParent)
	if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		klog.V(2).InfoS("Serving processes stay in the cgroup of mountd: it cannot make others", "reason", err.Error())
		return
	}
	// Fails where memory is not accounted for; then it is not known whether a
	// process was killed for lack of it.
	_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0)
	c.parent = parent
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

// remove removes the group of a volume that is served no more, and the parent
// with the last one.
func (c *cgroups) remove(volumeID string) {
	if c.parent == "" {
		return
	}
	_ = os.Remove(filepath.Join(c.parent, stateName(volumeID)))
	_ = os.Remove(c.parent) // fails while there are others
}
