package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/localcluster"
)

const flushModeAnnotation = "csi.nvfs.dev/flush-mode"

// TestFlushModeOfANode: the annotation of a node says what flushMode auto means
// there. A mode that the node's CPU lacks leaves the class without capacity on
// that node, and pods go to the other one.
func TestFlushModeOfANode(t *testing.T) {
	k := newTest(t)
	t.Cleanup(func() {
		if err := cluster.InstallDriver(k.ctx, repository); err != nil {
			t.Error(err)
		}
	})
	here, there := cluster.Nodes[0], cluster.Nodes[1]
	k.annotate(here.Name, "clflush")
	k.annotate(there.Name, "dccvap") // of another architecture
	if err := cluster.InstallDriver(k.ctx, repository, "node.flushModeAnnotation=true"); err != nil {
		t.Fatal(err)
	}
	k.eventually("the driver knows its node's flush mode", func() string {
		line := k.driverMetric(here, "nvfs_csi_flush_mode_choice_info", "annotation")
		if !strings.Contains(line, `flush_mode="clflush"`) {
			return line
		}
		return ""
	})
	k.awaitClassCapacity("nvfs", map[string]bool{here.Name: true, there.Name: false})
	k.claim("data", "nvfs", "64Mi")
	k.pod("user", podOptions{claim: "data", command: fioVerify + " && sleep 3600"})
	if pod := k.awaitPod("user", corev1.PodRunning); pod.Spec.NodeName != here.Name {
		t.Errorf("the pod runs on %s, which cannot honour the node's flush mode", pod.Spec.NodeName)
	}
	k.eventually("the node's flush mode", func() string {
		line := k.driverMetric(here, "nvfs_csi_volume_info", k.volumeOf("data").Spec.CSI.VolumeHandle)
		if !strings.Contains(line, `flush_mode="clflush"`) {
			return line
		}
		return ""
	})
	k.annotate(there.Name, "")
	k.awaitClassCapacity("nvfs", map[string]bool{here.Name: true, there.Name: true})
}

// annotate sets the flush mode of a node; "" takes it back. The test ends
// without any.
func (k *kube) annotate(node, mode string) {
	k.Helper()
	change := flushModeAnnotation + "=" + mode
	if mode == "" {
		change = flushModeAnnotation + "-"
	}
	k.must("annotate", "--overwrite", "node", node, change)
	k.Cleanup(func() {
		if _, err := k.try("annotate", "node", node, flushModeAnnotation+"-"); err != nil {
			k.Error(err)
		}
	})
}

// awaitClassCapacity waits until a class has room on exactly those nodes.
func (k *kube) awaitClassCapacity(class string, room map[string]bool) {
	k.Helper()
	k.eventually("capacity of class "+class, func() string {
		var list storagev1.CSIStorageCapacityList
		k.get(&list, "-A", "csistoragecapacities")
		found := map[string]bool{}
		for _, c := range list.Items {
			if c.StorageClassName == class {
				found[c.NodeTopology.MatchLabels[topologyKey]] = c.MaximumVolumeSize != nil && c.MaximumVolumeSize.Value() > 0
			}
		}
		for node, want := range room {
			if has, known := found[node]; !known || has != want {
				return fmt.Sprintf("there is room on %v, want %v", found, room)
			}
		}
		return ""
	})
}

// driverMetric returns the line of a metric of the driver on a node that has a
// part, "" when there is none.
func (k *kube) driverMetric(n localcluster.Node, metric, part string) string {
	k.Helper()
	address := k.must("-n", localcluster.Namespace, "get", "pod", k.driverPod("node", n.Name), "-o", "jsonpath={.status.podIP}")
	text, err := n.Exec(k.ctx, "wget", "-qO-", "http://"+address+":9810/metrics")
	if err != nil {
		k.Fatal(err)
	}
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, metric+"{") && strings.Contains(line, part) {
			return line
		}
	}
	return ""
}
