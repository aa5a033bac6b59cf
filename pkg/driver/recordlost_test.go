package driver_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// A node whose disk was replaced has lost its records. NVFS carries them on the
// device; what a volume of another kind holds must not be guessed, formatted,
// handed out or erased, whatever is on it.
func TestRecordOfAVolumeThatIsNotNVFSIsLost(t *testing.T) {
	n := newNode(t)
	id := n.mustCreate("pvc-1")
	ours, err := n.ns.Namespace(t.Context(), id)
	n.ok(err)
	n.ok(n.delete(id))
	for name, test := range map[string]struct {
		mode  ndctl.Mode
		found driver.Found
	}{
		"ext4":           {ndctl.FSDax, driver.Found{Content: driver.ContentForeign, What: "ext4"}},
		"sector":         {ndctl.Sector, driver.Found{Content: driver.ContentForeign, What: "xfs"}},
		"raw block":      {ndctl.FSDax, driver.Found{Content: driver.ContentForeign, What: "data"}},
		"raw, all zero":  {ndctl.FSDax, driver.Found{Content: driver.ContentBlank}},
		"raw, pretender": {ndctl.FSDax, driver.Found{Content: driver.ContentNVFS, VolumeID: id, Params: map[string]string{}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := n.ns.Create(t.Context(), ndctl.CreateRequest{Name: id, Region: ours.Region, Mode: test.mode, Size: 62 * mib})
			n.ok(err)
			n.volumes.Put("/dev/fake/"+id, test.found)
			formats, zeroed := n.volumes.Formats(), len(n.volumes.ZeroedFrom())

			_, err = n.create("pvc-1", 62*mib)
			n.wantCode(err, codes.FailedPrecondition, "no record", n.recordPath(id), "ndctl destroy-namespace")
			n.wantCode(n.stage(id), codes.FailedPrecondition, "no record")
			n.wantCode(n.delete(id), codes.FailedPrecondition, "no record")
			health, err := n.node.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
			n.ok(err)
			if h := health.VolumeHealth.HealthStatuses; len(h) != 1 || h[0].Status != csi.VolumeHealthErrorType_INACCESSIBLE || h[0].Reason != "RecordLost" {
				t.Errorf("health %v", h)
			}
			orphans, err := n.driver.Orphans(t.Context())
			if err != nil || len(orphans) != 1 || orphans[0].Namespace != id || !strings.Contains(orphans[0].Reason, n.recordPath(id)) {
				t.Errorf("orphans %+v, %v", orphans, err)
			}
			if n.volumes.Formats() != formats || len(n.volumes.ZeroedFrom()) != zeroed {
				t.Error("the namespace was formatted or erased")
			}
			if _, err := os.Stat(n.recordPath(id)); !os.IsNotExist(err) {
				t.Errorf("a record was made up: %v", err)
			}
			if _, err := n.ns.Namespace(t.Context(), id); err != nil {
				t.Errorf("the namespace: %v", err)
			}
			n.ok(n.ns.Destroy(t.Context(), id)) // what the administrator does, if it is not needed
			n.volumes.Put("/dev/fake/"+id, driver.Found{Content: driver.ContentBlank})
		})
	}
	if again := n.mustCreate("pvc-1"); again != id {
		t.Errorf("the volume that was removed by hand, made again: %s", again)
	}
}

// The same on emulated regions, whose namespaces are files: they can be looked at
// afterwards.
func TestReplacedDiskOfANodeWithEmulatedRegions(t *testing.T) {
	n := prepareNode(t)
	region, err := ndctl.ParseEmulated("dir=" + filepath.Join(filepath.Dir(n.options.StateDir), "region") + ",numa=0,size=1Gi")
	n.ok(err)
	manager, err := ndctl.NewEmulated([]ndctl.EmulatedRegion{region}, "")
	n.ok(err)
	n.manager = manager
	n.start()
	nvfs, foreign := n.mustCreate("pvc-nvfs"), n.mustCreate("pvc-ext4")
	n.ok(n.delete(foreign))
	regions, err := manager.Regions(t.Context())
	n.ok(err)
	ns, err := manager.Create(t.Context(), ndctl.CreateRequest{Name: foreign, Region: regions[0].Name, Mode: ndctl.FSDax, Size: 28 * mib})
	n.ok(err)
	content := []byte("what a pod has written")
	n.ok(os.WriteFile(ns.Device, content, 0o600))
	n.ok(os.Truncate(ns.Device, int64(ns.Size)))
	n.volumes.Put(ns.Device, driver.Found{Content: driver.ContentForeign, What: "ext4"})

	n.stop()
	n.ok(os.RemoveAll(n.options.StateDir))
	n.start()
	n.ok(n.stage(nvfs)) // its superblock says all that is needed
	_, err = n.create("pvc-ext4", 28*mib)
	n.wantCode(err, codes.FailedPrecondition, "no record")
	n.wantCode(n.stage(foreign), codes.FailedPrecondition, "no record")
	n.wantCode(n.delete(foreign), codes.FailedPrecondition, "no record")
	if orphans, err := n.driver.Orphans(t.Context()); err != nil || len(orphans) != 1 || orphans[0].Namespace != foreign {
		t.Errorf("orphans %+v, %v", orphans, err)
	}
	data, err := os.ReadFile(ns.Device)
	if err != nil || int64(len(data)) != int64(ns.Size) || !bytes.HasPrefix(data, content) {
		t.Errorf("the namespace was changed: %d bytes, %.30q, %v", len(data), data, err)
	}
	n.ok(n.unstage(nvfs))
	n.ok(n.delete(nvfs))
}
