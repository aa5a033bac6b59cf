package driver_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// get asks the HTTP server of a node.
func get(t *testing.T, server *httptest.Server, path string) (int, string) {
	t.Helper()
	response, err := http.Get(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestHTTP(t *testing.T) {
	n := newNode(t)
	volume := n.mustCreate("pvc-1")
	server := httptest.NewServer(n.driver.HTTPHandler())
	defer server.Close()
	if code, body := get(t, server, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	if code, body := get(t, server, "/metrics"); code != http.StatusOK || !strings.Contains(body, "nvfs_csi_region_available_bytes{") || !strings.Contains(body, "csi_plugin_operations_seconds") {
		t.Errorf("/metrics: %d, regions or operations are missing:\n%s", code, body)
	}
	code, body := get(t, server, driver.ReportPath)
	var report driver.Report
	if err := json.Unmarshal([]byte(body), &report); err != nil || code != http.StatusOK {
		t.Fatalf("report: %d %v: %s", code, err, body)
	}
	if len(report.Regions) != 2 || len(report.Volumes) != 1 || len(report.Orphans) != 0 {
		t.Fatalf("report: %+v", report)
	}
	if v := report.Volumes[0]; v.ID != volume || v.Name != "pvc-1" || v.Phase != "ready" || v.Bytes == 0 {
		t.Errorf("volume in the report: %+v", v)
	}
	for _, r := range report.Regions {
		if !slices.Contains(r.FlushModes, "nt") || slices.Contains(r.FlushModes, "movdir64b") {
			t.Errorf("flush modes of region %s: %v", r.Name, r.FlushModes)
		}
	}
}

func TestClusterServiceMakesTheResizerLeaveGrowthToNodes(t *testing.T) {
	endpoint := "unix://" + shmDir(t) + "/csi.sock"
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- driver.ServeCluster(ctx, endpoint, "test") }()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil || info.GetName() != driver.Name {
		t.Errorf("plugin info %v: %v", info, err)
	}
	controller, err := csi.NewControllerClient(conn).ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	if err != nil || len(controller.GetCapabilities()) != 0 {
		t.Errorf("controller capabilities %v: %v", controller, err)
	}
	node, err := csi.NewNodeClient(conn).NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	if err != nil || len(node.GetCapabilities()) != 1 || node.GetCapabilities()[0].GetRpc().GetType() != csi.NodeServiceCapability_RPC_EXPAND_VOLUME {
		t.Errorf("node capabilities %v: %v", node, err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
