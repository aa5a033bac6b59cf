package driver_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lateNode is a node with a ready volume and one that is being deleted, whose
// driver was started again before the kernel had found the memory.
func lateNode(t *testing.T, limit time.Duration) (n *node, ready, deleting string) {
	t.Helper()
	n = newNode(t)
	ready, deleting = n.mustCreate("ready"), n.mustCreate("deleting")
	gate := n.volumes.Hold(1)
	n.options.EraseWait = 0
	n.stop()
	n.start()
	n.wantCode(n.delete(deleting), codes.Aborted)
	n.stop() // before it is erased
	close(gate)
	n.ns.Hide()
	n.options.SettleTimeout = limit
	n.start()
	return n, ready, deleting
}

func (n *node) isReady() bool {
	n.t.Helper()
	response, err := csi.NewIdentityClient(n.conn).Probe(n.t.Context(), &csi.ProbeRequest{})
	n.ok(err)
	return response.GetReady().GetValue()
}

func TestDriverWaitsForItsMemory(t *testing.T) {
	n, ready, deleting := lateNode(t, time.Hour)
	server := httptest.NewServer(n.driver.HTTPHandler())
	defer server.Close()
	if code, body := get(t, server, "/readyz"); n.isReady() || code != http.StatusServiceUnavailable || !strings.Contains(body, "not there yet") {
		t.Errorf("the driver seems to be ready without memory: %d %s", code, body)
	}
	if code, body := get(t, server, "/healthz"); code != http.StatusOK {
		t.Errorf("a driver that waits is alive: %d %s", code, body)
	}
	n.wantCode(n.stage(ready), codes.Unavailable, "not there yet", "region")
	n.wantCode(n.delete(ready), codes.Unavailable)
	n.wantCode(n.delete(deleting), codes.Unavailable)
	_, err := n.create("another", 62*mib)
	n.wantCode(err, codes.Unavailable)
	health, err := n.node.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: ready})
	n.ok(err)
	if h := health.VolumeHealth.HealthStatuses; len(h) != 1 || h[0].Status != csi.VolumeHealthErrorType_INACCESSIBLE || h[0].Reason != "MemoryNotThereYet" {
		t.Errorf("health of a volume whose memory is late: %v", h)
	}
	storage, err := n.node.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
	n.ok(err)
	if h := storage.BackendHealth; len(h) != 1 || h[0].Status != csi.StorageHealthErrorType_STORAGE_UNREACHABLE || h[0].Reason != "MemoryNotThereYet" {
		t.Errorf("health of memory that is late: %v", h)
	}
	select {
	case <-n.driver.Settled():
		t.Error("settled without memory")
	default:
	}

	n.ns.Show()
	<-n.driver.Settled()
	if code, body := get(t, server, "/readyz"); !n.isReady() || code != http.StatusOK {
		t.Errorf("the memory is there: %d %s", code, body)
	}
	n.ok(n.stage(ready))
	// The deletion that was interrupted goes on by itself; a call waits for it.
	for err := n.delete(deleting); err != nil; err = n.delete(deleting) {
		if status.Code(err) != codes.Aborted {
			t.Fatal(err)
		}
	}
}

func TestMemoryThatDoesNotComeIsGivenUp(t *testing.T) {
	n, ready, deleting := lateNode(t, time.Nanosecond)
	<-n.driver.Settled()
	n.wantCode(n.stage(ready), codes.FailedPrecondition, "is lost")
	// The whole region is gone. That is no proof that what was on it is erased.
	err := n.delete(deleting)
	for err != nil && strings.Contains(err.Error(), "being erased") {
		err = n.delete(deleting)
	}
	n.wantCode(err, codes.Aborted, "region", "is not there", n.recordPath(deleting))
	n.ns.Show()
	n.ok(n.stage(ready))
}

// A volume whose creation or deletion was interrupted may have no namespace.
func TestUnfinishedVolumesAreNotWaitedFor(t *testing.T) {
	n, ready, deleting := lateNode(t, time.Hour)
	n.stop()
	n.ns.Show()
	n.ns.Forget(deleting)
	n.start()
	<-n.driver.Settled()
	n.ok(n.stage(ready))
	n.stop()
	n.ns.Lose(ready)
	n.start()
	if n.isReady() {
		t.Error("a namespace that is disabled, or whose device node is missing, was not waited for")
	}
	n.wantCode(n.stage(ready), codes.Unavailable, "taken away")
}
