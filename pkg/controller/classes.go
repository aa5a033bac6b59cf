package controller

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// nodes is what the nodes have reported. complete says whether every node with
// a driver has: what nobody offers can only be told then.
type nodes struct {
	reports  []driver.Report
	complete bool
}

// regions returns the usable regions of all nodes that match.
func (n nodes) regions(match func(driver.RegionReport) bool) []driver.RegionReport {
	var found []driver.RegionReport
	for _, report := range n.reports {
		for _, r := range report.Regions {
			if r.Unusable == "" && match(r) {
				found = append(found, r)
			}
		}
	}
	return found
}

func anyRegion(driver.RegionReport) bool { return true }

// suits reports whether volumes with these parameters can be in a region.
func suits(p driver.Params, r driver.RegionReport) bool {
	return (p.NUMANode < 0 || r.NUMANode == p.NUMANode) && slices.Contains(r.FlushModes, p.FlushMode)
}

// classProblem says why no volume of the class can be made, whatever is free:
// the reason and message of an event, or two empty strings.
func classProblem(class *storagev1.StorageClass, n nodes) (reason, message string) {
	params, err := driver.ParseParams(driver.OriginClass, class.Parameters)
	if err != nil {
		return ReasonInvalidParameters, fmt.Sprintf("%v. Parameters of a class cannot be changed: delete StorageClass %s and create it anew; volumes stay as they are.", err, class.Name)
	}
	if class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		return ReasonImmediateBinding, fmt.Sprintf("The volume is where its pod runs, so no node makes one before there is a pod. The binding mode of a class cannot be changed: delete StorageClass %s and create it anew with volumeBindingMode: WaitForFirstConsumer; volumes stay as they are.", class.Name)
	}
	if !n.complete || len(n.reports) == 0 {
		return "", ""
	}
	all := n.regions(anyRegion)
	if len(all) == 0 {
		return ReasonNoMemory, fmt.Sprintf("None of the %d nodes that run the driver has a usable persistent memory region. Run \"nvfs-csi discover\" in the driver's container on a node to see why.", len(n.reports))
	}
	if len(n.regions(func(r driver.RegionReport) bool { return suits(params, r) })) > 0 {
		return "", ""
	}
	onNUMA := n.regions(func(r driver.RegionReport) bool { return params.NUMANode < 0 || r.NUMANode == params.NUMANode })
	if len(onNUMA) == 0 {
		return ReasonNUMANodeNotFound, fmt.Sprintf("%s=%d: no node has persistent memory on that NUMA node; there is memory on %s.", driver.KeyNUMANode, params.NUMANode, numaNodes(all))
	}
	return ReasonFlushModeNotOffered, fmt.Sprintf("%s=%s: no node offers it where the class wants its volumes; offered are %s. Use one of these, or %s=auto.",
		driver.KeyFlushMode, params.FlushMode, flushModes(onNUMA), driver.KeyFlushMode)
}

// findingsOfClasses looks at every class of the driver.
func findingsOfClasses(classes []*storagev1.StorageClass, n nodes) []finding {
	var found []finding
	for _, class := range classes {
		if class.Provisioner != driver.Name {
			continue
		}
		if reason, message := classProblem(class, n); reason != "" {
			found = append(found, finding{classReference(class), reason, message})
		}
	}
	return found
}

func classReference(class *storagev1.StorageClass) corev1.ObjectReference {
	return reference("storage.k8s.io/v1", "StorageClass", "", class.Name, class.UID)
}

func flushModes(regions []driver.RegionReport) string {
	var modes []string
	for _, r := range regions {
		modes = append(modes, r.FlushModes...)
	}
	slices.Sort(modes)
	return strings.Join(slices.Compact(modes), ", ")
}

func numaNodes(regions []driver.RegionReport) string {
	var numbers []int
	for _, r := range regions {
		numbers = append(numbers, r.NUMANode)
	}
	slices.Sort(numbers)
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(slices.Compact(numbers)), " ", ", "), "[]")
}
