package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/localcluster"
)

// checkNothingIsLeft fails unless all volumes of the test are gone and, if no
// other test runs, all that volumes have been.
func (k *kube) checkNothingIsLeft() {
	k.Helper()
	k.eventually("volumes are deleted", func() string {
		left, err := "", error(nil)
		if k.shared {
			left, err = volumesOf(k.ctx, `@.spec.claimRef.namespace=="`+k.namespace+`"`)
		} else {
			left, err = leftovers(k.ctx)
		}
		if err != nil {
			k.Fatal(err)
		}
		return left
	})
}

// awaitNothingLeft waits until nothing is left of any volume.
func awaitNothingLeft() error {
	ctx, cancel := context.WithTimeout(context.Background(), waitTime)
	defer cancel()
	for {
		left, err := leftovers(ctx)
		if err != nil || left == "" {
			return err
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return fmt.Errorf("the tests have left behind: %s", left)
		}
	}
}

// leftovers returns what is left of volumes: PersistentVolumes, capacity objects
// that nobody needs, records, memory, mounts, and the processes that serve them.
func leftovers(ctx context.Context) (string, error) {
	if left, err := volumesOf(ctx, `@.spec.csi.driver=="csi.nvfs.dev"`); err != nil || left != "" {
		return left, err
	}
	if left, err := strayCapacities(ctx); err != nil || left != "" {
		return left, err
	}
	for _, n := range cluster.Nodes {
		if left, err := leftOn(ctx, n); err != nil || left != "" {
			return "on node " + n.Name + ": " + left, err
		}
	}
	return "", nil
}

// volumesOf returns the PersistentVolumes that match.
func volumesOf(ctx context.Context, filter string) (string, error) {
	out, err := cluster.Kubectl(ctx, "", "get", "pv", "-o", "jsonpath={.items[?("+filter+")].metadata.name}")
	if err != nil || out == "" {
		return "", err
	}
	return "PersistentVolumes " + out, nil
}

// strayCapacities returns a capacity object that is not the one of a class and a
// node.
func strayCapacities(ctx context.Context) (string, error) {
	classes, err := cluster.Kubectl(ctx, "", "get", "storageclasses", "-o", `jsonpath={.items[?(@.provisioner=="csi.nvfs.dev")].metadata.name}`)
	if err != nil {
		return "", err
	}
	expected := map[string]int{}
	for _, class := range strings.Fields(classes) {
		for _, n := range cluster.Nodes {
			expected[class+" on "+n.Name] = 1
		}
	}
	out, err := cluster.Kubectl(ctx, "", "get", "csistoragecapacities", "-A", "-o", "json")
	if err != nil {
		return "", err
	}
	var list storagev1.CSIStorageCapacityList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return "", fmt.Errorf("capacity objects: %w", err)
	}
	for _, c := range list.Items {
		of := c.StorageClassName + " on " + c.NodeTopology.MatchLabels[topologyKey]
		if expected[of]--; expected[of] < 0 {
			return "capacity object " + c.Name + " of class " + of, nil
		}
	}
	return "", nil
}

// leftOn returns what volumes have left on a node: memory and records, mounts,
// directories of the kubelet, and processes.
func leftOn(ctx context.Context, n localcluster.Node) (string, error) {
	script := `ls ` + localcluster.NodeMemory + `/*/*.pmem /var/lib/csi.nvfs.dev/volumes/*.json 2>/dev/null
grep fuse.nvfs /proc/mounts
ls -d /var/lib/kubelet/plugins/kubernetes.io/csi/csi.nvfs.dev/* /var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/pvc-* 2>/dev/null
for c in /proc/[0-9]*/cmdline; do tr '\0' ' ' < $c 2>/dev/null | grep -E 'nvfs(-csi)? serve ' ; done
true`
	out, err := n.Exec(ctx, "sh", "-c", script)
	return strings.TrimSpace(out), err
}
