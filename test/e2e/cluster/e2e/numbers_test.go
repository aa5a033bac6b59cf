package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/cluster/localcluster"
)

// measure skips a test that reports figures and takes minutes.
func measure(t *testing.T) {
	t.Helper()
	if os.Getenv("NVFS_E2E_NUMBERS") == "" {
		t.Skip("reports figures and takes minutes: make cluster-numbers")
	}
}

// bunch is a claim and a pod that uses it and does nothing.
func (k *kube) bunch(name, size, command string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s}
spec: {accessModes: [ReadWriteOnce], storageClassName: nvfs, resources: {requests: {storage: %[2]s}}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {bunch: "yes"}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
    - {name: main, image: %[3]s, imagePullPolicy: Never, command: [sh, -c, %[4]q], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: %[1]s}}]
`, name, size, localcluster.ToolsImage, command)
}

// TestTimeToRunning measures from the creation of a claim and its pod until the
// container runs, 50 times, one after the other.
func TestTimeToRunning(t *testing.T) {
	measure(t)
	k := newTest(t)
	var took []time.Duration
	for i := range 50 {
		name := fmt.Sprintf("pod%d", i)
		start := time.Now()
		k.apply(k.bunch(name, "16Mi", "sleep 3600"))
		k.must("-n", k.namespace, "wait", "--for=jsonpath={.status.phase}=Running", "pod/"+name, "--timeout=120s")
		took = append(took, time.Since(start))
		k.must("-n", k.namespace, "delete", "pod,pvc", name, "--wait=false")
	}
	slices.Sort(took)
	t.Logf("claim created to pod running, 50 times: p50 %.1f s, p99 %.1f s, least %.1f s", took[24].Seconds(), took[49].Seconds(), took[0].Seconds())
}

// TestManyVolumes creates and deletes 200 volumes, 20 at a time; newTest looks
// for what is left.
func TestManyVolumes(t *testing.T) {
	measure(t)
	k := newTest(t)
	start := time.Now()
	names := make(chan string)
	var workers sync.WaitGroup
	for range 20 {
		workers.Go(func() {
			for name := range names {
				if err := k.useOnce(name); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	for i := range 200 {
		names <- fmt.Sprintf("pod%d", i)
	}
	close(names)
	workers.Wait()
	created := time.Since(start)
	k.checkNothingIsLeft()
	t.Logf("200 volumes, 20 at a time, made, written to and removed: %.0f s, and nothing left after %.0f s", created.Seconds(), time.Since(start).Seconds())
}

// useOnce makes a claim, writes to its volume and removes it.
func (k *kube) useOnce(name string) error {
	if _, err := cluster.Kubectl(k.ctx, k.bunch(name, "16Mi", "dd if=/dev/zero of=/data/file bs=64k count=64"), "-n", k.namespace, "apply", "-f", "-"); err != nil {
		return err
	}
	if _, err := k.try("-n", k.namespace, "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name, "--timeout=240s"); err != nil {
		return err
	}
	_, err := k.try("-n", k.namespace, "delete", "pod,pvc", name, "--timeout=180s")
	return err
}

// TestIdleResources reports what the driver takes of each node while ten volumes
// are mounted and nobody uses them.
func TestIdleResources(t *testing.T) {
	measure(t)
	k := newTest(t)
	for i := range 10 {
		k.apply(k.bunch(fmt.Sprintf("pod%d", i), "32Mi", "sleep 3600"))
	}
	k.must("-n", k.namespace, "wait", "--for=jsonpath={.status.phase}=Running", "pod", "-l", "bunch=yes", "--timeout=240s")
	before := k.usage()
	const interval = 60 * time.Second
	time.Sleep(interval) // it is what is measured
	after := k.usage()
	for _, name := range slices.Sorted(maps.Keys(after)) {
		a, b := after[name], before[name]
		t.Logf("%s: %.1f MiB resident, %.2f %% of a CPU", name, a.rss/(1<<20), 100*(a.cpu-b.cpu)/interval.Seconds())
	}
}

type usage struct{ cpu, rss float64 } // seconds, bytes

// usage returns what the containers of the driver have used, as the kubelets
// count it, by NODE/POD/CONTAINER.
func (k *kube) usage() map[string]usage {
	k.Helper()
	found := map[string]usage{}
	for _, n := range cluster.Nodes {
		var summary struct {
			Pods []struct {
				PodRef     struct{ Name, Namespace string }
				Containers []struct {
					Name   string
					CPU    struct{ UsageCoreNanoSeconds float64 }
					Memory struct{ RSSBytes, WorkingSetBytes float64 }
				}
			}
		}
		if err := json.Unmarshal([]byte(k.must("get", "--raw", "/api/v1/nodes/"+n.Name+"/proxy/stats/summary")), &summary); err != nil {
			k.Fatal(err)
		}
		for _, pod := range summary.Pods {
			if pod.PodRef.Namespace != localcluster.Namespace {
				continue
			}
			for _, c := range pod.Containers {
				component := strings.Join(strings.Split(pod.PodRef.Name, "-")[2:3], "")
				found[n.Name+" "+component+"/"+c.Name] = usage{c.CPU.UsageCoreNanoSeconds / 1e9, c.Memory.RSSBytes}
			}
		}
	}
	return found
}
