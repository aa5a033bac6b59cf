package driver_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/fake"
)

func TestStats(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	for _, path := range []string{n.path("pod"), n.path("staging-" + id)} {
		response, err := n.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
		n.ok(err)
		bytes, inodes := response.Usage[0], response.Usage[1]
		if bytes.Total != 1000*4096 || bytes.Used != 400*4096 || bytes.Available != 500*4096 || inodes.Total != 100 || inodes.Used != 10 {
			t.Errorf("usage %v", response)
		}
	}
	_, err := n.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: "/elsewhere"})
	n.wantCode(err, codes.NotFound)
	n.nvfs.Kill(id)
	_, err = n.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: n.path("pod")})
	n.wantCode(err, codes.FailedPrecondition, "is dead", "delete the pods")
}

// TestHangingStatsBlockNothing: stats of a mount whose server hangs are under
// way; the pod can be torn down all the same.
func TestHangingStatsBlockNothing(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	release := n.mounts.Hang(n.path("pod"))
	stats := make(chan error)
	go func() {
		_, err := n.node.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: n.path("pod")})
		stats <- err
	}()
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.unstage(id))
	release()
	<-stats
}

func expandRequest(n *node, id string, required, limit int64) *csi.NodeExpandVolumeRequest {
	return &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: n.path("pod"), CapacityRange: &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}}
}

func TestExpand(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	for range 2 {
		response, err := n.node.NodeExpandVolume(t.Context(), expandRequest(n, id, 100*mib, 0))
		n.ok(err)
		if response.CapacityBytes != 110*mib {
			t.Errorf("%d bytes, want 110 MiB", response.CapacityBytes)
		}
		n.restart()
	}
	if n.nvfs.Grown(id) != 2 {
		t.Errorf("grown %d times; the second call may be the retry of an interrupted one", n.nvfs.Grown(id))
	}
	volume, err := n.controller.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: id})
	n.ok(err)
	if volume.Volume.CapacityBytes != 110*mib {
		t.Errorf("volume %v", volume)
	}
	if got := n.mustCreate("pvc-1"); got != id {
		t.Errorf("ID %s", got)
	}
	_, err = n.node.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: n.path("pod")})
	n.ok(err)
}

func TestExpandIsFinishedByARetry(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.nvfs.FailGrow(errors.New("boom"))
	_, err := n.node.NodeExpandVolume(t.Context(), expandRequest(n, id, 100*mib, 0))
	n.wantCode(err, codes.Internal, "boom")
	n.restart()
	_, err = n.node.NodeExpandVolume(t.Context(), expandRequest(n, id, 100*mib, 0))
	n.ok(err)
	if n.nvfs.Grown(id) != 1 {
		t.Errorf("grown %d times", n.nvfs.Grown(id))
	}
}

func TestExpandRefuses(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	_, err := n.node.NodeExpandVolume(t.Context(), expandRequest(n, id, 1<<40, 0))
	n.wantCode(err, codes.OutOfRange, "at most 1071644672 bytes; ask for less, or copy the data to a new, larger volume")
	_, err = n.node.NodeExpandVolume(t.Context(), expandRequest(n, id, 1<<63-1, 0))
	n.wantCode(err, codes.OutOfRange, "more than any region can have")
	_, err = n.node.NodeExpandVolume(t.Context(), expandRequest(n, id, 100*mib, 101*mib))
	n.wantCode(err, codes.OutOfRange)
	_, err = n.node.NodeExpandVolume(t.Context(), expandRequest(n, id, 0, 20*mib))
	n.wantCode(err, codes.OutOfRange, "shrink")
	n.mustCreate("pvc-2") // takes what follows
	_, err = n.node.NodeExpandVolume(t.Context(), expandRequest(n, id, 100*mib, 0))
	n.wantCode(err, codes.OutOfRange)
	if n.nvfs.Grown(id) != 0 {
		t.Error("the filesystem was grown")
	}
	_, err = n.node.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: "/elsewhere"})
	n.wantCode(err, codes.NotFound)
}

func TestCapacity(t *testing.T) {
	n := newNode(t)
	here := &csi.Topology{Segments: map[string]string{driver.TopologyKey: "node-1"}}
	for name, test := range map[string]struct {
		params   []string
		topology *csi.Topology
		largest  int64
		sum      int64
	}{
		"any class":        {nil, nil, 4*gib - 2*mib, 5*gib - 4*mib},
		"this node":        {nil, here, 4*gib - 2*mib, 5*gib - 4*mib},
		"reserved keys":    {[]string{driver.KeyFSType, "nvfs", "csi.storage.k8s.io/provisioner-secret-name", "x"}, nil, 4*gib - 2*mib, 5*gib - 4*mib},
		"NUMA node":        {[]string{driver.KeyNUMANode, "0"}, nil, gib - 2*mib, gib - 2*mib},
		"no such node":     {[]string{driver.KeyNUMANode, "5"}, nil, 0, 0},
		"flush mode":       {[]string{driver.KeyFlushMode, "movdir64b"}, nil, 0, 0},
		"ext4":             {[]string{driver.KeyFSType, "ext4"}, nil, 0, 0},
		"idle namespaces":  {[]string{driver.KeyProvision, "namespace"}, nil, 0, 0},
		"another node":     {nil, &csi.Topology{Segments: map[string]string{driver.TopologyKey: "node-2"}}, 0, 0},
		"another topology": {nil, &csi.Topology{Segments: map[string]string{"zone": "a"}}, 0, 0},
	} {
		response, err := n.controller.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: createRequest("", 0, test.params...).Parameters, AccessibleTopology: test.topology})
		n.ok(err)
		if response.MaximumVolumeSize.GetValue() != test.largest || response.AvailableCapacity != test.sum || response.MinimumVolumeSize.GetValue() <= 0 {
			t.Errorf("%s: %v; want %d and %d", name, response, test.largest, test.sum)
		}
	}
	_, err := n.controller.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"flushmode": "nt"}})
	n.wantCode(err, codes.InvalidArgument, "flushMode")
}

// TestMinimumCapacityIsWhatCreateDelivers: the smallest volume that is
// announced is the one that a request for a single byte gets.
func TestMinimumCapacityIsWhatCreateDelivers(t *testing.T) {
	n := newNode(t)
	response, err := n.controller.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	n.ok(err)
	volume, err := n.create("pvc-1", 1)
	n.ok(err)
	if smallest := response.MinimumVolumeSize.GetValue(); smallest != volume.CapacityBytes || smallest != 30*mib {
		t.Errorf("%d bytes are announced, a request for 1 byte gets %d", smallest, volume.CapacityBytes)
	}
}

// TestCapacityIsWhatCreateDelivers: the largest volume that is announced can
// be made, also when memory is fragmented.
func TestCapacityIsWhatCreateDelivers(t *testing.T) {
	n := newNode(t)
	largest := func() int64 {
		response, err := n.controller.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
		n.ok(err)
		return response.MaximumVolumeSize.Value
	}
	var ids []string
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		volume, err := n.create(name, gib, driver.KeyNUMANode, "1")
		if name == "d" || name == "e" {
			n.wantCode(err, codes.ResourceExhausted)
			continue
		}
		n.ok(err)
		ids = append(ids, volume.VolumeId)
	}
	n.ok(n.delete(ids[1]))
	for size := largest(); size > 0; size = largest() {
		if _, err := n.create("fill", size+1); err == nil {
			t.Fatalf("more than the announced %d bytes fitted", size)
		}
		volume, err := n.create("fill-"+strings.Repeat("x", len(ids)), size)
		n.ok(err)
		ids = append(ids, volume.VolumeId)
	}
}

func TestNodeInfo(t *testing.T) {
	n := newNode(t)
	info, err := n.node.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	n.ok(err)
	if info.NodeId != "node-1" || len(info.AccessibleTopology.Segments) != 1 || info.AccessibleTopology.Segments["topology.csi.nvfs.dev/node"] != "node-1" {
		t.Errorf("info %v", info)
	}
}

func TestHealth(t *testing.T) {
	for name, test := range map[string]struct {
		spoil  func(n *node, id string)
		status csi.VolumeHealthErrorType
		reason string
	}{
		"healthy":         {func(*node, string) {}, 0, ""},
		"lost":            {func(n *node, id string) { n.ns.Lose(id) }, csi.VolumeHealthErrorType_DATA_LOSS, "BackingLost"},
		"gone":            {func(n *node, id string) { n.ns.Forget(id) }, csi.VolumeHealthErrorType_DATA_LOSS, "BackingLost"},
		"server died":     {func(n *node, id string) { n.nvfs.Kill(id) }, csi.VolumeHealthErrorType_INACCESSIBLE, "ServerNotRunning"},
		"damaged":         {func(n *node, id string) { n.nvfs.SetStatus(id, func(s *mountd.Status) { s.Health = "inode 7" }) }, csi.VolumeHealthErrorType_DEGRADED, "FilesystemDamaged"},
		"turned readonly": {func(n *node, id string) { n.nvfs.SetStatus(id, func(s *mountd.Status) { s.ReadOnly = true }) }, csi.VolumeHealthErrorType_DEGRADED, "FilesystemReadOnly"},
		"poison":          {func(n *node, id string) { n.ns.Poison(id, 512) }, csi.VolumeHealthErrorType_DEGRADED, "UnreadableBytes"},
		"content lost": {func(n *node, id string) {
			n.ok(n.unpublish(id, "pod"))
			n.ok(n.unstage(id))
			n.volumes.Put("/dev/fake/"+id, driver.Found{Content: driver.ContentBlank})
		}, csi.VolumeHealthErrorType_DATA_LOSS, "ContentLost"},
		"unreadable": {func(n *node, id string) {
			n.ok(n.unpublish(id, "pod"))
			n.ok(n.unstage(id))
			n.volumes.FailProbe("/dev/fake/"+id, unix.EIO)
		}, csi.VolumeHealthErrorType_INACCESSIBLE, "DeviceUnreadable"},
	} {
		n := newNode(t)
		id := n.mounted("pvc-1")
		test.spoil(n, id)
		fromNode, err := n.node.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
		n.ok(err)
		fromController, err := n.controller.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
		n.ok(err)
		list, err := n.controller.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{})
		n.ok(err)
		if prototext.Format(fromNode.VolumeHealth) != prototext.Format(fromController.VolumeHealth) {
			t.Errorf("%s: node says %v, controller %v", name, fromNode, fromController)
		}
		entries := fromNode.VolumeHealth.HealthStatuses
		if test.reason == "" {
			if len(entries) != 0 || len(list.Entries) != 0 {
				t.Errorf("%s: %v, listed %v", name, entries, list)
			}
			continue
		}
		if len(entries) != 1 || entries[0].Status != test.status || entries[0].Reason != test.reason || entries[0].Message == "" {
			t.Errorf("%s: %v; want %s %s", name, entries, test.status, test.reason)
		}
		if len(list.Entries) != 1 || list.Entries[0].VolumeId != id {
			t.Errorf("%s: listed %v", name, list)
		}
	}
}

func TestHealthOfAReplacedNode(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.ok(n.delete(id)) // all that is known of it is gone, as on a new node of the same name
	health, err := n.node.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
	n.ok(err)
	if len(health.VolumeHealth.HealthStatuses) != 1 || health.VolumeHealth.HealthStatuses[0].Status != csi.VolumeHealthErrorType_DATA_LOSS {
		t.Errorf("health %v", health)
	}
	n.wantCode(n.stage(id), codes.FailedPrecondition, "replaced")
	_, err = n.node.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "somebody-elses"})
	n.wantCode(err, codes.NotFound)
}

func TestStorageHealth(t *testing.T) {
	n := prepareNode(t, ndctl.Region{Name: "r0", Size: gib}, ndctl.Region{Name: "r1", Size: gib, Unusable: "no labels; run ndctl init-labels"},
		ndctl.Region{Name: "r2", Size: gib, Unusable: "read-only"})
	n.start()
	response, err := n.node.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
	n.ok(err)
	if len(response.BackendHealth) != 1 || response.BackendHealth[0].Status != csi.StorageHealthErrorType_STORAGE_DEGRADED ||
		!strings.Contains(response.BackendHealth[0].Message, "init-labels") || !strings.Contains(response.BackendHealth[0].Message, "r2") {
		t.Errorf("%v", response)
	}
	n.ns.FailBefore(fake.Regions, errors.New("boom"))
	response, err = n.node.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
	n.ok(err)
	if len(response.BackendHealth) != 1 || response.BackendHealth[0].Status != csi.StorageHealthErrorType_STORAGE_UNREACHABLE {
		t.Errorf("%v", response)
	}
}

func TestValidateVolumeCapabilities(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1", driver.KeyFlushMode, "nt")
	validate := func(params map[string]string, capability *csi.VolumeCapability) *csi.ValidateVolumeCapabilitiesResponse {
		response, err := n.controller.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, Parameters: params,
			VolumeCapabilities: []*csi.VolumeCapability{capability}})
		n.ok(err)
		return response
	}
	if r := validate(map[string]string{driver.KeyFlushMode: "nt"}, multiWriter); r.Confirmed == nil {
		t.Errorf("not confirmed: %v", r)
	}
	for _, r := range []*csi.ValidateVolumeCapabilitiesResponse{
		validate(map[string]string{driver.KeyFlushMode: "clwb"}, multiWriter),
		validate(map[string]string{"colour": "red"}, multiWriter),
		validate(nil, mountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)),
	} {
		if r.Confirmed != nil || r.Message == "" {
			t.Errorf("confirmed: %v", r)
		}
	}
}

func TestMetricsAndHealthz(t *testing.T) {
	n := newNode(t)
	n.mounted("pvc-1")
	w := httptest.NewRecorder()
	n.driver.MetricsHandler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		`nvfs_csi_region_size_bytes{node="node-1",numa_node="0",region="r0"} 1.073741824e+09`,
		`nvfs_csi_region_available_bytes{node="node-1",numa_node="0",region="r0"} 1.00663296e+09`,
		`nvfs_csi_region_max_extent_bytes{node="node-1",numa_node="1",region="r1"} 4.294967296e+09`,
		`nvfs_csi_volumes{node="node-1",phase="ready"} 1`,
		`nvfs_csi_staged_volumes{node="node-1"} 1`,
		`nvfs_csi_daemon_restarts_total{node="node-1"} 0`,
		`nvfs_csi_build_info{`,
		`csi_plugin_operations_seconds_count{driver_name="csi.nvfs.dev",grpc_status_code="OK",method_name="/csi.v1.Controller/CreateVolume"} 1`,
	} {
		if !strings.Contains(w.Body.String(), line) {
			t.Errorf("no %s", line)
		}
	}
	healthz := func() int {
		w := httptest.NewRecorder()
		n.driver.HealthHandler().ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
		return w.Code
	}
	if code := healthz(); code != 200 {
		t.Errorf("healthz %d", code)
	}
	n.stop()
	if code := healthz(); code != 503 {
		t.Errorf("healthz after the end %d", code)
	}
}
