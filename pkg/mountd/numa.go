package mountd

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
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

// onNode calls f on a thread that is bound to the CPUs of a NUMA node, which
// a process that f starts inherits. Without such a node, or when none of its
// CPUs may be used, f runs unbound.
func onNode(node int, f func() error) error {
	if node < 0 {
		return f()
	}
	cpus, err := nodeCPUs(sysfsNodes, node)
	if err != nil {
		return err
	}
	done := make(chan error)
	go func() {
		// Not unlocked: the thread, and with it the binding, ends with the
		// goroutine.
		runtime.LockOSThread()
		if err := bind(cpus); err != nil {
			klog.V(2).InfoS("The serving process is not bound to its NUMA node", "node", node, "reason", err)
		}
		done <- f()
	}()
	return <-done
}

// bind binds the calling thread to those of cpus that it may use.
func bind(cpus []int) error {
	var allowed, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return err
	}
	for _, cpu := range cpus {
		if allowed.IsSet(cpu) {
			set.Set(cpu)
		}
	}
	if set.Count() == 0 {
		return errors.New("no CPU of the node may be used")
	}
	return unix.SchedSetaffinity(0, &set)
}
