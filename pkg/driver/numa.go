package driver

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// NUMANodeKey is where a PersistentVolume says on which NUMA node its memory is:
// as a volume attribute, which the driver sets, and as a label, which the
// controller copies from it so that kubectl can show and select by it. A volume
// whose NUMA node is not known has neither.
const NUMANodeKey = Name + "/numa-node"

// numaResourcePrefix begins the names of the extended resources that the device
// plugin offers.
const numaResourcePrefix = Name + "/numa-"

// NUMAResource is the extended resource that a container asks for to run beside
// memory on that NUMA node.
func NUMAResource(node int) string { return numaResourcePrefix + strconv.Itoa(node) }

// NUMANodeOfResource returns the NUMA node of such a resource; false for any
// other name.
func NUMANodeOfResource(name string) (int, bool) {
	text, ok := strings.CutPrefix(name, numaResourcePrefix)
	if !ok {
		return anyNUMANode, false
	}
	return ParseNUMANode(text)
}

// ParseNUMANode parses the number of a NUMA node as NUMANodeKey and numaNode have
// it: no sign, no leading zero. It returns false for anything else.
func ParseNUMANode(text string) (int, bool) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || strconv.Itoa(n) != text {
		return anyNUMANode, false
	}
	return n, true
}

// numaNode returns where the volume's memory is; false when that is not known.
func (r *record) numaNode() (int, bool) {
	if r.NUMANode == nil || *r.NUMANode < 0 {
		return anyNUMANode, false
	}
	return *r.NUMANode, true
}

// volumeContext is what the PersistentVolume of the volume will say.
func (r *record) volumeContext() map[string]string {
	context := map[string]string{}
	if params, err := r.params(); err == nil {
		context = params.Map(OriginContext)
	}
	if node, known := r.numaNode(); known {
		context[NUMANodeKey] = strconv.Itoa(node)
	}
	return context
}

// NUMANodes returns the NUMA nodes on which this node has persistent memory, each
// with whether any of it can be used. Memory of which no NUMA node is known is not
// in it.
func (d *Driver) NUMANodes(ctx context.Context) (map[int]bool, error) {
	regions, err := d.namespaces.Regions(ctx)
	if err != nil {
		return nil, fmt.Errorf("regions of node %s: %w", d.options.NodeID, err)
	}
	nodes := map[int]bool{}
	for _, r := range regions {
		if r.NUMANode >= 0 {
			nodes[r.NUMANode] = nodes[r.NUMANode] || r.Unusable == ""
		}
	}
	return nodes, nil
}

// numaChosen reports whether the class of the volume demands a NUMA node.
func (r *record) numaChosen() bool {
	params, err := r.params()
	return err == nil && params.NUMANode != anyNUMANode
}
