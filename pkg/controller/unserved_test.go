package controller

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// Who uses a volume that nobody serves any more is told why, and what to do, on
// the volume and on the claim. Others are not bothered.
func TestUnservedVolumesAreTold(t *testing.T) {
	claimed, bare, healthy := volume("a", "1", "n1"), volume("b", "2", "n1"), volume("c", "3", "n1")
	bare.Spec.ClaimRef = nil
	reports := []driver.Report{
		{Node: "n1", Volumes: []driver.VolumeReport{{ID: "1", Unserved: "its server ended (signal: killed), and this kernel is old"}, {ID: "3"}}},
		{Node: "n2", Volumes: []driver.VolumeReport{{ID: "2", Unserved: "out of memory"}, {ID: "4", Unserved: "of nobody"}}},
	}
	var got []string
	for _, f := range findingsOfUnserved(reports, []*corev1.PersistentVolume{claimed, bare, healthy}) {
		got = append(got, f.object.Kind+" "+f.object.Namespace+"/"+f.object.Name)
		if f.reason != ReasonNotServed || !strings.Contains(f.message, "Delete the pods") ||
			!strings.Contains(f.message, "this kernel is old") && !strings.Contains(f.message, "out of memory") {
			t.Errorf("finding %+v", f)
		}
	}
	if want := "PersistentVolume /a,PersistentVolumeClaim team/claim-of-a,PersistentVolume /b"; strings.Join(got, ",") != want {
		t.Errorf("events on %v, want %s", got, want)
	}
}
