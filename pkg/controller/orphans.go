package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// orphan is a volume on a node that no PersistentVolume is about.
type orphan struct {
	node   string
	volume string
	bytes  uint64
	reason string
}

// volumesOf returns the PersistentVolumes of the driver.
func volumesOf(all []*corev1.PersistentVolume) []*corev1.PersistentVolume {
	var ours []*corev1.PersistentVolume
	for _, pv := range all {
		if pv.Spec.CSI != nil && pv.Spec.CSI.Driver == driver.Name {
			ours = append(ours, pv)
		}
	}
	return ours
}

// nodeOf returns the one node that a volume is on; "" when it does not say.
func nodeOf(pv *corev1.PersistentVolume) string {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return ""
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == driver.TopologyKey && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}

// findingsOfVolumes reports volumes whose node has left the cluster. Nothing is
// deleted: the node, and the data with it, may come back.
func findingsOfVolumes(volumes []*corev1.PersistentVolume, present map[string]bool) []finding {
	var found []finding
	for _, pv := range volumes {
		node := nodeOf(pv)
		if node == "" || present[node] {
			continue
		}
		found = append(found, finding{
			reference("v1", "PersistentVolume", "", pv.Name, pv.UID), ReasonNodeGone,
			fmt.Sprintf("Node %s is not in the cluster any more, and the data of the volume is on it. If the node comes back, so does the volume. If not, the data is lost: %s", node, removal(pv))})
	}
	return found
}

// removal is the commands that make the cluster forget a volume whose node will
// not come back. No provisioner is left that could take the finalizer away.
func removal(pv *corev1.PersistentVolume) string {
	commands := fmt.Sprintf(`kubectl delete pv %s --wait=false; kubectl patch pv %s --type=merge -p '{"metadata":{"finalizers":null}}'`, pv.Name, pv.Name)
	if ref := pv.Spec.ClaimRef; ref != nil {
		commands = fmt.Sprintf("kubectl -n %s delete pvc %s; ", ref.Namespace, ref.Name) + commands
	}
	return commands
}

// orphansOf compares what the nodes hold with what the cluster knows. A volume
// that is being created or deleted is nobody's orphan yet.
func orphansOf(reports []driver.Report, volumes []*corev1.PersistentVolume) []orphan {
	known := map[string]bool{}
	for _, pv := range volumes {
		known[pv.Spec.CSI.VolumeHandle] = true
	}
	var found []orphan
	for _, report := range reports {
		for _, v := range report.Volumes {
			if v.Phase == "ready" && !known[v.ID] {
				found = append(found, orphan{report.Node, v.ID, v.Bytes, "no PersistentVolume has it as its volumeHandle"})
			}
		}
		for _, o := range report.Orphans {
			found = append(found, orphan{report.Node, o.Namespace, o.Bytes, o.Reason})
		}
	}
	return found
}

// lasting returns the orphans that were there the time before as well: between
// CreateVolume and its PersistentVolume each volume looks like one.
func lasting(now []orphan, before map[orphan]bool) []orphan {
	var kept []orphan
	for _, o := range now {
		if before[o] {
			kept = append(kept, o)
		}
	}
	return kept
}

func findingsOfOrphans(orphans []orphan) []finding {
	var found []finding
	for _, o := range orphans {
		found = append(found, finding{
			reference("v1", "Node", "", o.node, ""), ReasonOrphanVolume,
			fmt.Sprintf("Volume %s takes %s of the persistent memory of node %s, but %s. It is kept; see \"Orphans\" in the documentation for how to look at it and remove it.", o.volume, quantity(o.bytes), o.node, o.reason)})
	}
	return found
}
