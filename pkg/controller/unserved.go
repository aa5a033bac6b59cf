package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// findingsOfUnserved reports volumes that are mounted and not served: on a
// kernel before 6.9 or over the transport uring they do not outlive the process
// that served them. The pods that use them get errors until they are made anew.
func findingsOfUnserved(reports []driver.Report, volumes []*corev1.PersistentVolume) []finding {
	why := map[string]string{}
	for _, report := range reports {
		for _, v := range report.Volumes {
			if v.Unserved != "" {
				why[v.ID] = v.Unserved
			}
		}
	}
	var found []finding
	for _, pv := range volumes {
		reason := why[pv.Spec.CSI.VolumeHandle]
		if reason == "" {
			continue
		}
		message := fmt.Sprintf("Volume %s is mounted on node %s, but nothing serves it, and its users get errors: %s. Nothing that was acknowledged is lost. Delete the pods that use it: it is mounted anew for those that follow them.", pv.Name, nodeOf(pv), reason)
		found = append(found, finding{reference("v1", "PersistentVolume", "", pv.Name, pv.UID), ReasonNotServed, message})
		if ref := pv.Spec.ClaimRef; ref != nil {
			found = append(found, finding{reference("v1", "PersistentVolumeClaim", ref.Namespace, ref.Name, ref.UID), ReasonNotServed, message})
		}
	}
	return found
}
