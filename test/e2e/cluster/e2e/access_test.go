package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestSubPath: two directories of one volume, made by the kubelet, are two
// places in a pod.
func TestSubPath(t *testing.T) {
	k := newParallelTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("writer", podOptions{claim: "data", command: "echo a > /a/file && echo b > /b/file && ! [ -e /a/a ]",
		mounts: "      volumeMounts: [{name: data, mountPath: /a, subPath: one}, {name: data, mountPath: /b, subPath: two/deep}]\n"})
	k.awaitPod("writer", corev1.PodSucceeded)
	k.pod("reader", podOptions{claim: "data", command: `[ "$(cat /data/one/file /data/two/deep/file)" = "$(printf 'a\nb')" ]`})
	k.awaitPod("reader", corev1.PodSucceeded)
}

// TestReadOnlyMount: a pod that mounts its claim read-only reads and cannot
// write, and leaves the volume writable for others.
func TestReadOnlyMount(t *testing.T) {
	k := newParallelTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("writer", podOptions{claim: "data", command: "echo text > /data/file && sleep 3600"})
	writer := k.awaitPod("writer", corev1.PodRunning)
	k.eventually("the file", func() string {
		if _, err := k.try("-n", k.namespace, "exec", "writer", "--", "cat", "/data/file"); err != nil {
			return err.Error()
		}
		return ""
	})
	k.pod("reader", podOptions{node: writer.Spec.NodeName, volume: "persistentVolumeClaim: {claimName: data, readOnly: true}",
		command: `[ "$(cat /data/file)" = text ] || exit 1; touch /data/other 2>&1 | grep 'Read-only file system'`})
	k.awaitPod("reader", corev1.PodSucceeded)
	k.exec("writer", "echo more >> /data/file")
}

// TestReadWriteOncePod: a second pod waits until the first has gone.
func TestReadWriteOncePod(t *testing.T) {
	k := newParallelTest(t)
	k.claimOf("data", "nvfs", "64Mi", "ReadWriteOncePod", "")
	k.pod("first", podOptions{claim: "data", command: "echo first > /data/file; sleep 3600"})
	k.awaitPod("first", corev1.PodRunning)
	k.pod("second", podOptions{claim: "data", command: `[ "$(cat /data/file)" = first ]`})
	if message := k.awaitEvent(k.namespace, "Pod", "second", "FailedScheduling"); !strings.Contains(message, "ReadWriteOncePod") {
		t.Errorf("the scheduler says: %s", message)
	}
	k.must("-n", k.namespace, "delete", "pod", "first")
	k.awaitPod("second", corev1.PodSucceeded)
}

// TestClaimsThatNoNodeCanServe: what a node-local filesystem, or emulated
// memory, cannot give is refused with the reason and what to do.
func TestClaimsThatNoNodeCanServe(t *testing.T) {
	k := newParallelTest(t)
	k.claimOf("many", "nvfs", "64Mi", "ReadWriteMany", "")
	k.claimOf("block", "nvfs", "64Mi", "ReadWriteOnce", "  volumeMode: Block\n")
	k.pod("many", podOptions{claim: "many", command: "true"})
	k.pod("block", podOptions{claim: "block", command: "true", mounts: "      volumeDevices: [{name: data, devicePath: /dev/data}]\n"})
	for claim, says := range map[string][]string{
		"many":  {"exists on one node only", "use ReadWriteOnce or ReadWriteOncePod"},
		"block": {"is emulated and has no device", "volumeMode: Filesystem"},
	} {
		message := k.awaitEvent(k.namespace, "PersistentVolumeClaim", claim, "ProvisioningFailed")
		for _, part := range says {
			if !strings.Contains(message, part) {
				t.Errorf("the event on claim %s lacks %q: %s", claim, part, message)
			}
		}
	}
}
