package driver_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/fake"
)

func TestCreateIsIdempotent(t *testing.T) {
	n := newNode(t)
	first, err := n.create("pvc-1", 62*mib, driver.KeyFlushMode, "nt", driver.KeyNUMANode, "1", "csi.storage.k8s.io/pvc/name", "claim")
	n.ok(err)
	if first.CapacityBytes != 62*mib || first.VolumeContext[driver.KeyFlushMode] != "nt" || first.AccessibleTopology[0].Segments[driver.TopologyKey] != "node-1" {
		t.Errorf("volume %v", first)
	}
	ns, err := n.ns.Namespace(t.Context(), first.VolumeId)
	if err != nil || ns.Region != "r1" || ns.Mode != ndctl.DevDax {
		t.Errorf("namespace %+v, %v", ns, err)
	}
	n.restart()
	second, err := n.create("pvc-1", 62*mib, driver.KeyFlushMode, "nt", driver.KeyNUMANode, "1", "csi.storage.k8s.io/pvc/name", "claim")
	n.ok(err)
	if second.VolumeId != first.VolumeId || second.CapacityBytes != first.CapacityBytes {
		t.Errorf("second answer %v, first %v", second, first)
	}
	if n.volumes.Formats() != 1 {
		t.Errorf("formatted %d times", n.volumes.Formats())
	}
}

func TestCreateOfAnotherKindUnderTheSameName(t *testing.T) {
	n := newNode(t)
	n.mustCreate("pvc-1")
	_, err := n.create("pvc-1", 62*mib, driver.KeyFlushMode, "nt")
	n.wantCode(err, codes.AlreadyExists, "flushMode:nt")
	_, err = n.create("pvc-1", 63*mib)
	n.wantCode(err, codes.AlreadyExists)
	req := createRequest("pvc-1", 0)
	req.CapacityRange = &csi.CapacityRange{RequiredBytes: 16 * mib, LimitBytes: 20 * mib}
	_, err = n.controller.CreateVolume(t.Context(), req)
	n.wantCode(err, codes.AlreadyExists)
}

func TestCreateRefuses(t *testing.T) {
	n := newNode(t)
	for name, test := range map[string]struct {
		change func(*csi.CreateVolumeRequest)
		code   codes.Code
		says   string
	}{
		"unknown parameter": {func(r *csi.CreateVolumeRequest) { r.Parameters["size"] = "1" }, codes.InvalidArgument, "size"},
		"path as name":      {func(r *csi.CreateVolumeRequest) { r.Name = "../x" }, codes.InvalidArgument, "name"},
		"snapshot": {func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "s"}}}
		}, codes.InvalidArgument, "snapshot"},
		"clone": {func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "s"}}}
		}, codes.InvalidArgument, "another volume"},
		"mutable parameters": {func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"a": "b"} }, codes.InvalidArgument, "mutable"},
		"ext4": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}}
		}, codes.ResourceExhausted, "is emulated"},
		"block": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{{AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}}
		}, codes.ResourceExhausted, "is emulated"},
		"many nodes": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{mountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)}
		}, codes.InvalidArgument, "ReadWriteOnce"},
		"mount option": {func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = []*csi.VolumeCapability{mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "dax")}
		}, codes.InvalidArgument, "noatime"},
		"limit below required": {func(r *csi.CreateVolumeRequest) { r.CapacityRange.LimitBytes = 61 * mib }, codes.OutOfRange, "limit"},
		"limit too small": {func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{LimitBytes: mib}
		}, codes.OutOfRange, "smallest"},
		"limit between two alignments": {func(r *csi.CreateVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: 63 * mib, LimitBytes: 64 * mib}
		}, codes.OutOfRange, "the next one is 81788928 bytes"},
		"control character": {func(r *csi.CreateVolumeRequest) { r.Name = "a\x01b" }, codes.InvalidArgument, "control characters"},
		"negative":          {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = -1 }, codes.InvalidArgument, "negative"},
		"larger than all":   {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 1 << 50 }, codes.ResourceExhausted, "r1"},
		"absurdly large":    {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 1<<63 - 1 }, codes.OutOfRange, "at least 9223372036854775807 bytes is possible: that is more than any region can have"},
		"no such NUMA node": {func(r *csi.CreateVolumeRequest) { r.Parameters[driver.KeyNUMANode] = "7" }, codes.ResourceExhausted, "NUMA node"},
		"flush mode":        {func(r *csi.CreateVolumeRequest) { r.Parameters[driver.KeyFlushMode] = "movdir64b" }, codes.ResourceExhausted, "possible: nt, clwb"},
		"another node": {func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{driver.TopologyKey: "node-2"}}}}
		}, codes.ResourceExhausted, "node-1"},
	} {
		req := createRequest("pvc-1", 62*mib)
		test.change(req)
		_, err := n.controller.CreateVolume(t.Context(), req)
		t.Log(name)
		n.wantCode(err, test.code, test.says)
		n.wantNothing()
	}
	if n.ns.Calls(fake.Create) > 2 {
		t.Errorf("%d namespaces were tried", n.ns.Calls(fake.Create))
	}
}

func TestCreateForThisNode(t *testing.T) {
	n := newNode(t)
	req := createRequest("pvc-1", 62*mib)
	here := &csi.Topology{Segments: map[string]string{driver.TopologyKey: "node-1"}}
	there := &csi.Topology{Segments: map[string]string{driver.TopologyKey: "node-2"}}
	req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{there, here}, Preferred: []*csi.Topology{there}}
	_, err := n.controller.CreateVolume(t.Context(), req)
	n.ok(err)
}

func TestSizes(t *testing.T) {
	n := newNode(t)
	for _, test := range []struct{ required, limit, want int64 }{
		{0, 0, gib + 14*mib},
		{0, 30 * mib, 30 * mib},
		{1, 0, 30 * mib}, // the smallest volume, rounded up
		{63 * mib, 0, 78 * mib},
		{62 * mib, 62 * mib, 62 * mib},
	} {
		req := createRequest("pvc", 0)
		req.CapacityRange = &csi.CapacityRange{RequiredBytes: test.required, LimitBytes: test.limit}
		response, err := n.controller.CreateVolume(t.Context(), req)
		n.ok(err)
		if got := response.Volume.CapacityBytes; got != test.want {
			t.Errorf("%d to %d bytes: got %d, want %d", test.required, test.limit, got, test.want)
		}
		n.ok(n.delete(response.Volume.VolumeId))
	}
}

func TestPlacement(t *testing.T) {
	n := newNode(t)
	regionOf := func(name string, params ...string) string {
		ns, err := n.ns.Namespace(t.Context(), n.mustCreate(name, params...))
		n.ok(err)
		return ns.Region
	}
	for name, test := range map[string]struct {
		params []string
		want   string
	}{
		"any":    {nil, "r0"},
		"pack":   {[]string{driver.KeyNUMAPolicy, driver.PolicyPack}, "r0"},
		"spread": {[]string{driver.KeyNUMAPolicy, driver.PolicySpread}, "r1"},
		"node 1": {[]string{driver.KeyNUMANode, "1"}, "r1"},
	} {
		if got := regionOf(name, test.params...); got != test.want {
			t.Errorf("%s: region %s, want %s", name, got, test.want)
		}
	}
	volume, err := n.create("large", 2*gib, driver.KeyNUMAPolicy, driver.PolicyPack)
	n.ok(err)
	if ns, err := n.ns.Namespace(t.Context(), volume.VolumeId); err != nil || ns.Region != "r1" {
		t.Errorf("what does not fit the first region went to %+v, %v", ns, err)
	}
}

// TestFailedCreateLeavesNothing: a final code may only be given when nothing
// is left behind.
func TestFailedCreateLeavesNothing(t *testing.T) {
	boom := errors.New("boom")
	for name, fail := range map[string]func(*node){
		"create fails":             func(n *node) { n.ns.FailBefore(fake.Create, boom) },
		"create's answer is lost":  func(n *node) { n.ns.FailAfter(fake.Create, boom) },
		"format fails":             func(n *node) { n.volumes.FailFormat(boom) },
		"regions cannot be read":   func(n *node) { n.ns.FailBefore(fake.Regions, boom) },
		"a region is full by then": func(n *node) { n.ns.FailBefore(fake.Create, &ndctl.NoSpaceError{}) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			fail(n)
			if _, err := n.create("pvc-1", 62*mib); err != nil {
				n.wantCode(err, codes.Internal, "boom")
				n.wantNothing()
			}
			n.mustCreate("pvc-1")
		})
	}
}

// TestUndoneLater: when a failed creation cannot be undone, the code asks for
// a retry, and the retry, also after a restart, succeeds.
func TestUndoneLater(t *testing.T) {
	boom := errors.New("boom")
	for _, restart := range []bool{false, true} {
		n := newNode(t)
		n.volumes.FailFormat(boom)
		n.ns.FailBefore(fake.Destroy, boom)
		_, err := n.create("pvc-1", 62*mib)
		n.wantCode(err, codes.Aborted, "boom")
		if restart {
			n.restart()
		}
		if orphans, err := n.driver.Orphans(t.Context()); err != nil || len(orphans) != 1 || !strings.Contains(orphans[0].Reason, "never finished") {
			t.Errorf("orphans %v, %v", orphans, err)
		}
		list, err := n.controller.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		if err != nil || len(list.Entries) != 0 {
			t.Errorf("listed %v, %v", list, err)
		}
		id := n.mustCreate("pvc-1")
		n.ok(n.delete(id))
		n.wantNothing()
	}
}

func TestUnfinishedCreateIsReplacedOrDeleted(t *testing.T) {
	unfinished := func(t *testing.T) (*node, string) {
		n := newNode(t)
		n.volumes.FailFormat(errors.New("boom"))
		n.ns.FailBefore(fake.Destroy, errors.New("boom"))
		_, err := n.create("pvc-1", 62*mib)
		n.wantCode(err, codes.Aborted)
		n.restart()
		list, err := n.ns.Namespaces(t.Context())
		n.ok(err)
		return n, list[0].Name
	}
	n, id := unfinished(t)
	volume, err := n.create("pvc-1", 158*mib, driver.KeyNUMANode, "1")
	n.ok(err)
	if ns, err := n.ns.Namespace(t.Context(), id); err != nil || ns.Region != "r1" || volume.CapacityBytes != 158*mib {
		t.Errorf("changed request got %v in %+v, %v", volume, ns, err)
	}
	n, id = unfinished(t)
	n.wantCode(n.stage(id), codes.FailedPrecondition, "creating")
	n.ok(n.delete(id))
	n.wantNothing()
}

// TestCanceledCreateIsContinued: the caller gives up while the volume is being
// formatted. The record stays, and the retry makes the volume of it.
func TestCanceledCreateIsContinued(t *testing.T) {
	n := newNode(t)
	entered := n.volumes.HoldFormat()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() {
		_, err := n.controller.CreateVolume(ctx, createRequest("pvc-1", 62*mib))
		result <- err
	}()
	<-entered
	_, err := n.create("pvc-1", 62*mib)
	n.wantCode(err, codes.Aborted, "CreateVolume is still running")
	cancel()
	n.wantCode(<-result, codes.Canceled)
	n.restart() // waits for the end of the call
	if list, err := n.ns.Namespaces(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("namespaces %v, %v; want the unfinished one", list, err)
	}
	id := n.mustCreate("pvc-1")
	if n.ns.Calls(fake.Create) != 1 {
		t.Error("the unfinished namespace was not used")
	}
	n.ok(n.delete(id))
	n.wantNothing()
}

func TestLeftTempFileDoesNotBlockAVolume(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.ok(n.delete(id))
	n.ok(os.WriteFile(n.recordPath(id)+".tmp", []byte("{"), 0o600))
	n.restart()
	if got := n.mustCreate("pvc-1"); got != id {
		t.Errorf("ID %s, was %s", got, id)
	}
}

func TestDamagedRecordIsFailClosed(t *testing.T) {
	for _, content := range []string{"", "{", `{"version":9}`, `{"version":1,"id":"other","namespace":"x","phase":"ready"}`} {
		n := newNode(t)
		id := n.mustCreate("pvc-1")
		n.ok(os.WriteFile(n.recordPath(id), []byte(content), 0o600))
		_, err := n.create("pvc-1", 62*mib)
		n.wantCode(err, codes.Aborted, id)
		n.wantCode(n.stage(id), codes.Internal, id)
		n.wantCode(n.delete(id), codes.Internal, id)
		n.ok(n.unpublish(id, "pod"))
		n.ok(n.unstage(id))
		if n.volumes.Formats() != 1 || n.ns.Calls(fake.Destroy) != 0 {
			t.Errorf("%q: the volume was touched", content)
		}
	}
}

func TestLostRecordIsMadeAgainFromTheDevice(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1", driver.KeyFlushMode, "nt", driver.KeyEraseOnDelete, "false")
	n.ok(os.Remove(n.recordPath(id)))
	n.restart()
	n.ok(n.stage(id))
	if spec := n.nvfs.Spec(id); spec.Flush != "nt" {
		t.Errorf("mounted with %+v", spec)
	}
	n.ok(n.unstage(id))
	if got := n.mustCreate("pvc-1", driver.KeyFlushMode, "nt", driver.KeyEraseOnDelete, "false"); got != id {
		t.Errorf("ID %s, was %s", got, id)
	}
	n.ok(os.Remove(n.recordPath(id)))
	n.ok(n.delete(id))
	n.wantNothing()
}

// TestForeignNamespaceOfOurName: without a record nothing is formatted or
// destroyed.
func TestForeignNamespaceOfOurName(t *testing.T) {
	for name, found := range map[string]driver.Found{
		"blank":   {Content: driver.ContentBlank},
		"ext4":    {Content: driver.ContentForeign, What: "ext4"},
		"another": {Content: driver.ContentNVFS, VolumeID: "another"},
	} {
		n := newNode(t)
		id := n.mustCreate("pvc-1")
		n.ok(n.delete(id))
		ns, err := n.ns.Create(t.Context(), ndctl.CreateRequest{Name: id, Region: "r0", Mode: ndctl.DevDax, Size: 62 * mib})
		n.ok(err)
		n.volumes.Put(ns.Device, found)
		destroyed, formatted := n.ns.Calls(fake.Destroy), n.volumes.Formats()
		_, err = n.create("pvc-1", 62*mib)
		t.Log(name)
		n.wantCode(err, codes.FailedPrecondition, id)
		n.wantCode(n.delete(id), codes.FailedPrecondition, id)
		n.wantCode(n.stage(id), codes.FailedPrecondition, id)
		if n.ns.Calls(fake.Destroy) != destroyed || n.volumes.Formats() != formatted {
			t.Errorf("%s: the namespace was touched", name)
		}
		if orphans, err := n.driver.Orphans(t.Context()); err != nil || len(orphans) != 1 || orphans[0].Namespace != id {
			t.Errorf("orphans %v, %v", orphans, err)
		}
	}
}

func TestCreateOfALostVolumeSaysSo(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.ns.Forget(id)
	_, err := n.create("pvc-1", 62*mib)
	n.wantCode(err, codes.FailedPrecondition, "lost")
	if n.ns.Calls(fake.Create) != 1 {
		t.Error("a fresh namespace took the place of the lost one")
	}
	n.ok(n.delete(id))
	n.wantNothing()
}

func TestProvisionFromExistingNamespaces(t *testing.T) {
	n := newNode(t)
	add := func(name string, size uint64, mode ndctl.Mode) ndctl.Namespace {
		ns, err := n.ns.Create(t.Context(), ndctl.CreateRequest{Name: name, Region: "r1", Mode: mode, Size: size})
		n.ok(err)
		return ns
	}
	add("used", 62*mib, ndctl.DevDax)
	n.ns.SetInUse("used", true)
	add("fsdax", 62*mib, ndctl.FSDax)
	add("nvfs-an-orphan-aaaaaaaaaaaaaaaaaaaaaaaaaa", 62*mib, ndctl.DevDax)
	n.volumes.Put(add("data", 62*mib, ndctl.DevDax).Device, driver.Found{Content: driver.ContentForeign, What: "a database"})
	add("large", 510*mib, ndctl.DevDax)
	add("small", 126*mib, ndctl.DevDax)

	class := []string{driver.KeyProvision, driver.ProvisionNamespace}
	capacity := func() int64 {
		response, err := n.controller.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{driver.KeyProvision: driver.ProvisionNamespace}})
		n.ok(err)
		return response.MaximumVolumeSize.Value
	}
	if got := capacity(); got != 510*mib {
		t.Errorf("largest volume is %d, want the largest idle namespace", got)
	}
	first, err := n.create("pvc-1", 62*mib, class...)
	n.ok(err)
	second, err := n.create("pvc-2", 62*mib, class...)
	n.ok(err)
	if first.CapacityBytes != 126*mib || second.CapacityBytes != 510*mib {
		t.Errorf("volumes %v and %v, want the smallest that fits first", first, second)
	}
	_, err = n.create("pvc-3", 62*mib, class...)
	n.wantCode(err, codes.ResourceExhausted, "idle")
	n.ok(n.stage(first.VolumeId))
	if spec := n.nvfs.Spec(first.VolumeId); !strings.HasSuffix(spec.Path, "small") {
		t.Errorf("mounted %+v", spec)
	}
	n.ok(n.unstage(first.VolumeId))
	n.ok(n.delete(first.VolumeId))
	if got := capacity(); got != 126*mib {
		t.Errorf("after the deletion the largest volume is %d, want that namespace back", got)
	}
	if n.ns.Calls(fake.Destroy) != 0 {
		t.Error("an existing namespace was destroyed")
	}
}
