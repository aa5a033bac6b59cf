package pmem

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// nodeCPUs returns the CPUs of a NUMA node that this process may run on. For a
// node that is unknown (-1) or has none of them, as memory-only nodes have, it
// is every CPU that the process may run on.
func (s sysfs) nodeCPUs(node int) ([]int, error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return nil, fmt.Errorf("CPUs of this process: %w", err)
	}
	var all, local []int
	onNode := s.cpuList(node)
	for cpu := 0; cpu < len(allowed)*bitsPerWord; cpu++ {
		if !allowed.IsSet(cpu) {
			continue
		}
		all = append(all, cpu)
		if onNode[cpu] {
			local = append(local, cpu)
		}
	}
	if len(local) > 0 {
		return local, nil
	}
	return all, nil
}

const bitsPerWord = strconv.IntSize

// hasNode reports whether this machine has the NUMA node.
func (s sysfs) hasNode(node int) bool {
	if node < 0 {
		return false
	}
	_, err := os.Stat(s.nodeDir(node))
	return err == nil
}

func (s sysfs) nodeDir(node int) string {
	return filepath.Join(string(s), "devices/system/node", fmt.Sprintf("node%d", node))
}

// cpuList reads the CPUs of a node; nil when it is not known.
func (s sysfs) cpuList(node int) map[int]bool {
	if node < 0 {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(s.nodeDir(node), "cpulist"))
	if err != nil {
		return nil
	}
	return parseCPUList(strings.TrimSpace(string(text)))
}

// parseCPUList parses the kernel's list format, such as "0-3,8,10-11". What is
// malformed is left out.
func parseCPUList(text string) map[int]bool {
	cpus := map[int]bool{}
	for _, part := range strings.Split(text, ",") {
		lowText, highText, isRange := strings.Cut(part, "-")
		low, err := strconv.Atoi(lowText)
		if err != nil {
			continue
		}
		high := low
		if isRange {
			if high, err = strconv.Atoi(highText); err != nil {
				continue
			}
		}
		for cpu := low; cpu <= high; cpu++ {
			cpus[cpu] = true
		}
	}
	return cpus
}

// onCPUs runs f on a thread that is bound to cpus, and waits for it. The thread
// ends with it, so that no other goroutine inherits the binding.
func onCPUs(cpus []int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		var set unix.CPUSet
		for _, cpu := range cpus {
			set.Set(cpu)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			done <- fmt.Errorf("bind a thread to CPUs %v: %w", cpus, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// bindMemory makes pages of mem that are allocated from now on come from the
// NUMA node, where the node is known and the kernel knows of nodes.
func bindMemory(mem []byte, node int) error {
	const mpolBind, nodesPerWord = 2, bitsPerWord
	if node < 0 {
		return nil
	}
	mask := make([]uintptr, node/nodesPerWord+1)
	mask[node/nodesPerWord] = 1 << (node % nodesPerWord)
	_, _, errno := unix.Syscall6(unix.SYS_MBIND,
		uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)), mpolBind,
		uintptr(unsafe.Pointer(&mask[0])), uintptr(len(mask)*nodesPerWord+1), 0)
	if errno != 0 && errno != unix.ENOSYS && errno != unix.EPERM {
		return fmt.Errorf("bind memory to NUMA node %d: %w", node, errno)
	}
	return nil
}
