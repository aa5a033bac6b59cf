package driver_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

func TestReplacedAndMissingServersAreCounted(t *testing.T) {
	n := newNode(t)
	kept, replaced, dead := n.mustCreate("kept"), n.mustCreate("replaced"), n.mustCreate("dead")
	for _, id := range []string{kept, replaced, dead} {
		n.ok(n.stage(id))
	}
	n.driver.LookAtServers(t.Context())
	n.nvfs.SetStatus(replaced, func(s *mountd.Status) { s.PID += 1000 })
	n.nvfs.Kill(dead)
	n.driver.LookAtServers(t.Context())
	n.driver.LookAtServers(t.Context())
	w := httptest.NewRecorder()
	n.driver.MetricsHandler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{`nvfs_csi_daemon_restarts_total{node="node-1"} 1`, `nvfs_csi_unserved_volumes{node="node-1"} 1`} {
		if !strings.Contains(w.Body.String(), line) {
			t.Errorf("no %s", line)
		}
	}
	report, err := n.driver.Report(t.Context())
	n.ok(err)
	for _, v := range report.Volumes {
		if (v.Unserved != "") != (v.ID == dead) {
			t.Errorf("volume %s is reported as unserved: %q", v.ID, v.Unserved)
		}
	}
	if _, top := n.mounts.At(n.path("staging-" + dead)); top.Type != driver.MountType {
		t.Error("looking changed something")
	}
}
