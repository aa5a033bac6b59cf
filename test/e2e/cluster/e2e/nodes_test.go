package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/localcluster"
)

// written is a pod's command that leaves data whose sum another pod can check.
const (
	writeData = "head -c 5000000 /dev/urandom > /data/file && sha256sum /data/file > /data/sum && sync && touch /data/written"
	checkData = "sha256sum -c /data/sum"
)

// writeOn makes a claim and writes to its volume on a node.
func (k *kube) writeOn(node, claim string) {
	k.Helper()
	k.claim(claim, "nvfs", "64Mi")
	k.pod("writer", podOptions{node: node, claim: claim, command: writeData})
	k.awaitPod("writer", corev1.PodSucceeded)
	k.must("-n", k.namespace, "delete", "pod", "writer")
}

// checkOn reads back what writeOn has written.
func (k *kube) checkOn(claim string) {
	k.Helper()
	k.pod("reader", podOptions{claim: claim, command: checkData})
	k.awaitPod("reader", corev1.PodSucceeded)
	k.must("-n", k.namespace, "delete", "pod", "reader")
}

// start starts a node and waits until the driver runs on it.
func (k *kube) start(n localcluster.Node) {
	k.Helper()
	if err := cluster.StartNode(k.ctx, n); err != nil {
		k.Fatal(err)
	}
	k.awaitDriver(n.Name)
}

// awaitDriver waits until a node is ready and its driver registered.
func (k *kube) awaitDriver(node string) {
	k.Helper()
	k.eventually("driver on node "+node, func() string {
		if out, err := k.try("get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`); err != nil || out != "True" {
			return "the node is not ready"
		}
		if out, err := k.try("get", "csinode", node, "-o", "jsonpath={.spec.drivers[*].name}"); err != nil || out != "csi.nvfs.dev" {
			return "the kubelet knows no driver"
		}
		for _, component := range []string{"node", "mountd"} {
			out, err := k.try("-n", localcluster.Namespace, "get", "pods", "-l", "app.kubernetes.io/component="+component, "--field-selector", "spec.nodeName="+node,
				"-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
			if err != nil || out != "True" {
				return component + " pods are ready: " + out
			}
		}
		return ""
	})
}

// TestNodeReboot: all processes of a node end at once. Its memory stays, and the
// pods that were on it find what they had written.
func TestNodeReboot(t *testing.T) {
	k := newTest(t)
	n := cluster.Nodes[1]
	k.claim("data", "nvfs", "64Mi")
	k.pod("user", podOptions{node: n.Name, claim: "data", restart: "Always",
		command: "if [ -e /data/written ]; then " + checkData + " && touch /data/checked; else " + writeData + "; fi; sleep 3600"})
	k.awaitPod("user", corev1.PodRunning)
	k.awaitFile("user", "/data/written")
	if err := cluster.Kill(n); err != nil {
		t.Fatal(err)
	}
	k.start(n)
	k.awaitFile("user", "/data/checked")
}

// awaitFile waits until a file exists in a pod.
func (k *kube) awaitFile(pod, file string) {
	k.Helper()
	k.eventually(file+" in pod "+pod, func() string {
		if _, err := k.try("-n", k.namespace, "exec", pod, "--", "ls", file); err != nil {
			return err.Error()
		}
		return ""
	})
}

// TestNodeDeleted: a node leaves the cluster. Its capacity goes, its volumes are
// reported with what to do and are not deleted; when it comes back, so do they.
func TestNodeDeleted(t *testing.T) {
	k := newTest(t)
	n := cluster.Nodes[1]
	k.writeOn(n.Name, "data")
	pv := k.volumeOf("data")
	if err := cluster.Kill(n); err != nil {
		t.Fatal(err)
	}
	returned := false
	defer func() { // whatever fails, the other tests need the node
		if !returned {
			k.start(n)
		}
	}()
	k.must("delete", "node", n.Name)
	k.eventually("capacity of a node that is gone", func() string {
		return k.must("get", "csistoragecapacities", "-A", "-o", `jsonpath={.items[?(@.nodeTopology.matchLabels.topology\.csi\.nvfs\.dev/node=="`+n.Name+`")].metadata.name}`)
	})
	message := k.awaitEvent("default", "PersistentVolume", pv.Name, "NodeGone")
	for _, command := range []string{"kubectl -n " + k.namespace + " delete pvc data", "kubectl delete pv " + pv.Name} {
		if !strings.Contains(message, command) {
			t.Errorf("the event lacks %q: %s", command, message)
		}
	}
	if phase := k.volumeOf("data").Status.Phase; phase != corev1.VolumeBound {
		t.Errorf("the volume is %s", phase)
	}
	returned = true
	k.start(n)
	k.checkOn("data")
}

// TestLostBacking: the memory of a volume is replaced by nothing, as by a new
// node of the same name. Nothing takes its place: the pod does not start, and
// both its events and its status say that the data is lost.
func TestLostBacking(t *testing.T) {
	k := newTest(t)
	n := cluster.Nodes[0]
	k.writeOn(n.Name, "data")
	handle := k.volumeOf("data").Spec.CSI.VolumeHandle
	files, err := filepath.Glob(filepath.Join(n.Memory, "*", handle+".pmem"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files of %s: %v %v", handle, files, err)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	k.pod("reader", podOptions{claim: "data", command: checkData})
	if message := k.awaitEvent(k.namespace, "Pod", "reader", "FailedMount"); !strings.Contains(message, "the data of volume "+handle+" is lost") || !strings.Contains(message, "Restore it from a backup") {
		t.Errorf("the event says: %s", message)
	}
	k.eventually("DataLoss in the status of the pod", func() string {
		out := k.must("-n", k.namespace, "get", "pod", "reader", "-o", "jsonpath={.status.volumeHealth}")
		if !strings.Contains(out, `"DataLoss"`) || !strings.Contains(out, "BackingLost") {
			return "volumeHealth is " + out
		}
		return ""
	})
	// Its deletion has nothing to erase and must not hang.
	k.must("-n", k.namespace, "delete", "pod,pvc", "--all", "--timeout=120s")
	k.checkNothingIsLeft()
}

// TestOrphan: a volume that lost its PersistentVolume is reported and kept, and
// the way that the documentation shows leads back to its data and to its end.
func TestOrphan(t *testing.T) {
	k := newTest(t)
	n := cluster.Nodes[0]
	k.writeOn(n.Name, "data")
	pv := k.volumeOf("data")
	k.must("patch", "pv", pv.Name, "--type=merge", "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`)
	k.must("-n", k.namespace, "delete", "pvc", "data")
	k.must("delete", "pv", pv.Name)
	handle := pv.Spec.CSI.VolumeHandle
	if message := k.awaitEventWith("default", "Node", n.Name, "OrphanVolume", handle); !strings.Contains(message, "It is kept") {
		t.Errorf("the event says: %s", message)
	}
	k.apply(strings.NewReplacer("VOLUME", handle, "NODE", n.Name, "SPACE", k.namespace).Replace(`apiVersion: v1
kind: PersistentVolume
metadata:
  name: orphan
  annotations: {pv.kubernetes.io/provisioned-by: csi.nvfs.dev}
spec:
  capacity: {storage: 64Mi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: nvfs
  csi: {driver: csi.nvfs.dev, volumeHandle: VOLUME, fsType: nvfs}
  claimRef: {namespace: SPACE, name: orphan}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions:
            - {key: topology.csi.nvfs.dev/node, operator: In, values: [NODE]}
`))
	k.claimOf("orphan", "nvfs", "64Mi", "ReadWriteOnce", "  volumeName: orphan\n")
	k.checkOn("orphan")
	k.must("patch", "pv", "orphan", "--type=merge", "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	k.must("-n", k.namespace, "delete", "pvc", "orphan")
	k.checkNothingIsLeft()
}
