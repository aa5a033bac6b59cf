package driver_test

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

// What other drivers have left behind, or stumbled over, between a mount and
// its end. Each test names the defect that was reported there.

// ceph/ceph-csi#2616: unpublish repeats for ever because the check whether the
// target is a mount point fails on a dead mount. seaweedfs-csi-driver#54,
// kubernetes-csi/csi-driver-nfs#320, kubevirt/csi-driver#165: a bare unmount
// leaves the directory or a second mount.
func TestUnpublishOfADeadTarget(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.nvfs.Kill(id)
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.unstage(id))
	n.wantMounts("pod", 0)
	n.wantMounts("staging-"+id, 0)
}

// fluid-cloudnative/fluid#4016, #4189: several dead mounts lie over each other,
// and the cleanup stops at the first.
func TestStackedDeadMounts(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	for range 3 {
		n.mounts.Add("/dev/fake/"+id, n.path("pod"), driver.MountType)
		n.mounts.Add("/dev/fake/"+id, n.path("staging-"+id), driver.MountType)
	}
	n.nvfs.Kill(id)
	n.ok(n.unpublish(id, "pod"))
	n.wantMounts("pod", 0)
	n.ok(n.stage(id))
	n.wantMounts("staging-"+id, 1)
	n.ok(n.publish(id, "pod"))
}

// kubernetes-sigs/blob-csi-driver#2509, azurefile-csi-driver#3211: a republish
// unmounts a dead target under a running application, which goes on writing to
// the disk below. yandex-cloud/k8s-csi-s3#179: after an upgrade the dead
// staging mount makes stage fail, too. juicefs-csi-driver#1640,
// mountpoint-s3-csi-driver#576, #604: the volume is served again, but the pod
// stays on the dead mount, and nothing says so. mountpoint-s3-csi-driver#894:
// a publish that cannot succeed hinders those of healthy pods.
func TestTargetIsABindMountOfADeadStagingMount(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.nvfs.Kill(id)
	n.ok(n.stage(id)) // a new mount; the pod still has the old one
	n.wantCode(n.publish(id, "pod"), codes.FailedPrecondition, "dead", "delete the pod")
	n.wantMounts("pod", 1)
	n.ok(n.publish(id, "new-pod"))
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.publish(id, "pod"))
	n.wantMounts("pod", 1)
}

// juicefs-csi-driver#936: a server that is replaced finds its own mount
// "broken" and unmounts it. Here a mount that does not answer for a moment, or
// fails without having lost its server, is left alone by every call.
func TestMountIsLeftAloneWhileItsServerIsReplaced(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.nvfs.SetStatus(id, func(s *mountd.Status) { s.PID, s.Restarts, s.LastDeath = 4711, 1, "signal: killed" })
	n.ok(n.stage(id))
	n.ok(n.publish(id, "pod"))
	n.wantMounts("pod", 1)
	n.wantMounts("staging-"+id, 1)
}

// A mount whose server runs another version of the program is as good as any.
// ceph/ceph-csi#91, kadalu#1003: an upgrade of the driver has to remount.
func TestServerOfAnotherVersion(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.nvfs.SetStatus(id, func(s *mountd.Status) { s.Version = "another" })
	n.restart()
	n.ok(n.stage(id))
	n.ok(n.publish(id, "pod"))
	n.ok(n.publish(id, "second-pod"))
	n.wantMounts("staging-"+id, 1)
	n.ok(n.unpublish(id, "second-pod"))
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.unstage(id))
}

// aws-efs-csi-driver#1940: the kernel's mount is there and its helper is not,
// and retries wait for it for 49 minutes. openebs/lvm-localpv#461: an unmount
// that fails is reported as done.
func TestMountWithoutAServer(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.ok(n.stage(id))
	n.nvfs.Kill(id)
	n.wantCode(n.publish(id, "pod"), codes.FailedPrecondition, "staged again")
	n.ok(n.stage(id))
	n.ok(n.publish(id, "pod"))
}

// A server without a mount: somebody has unmounted the staging path. With a
// pod that uses the volume it is mounted there again, without a new server;
// with none the server is ended, and the volume mounted anew.
func TestServerWithoutAMount(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.ok(n.mounts.Unmount(n.path("staging-" + id)))
	before := n.nvfs.Spec(id).VolumeID
	n.ok(n.stage(id))
	n.wantMounts("staging-"+id, 1)
	n.wantMounts("pod", 1)
	if n.nvfs.Spec(id).VolumeID != before {
		t.Error("another server")
	}
	n.ok(n.publish(id, "second-pod"))
	n.ok(n.unpublish(id, "second-pod"))
	n.ok(n.unpublish(id, "pod"))

	n.ok(n.mounts.Unmount(n.path("staging-" + id)))
	n.ok(n.stage(id))
	n.wantMounts("staging-"+id, 1)
	n.ok(n.publish(id, "pod"))
}

// kubernetes#102486, #121357: the kubelet stages while an unstage is still
// running, or the other way round. One of them is turned away, and nothing is
// waited for.
func TestStageWhileUnstaging(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	release := n.mounts.Hang(n.path("staging-" + id))
	staging := make(chan error, 1)
	go func() {
		err := n.stage(id)
		for status.Code(err) == codes.Aborted { // an unstage came first, and ends at once
			err = n.stage(id)
		}
		staging <- err
	}()
	// FailedPrecondition, because of the pod, until the stage has begun.
	for status.Code(n.unstage(id)) != codes.Aborted {
		select {
		case err := <-staging:
			t.Fatalf("the stage has ended and was never in the way: %v", err)
		default:
		}
	}
	n.wantMounts("staging-"+id, 1)
	release()
	n.ok(<-staging)
}

// A server that had to be given up is said to be gone with the reason, as on
// kernels that do not let another one go on.
func TestHealthSaysWhyAServerWasGivenUp(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.nvfs.Kill(id)
	health, err := n.node.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
	n.ok(err)
	entries := health.GetVolumeHealth().GetHealthStatuses()
	if len(entries) != 1 || entries[0].Status != csi.VolumeHealthErrorType_INACCESSIBLE ||
		!strings.Contains(entries[0].Message, mountd.ErrNotServed.Error()) || !strings.Contains(entries[0].Message, "staged again") {
		t.Errorf("health %v", entries)
	}
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.unstage(id))
	n.ok(n.stage(id))
}

// With pods that may only read, the staging mount cannot be made again.
func TestServerWithoutAMountAndReaders(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.ok(n.stage(id))
	n.ok(n.publishWith(id, "pod", multiWriter, true))
	n.ok(n.mounts.Unmount(n.path("staging-" + id)))
	n.wantCode(n.stage(id), codes.FailedPrecondition, n.path("pod"))
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.stage(id))
}

// aws-ebs-csi-driver#1007, topolvm#1225: a kubelet that was restarted, or that
// repeats a call, makes mounts pile up.
func TestRepeatedCallsDoNotStackMounts(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	for range 3 {
		n.ok(n.stage(id))
		n.ok(n.publish(id, "pod"))
		n.restart()
	}
	n.wantMounts("staging-"+id, 1)
	n.wantMounts("pod", 1)
}

// kubernetes#86360, #100182, #106729: after an unstage that timed out the
// kubelet publishes without staging. kubernetes#82190: a stage that is given up
// leaves a mount.
func TestPublishWithoutStage(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.wantCode(n.publish(id, "pod"), codes.FailedPrecondition, "staged first")
	n.ok(n.stage(id))
	n.ok(n.unstage(id))
	n.wantCode(n.publish(id, "pod"), codes.FailedPrecondition, "staged first")
	n.wantMounts("pod", 0)
}
