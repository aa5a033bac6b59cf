package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// MemoryAnnotation is where a Node says what persistent memory it has on each NUMA
// node, for people and scripts; nothing reads it back but the controller.
const MemoryAnnotation = driver.Name + "/persistent-memory"

// unknownNUMANode is the key of memory whose NUMA node is not known.
const unknownNUMANode = "unknown"

// numaMemory is the usable persistent memory of one NUMA node of a node. Sizes are
// quantities.
type numaMemory struct {
	Regions       int    `json:"regions"`
	Size          string `json:"size"`
	Available     string `json:"available"`
	LargestExtent string `json:"largestExtent"` // what one volume can take at most

	size, available, largest uint64
}

// rollUp adds up the regions of a node by NUMA node.
func rollUp(regions []driver.RegionReport) map[string]numaMemory {
	memory := map[string]numaMemory{}
	for _, r := range regions {
		if r.Unusable != "" {
			continue
		}
		key := unknownNUMANode
		if r.NUMANode >= 0 {
			key = strconv.Itoa(r.NUMANode)
		}
		m := memory[key]
		m.Regions++
		m.size, m.available, m.largest = m.size+r.Size, m.available+r.Available, max(m.largest, r.LargestExtent)
		m.Size, m.Available, m.LargestExtent = quantity(m.size), quantity(m.available), quantity(m.largest)
		memory[key] = m
	}
	return memory
}

// memoryAnnotation is the annotation of a node with these regions; "" for none.
func memoryAnnotation(regions []driver.RegionReport) (string, error) {
	memory := rollUp(regions)
	if len(memory) == 0 {
		return "", nil
	}
	text, err := json.Marshal(memory)
	return string(text), err
}

// annotate keeps the annotation of the nodes: what those that report have, nothing
// for those without a driver; a node that just does not answer stays as it is.
// annotations are those of all nodes, as they are. more: some are left for the next
// look.
func (w *watcher) annotate(ctx context.Context, reports []driver.Report, annotations map[string]string, drivers map[string]bool) (more bool, err error) {
	want := map[string]string{}
	for node := range annotations {
		if !drivers[node] {
			want[node] = ""
		}
	}
	var errs []error
	for _, report := range reports {
		text, err := memoryAnnotation(report.Regions)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		want[report.Node] = text
	}
	changes := 0
	for _, node := range slices.Sorted(maps.Keys(want)) {
		have, present := annotations[node]
		if !present || have == want[node] {
			continue
		}
		if changes++; changes > maxChanges {
			return true, errors.Join(errs...)
		}
		var value any // nil removes it
		if want[node] != "" {
			value = want[node]
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{MemoryAnnotation: value}}})
		if err != nil {
			return false, err
		}
		_, err = w.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("annotation of node %s: %w", node, err))
		}
	}
	return false, errors.Join(errs...)
}

// setMemory records what the nodes have.
func (m *controllerMetrics) setMemory(reports []driver.Report) {
	m.memory.Reset()
	for _, report := range reports {
		for numa, memory := range rollUp(report.Regions) {
			for kind, bytes := range map[string]uint64{"size": memory.size, "available": memory.available, "largest_extent": memory.largest} {
				m.memory.WithLabelValues(report.Node, numa, kind).Set(float64(bytes))
			}
		}
	}
}
