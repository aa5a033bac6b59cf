package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// findingsOfClaims looks at claims that wait for a volume of the driver. A
// claim may well wait for a pod; only what no pod could change is reported.
func findingsOfClaims(claims []*corev1.PersistentVolumeClaim, classes []*storagev1.StorageClass, n nodes, t together) []finding {
	var found []finding
	for _, claim := range claims {
		class := classOf(claim, classes)
		if class == nil {
			continue
		}
		reason, message := classProblem(class, n)
		if reason != "" {
			message = fmt.Sprintf("StorageClass %s cannot be served. %s", class.Name, message)
		} else {
			reason, message = sizeProblem(claim, class, n)
		}
		if reason == "" {
			reason, message = t.problem(claim, class, n)
		}
		if reason != "" {
			found = append(found, finding{claimReference(claim), reason, message})
		}
	}
	return found
}

// classOf returns the driver's class of a claim that waits for a volume; nil for
// any other claim.
func classOf(claim *corev1.PersistentVolumeClaim, classes []*storagev1.StorageClass) *storagev1.StorageClass {
	if claim.Status.Phase != corev1.ClaimPending || claim.DeletionTimestamp != nil || claim.Spec.StorageClassName == nil {
		return nil
	}
	for _, class := range classes {
		if class.Provisioner == driver.Name && class.Name == *claim.Spec.StorageClassName {
			return class
		}
	}
	return nil
}

// sizeProblem says that a claim is larger than what any node could give it now.
func sizeProblem(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, n nodes) (reason, message string) {
	params, err := driver.ParseParams(driver.OriginClass, class.Parameters)
	want := claim.Spec.Resources.Requests.Storage().Value()
	if err != nil || !n.complete || want <= 0 {
		return "", ""
	}
	var extent, region uint64
	var node string
	for _, report := range n.reports {
		for _, r := range report.Regions {
			if r.Unusable != "" || !suits(params, r) {
				continue
			}
			region = max(region, r.Size)
			if r.LargestExtent >= extent {
				extent, node = r.LargestExtent, report.Node
			}
		}
	}
	if region == 0 || uint64(want) <= extent {
		return "", ""
	}
	remedy := "Delete volumes that are not needed any more, or ask for less."
	if uint64(want) > region {
		remedy = fmt.Sprintf("Ask for less: the largest region has %s.", quantity(region))
	}
	return ReasonTooLarge, fmt.Sprintf("%s is asked for; the largest free extent is %s, on node %s. A volume has to fit into one extent. %s", quantity(uint64(want)), quantity(extent), node, remedy)
}

func claimReference(claim *corev1.PersistentVolumeClaim) corev1.ObjectReference {
	return reference("v1", "PersistentVolumeClaim", claim.Namespace, claim.Name, claim.UID)
}

func quantity(bytes uint64) string {
	return resource.NewQuantity(int64(bytes), resource.BinarySI).String()
}
