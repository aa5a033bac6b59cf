package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestDriverWalk takes a volume through its life, each call twice, and looks
// for what is left.
func TestDriverWalk(t *testing.T) {
	d := newDriver(t)
	before := d.capacity(t, nil)
	v := d.createVolume(t, "walk", 256<<20, map[string]string{"flushMode": "auto", "numaNode": "1"})
	if again := d.createVolume(t, "walk", 256<<20, map[string]string{"flushMode": "auto", "numaNode": "1"}); again.id != v.id {
		t.Errorf("created again: %s, want %s", again.id, v.id)
	}
	if _, err := os.Stat(filepath.Join(d.dir, "region1", v.id+".pmem")); err != nil {
		t.Errorf("the namespace is not on NUMA node 1: %v", err)
	}
	v.up(t)
	v.write(t)
	v.up(t)
	v.wantContent(t)
	if n := len(mountsBelow(t, filepath.Join(d.dir, "kubelet"))); n != 2 {
		t.Errorf("%d mounts, want 2 (staging and target)", n)
	}
	for range 2 {
		if err := v.unpublish(t); err != nil {
			t.Errorf("unpublish: %v", err)
		}
	}
	for range 2 {
		if err := v.unstage(t); err != nil {
			t.Errorf("unstage: %v", err)
		}
	}
	mustNVFS(t, "fsck", "-n", filepath.Join(d.dir, "region1", v.id+".pmem"))
	v.up(t) // the data outlives the stage
	v.wantContent(t)
	if err := v.unpublish(t); err != nil {
		t.Errorf("unpublish: %v", err)
	}
	if err := v.unstage(t); err != nil {
		t.Errorf("unstage: %v", err)
	}
	for range 2 {
		if err := v.delete(t); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	if after := d.capacity(t, nil); after != before {
		t.Errorf("capacity %d after the volume was deleted, %d before it was created", after, before)
	}
	if left := mountsBelow(t, d.dir); len(left) != 0 {
		t.Errorf("left mounted: %v", left)
	}
	if left := serversOf(t, d.dir); len(left) != 0 {
		t.Errorf("left running: %v", left)
	}
}

func (d *nodeDriver) capacity(t *testing.T, parameters map[string]string) int64 {
	t.Helper()
	resp, err := d.controller.GetCapacity(callContext(t), &csi.GetCapacityRequest{Parameters: parameters})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetAvailableCapacity()
}

// TestDeadServer kills the serving process and makes each call that the
// kubelet may make next.
func TestDeadServer(t *testing.T) {
	type call struct {
		name string
		do   func(v *csiVolume, t *testing.T) error
	}
	stage := call{"stage", (*csiVolume).stage}
	publish := call{"publish", (*csiVolume).publish}
	unpublish := call{"unpublish", (*csiVolume).unpublish}
	unstage := call{"unstage", (*csiVolume).unstage}
	d := newDriver(t)
	for _, tc := range []struct {
		name  string
		calls []call
		up    bool // the volume is usable afterwards
	}{
		{"torn down", []call{unpublish, unstage}, false},
		{"staged again and published", []call{unpublish, unstage, stage, publish}, true},
		{"unpublished, then staged over the dead mount", []call{unpublish, stage, publish}, true},
		{"unstaged before unpublish", []call{unpublish, unpublish, unstage, unstage}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := d.createVolume(t, strings.ReplaceAll(tc.name, " ", "-"), 128<<20, nil)
			v.up(t)
			v.write(t)
			v.crash(t)
			for _, c := range tc.calls {
				if err := c.do(v, t); err != nil {
					t.Fatalf("%s after the server was killed: %v", c.name, err)
				}
			}
			if tc.up {
				v.wantContent(t)
			} else if isMounted(t, v.staging) || isMounted(t, v.target) {
				t.Error("left mounted")
			}
		})
	}
}

// TestPublishOnDeadStage wants publish to say what to do when the staged
// volume has died, and never to bind an empty directory in its place.
func TestPublishOnDeadStage(t *testing.T) {
	d := newDriver(t)
	v := d.createVolume(t, "dead-stage", 128<<20, nil)
	if err := v.stage(t); err != nil {
		t.Fatal(err)
	}
	v.crash(t)
	err := v.publish(t)
	if err == nil {
		// Healed: then it must be the volume.
		v.write(t)
		v.wantContent(t)
		return
	}
	if code := status.Code(err); code != codes.FailedPrecondition && code != codes.Aborted && code != codes.Unavailable {
		t.Errorf("publish on a dead stage: %v", err)
	}
	if isMounted(t, v.target) {
		t.Error("something was published")
	}
	if err := v.stage(t); err != nil {
		t.Fatalf("stage over the dead mount: %v", err)
	}
	if err := v.publish(t); err != nil {
		t.Fatalf("publish: %v", err)
	}
}

// TestDriverRestart wants volumes to stay usable while the driver is away,
// and to be known when it is back, however it ended.
func TestDriverRestart(t *testing.T) {
	d := newDriver(t)
	v := d.createVolume(t, "restart", 128<<20, nil)
	v.up(t)
	v.write(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		server := v.server(t)
		d.stop(t, sig)
		v.wantContent(t)
		d.start(t)
		v.up(t) // what the kubelet does again after its own restart
		v.wantContent(t)
		if got := v.server(t); got != server {
			t.Errorf("after %v process %d serves, before it %d", sig, got, server)
		}
	}
}

// TestExpand grows a volume under a program that has a file open.
func TestExpand(t *testing.T) {
	d := newDriver(t)
	v := d.createVolume(t, "expand", 128<<20, nil)
	v.up(t)
	v.write(t)
	before := freeSpace(t, v.target)
	const want = 384 << 20
	resp, err := d.node.NodeExpandVolume(callContext(t), &csi.NodeExpandVolumeRequest{
		VolumeId: v.id, VolumePath: v.target, StagingTargetPath: v.staging,
		CapacityRange: &csi.CapacityRange{RequiredBytes: want}, VolumeCapability: mountCapability(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if resp.GetCapacityBytes() < want {
		t.Errorf("capacity %d, want at least %d", resp.GetCapacityBytes(), want)
	}
	if after := freeSpace(t, v.target); after.blocks < before.blocks+(want-128<<20)/4096*9/10 {
		t.Errorf("%d blocks free, before the expansion %d", after.blocks, before.blocks)
	}
	v.wantContent(t)
	if err := v.unpublish(t); err != nil {
		t.Fatal(err)
	}
	if err := v.unstage(t); err != nil {
		t.Fatal(err)
	}
	for numa := range 2 {
		device := filepath.Join(d.dir, fmt.Sprintf("region%d", numa), v.id+".pmem")
		if _, err := os.Stat(device); err == nil {
			mustNVFS(t, "fsck", "-n", device)
		}
	}
}

// TestRequestsThatAreRefused sends what the driver must not accept.
func TestRequestsThatAreRefused(t *testing.T) {
	d := newDriver(t)
	create := func(name string, size int64, parameters map[string]string) error {
		resp, err := d.controller.CreateVolume(callContext(t), &csi.CreateVolumeRequest{
			Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, Parameters: parameters,
			VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
		})
		if err == nil {
			d.controller.DeleteVolume(callContext(t), &csi.DeleteVolumeRequest{VolumeId: resp.GetVolume().GetVolumeId()})
		}
		return err
	}
	for _, tc := range []struct {
		what string
		err  error
		code []codes.Code
		word string
	}{
		{"unknown parameter", create("a", 64<<20, map[string]string{"flushmode": "clwb"}), []codes.Code{codes.InvalidArgument}, "flushMode"},
		{"unknown flush mode", create("b", 64<<20, map[string]string{"flushMode": "magic"}), []codes.Code{codes.InvalidArgument}, "clwb"},
		{"missing flush mode", create("c", 64<<20, map[string]string{"flushMode": "dccvap"}), []codes.Code{codes.ResourceExhausted, codes.InvalidArgument}, "dccvap"},
		{"larger than any extent", create("d", 3<<30, nil), []codes.Code{codes.ResourceExhausted, codes.OutOfRange}, ""},
		{"NUMA node without memory", create("e", 64<<20, map[string]string{"numaNode": "7"}), []codes.Code{codes.ResourceExhausted, codes.InvalidArgument}, "7"},
		{"name with ..", create("../escape", 64<<20, nil), []codes.Code{codes.InvalidArgument}, ".."},
		{"name with /", create("a/b", 64<<20, nil), []codes.Code{codes.InvalidArgument}, "/"},
	} {
		if tc.err == nil {
			t.Errorf("%s: accepted", tc.what)
			continue
		}
		ok := false
		for _, c := range tc.code {
			ok = ok || status.Code(tc.err) == c
		}
		if !ok || !strings.Contains(tc.err.Error(), tc.word) {
			t.Errorf("%s: %v; want one of %v, naming %q", tc.what, tc.err, tc.code, tc.word)
		}
	}
	_, err := d.node.NodeStageVolume(callContext(t), &csi.NodeStageVolumeRequest{
		VolumeId: "../../etc", StagingTargetPath: filepath.Join(d.dir, "staging"), VolumeCapability: mountCapability(),
	})
	if status.Code(err) != codes.InvalidArgument && status.Code(err) != codes.NotFound {
		t.Errorf("stage of volume ../../etc: %v", err)
	}
	if after, err := filepath.Glob(filepath.Join(d.dir, "region*", "*.pmem")); err != nil || len(after) != 0 {
		t.Errorf("left: %v, %v", after, err)
	}
	if n := d.capacity(t, map[string]string{"flushMode": "dccvap"}); n != 0 {
		t.Errorf("capacity %d for a flush mode that the CPU lacks, want 0", n)
	}
}
