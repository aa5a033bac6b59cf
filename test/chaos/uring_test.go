package chaos

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A connection over io_uring does not survive its server, but everything else:
// mountd, the driver, and an upgrade, during which the server goes on as it is.
// When the server dies the users get errors at once, the volume counts as
// inaccessible, and can be staged again.
func TestUring(t *testing.T) {
	n := newNode(t)
	v := n.createVolume("uring", volumeBytes, overUring)
	n.mustUp(v)
	n.volumes = append(n.volumes, v)
	server := n.awaitServer(v)
	pause := &pauses{}
	run := startApps([]app{probe(filepath.Join(v.target, "probe"), pause), storm(filepath.Join(v.target, "storm"), 1)})
	for range 3 {
		n.killMountd()
		n.recover(nil)
		n.killDriver()
		n.recover(nil)
	}
	old := n.keepers[len(n.keepers)-1]
	n.startKeeper()
	n.awaitHolders()
	n.await("the new mountd looks after the volume", func() bool {
		pids := n.processes("mountd")
		return len(pids) == 1 && parentOf(pids[0]) == n.keeperPID() && slices.Contains(connectionsOf(pids[0]), v.connection)
	})
	n.recover(nil)
	if pid := v.server(); pid != server {
		t.Errorf("process %d serves instead of %d", pid, server)
	}
	if ended(old.Process.Pid) {
		t.Error("the old keeper, the first process of the server's container, has ended")
	}
	run.finish(t)
	if err := os.WriteFile(filepath.Join(v.target, "file"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}

	n.kill(server)
	n.mustFail(v)
	n.await("the volume counts as inaccessible", func() bool {
		entries := n.health(v)
		return len(entries) == 1 && entries[0].Status == csi.VolumeHealthErrorType_INACCESSIBLE && strings.Contains(entries[0].Message, "over transport uring ends with it")
	})
	// What a kubelet does next: not to touch what pods use, and then anew.
	if err := v.publish(t.Context()); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("publish over a dead mount: %v", err)
	}
	if err := v.down(); err != nil {
		t.Fatal(err)
	}
	n.volumes = nil
	_ = old.Wait() // its last server has ended
	n.mustUp(v)
	if b, err := os.ReadFile(filepath.Join(v.target, "file")); err != nil || string(b) != "content" {
		t.Errorf("read %q, %v", b, err)
	}
	if entries := n.health(v); len(entries) > 0 {
		t.Errorf("health after a new mount: %v", entries)
	}
	n.tidyUp([]*volume{v})
}

// mustFail wants the users of a volume to get errors, soon.
func (n *node) mustFail(v *volume) {
	n.t.Helper()
	failed := make(chan error, 1)
	go func() {
		for {
			if _, err := os.ReadDir(v.target); err != nil {
				failed <- err
				return
			}
		}
	}()
	select {
	case err := <-failed:
		if !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.ECANCELED) {
			n.t.Errorf("the dead mount answers %v", err)
		}
	case <-time.After(settleTimeout):
		n.t.Fatalf("the mount neither answers nor fails\n%s", n.logs())
	}
}

// health is what is wrong with a volume, as the kubelet is told.
func (n *node) health(v *volume) (entries []*csi.VolumeHealth_VolumeHealthEntry) {
	n.t.Helper()
	err := n.call("health", func(ctx context.Context) error {
		resp, err := csi.NewNodeClient(n.conn).NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: v.id})
		entries = resp.GetVolumeHealth().GetHealthStatuses()
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return entries
}
