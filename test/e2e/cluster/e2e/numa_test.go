package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/localcluster"
)

const (
	// alignmentAnnotation is where a pod says what the webhook has decided.
	alignmentAnnotation = "csi.nvfs.dev/numa-alignment"
	// numaNodeKey is where a PersistentVolume names its NUMA node.
	numaNodeKey = "csi.nvfs.dev/numa-node"
	// numaResource begins the names of the resources, which end with a NUMA node.
	numaResource = "csi.nvfs.dev/numa-"
)

// nodeReport is what the driver of a node says of its volumes.
type nodeReport struct {
	Volumes []struct {
		ID   string
		Pods []struct {
			UID  string
			Asks bool
		}
	}
}

// numaClass makes a class of a NUMA node.
func (k *kube) numaClass(name, node string) { k.class(name, map[string]string{"numaNode": node}) }

// asked returns what the containers of a pod ask for: NAME=RESOURCE ...
func (k *kube) asked(name string) string {
	k.Helper()
	var pod corev1.Pod
	k.get(&pod, "pod", name)
	var list []string
	for _, c := range pod.Spec.Containers {
		for resource := range c.Resources.Limits {
			if strings.HasPrefix(string(resource), numaResource) {
				list = append(list, c.Name+"="+string(resource))
			}
		}
	}
	return strings.Join(list, " ")
}

// reportOf returns what the driver of a node says.
func (k *kube) reportOf(node string) nodeReport {
	k.Helper()
	out := k.must("get", "--raw", "/api/v1/namespaces/"+localcluster.Namespace+"/pods/"+k.driverPod("node", node)+":9810/proxy/status")
	var report nodeReport
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		k.Fatal(err)
	}
	return report
}

// awaitResources waits until a node offers all tokens of both NUMA nodes.
func (k *kube) awaitResources(name string) {
	k.Helper()
	k.eventually("resources of node "+name, func() string {
		var node corev1.Node
		k.get(&node, "node", name)
		for _, numa := range []string{"0", "1"} {
			if n := node.Status.Allocatable[corev1.ResourceName(numaResource+numa)]; n.Value() != 1000 {
				return numaResource + numa + " is " + n.String()
			}
		}
		return ""
	})
}

// TestNUMAPlacement: a class of a NUMA node gets memory there, its PersistentVolume
// says so, and the pod, which is made before the volume, asks to run beside it and
// is given a token. Only the container that mounts the volume asks.
func TestNUMAPlacement(t *testing.T) {
	k := newTest(t)
	for _, numa := range []string{"0", "1"} {
		name := "numa" + numa
		k.numaClass("e2e-place"+numa, numa)
		k.claim(name, "e2e-place"+numa, "64Mi")
		k.pod(name, podOptions{claim: name, command: "sleep 3600",
			mounts: "      volumeMounts: [{name: data, mountPath: /data}]\n    - name: beside\n      image: " + localcluster.ToolsImage + "\n      imagePullPolicy: Never\n      command: [sleep, \"3600\"]\n"})
		if got, want := k.asked(name), "main=csi.nvfs.dev/numa-"+numa; got != want {
			t.Errorf("the pod asks for %q, want %q", got, want)
		}
		pod := k.awaitPod(name, corev1.PodRunning)
		if got := pod.Annotations[alignmentAnnotation]; got != "aligned with NUMA node "+numa {
			t.Errorf("the pod says %q", got)
		}
		pv := k.volumeOf(name)
		if got := pv.Spec.CSI.VolumeAttributes[numaNodeKey]; got != numa {
			t.Errorf("the PersistentVolume says NUMA node %q, want %s", got, numa)
		}
		k.eventually("label of the PersistentVolume", func() string {
			if out := k.must("get", "pv", "-l", numaNodeKey+"="+numa, "-o", "name"); !strings.Contains(out, pv.Name) {
				return "it is not selected by it; there are: " + out
			}
			return ""
		})
		for _, n := range cluster.Nodes {
			if n.Name != pod.Spec.NodeName {
				continue
			}
			out, err := n.Exec(k.ctx, "ls", localcluster.NodeMemory+"/region"+numa)
			if err != nil || !strings.Contains(out, pv.Spec.CSI.VolumeHandle) {
				t.Errorf("region%s of node %s holds %q (%v), not volume %s", numa, n.Name, out, err, pv.Spec.CSI.VolumeHandle)
			}
		}
		// The kubelet has given the token, and the driver knows who uses the volume.
		k.eventually("report of the pod", func() string {
			for _, v := range k.reportOf(pod.Spec.NodeName).Volumes {
				if v.ID == pv.Spec.CSI.VolumeHandle && len(v.Pods) == 1 && v.Pods[0].UID == string(pod.UID) && v.Pods[0].Asks {
					return ""
				}
			}
			return "the driver does not say that the pod asks"
		})
	}
}

// TestNUMABoundVolume: the first pod of a class that lets the driver choose is made
// before anybody knows where its volume will be. The next one is aligned.
func TestNUMABoundVolume(t *testing.T) {
	k := newTest(t)
	k.class("e2e-spread", map[string]string{"numaPolicy": "spread"})
	k.claim("data", "e2e-spread", "64Mi")
	k.pod("first", podOptions{claim: "data", command: "true"})
	if got := k.asked("first"); got != "" {
		t.Errorf("the first pod asks for %q", got)
	}
	first := k.awaitPod("first", corev1.PodSucceeded)
	if got := first.Annotations[alignmentAnnotation]; !strings.Contains(got, "not aligned: the NUMA node is not known yet for claim data") {
		t.Errorf("the first pod says %q", got)
	}
	numa := k.volumeOf("data").Spec.CSI.VolumeAttributes[numaNodeKey]
	k.pod("second", podOptions{claim: "data", command: "true"})
	if got, want := k.asked("second"), "main=csi.nvfs.dev/numa-"+numa; got != want {
		t.Errorf("the second pod asks for %q, want %q", got, want)
	}
	k.awaitPod("second", corev1.PodSucceeded)
}

// TestNUMAEphemeral: a generic ephemeral volume has no claim when its pod is made.
func TestNUMAEphemeral(t *testing.T) {
	k := newTest(t)
	k.numaClass("e2e-ephemeral", "1")
	k.pod("scratch", podOptions{command: fioVerify,
		volume: "ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], storageClassName: e2e-ephemeral, resources: {requests: {storage: 64Mi}}}}}"})
	if got := k.asked("scratch"); got != "main=csi.nvfs.dev/numa-1" {
		t.Errorf("the pod asks for %q", got)
	}
	k.awaitPod("scratch", corev1.PodSucceeded)
}

// TestNUMASeveralNodes: a pod with volumes on two NUMA nodes runs, and is told that
// it is beside none of them.
func TestNUMASeveralNodes(t *testing.T) {
	k := newTest(t)
	for _, numa := range []string{"0", "1"} {
		k.numaClass("e2e-several"+numa, numa)
		k.claim("on"+numa, "e2e-several"+numa, "64Mi")
	}
	k.pod("user", podOptions{command: "sleep 3600",
		mounts: "      volumeMounts: [{name: data, mountPath: /a}, {name: other, mountPath: /b}]\n",
		volume: "persistentVolumeClaim: {claimName: on0}\n    - name: other\n      persistentVolumeClaim: {claimName: on1}"})
	if got := k.asked("user"); got != "" {
		t.Errorf("the pod asks for %q", got)
	}
	k.awaitPod("user", corev1.PodRunning)
	message := k.awaitEvent(k.namespace, "Pod", "user", "SeveralNUMANodes")
	for _, part := range []string{"claim on0 on NUMA node 0", "claim on1 on NUMA node 1"} {
		if !strings.Contains(message, part) {
			t.Errorf("the event lacks %q: %s", part, message)
		}
	}
}

// TestNUMAWebhookDown: without the webhook pods run, and an event says what they
// miss. The label keeps the webhook away as well.
func TestNUMAWebhookDown(t *testing.T) {
	k := newTest(t)
	k.numaClass("e2e-down", "1")
	const service = `{"spec":{"selector":{"app.kubernetes.io/component":%q}}}`
	point := func(component string) {
		k.must("-n", localcluster.Namespace, "patch", "service", "nvfs-csi-webhook", "-p", strings.Replace(service, "%q", `"`+component+`"`, 1))
	}
	t.Cleanup(func() { point("controller") })
	point("nobody")
	k.eventually("no webhook any more", func() string {
		return k.must("-n", localcluster.Namespace, "get", "endpointslices", "-l", "kubernetes.io/service-name=nvfs-csi-webhook", "-o", "jsonpath={.items[*].endpoints[*].addresses}")
	})
	k.claim("data", "e2e-down", "64Mi")
	k.pod("down", podOptions{claim: "data", command: "sleep 3600"})
	if got := k.asked("down"); got != "" {
		t.Errorf("without a webhook the pod asks for %q", got)
	}
	k.awaitPod("down", corev1.PodRunning)
	if message := k.awaitEvent(k.namespace, "Pod", "down", "NotAligned"); !strings.Contains(message, "claim data, NUMA node 1") || !strings.Contains(message, "the webhook of nvfs-csi did not answer") {
		t.Errorf("the event says: %s", message)
	}
	point("controller")
	// As soon as it answers again pods are aligned, unless they do not want to be.
	k.eventually("the webhook answers", func() string {
		k.must("-n", k.namespace, "delete", "pod", "up", "--ignore-not-found", "--grace-period=1")
		k.pod("up", podOptions{claim: "data", command: "true"})
		if k.asked("up") == "" {
			return "a pod that was made now does not ask"
		}
		return ""
	})
	k.must("label", "namespace", k.namespace, alignmentAnnotation+"=disabled")
	k.pod("unwilling", podOptions{claim: "data", command: "true"})
	if got := k.asked("unwilling"); got != "" {
		t.Errorf("in a namespace that is labelled the pod asks for %q", got)
	}
}

// deployment makes one with a single pod that uses a claim.
func (k *kube) deployment(name, claim string) {
	k.Helper()
	k.apply(fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: main
          image: %[2]s
          imagePullPolicy: Never
          command: [sleep, "3600"]
          volumeMounts: [{name: data, mountPath: /data}]
      volumes:
        - name: data
          persistentVolumeClaim: {claimName: %[3]s}
`, name, localcluster.ToolsImage, claim))
}

// TestNUMAResources: each node offers both resources, also after its kubelet has
// started anew, which forgets all plugins, and says what it has in an annotation.
func TestNUMAResources(t *testing.T) {
	k := newTest(t)
	for _, n := range cluster.Nodes {
		k.awaitResources(n.Name)
		k.eventually("annotation of node "+n.Name, func() string {
			var node corev1.Node
			k.get(&node, "node", n.Name)
			var memory map[string]struct{ Size string }
			text := node.Annotations["csi.nvfs.dev/persistent-memory"]
			if err := json.Unmarshal([]byte(text), &memory); err != nil || memory["0"].Size != "512Mi" || memory["1"].Size != "512Mi" {
				return "it is " + text
			}
			return ""
		})
	}
	n := cluster.Nodes[1]
	k.numaClass("e2e-restart", "1")
	k.claim("data", "e2e-restart", "64Mi")
	k.pod("before", podOptions{claim: "data", command: "sleep 3600", node: n.Name})
	before := k.awaitPod("before", corev1.PodRunning)
	if err := n.RestartKubelet(k.ctx); err != nil {
		t.Fatal(err)
	}
	if err := cluster.AwaitNodes(k.ctx); err != nil {
		t.Fatal(err)
	}
	k.awaitResources(n.Name)
	// A kubelet refuses pods that ask while it does not know the plugin yet; whoever
	// owns them makes others.
	k.deployment("after", "data")
	k.eventually("a pod that asks runs after the restart", func() string {
		if n := k.must("-n", k.namespace, "get", "deployment", "after", "-o", "jsonpath={.status.availableReplicas}"); n != "1" {
			return "available are " + n
		}
		return ""
	})
	if after := k.awaitPod("before", corev1.PodRunning); after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod that ran before is %s with %d restarts", after.UID, after.Status.ContainerStatuses[0].RestartCount)
	}
}
