package driver_test

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// TestRepublishNeverUnmounts: the kubelet publishes again whenever it likes,
// and the pod is using the mount.
func TestRepublishNeverUnmounts(t *testing.T) {
	for name, spoil := range map[string]func(n *node, id string){
		"live":            func(*node, string) {},
		"server died":     func(n *node, id string) { n.nvfs.Kill(id) },
		"failing":         func(n *node, _ string) { n.mounts.Break(n.path("pod"), unix.EIO) },
		"lost record":     func(n *node, id string) { n.ok(os.Remove(n.recordPath(id))) },
		"staging is gone": func(n *node, id string) { n.ok(n.mounts.Unmount(n.path("staging-" + id))) },
	} {
		n := newNode(t)
		id := n.mounted("pvc-1")
		spoil(n, id)
		n.mounts.TakeLog()
		for range 2 {
			err := n.publish(id, "pod")
			if (err == nil) != (name == "live" || name == "lost record" || name == "staging is gone") {
				t.Errorf("%s: %v", name, err)
			}
			n.restart()
		}
		if log := n.mounts.TakeLog(); len(log) != 0 {
			t.Errorf("%s: a republish did %v", name, log)
		}
		n.wantMounts("pod", 1)
	}
}

func TestPublishReadOnly(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.ok(n.publishWith(id, "reader", mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, "nosuid", "sync"), true))
	if _, top := n.mounts.At(n.path("reader")); !slices.Equal(top.Opts, []string{"nosuid", "ro"}) {
		t.Errorf("options %v", top.Opts)
	}
	n.ok(n.publishWith(id, "reader", multiWriter, true))
	n.wantCode(n.publish(id, "reader"), codes.AlreadyExists)
	n.wantCode(n.publishWith(id, "pod", multiWriter, true), codes.AlreadyExists)
	n.wantMounts("reader", 1)
	n.wantMounts("pod", 1)
}

func TestReaderOnlyVolume(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	reader := mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY)
	n.ok(n.stageWith(id, reader, nil))
	if !n.nvfs.Spec(id).ReadOnly {
		t.Error("staged writable")
	}
	n.ok(n.publishWith(id, "pod", reader, false))
	if _, top := n.mounts.At(n.path("pod")); !slices.Contains(top.Opts, "ro") {
		t.Errorf("options %v", top.Opts)
	}
	n.wantCode(n.publish(id, "writer"), codes.FailedPrecondition, "read-only")
}

func TestSinglePod(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	single := mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)
	n.ok(n.stageWith(id, single, nil))
	n.ok(n.publishWith(id, "a", single, false))
	n.ok(n.publishWith(id, "a", single, false))
	n.wantCode(n.publishWith(id, "b", single, false), codes.FailedPrecondition, n.path("a"))
	n.wantCode(n.publish(id, "b"), codes.FailedPrecondition, n.path("a"))
	n.restart()
	n.wantCode(n.publishWith(id, "b", single, false), codes.FailedPrecondition, n.path("a"))
	n.ok(n.unpublish(id, "a"))
	n.ok(n.publishWith(id, "b", single, false))
}

func TestPublishRefuses(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.wantCode(n.publish(id, "pod"), codes.FailedPrecondition, "staged first")
	n.ok(n.stage(id))
	n.wantCode(n.publish("a/../b", "pod"), codes.InvalidArgument)
	n.wantCode(n.publish("unknown", "pod"), codes.NotFound)
	for target, code := range map[string]codes.Code{"": codes.InvalidArgument, "x": codes.InvalidArgument, "/a/../b": codes.InvalidArgument} {
		_, err := n.node.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: n.path("staging-" + id),
			TargetPath: target, VolumeCapability: multiWriter})
		n.wantCode(err, code)
	}
	_, err := n.node.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{VolumeId: id, TargetPath: n.path("pod"), VolumeCapability: multiWriter})
	n.wantCode(err, codes.FailedPrecondition, "staging target path")
	_, err = n.node.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: n.path("staging-" + id), TargetPath: n.path("pod"),
		VolumeCapability: multiWriter, VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true"}})
	n.wantCode(err, codes.InvalidArgument, "ephemeral")
	n.mounts.Add("tmpfs", n.path("pod"), "tmpfs")
	n.wantCode(n.publish(id, "pod"), codes.FailedPrecondition, "tmpfs")
	n.wantMounts("pod", 1)
}

func TestFailedBindLeavesNothing(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.ok(n.stage(id))
	n.mounts.FailMount(n.path("pod"), errors.New("no memory"))
	n.wantCode(n.publish(id, "pod"), codes.Internal, "no memory")
	if _, err := os.Stat(n.path("pod")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("target path: %v", err)
	}
	n.ok(n.unstage(id))
}

// TestInterruptedPublishBeginsAnew: a bind mount that was made but never
// confirmed may lack its options, and no pod has it.
func TestInterruptedPublishBeginsAnew(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.ok(n.stage(id))
	n.ok(n.publishWith(id, "pod", multiWriter, true))
	n.stop()
	n.ok(n.mounts.Unmount(n.path("pod")))
	n.mounts.Add("/dev/fake/"+id, n.path("pod"), "fuse.nvfs") // writable
	data, err := os.ReadFile(n.recordPath(id))
	n.ok(err)
	var record map[string]any
	n.ok(json.Unmarshal(data, &record))
	delete(record["published"].([]any)[0].(map[string]any), "done")
	data, err = json.Marshal(record)
	n.ok(err)
	n.ok(os.WriteFile(n.recordPath(id), data, 0o600))
	n.start()
	n.ok(n.publishWith(id, "pod", multiWriter, true))
	n.wantMounts("pod", 1)
	if _, top := n.mounts.At(n.path("pod")); !slices.Contains(top.Opts, "ro") {
		t.Errorf("options %v", top.Opts)
	}
}

func TestUnpublishRemovesTheTargetOnly(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.ok(os.WriteFile(n.path("pod")+"/left-below-the-mount", nil, 0o600))
	err := n.unpublish(id, "pod")
	n.wantCode(err, codes.Internal, "not empty")
	n.ok(os.Remove(n.path("pod") + "/left-below-the-mount"))
	for range 2 {
		n.ok(n.unpublish(id, "pod"))
	}
	for _, path := range []string{"", "x", "/a/../b"} {
		_, err := n.node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path})
		n.wantCode(err, codes.InvalidArgument)
	}
}

func TestKubeletDirBehindALink(t *testing.T) {
	n := newNode(t)
	n.path("") // makes it
	link := strings.TrimSuffix(n.options.KubeletDir, "kubelet") + "link"
	n.ok(os.Symlink(n.options.KubeletDir, link))
	id := n.mustCreate("pvc-1")
	staging, target := link+"/pods/staging", link+"/pods/pod"
	for range 2 {
		_, err := n.node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: multiWriter})
		n.ok(err)
		_, err = n.node.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: multiWriter})
		n.ok(err)
	}
	n.wantMounts("pod", 1)
	n.wantMounts("staging", 1)
}
