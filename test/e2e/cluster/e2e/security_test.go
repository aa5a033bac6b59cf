package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/localcluster"
)

// as runs kubectl with the account of the node pod on a node, as somebody who
// has broken into it could.
func (k *kube) as(node string, args ...string) (string, error) {
	k.Helper()
	token := strings.TrimSpace(k.must("-n", localcluster.Namespace, "create", "token", "nvfs-csi-node",
		"--bound-object-kind=Pod", "--bound-object-name="+k.driverPod("node", node)))
	// The administrator's certificate would win over a token.
	server := strings.TrimSpace(k.must("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"))
	return k.try(append([]string{"--kubeconfig=/dev/null", "--server=" + server, "--insecure-skip-tls-verify", "--token=" + token}, args...)...)
}

// TestNodeAccountIsBoundToItsNode: the rights of the provisioner are
// cluster-wide, but a node may only touch what is its own.
func TestNodeAccountIsBoundToItsNode(t *testing.T) {
	k := newParallelTest(t)
	here, there := cluster.Nodes[0].Name, cluster.Nodes[1].Name
	k.claim("data", "nvfs", "64Mi")
	k.pod("user", podOptions{node: there, claim: "data", command: "sleep 3600"})
	k.awaitPod("user", corev1.PodRunning)
	pv := k.volumeOf("data")
	for what, args := range map[string][]string{
		"delete a volume of another node":  {"delete", "pv", pv.Name, "--wait=false"},
		"change a volume of another node":  {"patch", "pv", pv.Name, "--type=merge", "-p", `{"metadata":{"labels":{"stolen":"yes"}}}`},
		"delete a capacity of another one": {"-n", localcluster.Namespace, "delete", "csistoragecapacity", capacityOf(k, there)},
	} {
		out, err := k.as(here, args...)
		if err == nil || !strings.Contains(err.Error(), "of another node or driver") {
			t.Errorf("node %s may %s: %v %s", here, what, err, out)
		}
	}
	if _, err := k.as(there, "label", "pv", pv.Name, "own=yes"); err != nil {
		t.Errorf("node %s may not change its own volume: %v", there, err)
	}
	for what, args := range map[string][]string{
		"read secrets":    {"get", "secrets", "-A"},
		"delete a claim":  {"-n", k.namespace, "delete", "pvc", "data"},
		"delete a pod":    {"-n", k.namespace, "delete", "pod", "user"},
		"change a node":   {"label", "node", there, "stolen=yes"},
		"change a class":  {"delete", "storageclass", "nvfs"},
		"read configmaps": {"get", "configmaps", "-A"},
	} {
		if out, err := k.as(here, args...); err == nil || !strings.Contains(err.Error(), "orbidden") {
			t.Errorf("the node account may %s: %v %s", what, err, out)
		}
	}
}

func capacityOf(k *kube, node string) string {
	k.Helper()
	return strings.Fields(k.must("-n", localcluster.Namespace, "get", "csistoragecapacities",
		"-o", `jsonpath={.items[?(@.nodeTopology.matchLabels.topology\.csi\.nvfs\.dev/node=="`+node+`")].metadata.name}`))[0]
}

// revision is the number of the release's last revision.
func (k *kube) revision() string {
	k.Helper()
	numbers := strings.Fields(k.must("-n", localcluster.Namespace, "get", "secrets", "-l", "owner=helm,name="+localcluster.Namespace,
		"--sort-by=.metadata.creationTimestamp", "-o", "jsonpath={.items[*].metadata.labels.version}"))
	if len(numbers) == 0 {
		k.Fatal("there is no release")
	}
	return numbers[len(numbers)-1]
}

// TestUninstallIsRefusedWhileVolumesAreUsed also shows that the driver goes on.
func TestUninstallIsRefusedWhileVolumesAreUsed(t *testing.T) {
	k := newTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("user", podOptions{claim: "data", command: "while [ ! -e /data/end ]; do sleep 0.2; done; " + fioVerify})
	k.awaitPod("user", corev1.PodRunning)
	if err := cluster.UninstallDriver(k.ctx); err == nil {
		t.Error("the driver was uninstalled under a pod")
	}
	// Helm takes the release for half uninstalled, and refuses to upgrade it.
	if err := cluster.Helm(k.ctx, "rollback", localcluster.Namespace, k.revision(), "--namespace", localcluster.Namespace, "--wait"); err != nil {
		t.Error(err)
	}
	k.exec("user", "touch /data/end")
	k.awaitPod("user", corev1.PodSucceeded)
}
