package driver_test

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/fake"
)

// deleteUntilDone repeats the call as the provisioner does.
func (n *node) deleteUntilDone(id string) {
	n.t.Helper()
	for {
		err := n.delete(id)
		if err == nil {
			return
		}
		if status.Code(err) != codes.Aborted {
			n.t.Fatal(err)
		}
	}
}

func TestDeleteIsIdempotent(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	for range 2 {
		n.ok(n.delete(id))
		n.wantNothing()
		if got := n.nvfs.Forgotten(); !slices.Equal(got, []string{id}) {
			t.Errorf("files of the servers of %q are removed, want those of %s", got, id)
		}
	}
	n.ok(n.delete("never-existed"))
	n.wantCode(n.delete("../x"), codes.InvalidArgument)
	n.wantCode(n.delete("a/b"), codes.InvalidArgument)
	if from := n.volumes.ZeroedFrom(); len(from) != 1 {
		t.Errorf("erased %d times, want once", len(from))
	}
}

func TestDeleteErasesOnlyIfAsked(t *testing.T) {
	n := newNode(t)
	n.ok(n.delete(n.mustCreate("pvc-1", driver.KeyEraseOnDelete, "false")))
	n.wantNothing()
	if from := n.volumes.ZeroedFrom(); len(from) != 0 {
		t.Errorf("erased from %v", from)
	}
}

// TestEraseGoesOnInTheBackground: DeleteVolume does not wait for a large
// volume, and nothing else waits for the erasure.
func TestEraseGoesOnInTheBackground(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.options.EraseWait = 1
	n.restart()
	step := n.volumes.Hold(3)
	n.wantCode(n.delete(id), codes.Aborted, "erased")
	n.wantCode(n.delete(id), codes.Aborted, "erased")
	_, err := n.create("pvc-1", 62*mib)
	n.wantCode(err, codes.Aborted, "deleted")
	n.wantCode(n.stage(id), codes.FailedPrecondition, "deleting")
	n.ok(n.unpublish(id, "pod"))
	n.ok(n.unstage(id))
	if list, err := n.controller.ListVolumes(t.Context(), &csi.ListVolumesRequest{}); err != nil || len(list.Entries) != 0 {
		t.Errorf("listed %v, %v", list, err)
	}
	n.mustCreate("pvc-2")
	close(step)
	n.deleteUntilDone(id)
	if from := n.volumes.ZeroedFrom(); !slices.Equal(from, []uint64{0}) {
		t.Errorf("erased from %v; want one erasure", from)
	}
}

func TestEraseResumesAfterRestart(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.options.EraseWait = 1
	n.restart()
	step := n.volumes.Hold(3)
	n.wantCode(n.delete(id), codes.Aborted)
	step <- struct{}{} // the first GiB is done and recorded
	step <- struct{}{} // makes sure of that
	n.restart()
	select { // it begins again without being asked
	case step <- struct{}{}:
	case <-time.After(time.Minute):
		t.Fatal("the erasure does not go on")
	}
	close(step)
	n.deleteUntilDone(id)
	n.wantNothing()
	if from := n.volumes.ZeroedFrom(); len(from) != 2 || from[0] != 0 || from[1] < gib {
		t.Errorf("erased from %v; want to go on where it was interrupted", from)
	}
}

func TestFailedEraseIsRetried(t *testing.T) {
	for name, fail := range map[string]func(*node){
		"erase":          func(n *node) { n.volumes.FailZero(errors.New("boom")) },
		"destroy":        func(n *node) { n.ns.FailBefore(fake.Destroy, errors.New("boom")) },
		"answer is lost": func(n *node) { n.ns.FailAfter(fake.Destroy, errors.New("boom")) },
	} {
		n := newNode(t)
		id := n.mustCreate("pvc-1")
		fail(n)
		t.Log(name)
		n.wantCode(n.delete(id), codes.Aborted, "boom")
		n.ok(n.delete(id))
		n.wantNothing()
	}
}

func TestDeleteOfAVolumeInUse(t *testing.T) {
	n := newNode(t)
	id := n.mounted("pvc-1")
	n.wantCode(n.delete(id), codes.FailedPrecondition, n.path("pod"))
	n.wantMounts("pod", 1)
	n.wantMounts("staging-"+id, 1)
	n.ok(n.unpublish(id, "pod"))
	// Something else holds the mount.
	n.mounts.FailUnmount(n.path("staging-"+id), errors.New("target is busy"))
	n.wantCode(n.delete(id), codes.FailedPrecondition, "busy")
	n.mounts.FailUnmount(n.path("staging-"+id), nil)
	// kubernetes#85476: the kubelet was restarted and never unstages.
	n.ok(n.delete(id))
	n.wantMounts("staging-"+id, 0)
	n.wantNothing()
}

func TestDeleteWaitsForWhoeverServesTheNamespace(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	n.ns.SetInUse(id, true)
	n.wantCode(n.delete(id), codes.Aborted, "in use")
	if len(n.volumes.ZeroedFrom()) != 0 {
		t.Error("a namespace in use was erased")
	}
	n.ns.SetInUse(id, false)
	n.ok(n.delete(id))
}

func TestDeleteOfALostVolume(t *testing.T) {
	for name, lose := range map[string]func(*node, string){
		"lost": func(n *node, id string) { n.ns.Lose(id) },
		"gone": func(n *node, id string) { n.ns.Forget(id) },
	} {
		n := newNode(t)
		id := n.mustCreate("pvc-1")
		lose(n, id)
		t.Log(name)
		n.ok(n.delete(id))
		n.wantNothing()
		if len(n.volumes.ZeroedFrom()) != 0 {
			t.Error("what is lost was erased")
		}
	}
}

// TestNoTwoDrivers: two drivers on one state directory would each believe in
// their own erasures and locks.
func TestNoTwoDrivers(t *testing.T) {
	n := newNode(t)
	if _, err := driver.New(n.options, n.deps()); err == nil {
		t.Error("a second driver took the state directory")
	}
	n.stop()
	d, err := driver.New(n.options, n.deps())
	n.ok(err)
	n.ok(d.Close())
	if _, err := os.Stat(n.options.StateDir); err != nil {
		t.Error(err)
	}
}
