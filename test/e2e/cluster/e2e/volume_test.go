package e2e

import (
	"context"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestSmoke is the path that every change must keep: a claim, data that fio
// verifies, and a driver that is restarted meanwhile.
func TestSmoke(t *testing.T) {
	k := newTest(t)
	k.claim("data", "nvfs", "100Mi")
	k.pod("fio", podOptions{claim: "data", command: "for i in 1 2 3; do " + fioVerify + " || exit 1; touch /data/pass$i; done; while [ ! -e /data/end ]; do sleep 0.2; done; " + fioVerify})
	pod := k.awaitPod("fio", corev1.PodRunning)
	if got := nodeOf(k.volumeOf("data")); got != pod.Spec.NodeName {
		t.Errorf("the volume is bound to node %q, the pod runs on %s", got, pod.Spec.NodeName)
	}
	restartDriver(k, pod.Spec.NodeName)
	k.exec("fio", "touch /data/end")
	k.awaitPod("fio", corev1.PodSucceeded)
}

// restartDriver deletes the node pod and waits for another.
func restartDriver(k *kube, node string) {
	k.Helper()
	before := k.driverPod("node", node)
	k.must("-n", "nvfs-csi", "delete", "pod", before, "--wait=true")
	k.eventually("another node pod", func() string {
		out, err := k.try("-n", "nvfs-csi", "get", "pods", "-l", "app.kubernetes.io/component=node", "--field-selector", "spec.nodeName="+node,
			"-o", `jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}`)
		if err != nil {
			return err.Error()
		}
		for _, pod := range strings.Fields(out) {
			if name, ready, _ := strings.Cut(pod, "="); name != before && ready == "True" {
				return ""
			}
		}
		return out
	})
}

func TestClaimOnEachNode(t *testing.T) {
	k := newParallelTest(t)
	for _, n := range cluster.Nodes {
		k.claim("data-"+n.Name, "nvfs", "64Mi")
		k.pod("fio-"+n.Name, podOptions{node: n.Name, claim: "data-" + n.Name, command: fioVerify})
	}
	for _, n := range cluster.Nodes {
		k.awaitPod("fio-"+n.Name, corev1.PodSucceeded)
		if got := nodeOf(k.volumeOf("data-" + n.Name)); got != n.Name {
			t.Errorf("the volume for node %s is bound to %q", n.Name, got)
		}
	}
}

// TestDataOutlivesThePod writes with one pod and reads with another, which the
// scheduler has to place on the same node.
func TestDataOutlivesThePod(t *testing.T) {
	k := newParallelTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("writer", podOptions{claim: "data", command: "head -c 5000000 /dev/urandom > /data/file && sha256sum /data/file > /data/sum"})
	writer := k.awaitPod("writer", corev1.PodSucceeded)
	k.must("-n", k.namespace, "delete", "pod", "writer")
	k.pod("reader", podOptions{claim: "data", command: "sha256sum -c /data/sum"})
	if reader := k.awaitPod("reader", corev1.PodSucceeded); reader.Spec.NodeName != writer.Spec.NodeName {
		t.Errorf("written on %s, read on %s", writer.Spec.NodeName, reader.Spec.NodeName)
	}
}

// TestClassParametersReachTheMount looks at what serves the volume.
func TestClassParametersReachTheMount(t *testing.T) {
	k := newParallelTest(t)
	k.class("e2e-direct", map[string]string{"csi.storage.k8s.io/fstype": "nvfs", "flushMode": "clflush", "cacheMode": "direct", "numaNode": "1"})
	k.claim("data", "e2e-direct", "64Mi")
	k.pod("user", podOptions{claim: "data", command: fioVerify + " && sleep 3600"})
	pod := k.awaitPod("user", corev1.PodRunning)
	pv := k.volumeOf("data")
	if got := pv.Spec.CSI.FSType; got != "nvfs" {
		t.Errorf("fsType of the PersistentVolume: %q", got)
	}
	for key, want := range map[string]string{"flushMode": "clflush", "cacheMode": "direct"} {
		if got := pv.Spec.CSI.VolumeAttributes[key]; got != want {
			t.Errorf("volume attribute %s is %q, want %s", key, got, want)
		}
	}
	mount := k.exec("user", "grep ' /data ' /proc/mounts")
	if !strings.Contains(mount, " fuse.nvfs ") || !strings.Contains(mount, "/region1/") {
		t.Errorf("the mount is not NVFS on NUMA node 1: %s", mount)
	}
	n, err := cluster.Node(pod.Spec.NodeName)
	if err != nil {
		t.Fatal(err)
	}
	handle := pv.Spec.CSI.VolumeHandle
	for metric, wants := range map[string][]string{
		"nvfs_csi_volume_info":                {`fstype="nvfs"`, `flush_mode="clflush"`, `cache_mode="direct"`, `region="region1"`, `persistentvolume="` + pv.Name + `"`},
		"nvfs_csi_volume_healthy":             {"} 1"},
		"nvfs_csi_fuse_requests_total":        {`operation="write"`},
		"nvfs_csi_fuse_request_seconds_count": {`operation="write"`},
	} {
		part := handle
		if strings.Contains(metric, "fuse") {
			part = `operation="write",volume="` + handle + `"`
		}
		line := k.driverMetric(n, metric, part)
		for _, want := range wants {
			if !strings.Contains(line, want) {
				t.Errorf("metric %s has no %s: %q", metric, want, line)
			}
		}
	}
}

// TestExpansion grows a claim while its volume is written to.
func TestExpansion(t *testing.T) {
	k := newParallelTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("user", podOptions{claim: "data", command: "while [ ! -e /data/end ]; do " + fioVerify + " || exit 1; done"})
	k.awaitPod("user", corev1.PodRunning)
	before := sizeOf(k, "user")
	k.resize("data", "160Mi")
	k.awaitCapacity("data", 160<<20)
	if after := sizeOf(k, "user"); after < before+60<<10 {
		t.Errorf("the filesystem had %d KiB, and has %d", before, after)
	}
	k.exec("user", "touch /data/end")
	k.awaitPod("user", corev1.PodSucceeded)
}

// sizeOf returns the size of the filesystem at /data, in KiB.
func sizeOf(k *kube, pod string) int {
	k.Helper()
	fields := strings.Fields(k.exec(pod, "df -kP /data | tail -1"))
	if len(fields) < 2 {
		k.Fatalf("df: %q", fields)
	}
	size, err := strconv.Atoi(fields[1])
	if err != nil {
		k.Fatal(err)
	}
	return size
}

func TestGenericEphemeralVolume(t *testing.T) {
	k := newParallelTest(t)
	k.pod("user", podOptions{command: fioVerify, volume: "ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOncePod], storageClassName: nvfs, resources: {requests: {storage: 64Mi}}}}}"})
	k.awaitPod("user", corev1.PodSucceeded)
	k.must("-n", k.namespace, "delete", "pod", "user")
	k.eventually("the claim goes with the pod", func() string {
		return k.must("-n", k.namespace, "get", "pvc", "-o", "name")
	})
	k.checkNothingIsLeft()
}

// TestClaimDeletedWhileInUse: the volume stays until the pod has ended.
func TestClaimDeletedWhileInUse(t *testing.T) {
	k := newParallelTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("user", podOptions{claim: "data", command: "while [ ! -e /data/end ]; do sleep 0.2; done; " + fioVerify})
	k.awaitPod("user", corev1.PodRunning)
	k.must("-n", k.namespace, "delete", "pvc", "data", "--wait=false")
	k.exec("user", "touch /data/end")
	k.awaitPod("user", corev1.PodSucceeded)
	k.must("-n", k.namespace, "delete", "pod", "user")
	k.checkNothingIsLeft()
}

// TestFSGroupAndOtherUsers: a pod of an ordinary user writes by its group.
func TestFSGroupAndOtherUsers(t *testing.T) {
	k := newParallelTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("user", podOptions{claim: "data", command: "id && touch /data/file && [ $(stat -c %g /data/file) = 3000 ]",
		extra: "  securityContext: {runAsUser: 1000, runAsGroup: 2000, fsGroup: 3000, fsGroupChangePolicy: OnRootMismatch}\n"})
	k.awaitPod("user", corev1.PodSucceeded)
}

// TestFSGroupOfALargeTree: the kubelet gives 100,000 files to the group, and with
// OnRootMismatch does not look at them again. A volume has an inode for every
// 16 KiB, so it takes a larger region than the nodes have otherwise.
func TestFSGroupOfALargeTree(t *testing.T) {
	// When the volume has gone.
	t.Cleanup(func() {
		if err := cluster.InstallDriver(context.WithoutCancel(t.Context()), repository); err != nil {
			t.Error(err)
		}
	})
	k := newTest(t)
	if err := cluster.InstallDriver(k.ctx, repository, "emulated.regions[2].name=region2", "emulated.regions[2].numa=2", "emulated.regions[2].size=2Gi"); err != nil {
		t.Fatal(err)
	}
	k.claim("data", "nvfs", "1650Mi")
	k.pod("maker", podOptions{claim: "data", command: "mkdir -p /data/tree && cd /data/tree && for d in $(seq 100); do mkdir $d && (cd $d && seq 1000 | xargs touch) || exit 1; done"})
	k.awaitPod("maker", corev1.PodSucceeded)
	k.must("-n", k.namespace, "delete", "pod", "maker")
	group := "  securityContext: {fsGroup: 3000, fsGroupChangePolicy: OnRootMismatch}\n"
	k.pod("first", podOptions{claim: "data", extra: group, command: "[ $(find /data/tree -type f -group 3000 | wc -l) = 100000 ] && chgrp 4000 /data/tree/100/1000"})
	k.awaitPod("first", corev1.PodSucceeded)
	k.must("-n", k.namespace, "delete", "pod", "first")
	k.pod("second", podOptions{claim: "data", extra: group, command: "[ $(stat -c %g /data/tree/100/1000) = 4000 ] && [ $(stat -c %g /data) = 3000 ]"})
	k.awaitPod("second", corev1.PodSucceeded)
}

// TestKubeletRestart: NodePublishVolume comes again and must not stack mounts.
func TestKubeletRestart(t *testing.T) {
	k := newTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("user", podOptions{claim: "data", command: "while [ ! -e /data/end ]; do " + fioVerify + " || exit 1; done"})
	pod := k.awaitPod("user", corev1.PodRunning)
	n, err := cluster.Node(pod.Spec.NodeName)
	if err != nil {
		t.Fatal(err)
	}
	before := mountsOn(k, pod.Spec.NodeName)
	registered := kubeletPID(k, pod.Spec.NodeName)
	if err := n.RestartKubelet(k.ctx); err != nil {
		t.Fatal(err)
	}
	k.eventually("another kubelet", func() string {
		if kubeletPID(k, n.Name) == registered {
			return "it is the old one"
		}
		return ""
	})
	k.must("wait", "--for=condition=Ready", "node/"+n.Name, "--timeout=120s")
	k.exec("user", "touch /data/end")
	k.awaitPod("user", corev1.PodSucceeded)
	if after := mountsOn(k, n.Name); after > before {
		t.Errorf("there were %d mounts of the volume, and are %d", before, after)
	}
}

func kubeletPID(k *kube, node string) string {
	k.Helper()
	n, err := cluster.Node(node)
	if err != nil {
		k.Fatal(err)
	}
	out, err := n.Exec(k.ctx, "cat", "/run/kubelet.pid")
	if err != nil {
		k.Fatal(err)
	}
	return out
}

func mountsOn(k *kube, node string) int {
	k.Helper()
	n, err := cluster.Node(node)
	if err != nil {
		k.Fatal(err)
	}
	out, err := n.Exec(k.ctx, "sh", "-c", "grep -c fuse.nvfs /proc/mounts || true")
	if err != nil {
		k.Fatal(err)
	}
	count, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		k.Fatal(err)
	}
	return count
}
