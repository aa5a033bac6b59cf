//go:build qemu

package guest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// fioVerify writes, overwrites at random and reads back, each block with its
// checksum.
func fioVerify(t *testing.T, dir string) {
	t.Helper()
	command(limit(t, 3*time.Minute), t, "fio", "--name=verify", "--directory="+dir, "--size=8M", "--rw=randwrite", "--bs=4k", "--verify=crc32c",
		"--do_verify=1", "--verify_fatal=1", "--ioengine=psync", "--fsync=64", "--norandommap=0")
}

// mapSync says whether a program can map a file such that a cache line flush is
// all that makes its stores durable.
func mapSync(t *testing.T, dir string) error {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "mapped"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 2*mib); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 2*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED_VALIDATE|unix.MAP_SYNC)
	if err != nil {
		return err
	}
	copy(mem, "stored through the mapping")
	return unix.Munmap(mem)
}

func TestFilesystems(t *testing.T) {
	m := emptySystem(t)
	d := startDriver(t)
	for name, test := range map[string]struct {
		fsType     string
		size       int64
		parameters map[string]string
		mode       ndctl.Mode
		mapSync    bool
	}{
		"nvfs":        {"nvfs", 60 * mib, nil, ndctl.DevDax, false},
		"ext4":        {"ext4", 60 * mib, nil, ndctl.FSDax, true},
		"xfs":         {"xfs", 1, nil, ndctl.FSDax, true},
		"ext4-sector": {"ext4", 60 * mib, map[string]string{"namespaceMode": "sector"}, ndctl.Sector, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := d.mustCreate(t, name, test.size, filesystem(test.fsType), test.parameters)
			ns, err := m.Namespace(limit(t, callTimeout), v.id)
			if err != nil || ns.Mode != test.mode || int64(ns.Size) != v.capacity {
				t.Errorf("namespace %+v, %v; want mode %s and the volume's %d bytes", ns, err, test.mode, v.capacity)
			}
			v.up(t)
			fioVerify(t, v.target)
			if err := mapSync(t, v.target); (err == nil) != test.mapSync {
				t.Errorf("MAP_SYNC: %v, want it to work: %v", err, test.mapSync)
			}
			want := writeFile(t, filepath.Join(v.target, "file"), mib)
			v.down(t)
			v.up(t)
			if sumFile(t, filepath.Join(v.target, "file")) != want {
				t.Error("the file has changed over a second stage")
			}
			_, err = d.node.NodeExpandVolume(limit(t, callTimeout), &csi.NodeExpandVolumeRequest{VolumeId: v.id, VolumePath: v.target,
				CapacityRange: &csi.CapacityRange{RequiredBytes: v.capacity + 16*mib}})
			if test.fsType != "nvfs" && status.Code(err) != codes.OutOfRange {
				t.Errorf("expand %s: %v, want OutOfRange", test.fsType, err)
			}
			v.down(t)
			v.delete(t)
		})
	}
	wantNoneLeft(t, m)
}

// What a volume without erasure left in the memory is not readable through a
// raw volume at the same place.
func TestRawBlockShowsNothingOfOthers(t *testing.T) {
	const marker = "left by another tenant"
	m := emptySystem(t)
	d := startDriver(t)
	keep := map[string]string{"eraseOnDelete": "false"}
	v := d.mustCreate(t, "first", 28*mib, rawBlock(), keep)
	v.up(t)
	if err := os.WriteFile(v.target, bytes.Repeat([]byte(marker), mib/len(marker)), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := m.Namespace(limit(t, callTimeout), v.id)
	if err != nil {
		t.Fatal(err)
	}
	v.down(t)
	v.delete(t)
	v = d.mustCreate(t, "second", 28*mib, rawBlock(), nil)
	v.up(t)
	second, err := m.Namespace(limit(t, callTimeout), v.id)
	if err != nil || second.Region != first.Region || second.Raw != first.Raw {
		t.Errorf("the second volume, %+v, is not where the first was, %+v; %v", second, first, err)
	}
	data, err := os.ReadFile(v.target)
	if err != nil || int64(len(data)) != v.capacity {
		t.Errorf("read %d bytes of %d, %v", len(data), v.capacity, err)
	}
	if i := bytes.IndexFunc(data, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d of a new raw volume is not zero", i)
	}
	v.down(t)
	v.delete(t)
}

func TestClassesChooseTheRegion(t *testing.T) {
	m := emptySystem(t)
	d := startDriver(t)
	capacity := func(parameters map[string]string) int64 {
		resp, err := d.controller.GetCapacity(limit(t, callTimeout), &csi.GetCapacityRequest{Parameters: parameters})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetMaximumVolumeSize().GetValue()
	}
	for node, region := range []string{"region0", "region1"} {
		class := map[string]string{"numaNode": string(rune('0' + node))}
		before := capacity(class)
		v := d.mustCreate(t, "on-"+region, 60*mib, filesystem(""), class)
		if ns, err := m.Namespace(limit(t, callTimeout), v.id); err != nil || ns.Region != region || ns.NUMANode != node {
			t.Errorf("numaNode %d: %+v, %v", node, ns, err)
		}
		if after := capacity(class); after >= before {
			t.Errorf("largest volume of NUMA node %d: %d before, %d after", node, before, after)
		}
		v.delete(t)
	}
	for key, value := range map[string]string{"numaNode": "7", "flushMode": "eadr"} {
		if got := capacity(map[string]string{key: value}); got != 0 {
			t.Errorf("a class with %s=%s gets %d bytes on a node that cannot serve it", key, value, got)
		}
	}
}

// The driver is killed wherever it happens to be in a creation, and in a
// deletion. What is left is finished by the next call, or reported.
func TestKilledDriverLeavesNothingBehind(t *testing.T) {
	m := emptySystem(t)
	d := startDriver(t)
	for i := range 8 {
		delay := time.Duration(i) * 300 * time.Millisecond
		request := &csi.CreateVolumeRequest{Name: "killed", CapacityRange: &csi.CapacityRange{RequiredBytes: 60 * mib}, VolumeCapabilities: []*csi.VolumeCapability{filesystem("")}}
		d.killDuring(t, delay, func() { _, _ = d.controller.CreateVolume(limit(t, callTimeout), request) })
		v := d.mustCreate(t, "killed", 60*mib, filesystem(""), nil)
		if all, err := m.Namespaces(limit(t, callTimeout)); err != nil || len(all) != 1 || all[0].Name != v.id || all[0].Lost != "" {
			t.Errorf("killed %v into a creation, then created: %+v, %v", delay, all, err)
		}
		d.killDuring(t, delay, func() {
			_, _ = d.controller.DeleteVolume(limit(t, callTimeout), &csi.DeleteVolumeRequest{VolumeId: v.id})
		})
		v.d = d
		v.delete(t)
		wantNoneLeft(t, m)
	}
}

// killDuring runs call and kills the driver after the delay, then starts it
// again.
func (d *driver) killDuring(t *testing.T, delay time.Duration, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	time.Sleep(delay) // the point in the middle of the call that is tried
	d.end(t, syscall.SIGKILL)
	<-done
	d.start(t)
}

// The marker that the host looks for in the file behind the NVDIMM.
const marker = "nvfs-csi-qemu-marker-6f1c0a52b7d94e83"

func TestMarkerIsWritten(t *testing.T) {
	t.Setenv(keepMarker, "1")
	emptySystem(t)
	d := startDriver(t)
	v := d.mustCreate(t, "marked", 60*mib, filesystem(""), nil)
	v.up(t)
	if err := os.WriteFile(filepath.Join(v.target, "file"), []byte(strings.Repeat(marker, 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	v.down(t)
}

// After a reboot that has taken the driver's records along.
func TestMarkerIsErased(t *testing.T) {
	d := startDriver(t)
	m, err := ndctl.NewSystem(limit(t, callTimeout), stateDir)
	if err != nil {
		t.Fatal(err)
	}
	all, err := m.Namespaces(limit(t, callTimeout))
	if err != nil || len(all) != 1 {
		t.Fatalf("namespaces %+v, %v; want the one of the boot before", all, err)
	}
	(&volume{d: d, id: all[0].Name}).delete(t)
	wantNoneLeft(t, m)
}
