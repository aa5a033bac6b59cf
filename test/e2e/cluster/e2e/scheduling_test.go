package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// TestCapacityOfEachClassAndNode: each class has one capacity object for each
// node, with the largest extent as the largest volume.
func TestCapacityOfEachClassAndNode(t *testing.T) {
	k := newTest(t)
	k.class("e2e-numa0", map[string]string{"numaNode": "0"})
	k.class("e2e-numa7", map[string]string{"numaNode": "7"})
	for class, nonzero := range map[string]bool{"nvfs": true, "e2e-numa0": true, "e2e-numa7": false} {
		k.eventually("capacity of class "+class, func() string {
			var list storagev1.CSIStorageCapacityList
			k.get(&list, "-A", "csistoragecapacities")
			nodes := map[string]bool{}
			for _, c := range list.Items {
				if c.StorageClassName != class {
					continue
				}
				node := c.NodeTopology.MatchLabels[topologyKey]
				if nodes[node] {
					return "two objects for node " + node
				}
				nodes[node] = true
				if c.MaximumVolumeSize == nil || c.Capacity == nil || (c.MaximumVolumeSize.Value() > 0) != nonzero {
					return "on node " + node + " largest volume " + c.MaximumVolumeSize.String()
				}
				if c.MaximumVolumeSize.Cmp(*c.Capacity) > 0 {
					return "largest volume above capacity"
				}
			}
			if len(nodes) != len(cluster.Nodes) {
				return "not one for each node"
			}
			return ""
		})
	}
}

// TestTooLargeForAnyExtent: a claim that fits into two extents together but into
// none alone stays pending, and an event says why. When memory becomes free the
// pod starts by itself.
func TestTooLargeForAnyExtent(t *testing.T) {
	k := newTest(t)
	// One volume on each region of each node leaves no extent of 400 MiB.
	for _, n := range cluster.Nodes {
		for _, numa := range []string{"0", "1"} {
			name := n.Name + "-numa" + numa
			if n.Name == cluster.Nodes[0].Name {
				k.class("e2e-fill"+numa, map[string]string{"numaNode": numa})
			}
			k.claim(name, "e2e-fill"+numa, "200Mi")
			k.pod(name, podOptions{node: n.Name, claim: name, command: "sleep 3600"})
		}
	}
	for _, n := range cluster.Nodes {
		for _, numa := range []string{"0", "1"} {
			k.awaitPod(n.Name+"-numa"+numa, corev1.PodRunning)
		}
	}
	k.claim("large", "nvfs", "400Mi")
	k.pod("large", podOptions{claim: "large", command: fioVerify})
	if message := k.awaitEvent(k.namespace, "PersistentVolumeClaim", "large", "LargerThanAnyExtent"); !strings.Contains(message, "400Mi is asked for") || !strings.Contains(message, "Delete volumes") {
		t.Errorf("the event does not say what is asked for and what to do: %s", message)
	}
	if message := k.awaitEvent(k.namespace, "Pod", "large", "FailedScheduling"); !strings.Contains(message, "did not have enough free storage") {
		t.Errorf("the scheduler says: %s", message)
	}
	free := cluster.Nodes[1].Name + "-numa1"
	k.must("-n", k.namespace, "delete", "pod,pvc", free, "--wait=false")
	if pod := k.awaitPod("large", corev1.PodSucceeded); pod.Spec.NodeName != cluster.Nodes[1].Name {
		t.Errorf("it runs on node %s, where there is no room", pod.Spec.NodeName)
	}
}

// TestTwoPodsSpread: two volumes that do not fit onto one node together land on
// two.
func TestTwoPodsSpread(t *testing.T) {
	k := newTest(t)
	k.class("e2e-half", map[string]string{"numaNode": "0"})
	var nodes []string
	for _, name := range []string{"a", "b"} {
		k.claim(name, "e2e-half", "300Mi")
		k.pod(name, podOptions{claim: name, command: fioVerify})
		nodes = append(nodes, k.awaitPod(name, corev1.PodSucceeded).Spec.NodeName)
	}
	if nodes[0] == nodes[1] {
		t.Errorf("both are on %s", nodes[0])
	}
}

// TestOnePodTwoVolumes: two volumes that fit one by one and not together. The
// scheduler looks at each alone; what was placed first decides, and an event on
// the other says what to do.
func TestOnePodTwoVolumes(t *testing.T) {
	k := newTest(t)
	k.class("e2e-together", map[string]string{"numaNode": "0"})
	for _, claim := range []string{"a", "b"} {
		k.claim(claim, "e2e-together", "300Mi")
	}
	k.pod("user", podOptions{claim: "a", command: "true",
		mounts: "      volumeMounts: [{name: data, mountPath: /a}, {name: other, mountPath: /b}]\n",
		volume: "persistentVolumeClaim: {claimName: a}\n    - name: other\n      persistentVolumeClaim: {claimName: b}"})
	var bound, waits string
	k.eventually("one claim is bound", func() string {
		bound, waits = "", ""
		for _, claim := range []string{"a", "b"} {
			if k.must("-n", k.namespace, "get", "pvc", claim, "-o", "jsonpath={.status.phase}") == "Bound" {
				bound = claim
			} else {
				waits = claim
			}
		}
		if bound == "" || waits == "" {
			return "bound " + bound + ", waits " + waits
		}
		return ""
	})
	message := k.awaitEvent(k.namespace, "PersistentVolumeClaim", waits, "DoesNotFitBesideOthers")
	for _, part := range []string{"Pod user", "claim " + bound, "300Mi is asked for", "kubectl -n " + k.namespace + " delete pod user"} {
		if !strings.Contains(message, part) {
			t.Errorf("the event lacks %q: %s", part, message)
		}
	}
	k.awaitPod("user", corev1.PodPending)
}

func TestClassThatCannotBeServed(t *testing.T) {
	k := newParallelTest(t)
	for class, c := range map[string]struct {
		parameters map[string]string
		reason     string
		says       string
	}{
		"e2e-bad-key":  {map[string]string{"flushmode": "nt"}, "InvalidParameters", `unknown parameter "flushmode"`},
		"e2e-bad-mode": {map[string]string{"flushMode": "dccvap"}, "FlushModeNotOffered", "offered are"},
		"e2e-bad-numa": {map[string]string{"numaNode": "9"}, "NUMANodeNotFound", "there is memory on 0, 1"},
	} {
		k.class(class, c.parameters)
		k.claim(class, class, "64Mi")
		k.pod(class, podOptions{claim: class, command: "true"})
		if message := k.awaitEvent("default", "StorageClass", class, c.reason); !strings.Contains(message, c.says) {
			t.Errorf("event on class %s: %s", class, message)
		}
		if message := k.awaitEvent(k.namespace, "PersistentVolumeClaim", class, c.reason); !strings.Contains(message, c.says) {
			t.Errorf("event on the claim of %s: %s", class, message)
		}
	}
}
