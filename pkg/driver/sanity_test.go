package driver_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/driver/drivertest"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

const mib = 1 << 20

// shmDir returns a directory in memory that lasts as long as the test.
func shmDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "nvfs-driver-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func testOptions(dir string) driver.Options {
	o := driver.DefaultOptions()
	o.Endpoint = "unix://" + filepath.Join(dir, "csi.sock")
	o.NodeID = "node-1"
	o.StateDir = filepath.Join(dir, "state")
	o.KubeletDir = filepath.Join(dir, "kubelet")
	o.Version = "test"
	o.SettleTimeout = 0 // what fakes do not have does not come
	return o
}

func TestSanity(t *testing.T) {
	dir := shmDir(t)
	region, err := ndctl.ParseEmulated("dir=" + dir + "/region,numa=0,size=4Gi,align=2Mi")
	if err != nil {
		t.Fatal(err)
	}
	namespaces, err := ndctl.NewEmulated([]ndctl.EmulatedRegion{region}, "")
	if err != nil {
		t.Fatal(err)
	}
	mounts := drivertest.NewMounts()
	drivertest.RunSanity(t, testOptions(dir),
		driver.Deps{Namespaces: namespaces, NVFS: drivertest.NewNVFS(mounts), Volumes: drivertest.NewVolumes(), Mount: mounts, Statfs: mounts.Statfs, Ping: mounts.Ping},
		drivertest.SanityConfig{Dir: dir, VolumeSize: 64 * mib, ExpandSize: 128 * mib, Parameters: map[string]string{driver.KeyNUMANode: "0"}})
	if list, err := namespaces.Namespaces(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("the suite leaked namespaces: %v, %v", list, err)
	}
}
