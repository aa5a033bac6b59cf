package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// kubeletMetric returns a metric that a kubelet has of a claim; ok is false as
// long as it has none.
func (k *kube) kubeletMetric(node, metric, claim string) (value float64, ok bool) {
	k.Helper()
	for _, line := range strings.Split(k.must("get", "--raw", "/api/v1/nodes/"+node+"/proxy/metrics"), "\n") {
		if !strings.HasPrefix(line, metric+"{") || !strings.Contains(line, fmt.Sprintf("namespace=%q", k.namespace)) || !strings.Contains(line, fmt.Sprintf("persistentvolumeclaim=%q", claim)) {
			continue
		}
		_, number, _ := strings.Cut(line, "} ")
		value, err := strconv.ParseFloat(strings.Fields(number)[0], 64)
		if err != nil {
			k.Fatalf("%s: %v", line, err)
		}
		return value, true
	}
	return 0, false
}

// TestVolumeStats: what is used of a volume is in the metrics of the kubelet,
// where alerts about full disks look.
func TestVolumeStats(t *testing.T) {
	k := newParallelTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("user", podOptions{claim: "data", command: "dd if=/dev/zero of=/data/file bs=1M count=20 && mkdir /data/d && touch /data/d/1 /data/d/2 && sleep 3600"})
	node := k.awaitPod("user", corev1.PodRunning).Spec.NodeName
	const mib = 1 << 20
	granted := k.volumeOf("data").Spec.Capacity
	capacity := granted.Storage().AsApproximateFloat64()
	for metric, least := range map[string]float64{
		"kubelet_volume_stats_capacity_bytes":  50 * mib,
		"kubelet_volume_stats_used_bytes":      20 * mib,
		"kubelet_volume_stats_available_bytes": 10 * mib,
		"kubelet_volume_stats_inodes":          1000,
		"kubelet_volume_stats_inodes_used":     4,
	} {
		k.eventually(metric, func() string {
			value, ok := k.kubeletMetric(node, metric, "data")
			switch {
			case !ok:
				return "the kubelet has none of the claim"
			case value < least || strings.HasSuffix(metric, "bytes") && value > capacity:
				return fmt.Sprintf("it is %.0f, want at least %.0f", value, least)
			}
			return ""
		})
	}
}

// TestPodForceDeleted: a pod that is removed from the API at once, while it
// writes, must not hinder the next one.
func TestPodForceDeleted(t *testing.T) {
	k := newParallelTest(t)
	k.claim("data", "nvfs", "64Mi")
	k.pod("first", podOptions{claim: "data", command: "echo kept > /data/kept; while :; do " + fioVerify + "; done"})
	k.awaitPod("first", corev1.PodRunning)
	k.eventually("the file", func() string {
		if _, err := k.try("-n", k.namespace, "exec", "first", "--", "cat", "/data/kept"); err != nil {
			return err.Error()
		}
		return ""
	})
	k.must("-n", k.namespace, "delete", "pod", "first", "--force", "--grace-period=0")
	k.pod("second", podOptions{claim: "data", command: `[ "$(cat /data/kept)" = kept ] && ` + fioVerify})
	k.awaitPod("second", corev1.PodSucceeded)
}
