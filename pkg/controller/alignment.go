package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// AlignmentLabel is the label of a pod or namespace that keeps the webhook away,
// with the value AlignmentDisabled.
const (
	AlignmentLabel    = driver.Name + "/numa-alignment"
	AlignmentDisabled = "disabled"
)

// topologyAffinityError is the reason of pods that the kubelet's Topology Manager
// has refused.
const topologyAffinityError = "TopologyAffinityError"

// podVolume is a volume as one of its pods uses it.
type podVolume struct {
	name   string // that users know it by
	node   int    // NUMA node
	chosen bool   // by its class
	pod    driver.PodReport
}

// findingsOfPods tells the users of pods that are not beside their volumes. What a
// pod runs on, the nodes have reported; pods are not watched for it. webhook says
// whether pods that do not ask were to be made to.
func findingsOfPods(reports []driver.Report, volumes []*corev1.PersistentVolume, webhook bool) []finding {
	claims := map[string]string{}
	for _, pv := range volumes {
		if ref := pv.Spec.ClaimRef; ref != nil {
			claims[pv.Spec.CSI.VolumeHandle] = "claim " + ref.Name
		}
	}
	var found []finding
	for _, report := range reports {
		used := map[string][]podVolume{} // by UID of the pod
		for _, v := range report.Volumes {
			if v.NUMANode == nil || *v.NUMANode < 0 {
				continue
			}
			name := claims[v.ID]
			if name == "" {
				name = "volume " + v.ID
			}
			for _, pod := range v.Pods {
				used[pod.UID] = append(used[pod.UID], podVolume{name, *v.NUMANode, v.NUMAChosen, pod})
			}
		}
		for _, uid := range slices.Sorted(maps.Keys(used)) {
			if reason, message := alignmentProblem(report.Node, used[uid], webhook); reason != "" {
				pod := used[uid][0].pod
				found = append(found, finding{reference("v1", "Pod", pod.Namespace, pod.Name, types.UID(pod.UID)), reason, message})
			}
		}
	}
	return found
}

// alignmentProblem says why a pod is not, or may not be, beside its volumes.
func alignmentProblem(node string, used []podVolume, webhook bool) (reason, message string) {
	if slices.ContainsFunc(used, func(v podVolume) bool { return v.node != used[0].node }) {
		var parts []string
		for _, v := range used {
			parts = append(parts, fmt.Sprintf("%s on NUMA node %d", v.name, v.node))
		}
		slices.Sort(parts)
		return ReasonSeveralNUMANodes, fmt.Sprintf("The volumes of the pod are on several NUMA nodes of node %s: %s. It cannot run beside all of them and is not aligned. Use volumes of one StorageClass with %s.",
			node, strings.Join(parts, ", "), driver.KeyNUMANode)
	}
	for _, v := range used {
		if reason, message := v.problem(node, webhook); reason != "" {
			return reason, message
		}
	}
	return "", ""
}

func (v podVolume) problem(node string, webhook bool) (reason, message string) {
	resource := driver.NUMAResource(v.node)
	const kubelet = "a kubelet with cpuManagerPolicy static and topologyManagerPolicy restricted or single-numa-node"
	switch {
	case v.pod.Locality == driver.LocalityLocal:
		return "", ""
	case v.pod.Locality == driver.LocalityRemote && v.pod.Asks:
		return ReasonRemoteMemory, fmt.Sprintf("The pod has asked for %s and runs on CPUs of another NUMA node of node %s than the memory of %s, which is on %d. That memory is slower from there. The kubelet does not insist: it needs topologyManagerPolicy restricted or single-numa-node. Delete the pod once it has.",
			resource, node, v.name, v.node)
	case v.pod.Locality == driver.LocalityRemote:
		return ReasonRemoteMemory, fmt.Sprintf("The pod runs on CPUs of another NUMA node of node %s than the memory of %s, which is on %d. That memory is slower from there. Delete the pod: one that is made now asks for %s. It needs %s.",
			node, v.name, v.node, resource, kubelet)
	case !v.pod.Asks && (v.chosen || webhook && v.pod.Locality == driver.LocalityShared):
		return ReasonNotAligned, fmt.Sprintf("The pod does not ask for CPUs beside the memory of %s, NUMA node %d of node %s: the volume was made after the pod, the webhook of nvfs-csi did not answer, or the label %s=%s is set. A pod that is made now asks for %s.",
			v.name, v.node, node, AlignmentLabel, AlignmentDisabled, resource)
	case v.pod.Asks && v.chosen && v.pod.Locality == driver.LocalityShared:
		return ReasonNotAligned, fmt.Sprintf("The pod asks for CPUs beside the memory of %s, NUMA node %d of node %s, and has no CPUs of its own. That takes whole CPUs with requests equal to limits (QoS class Guaranteed) and %s.",
			v.name, v.node, node, kubelet)
	}
	return "", ""
}

// findingsOfRefused reports pods that a kubelet has refused because it cannot give
// them CPUs beside their volume. Whoever owns them makes another one at once, which
// is refused as well: its owner is told, once.
func findingsOfRefused(failed []*corev1.Pod) []finding {
	type group struct {
		owner corev1.ObjectReference
		pods  []*corev1.Pod
		node  int
	}
	groups := map[types.UID]*group{}
	for _, pod := range failed {
		node, asks := asksByItself(pod)
		if pod.Status.Reason != topologyAffinityError || !asks {
			continue
		}
		owner := reference("v1", "Pod", pod.Namespace, pod.Name, pod.UID)
		if ref := metav1.GetControllerOf(pod); ref != nil {
			owner = reference(ref.APIVersion, ref.Kind, pod.Namespace, ref.Name, ref.UID)
		}
		if groups[owner.UID] == nil {
			groups[owner.UID] = &group{owner: owner, node: node}
		}
		groups[owner.UID].pods = append(groups[owner.UID].pods, pod)
	}
	var found []finding
	for _, uid := range slices.Sorted(maps.Keys(groups)) {
		g := groups[uid]
		var nodes []string
		for _, pod := range g.pods {
			nodes = append(nodes, pod.Spec.NodeName)
		}
		slices.Sort(nodes)
		found = append(found, finding{g.owner, ReasonAlignmentRefused, fmt.Sprintf("The kubelet of node %s cannot give a pod CPUs and memory on NUMA node %d, beside its volume, and has refused it (%s); further pods are refused as well. "+
			"Make room there, or let the pod ask for fewer CPUs; or let it run anywhere on the node: label its template %s=%s. Refused pods stay until they are deleted: kubectl -n %s delete pods --field-selector status.phase=Failed",
			strings.Join(slices.Compact(nodes), ", "), g.node, topologyAffinityError, AlignmentLabel, AlignmentDisabled, g.owner.Namespace)})
	}
	return found
}

// label copies the NUMA node of volumes from their attribute to their label, by
// which kubectl can show and select them. more: some are left for the next look.
func (w *watcher) label(ctx context.Context, volumes []*corev1.PersistentVolume) (more bool, err error) {
	var errs []error
	changes := 0
	for _, pv := range volumes {
		want := numaLabel(pv)
		if want == "" || pv.Labels[driver.NUMANodeKey] == want || pv.DeletionTimestamp != nil {
			continue
		}
		if changes++; changes > maxChanges {
			return true, errors.Join(errs...)
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{driver.NUMANodeKey: want}}})
		if err != nil {
			return false, err
		}
		if _, err := w.client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			errs = append(errs, fmt.Errorf("label of PersistentVolume %s: %w", pv.Name, err))
			continue
		}
		klog.V(2).InfoS("Labelled a volume", "persistentVolume", pv.Name, "numaNode", want)
	}
	return false, errors.Join(errs...)
}
