package mountd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/cpulist"
)

// sysfsNodes is where the kernel shows NUMA nodes.
const sysfsNodes = "/sys/devices/system/node"

// nodeCPUs returns the CPUs of a NUMA node; empty when there is no such node.
func nodeCPUs(sysfs string, node int) ([]int, error) {
	cpus, err := cpulist.Read(filepath.Join(sysfs, "node"+strconv.Itoa(node), "cpulist"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("CPUs of NUMA node %d: %w", node, err)
	}
	return cpus, nil
}

// bindToNode binds all threads of this process, and with them those that they
// start, to the CPUs of a NUMA node, and returns how many these are. Without
// such a node, or when none of its CPUs may be used, the process stays as it
// is, and 0 is returned.
func bindToNode(node int) int {
	if node < 0 {
		return 0
	}
	cpus, err := nodeCPUs(sysfsNodes, node)
	if err != nil {
		klog.ErrorS(err, "The process is not bound to its NUMA node", "node", node)
		return 0
	}
	set, err := usable(cpus)
	if err == nil {
		err = bindThreads(set)
	}
	if err != nil {
		klog.V(2).InfoS("The process is not bound to its NUMA node", "node", node, "reason", err.Error())
		return 0
	}
	return set.Count()
}

// usable is those of cpus that this process may use.
func usable(cpus []int) (*unix.CPUSet, error) {
	var allowed, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return nil, err
	}
	for _, cpu := range cpus {
		if allowed.IsSet(cpu) {
			set.Set(cpu)
		}
	}
	if set.Count() == 0 {
		return nil, errors.New("no CPU of the node may be used")
	}
	return &set, nil
}

// bindThreads binds every thread of this process. A thread that one not yet
// bound starts meanwhile is found in the next round.
func bindThreads(set *unix.CPUSet) error {
	bound := map[string]bool{}
	for again := true; again; {
		again = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, thread := range threads {
			name := thread.Name()
			if bound[name] {
				continue
			}
			tid, err := strconv.Atoi(name)
			if err != nil {
				return err
			}
			if err := unix.SchedSetaffinity(tid, set); err != nil && err != unix.ESRCH {
				return err
			}
			bound[name], again = true, true
		}
	}
	return nil
}
