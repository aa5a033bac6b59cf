package driver_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

func TestStageMountsWithTheParameters(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1", driver.KeyFlushMode, "nt", driver.KeyCacheMode, "direct", driver.KeyNUMANode, "1")
	capability := mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "noatime", "nosuid")
	n.ok(n.stageWith(id, capability, map[string]string{driver.KeyTransport: "dev", "storage.kubernetes.io/csiProvisionerIdentity": "x"}))
	want := mountd.Spec{VolumeID: id, Path: "/dev/fake/" + id, Mountpoint: n.path("staging-" + id), Flush: "nt", Cache: "direct", Transport: "dev",
		Emulated: true, NUMANode: 1, AllowOther: true, MountFlags: []string{"noatime", "nosuid"}}
	got := n.nvfs.Spec(id)
	if !slices.Equal(got.MountFlags, want.MountFlags) {
		t.Errorf("flags %v", got.MountFlags)
	}
	got.MountFlags, want.MountFlags = nil, nil
	if got.VolumeID != want.VolumeID || got.Path != want.Path || got.Mountpoint != want.Mountpoint || got.Flush != want.Flush || got.Cache != want.Cache ||
		got.Transport != want.Transport || got.NUMANode != 1 || !got.Emulated || !got.AllowOther || got.ReadOnly {
		t.Errorf("mounted with %+v, want %+v", got, want)
	}
	if info, err := os.Stat(n.path("staging-" + id)); err != nil || !info.IsDir() {
		t.Errorf("staging path: %v, %v", info, err)
	}
}

func TestStageIsIdempotent(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	for range 2 {
		n.ok(n.stage(id))
		n.restart()
		n.ok(n.stage(id))
		n.wantMounts("staging-"+id, 1)
	}
	n.wantCode(n.stageWith(id, mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY), nil), codes.AlreadyExists)
	n.wantCode(n.stageWith(id, mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "noexec"), nil), codes.AlreadyExists)
	for range 2 {
		n.ok(n.unstage(id))
		n.wantMounts("staging-"+id, 0)
		if n.nvfs.Spec(id).VolumeID != "" {
			t.Error("the server is still there")
		}
	}
}

func TestStageRefuses(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.wantCode(n.stage("../x"), codes.InvalidArgument)
	n.wantCode(n.stage("unknown"), codes.NotFound)
	n.wantCode(n.stageWith(id, multiWriter, map[string]string{"colour": "red"}), codes.InvalidArgument, "colour", "flushMode")
	n.wantCode(n.stageWith(id, multiWriter, map[string]string{driver.KeyFlushMode: "movdir64b"}), codes.FailedPrecondition, "possible")
	n.wantCode(n.stageWith(id, mountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER), nil), codes.InvalidArgument)
	n.wantCode(n.stageWith(id, mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "discard"), nil), codes.InvalidArgument, "discard", "noatime")
	for _, path := range []string{"", "relative", "/a/../b"} {
		_, err := n.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: path, VolumeCapability: multiWriter})
		n.wantCode(err, codes.InvalidArgument)
	}
	n.wantMounts("staging-"+id, 0)
}

// mountpoint-s3-csi-driver#114, #958: two PersistentVolumes with one handle are
// taken for one mount.
func TestTwoVolumesWithOneHandle(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.ok(n.stage(id))
	_, err := n.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: n.path("elsewhere"), VolumeCapability: multiWriter})
	n.wantCode(err, codes.FailedPrecondition, n.path("staging-"+id))
}

// TestStageNeverFormats: whatever is found where the volume was, it stays.
func TestStageNeverFormats(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(n *node, id string)
		code  codes.Code
	}{
		"blank": {func(n *node, id string) { n.volumes.Put("/dev/fake/"+id, driver.Found{Content: driver.ContentBlank}) }, codes.FailedPrecondition},
		"foreign": {func(n *node, id string) {
			n.volumes.Put("/dev/fake/"+id, driver.Found{Content: driver.ContentForeign, What: "xfs"})
		}, codes.FailedPrecondition},
		"another volume": {func(n *node, id string) {
			n.volumes.Put("/dev/fake/"+id, driver.Found{Content: driver.ContentNVFS, VolumeID: "x"})
		}, codes.FailedPrecondition},
		"read error": {func(n *node, id string) { n.volumes.FailProbe("/dev/fake/"+id, unix.EIO) }, codes.Internal},
		"lost":       {func(n *node, id string) { n.ns.Lose(id) }, codes.FailedPrecondition},
		"gone":       {func(n *node, id string) { n.ns.Forget(id) }, codes.FailedPrecondition},
		"replaced": {func(n *node, id string) {
			n.ns.Forget(id)
			_, err := n.ns.Create(context.Background(), ndctl.CreateRequest{Name: id, Region: "r0", Mode: ndctl.DevDax, Size: 62 * mib})
			n.ok(err)
		}, codes.FailedPrecondition},
		"manager fails": {func(n *node, _ string) {
			for range 4 {
				n.ns.FailBefore("Namespace", errors.New("ndctl timed out"))
			}
		}, codes.Internal},
	} {
		n := newNode(t)
		id := n.mustCreate("pvc-1")
		test.spoil(n, id)
		t.Log(name)
		n.wantCode(n.stage(id), test.code)
		n.wantMounts("staging-"+id, 0)
		if n.volumes.Formats() != 1 {
			t.Errorf("%s: formatted", name)
		}
	}
}

func TestFailedMountLeavesTheVolumeUnstaged(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.nvfs.FailMount(errors.New("out of memory"))
	n.wantCode(n.stage(id), codes.Internal, "out of memory")
	n.wantCode(n.publish(id, "pod"), codes.FailedPrecondition, "staged first")
	n.ok(n.stage(id))
	n.wantMounts("staging-"+id, 1)
}

func TestReboot(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.stop()
	n.nvfs.Reboot()
	n.start()
	n.wantCode(n.publish(id, "pod"), codes.FailedPrecondition, "not mounted")
	n.ok(n.stage(id))
	n.ok(n.publish(id, "pod"))
	n.wantMounts("pod", 1)
}

// TestDeadMountIsHealedAtStage: the server is gone; the kubelet stages again.
func TestDeadMountIsHealedAtStage(t *testing.T) {
	for name, spoil := range map[string]func(n *node, id string){
		"server died": func(n *node, id string) { n.nvfs.Kill(id) },
		"several on top": func(n *node, id string) {
			n.nvfs.Kill(id)
			n.mounts.Add("/dev/fake/"+id, n.path("staging-"+id), driver.MountType)
		},
		"stale, and no server": func(n *node, id string) { n.nvfs.Kill(id); n.mounts.Break(n.path("staging-"+id), unix.EIO) },
	} {
		n := newNode(t)
		id := n.mustCreate("pvc-1")
		n.ok(n.stage(id))
		spoil(n, id)
		t.Log(name)
		n.wantCode(n.publish(id, "pod"), codes.FailedPrecondition, "staged again")
		n.wantMounts("pod", 0)
		n.ok(n.stage(id))
		n.wantMounts("staging-"+id, 1)
		n.ok(n.publish(id, "pod"))
	}
}

// TestFailingMountIsNotTornDown: errors of a server that lives are no reason
// to take it away.
func TestFailingMountIsNotTornDown(t *testing.T) {
	for _, sick := range []error{unix.EIO, unix.EACCES, unix.ENOMEM} {
		n := newNode(t)
		id := n.mounted("pvc-1")
		n.mounts.Break(n.path("staging-"+id), sick)
		n.wantCode(n.stage(id), codes.Unavailable)
		n.wantMounts("staging-"+id, 1)
		n.mounts.Break(n.path("staging-"+id), nil)
		n.ok(n.stage(id))
	}
}

func TestForeignMountAtTheStagingPath(t *testing.T) {
	n := newNode(t)
	id, other := n.mustCreate("pvc-1"), n.mustCreate("pvc-2")
	for _, mp := range [][2]string{{"/dev/sda1", "ext4"}, {"/dev/fake/" + other, driver.MountType}} {
		n.mounts.Add(mp[0], n.path("staging-"+id), mp[1])
		n.wantCode(n.stage(id), codes.FailedPrecondition, mp[0])
		n.wantMounts("staging-"+id, 1)
		n.ok(n.mounts.Unmount(n.path("staging-" + id)))
	}
}

func TestUnstageOfAPublishedVolume(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.wantCode(n.unstage(id), codes.FailedPrecondition, n.path("pod"))
	n.wantMounts("staging-"+id, 1)
	// Unmounted behind the driver's back.
	n.ok(n.mounts.Unmount(n.path("pod")))
	n.ok(n.unstage(id))
	n.wantMounts("staging-"+id, 0)
}

// TestUnstageAtAnotherPath: a path at which the volume is not staged is
// cleared, and the volume goes on being served where it is.
func TestUnstageAtAnotherPath(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	elsewhere := n.path("elsewhere")
	n.mounts.Add("/dev/fake/old", elsewhere, driver.MountType)
	_, err := n.node.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: elsewhere})
	n.ok(err)
	n.wantMounts("elsewhere", 0)
	n.wantMounts("staging-"+id, 1)
	n.wantMounts("pod", 1)
	if n.nvfs.Spec(id).VolumeID != id {
		t.Error("the volume is not served any more")
	}
	n.ok(n.publish(id, "pod-2"))
}

// TestMountIsNotJudgedByItsTotals: a volume whose totals are still being
// counted is staged, published and torn down like any other.
func TestMountIsNotJudgedByItsTotals(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	release := n.mounts.Count(n.path("staging-" + id))
	defer release()
	for range 2 {
		n.ok(n.stage(id))
		n.ok(n.publish(id, "pod"))
	}
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.unstage(id))
}

// intel/pmem-csi#625: unpublish of a volume that is gone fails for ever. A pod
// must be able to end whatever happened to the state directory.
func TestTeardownWithoutARecord(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.ok(os.Remove(n.recordPath(id)))
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.unstage(id))
	n.wantMounts("pod", 0)
	n.wantMounts("staging-"+id, 0)
	n.ok(n.unpublish("unknown", "pod"))
	n.ok(n.unstage("unknown"))
}

// TestDeadMountsAreCleanedAtTeardown: dead mounts, also several on one path,
// do not keep a pod in Terminating.
func TestDeadMountsAreCleanedAtTeardown(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.mounts.Add("/dev/fake/"+id, n.path("pod"), driver.MountType)
	n.mounts.Add("/dev/fake/"+id, n.path("staging-"+id), driver.MountType)
	n.nvfs.Kill(id)
	n.ok(n.unpublish(id, "pod"))
	n.wantMounts("pod", 0)
	if _, err := os.Stat(n.path("pod")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("target path: %v", err)
	}
	n.ok(n.unstage(id))
	n.wantMounts("staging-"+id, 0)
	n.ok(n.delete(id))
}

func TestUnmountErrorsAreNotSwallowed(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.mounts.FailUnmount(n.path("pod"), unix.EBUSY)
	n.wantCode(n.unpublish(id, "pod"), codes.Internal, "busy")
	n.mounts.FailUnmount(n.path("pod"), nil)
	n.ok(n.unpublish(id, "pod"))
	n.mounts.FailUnmount(n.path("staging-"+id), unix.EBUSY)
	if err := n.unstage(id); err == nil {
		t.Error("unstage of a busy mount succeeded")
	}
	n.mounts.FailUnmount(n.path("staging-"+id), nil)
	n.ok(n.unstage(id))
}
