package chaos

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// When nobody is left who could go on with a connection.

// Keeper and driver hold each connection. Killed together, before either has
// come back and fetched it from the other, they take it with them: users get
// errors at once instead of hanging, the volume counts as inaccessible, and can
// be staged again with all that was acknowledged on it.
func TestKeeperAndDriverDieTogether(t *testing.T) {
	n := newNode(t)
	v := n.createVolume("together", volumeBytes, overDev)
	n.mustUp(v)
	n.volumes = append(n.volumes, v)
	n.awaitHolders()
	writeMarker(t, v)
	run := startApps([]app{bounded(v)})

	n.mu.Lock()
	keeper, driver := n.keepers[len(n.keepers)-1], n.driver
	n.mu.Unlock()
	n.kill(driver.Process.Pid)
	n.kill(n.keeperPID())
	_, _ = keeper.Wait(), driver.Wait() // killed
	n.volumes = nil
	n.startKeeper()
	n.startDriver()

	run.wg.Wait() // ends with its first error
	run.finish(t)
	n.restageDead(v, "")
	n.tidyUp([]*volume{v})
}

// bounded uses a volume until it gets an error, which must be that of a
// connection that has ended.
func bounded(v *volume) app {
	return app{"writer", func(<-chan struct{}) error {
		for {
			if err := os.WriteFile(filepath.Join(v.target, "written"), []byte("content"), 0o600); err != nil {
				return unlessEnded(err)
			}
		}
	}}
}

// unlessEnded is nil for the errors of a connection that has ended.
func unlessEnded(err error) error {
	if errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ECANCELED) {
		return nil
	}
	return err
}

const marker = "content"

// writeMarker leaves a file on the volume.
func writeMarker(t *testing.T, v *volume) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(v.target, "marker"), []byte(marker), 0o600); err != nil {
		t.Fatal(err)
	}
}

// restageDead does with a volume whose connection has ended what a kubelet
// does, and wants the driver to say why in between. The volume has a marker.
func (n *node) restageDead(v *volume, why string) {
	n.t.Helper()
	n.mustFail(v)
	n.await("the volume counts as inaccessible", func() bool {
		entries := n.health(v)
		return len(entries) == 1 && entries[0].Status == csi.VolumeHealthErrorType_INACCESSIBLE && strings.Contains(entries[0].Message, why)
	})
	// Not to touch what pods use, and then anew.
	err := n.call("publish over a dead mount", v.publish)
	if status.Code(err) != codes.FailedPrecondition {
		n.t.Errorf("publish over a dead mount: %v", err)
	}
	if err := v.down(); err != nil {
		n.t.Fatal(err)
	}
	n.mustUp(v)
	if b, err := os.ReadFile(filepath.Join(v.target, "marker")); err != nil || string(b) != marker {
		n.t.Errorf("read %q, %v", b, err)
	}
	if entries := n.health(v); len(entries) > 0 {
		n.t.Errorf("health after a new mount: %v", entries)
	}
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
		if unlessEnded(err) != nil {
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
