package driver_test

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// TestMetricsOfVolumes: how a volume is mounted, what its server was asked and
// whether it is well.
func TestMetricsOfVolumes(t *testing.T) {
	n := newNode(t)
	staged, idle := n.mustCreate("pvc-1"), n.mustCreate("pvc-2")
	if err := n.stage(staged); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(n.driver.HTTPHandler())
	defer server.Close()
	_, body := get(t, server, "/metrics")
	volume := `{node="` + n.options.NodeID + `",`
	for _, line := range []string{
		`nvfs_csi_volume_healthy` + volume + `volume="` + staged + `"} 1`,
		`nvfs_csi_volume_healthy` + volume + `volume="` + idle + `"} 1`,
		`nvfs_csi_volume_info{cache_mode="",flush_mode="",fstype="nvfs",node="` + n.options.NodeID + `",persistentvolume="pvc-2",`,
		`nvfs_csi_fuse_requests_total{node="` + n.options.NodeID + `",operation="write",volume="` + staged + `"} 17`,
		`nvfs_csi_fuse_request_seconds_bucket{node="` + n.options.NodeID + `",operation="write",volume="` + staged + `",le="2.048e-06"} 0`,
		`nvfs_csi_fuse_request_seconds_bucket{node="` + n.options.NodeID + `",operation="write",volume="` + staged + `",le="4.096e-06"} 2`,
		`nvfs_csi_fuse_request_seconds_bucket{node="` + n.options.NodeID + `",operation="write",volume="` + staged + `",le="+Inf"} 3`,
		`nvfs_csi_fuse_request_seconds_sum{node="` + n.options.NodeID + `",operation="write",volume="` + staged + `"} 0.005006`,
		`nvfs_csi_flush_mode_choice_info{flush_mode="auto",`, `nvfs_csi_region_namespaces{`, `nvfs_csi_region_flush_mode_info{flush_mode="nt",`,
	} {
		if !strings.Contains(body, "\n"+line) {
			t.Errorf("there is no %s", line)
		}
	}
	if strings.Contains(body, `nvfs_csi_fuse_requests_total{node="`+n.options.NodeID+`",operation="write",volume="`+idle) {
		t.Error("a volume that nobody uses has requests")
	}
	if t.Failed() {
		t.Log(body)
	}
}
