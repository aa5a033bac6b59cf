package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestFailedGrowth: a claim that asks for more than its node has is told so, its
// pod goes on, and asking for less brings it on its way again.
func TestFailedGrowth(t *testing.T) {
	k := newParallelTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("user", podOptions{claim: "data", command: "while [ ! -e /data/end ]; do " + fioVerify + " || exit 1; done"})
	k.awaitPod("user", corev1.PodRunning)
	k.resize("data", "8Gi")
	k.awaitEventWith(k.namespace, "Pod", "user", "VolumeResizeFailed", "ask for less")
	k.resize("data", "96Mi")
	k.awaitCapacity("data", 96<<20)
	k.exec("user", "touch /data/end")
	k.awaitPod("user", corev1.PodSucceeded)
}

// resize asks for another size of a claim.
func (k *kube) resize(claim, size string) {
	k.Helper()
	k.must("-n", k.namespace, "patch", "pvc", claim, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size))
}

// awaitCapacity waits until a claim has a size.
func (k *kube) awaitCapacity(claim string, size int64) {
	k.Helper()
	k.eventually("the claim grows", func() string {
		var pvc corev1.PersistentVolumeClaim
		k.get(&pvc, "pvc", claim)
		if got := pvc.Status.Capacity.Storage(); got.Value() < size {
			return fmt.Sprintf("capacity %s, conditions %v, allocated %v", got, pvc.Status.Conditions, pvc.Status.AllocatedResourceStatuses)
		}
		return ""
	})
}
