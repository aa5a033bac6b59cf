package numa

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/numa/numatest"
)

func machine(t *testing.T, cpus []string, distances ...string) Topology {
	t.Helper()
	return Topology(numatest.Sysfs(t, cpus, distances...))
}

func row(count int) []string {
	var cpus []string
	for i := range count {
		cpus = append(cpus, fmt.Sprintf("%d-%d", 2*i, 2*i+1))
	}
	return cpus
}

func TestNearest(t *testing.T) {
	cpuless := func(near string) Topology {
		return machine(t, []string{"0-1", "2-3", ""}, "10 21 17", "21 10 28", near)
	}
	for name, c := range map[string]struct {
		sys  Topology
		node int
		want []int
	}{
		"1 node":                       {machine(t, row(1)), 0, []int{0}},
		"2 nodes":                      {machine(t, row(2)), 1, []int{1}},
		"4 nodes":                      {machine(t, row(4)), 2, []int{2}},
		"8 nodes":                      {machine(t, row(8)), 7, []int{7}},
		"a node without CPUs":          {cpuless("17 28 10"), 2, []int{0}},
		"as near to two":               {cpuless("20 20 10"), 2, []int{0, 1}},
		"distances that nobody knows":  {cpuless(""), 2, nil},
		"memory of two sockets, CXL":   {machine(t, []string{"", "0-1", "", "2-3"}, "10 17 40 28", "17 10 28 21", "40 28 10 17", "28 21 17 10"), 2, []int{3}},
		"a node without memory":        {machine(t, row(2)), 0, []int{0}}, // its CPUs are what counts
		"a node that is only declared": {machine(t, row(1)), 1, nil},
		"an unknown node":              {machine(t, row(2)), -1, nil},
		"a kernel without NUMA":        {Topology(t.TempDir()), 0, nil},
	} {
		if got := c.sys.Nearest(c.node); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestNodesAreInNumericalOrder(t *testing.T) {
	got := machine(t, row(12)).Nodes()
	if !slices.IsSorted(got) || len(got) != 12 {
		t.Errorf("%v", got)
	}
}

func TestCPUs(t *testing.T) {
	sys := machine(t, []string{"0-1,8", "3", "", "junk,5-x,7"})
	for _, c := range []struct{ nodes, want []int }{
		{[]int{0}, []int{0, 1, 8}},
		{[]int{0, 1}, []int{0, 1, 3, 8}},
		{[]int{2}, nil},
		{[]int{3}, []int{7}},
		{[]int{9}, nil},
		{nil, nil},
	} {
		if got := slices.Sorted(maps.Keys(sys.CPUs(c.nodes))); !slices.Equal(got, c.want) {
			t.Errorf("CPUs of %v: %v, want %v", c.nodes, got, c.want)
		}
	}
}
