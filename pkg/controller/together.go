package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// together is what a claim that waits for a volume has to be seen with: the
// other volumes of the pods that use it.
type together struct {
	pods    []corev1.Pod                        // of the namespaces of claims that wait
	volumes map[string]*corev1.PersistentVolume // of the driver, by NAMESPACE/CLAIM
}

// waitingPods returns the pods of the namespaces that have claims waiting for a
// volume of the driver. They are not watched: there are few such claims, and may
// be very many pods.
func (w *watcher) waitingPods(ctx context.Context, claims []*corev1.PersistentVolumeClaim, classes []*storagev1.StorageClass) ([]corev1.Pod, error) {
	var namespaces []string
	for _, claim := range claims {
		if classOf(claim, classes) != nil {
			namespaces = append(namespaces, claim.Namespace)
		}
	}
	slices.Sort(namespaces)
	var pods []corev1.Pod
	for _, namespace := range slices.Compact(namespaces) {
		list, err := w.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "spec.nodeName="})
		if err != nil {
			return nil, fmt.Errorf("pods of namespace %s: %w", namespace, err)
		}
		pods = append(pods, list.Items...)
	}
	return pods, nil
}

func newTogether(pods []corev1.Pod, volumes []*corev1.PersistentVolume) together {
	t := together{pods: pods, volumes: map[string]*corev1.PersistentVolume{}}
	for _, pv := range volumes {
		if ref := pv.Spec.ClaimRef; ref != nil {
			t.volumes[ref.Namespace+"/"+ref.Name] = pv
		}
	}
	return t
}

// problem says that a claim cannot get its volume on the node to which another
// volume of the same pod binds the pod.
func (t together) problem(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, n nodes) (reason, message string) {
	params, err := driver.ParseParams(driver.OriginClass, class.Parameters)
	want := claim.Spec.Resources.Requests.Storage().Value()
	if err != nil || want <= 0 {
		return "", ""
	}
	for _, pod := range t.pods {
		names := claimsOf(&pod)
		if pod.Namespace != claim.Namespace || pod.Spec.NodeName != "" || !slices.Contains(names, claim.Name) {
			continue
		}
		for _, other := range names {
			pv := t.volumes[pod.Namespace+"/"+other]
			if other == claim.Name || pv == nil {
				continue
			}
			node := nodeOf(pv)
			extent, reported := n.largestOn(node, params)
			if !reported || uint64(want) <= extent {
				continue
			}
			return ReasonNotBeside, fmt.Sprintf("Pod %s also uses claim %s, whose volume is on node %s; %s is asked for, and the largest free extent there is %s. "+
				"All volumes of a pod are on one node. Make room on node %s; or, if claim %s holds nothing yet, start again with smaller ones: kubectl -n %s delete pod %s; kubectl -n %s delete pvc %s %s",
				pod.Name, other, node, quantity(uint64(want)), quantity(extent), node, other, pod.Namespace, pod.Name, pod.Namespace, other, claim.Name)
		}
	}
	return "", ""
}

// largestOn returns the largest free extent for volumes with these parameters on
// a node, and whether the node has reported.
func (n nodes) largestOn(node string, params driver.Params) (extent uint64, reported bool) {
	for _, report := range n.reports {
		if report.Node != node {
			continue
		}
		reported = true
		for _, r := range report.Regions {
			if r.Unusable == "" && suits(params, r) {
				extent = max(extent, r.LargestExtent)
			}
		}
	}
	return extent, reported
}
