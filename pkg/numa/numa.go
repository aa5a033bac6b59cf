// Package numa tells which CPUs of a machine are near to memory.
package numa

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Topology is a directory that is /sys, in which the kernel describes the NUMA
// nodes of the machine. It is read anew at each call.
type Topology string

// System is the topology of this machine.
const System Topology = "/sys"

func (t Topology) dir() string { return filepath.Join(string(t), "devices/system/node") }

// Nodes returns the numbers of the machine's NUMA nodes in ascending order.
func (t Topology) Nodes() []int {
	paths, _ := filepath.Glob(filepath.Join(t.dir(), "node[0-9]*")) // the pattern is well formed
	var nodes []int
	for _, path := range paths {
		if n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), "node")); err == nil {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	return nodes
}

func (t Topology) read(node int, file string) string {
	text, err := os.ReadFile(filepath.Join(t.dir(), "node"+strconv.Itoa(node), file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Nearest returns the NUMA nodes from whose CPUs memory on a node is reached
// fastest: the node itself, or, when it has no CPUs, all that are equally near.
// It is nil when the machine has no such node, as for emulated memory, which only
// declares one: then there is nothing to be near to.
func (t Topology) Nearest(node int) []int {
	nodes := t.Nodes()
	if !slices.Contains(nodes, node) {
		return nil
	}
	if t.read(node, "cpulist") != "" {
		return []int{node}
	}
	distances := strings.Fields(t.read(node, "distance")) // one for each node, in order
	var near []int
	best := 0
	for i, other := range nodes {
		if i >= len(distances) || t.read(other, "cpulist") == "" {
			continue
		}
		distance, err := strconv.Atoi(distances[i])
		if err != nil || len(near) > 0 && distance > best {
			continue
		}
		if len(near) == 0 || distance < best {
			near, best = nil, distance
		}
		near = append(near, other)
	}
	return near
}

// CPUs returns the CPUs of the given NUMA nodes together.
func (t Topology) CPUs(nodes []int) map[int]bool {
	cpus := map[int]bool{}
	for _, node := range nodes {
		addCPUs(cpus, t.read(node, "cpulist"))
	}
	return cpus
}

// addCPUs adds those of the kernel's list format, such as "0-3,8,10-11". What is
// malformed is left out.
func addCPUs(cpus map[int]bool, list string) {
	for _, part := range strings.Split(list, ",") {
		lowText, highText, isRange := strings.Cut(part, "-")
		if !isRange {
			highText = lowText
		}
		low, lowErr := strconv.Atoi(lowText)
		high, highErr := strconv.Atoi(highText)
		if lowErr != nil || highErr != nil {
			continue
		}
		for cpu := low; cpu <= high; cpu++ {
			cpus[cpu] = true
		}
	}
}
