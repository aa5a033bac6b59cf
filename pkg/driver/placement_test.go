package driver_test

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/fake"
)

// machine starts a driver over one region on each of these NUMA nodes. The region
// on the i-th has (i+1) * 128 MiB.
func machine(t *testing.T, numaNodes ...int) *node {
	t.Helper()
	var regions []ndctl.Region
	for i, numa := range numaNodes {
		regions = append(regions, ndctl.Region{Name: fmt.Sprintf("r%d", i), NUMANode: numa, Size: uint64(i+1) * 128 * mib, Emulated: true})
	}
	n := prepareNode(t, regions...)
	n.start()
	return n
}

// placed creates a volume and returns the NUMA node that its PersistentVolume
// will name; "" for none.
func (n *node) placed(name string, params ...string) string {
	n.t.Helper()
	volume, err := n.create(name, 30*mib, params...)
	n.ok(err)
	return volume.VolumeContext[driver.NUMANodeKey]
}

func (n *node) largestVolume(params ...string) int64 {
	n.t.Helper()
	response, err := n.controller.GetCapacity(n.t.Context(), &csi.GetCapacityRequest{Parameters: createRequest("", 0, params...).Parameters})
	n.ok(err)
	return response.GetMaximumVolumeSize().GetValue()
}

// TestPlacementByNUMANode: on machines with 1, 2, 4 and 8 NUMA nodes a class gets
// memory of its node, and only of that, and so says its capacity.
func TestPlacementByNUMANode(t *testing.T) {
	for _, count := range []int{1, 2, 4, 8} {
		t.Run(strconv.Itoa(count), func(t *testing.T) {
			var numaNodes []int
			for i := range count {
				numaNodes = append(numaNodes, i)
			}
			n := machine(t, numaNodes...)
			all := n.largestVolume()
			for i := range count {
				want := strconv.Itoa(i)
				if got := n.placed("on-"+want, driver.KeyNUMANode, want); got != want {
					t.Errorf("a class of numaNode %s got memory of NUMA node %q", want, got)
				}
				if largest := n.largestVolume(driver.KeyNUMANode, want); largest <= 0 || largest >= int64(i+1)*128*mib {
					t.Errorf("NUMA node %d of %d MiB offers a volume of %d bytes", i, (i+1)*128, largest)
				}
			}
			if all >= int64(count)*128*mib {
				t.Errorf("the largest volume of any class, %d bytes, is more than the largest region has", all)
			}
			beyond := strconv.Itoa(count)
			if largest := n.largestVolume(driver.KeyNUMANode, beyond); largest != 0 {
				t.Errorf("NUMA node %s, which is not there, offers %d bytes", beyond, largest)
			}
			_, err := n.create("beyond", 30*mib, driver.KeyNUMANode, beyond)
			n.wantCode(err, codes.ResourceExhausted, "numaNode="+beyond+" is asked for")
		})
	}
}

// TestPlacementPolicies: which NUMA nodes a row of equal volumes lands on. Each
// region is 128 MiB larger than the one before, and each volume takes 32 MiB.
func TestPlacementPolicies(t *testing.T) {
	for _, c := range []struct {
		policy string
		nodes  []int
		want   []string
	}{
		{driver.PolicyAny, []int{0}, []string{"0", "0", "0"}},
		{driver.PolicyAny, []int{0, 1, 2, 3}, []string{"0", "0", "0"}},
		{driver.PolicySpread, []int{0}, []string{"0", "0"}},
		// The larger one until both have the same, then by turns, in order of name.
		{driver.PolicySpread, []int{0, 1}, []string{"1", "1", "1", "1", "0", "1"}},
		{driver.PolicySpread, []int{0, 1, 2, 3}, []string{"3", "3", "3", "3", "2", "3"}},
		{driver.PolicySpread, []int{0, 1, 2, 3, 4, 5, 6, 7}, []string{"7", "7", "7", "7", "6", "7"}},
		{driver.PolicyPack, []int{0}, []string{"0", "0"}},
		// The smallest one until it is full; the info block of each namespace
		// leaves room for three in it.
		{driver.PolicyPack, []int{0, 1}, []string{"0", "0", "0", "0", "1"}},
		{driver.PolicyPack, []int{0, 1, 2, 3}, []string{"0", "0", "0", "0", "1"}},
		{driver.PolicyPack, []int{0, 1, 2, 3, 4, 5, 6, 7}, []string{"0", "0", "0", "0", "1"}},
	} {
		t.Run(fmt.Sprintf("%s on %d", c.policy, len(c.nodes)), func(t *testing.T) {
			n := machine(t, c.nodes...)
			var got []string
			for i := range c.want {
				got = append(got, n.placed(fmt.Sprintf("pvc-%d", i), driver.KeyNUMAPolicy, c.policy))
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("volumes are on NUMA nodes %v, want %v", got, c.want)
			}
		})
	}
}

// TestPlacementPolicyWithinANUMANode: a class may say both; then the policy
// chooses among the regions of the node.
func TestPlacementPolicyWithinANUMANode(t *testing.T) {
	n := machine(t, 1, 0, 0)
	volume, err := n.create("spread", 30*mib, driver.KeyNUMANode, "0", driver.KeyNUMAPolicy, driver.PolicySpread)
	n.ok(err)
	if ns, err := n.ns.Namespace(t.Context(), volume.VolumeId); err != nil || ns.Region != "r2" {
		t.Errorf("namespace %+v, %v, want region r2", ns, err)
	}
}

// TestPlacementOnOddMachines: NUMA nodes without persistent memory (a node without
// memory of any kind is one of them), memory on nodes without CPUs, whose numbers
// come after those of the others, and regions of which the kernel says no node.
func TestPlacementOnOddMachines(t *testing.T) {
	const cpuless = 8
	n := machine(t, 2, cpuless, -1)
	for _, c := range []struct{ numaNode, want string }{{"2", "2"}, {"8", "8"}} {
		if got := n.placed("on-"+c.numaNode, driver.KeyNUMANode, c.numaNode); got != c.want {
			t.Errorf("numaNode %s: memory of NUMA node %q", c.numaNode, got)
		}
	}
	for _, memoryless := range []string{"0", "1", "3"} {
		if largest := n.largestVolume(driver.KeyNUMANode, memoryless); largest != 0 {
			t.Errorf("NUMA node %s has no persistent memory and offers %d bytes", memoryless, largest)
		}
	}
	// Only a class that does not choose a node may have memory of an unknown
	// one, and its PersistentVolume claims nothing.
	volume, err := n.create("unknown", 30*mib, driver.KeyNUMAPolicy, driver.PolicySpread)
	n.ok(err)
	if text, said := volume.VolumeContext[driver.NUMANodeKey]; said {
		t.Errorf("a volume whose NUMA node is not known says %q", text)
	}
	_, err = n.create("minus", 30*mib, driver.KeyNUMANode, "-1")
	n.wantCode(err, codes.InvalidArgument, "a node number")
}

// TestNUMANodeOfAVolumeIsKept: what a PersistentVolume says is the same after a
// restart, and when the record was lost and is made again from the device.
func TestNUMANodeOfAVolumeIsKept(t *testing.T) {
	n := machine(t, 3)
	if got := n.placed("pvc-1"); got != "3" {
		t.Fatalf("NUMA node %q", got)
	}
	n.restart()
	if got := n.placed("pvc-1"); got != "3" {
		t.Errorf("after a restart: NUMA node %q", got)
	}
	// The attribute comes back with every call for the volume.
	id := n.mustCreate("pvc-2")
	n.ok(n.stageWith(id, multiWriter, map[string]string{driver.NUMANodeKey: "3"}))
	n.ok(n.unstage(id))
}

// TestNUMANodesOfTheMachine is what the device plugin goes by.
func TestNUMANodesOfTheMachine(t *testing.T) {
	n := prepareNode(t,
		ndctl.Region{Name: "r0", NUMANode: 0, Size: gib, Unusable: "no label area"},
		ndctl.Region{Name: "r1", NUMANode: 1, Size: gib, Unusable: "no label area"},
		ndctl.Region{Name: "r2", NUMANode: 1, Size: gib},
		ndctl.Region{Name: "r3", NUMANode: -1, Size: gib})
	n.start()
	got, err := n.driver.NUMANodes(t.Context())
	if want := map[int]bool{0: false, 1: true}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	n.ns.FailBefore(fake.Regions, errors.New("sysfs does not answer"))
	if _, err := n.driver.NUMANodes(t.Context()); err == nil {
		t.Error("no error")
	}
}

func TestNUMAResources(t *testing.T) {
	for _, node := range []int{0, 1, 17} {
		if got, ok := driver.NUMANodeOfResource(driver.NUMAResource(node)); !ok || got != node {
			t.Errorf("%s is of NUMA node %d, %v", driver.NUMAResource(node), got, ok)
		}
	}
	for _, name := range []string{"cpu", "csi.nvfs.dev/numa-", "csi.nvfs.dev/numa-x", "csi.nvfs.dev/numa--1", "csi.nvfs.dev/numa-01", "example.com/numa-0"} {
		if node, ok := driver.NUMANodeOfResource(name); ok {
			t.Errorf("%s is taken for NUMA node %d", name, node)
		}
	}
}
