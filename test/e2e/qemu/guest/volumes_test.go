//go:build qemu

package guest

import (
	"bytes"
	"fmt"
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
			if want := map[bool]codes.Code{true: codes.OK, false: codes.OutOfRange}[test.fsType == "nvfs"]; status.Code(err) != want {
				t.Errorf("expand %s: %v, want %s", test.fsType, err, want)
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

// Which region is tried first.
func TestPoliciesChooseTheRegion(t *testing.T) {
	m := emptySystem(t)
	d := startDriver(t)
	var made []*volume
	for _, step := range []struct{ policy, region string }{
		{"any", "region0"}, {"any", "region0"}, // in order of name, however much is free
		{"spread", "region1"}, // it has more
		{"pack", "region0"}, {"spread", "region1"},
	} {
		v := d.mustCreate(t, fmt.Sprintf("%s-%d", step.policy, len(made)), 14*mib, filesystem(""), map[string]string{"numaPolicy": step.policy})
		made = append(made, v)
		if ns, err := m.Namespace(limit(t, callTimeout), v.id); err != nil || ns.Region != step.region {
			t.Errorf("volume %d, policy %s: in %s, %v; want %s", len(made), step.policy, ns.Region, err, step.region)
		}
	}
	for _, v := range made {
		v.delete(t)
	}
	wantNoneLeft(t, m)
}

// A class with provision=namespace takes an idle namespace that an administrator
// made: the smallest that fits, of the right mode, and nothing that holds data.
func TestExistingNamespacesAreUsedAndKept(t *testing.T) {
	ctx := limit(t, 5*time.Minute)
	m := emptySystem(t)
	d := startDriver(t)
	class := map[string]string{"provision": "namespace"}
	blank := func(name, region string, mode ndctl.Mode, size uint64) ndctl.Namespace {
		ns := create(ctx, t, m, ndctl.CreateRequest{Name: name, Region: region, Mode: mode, Size: size})
		zero(t, ns)
		return ns
	}
	taken := blank("taken", "region0", ndctl.DevDax, 30*mib)
	command(ctx, t, tools, "mkfs", "taken")
	small, large := blank("small", "region1", ndctl.DevDax, 30*mib), blank("large", "region0", ndctl.DevDax, 62*mib)
	blank("fsdax", "region0", ndctl.FSDax, 28*mib)

	for round := range 2 { // the second time it is blank again
		v := d.mustCreate(t, "existing", 20*mib, filesystem(""), class)
		if v.capacity != int64(small.Size) {
			t.Errorf("round %d: capacity %d, want that of the smallest that fits, %d", round, v.capacity, small.Size)
		}
		v.up(t)
		v.write(t, "on a namespace that was there")
		if now, err := m.Namespace(ctx, "small"); err != nil || !now.InUse || now.UUID != small.UUID {
			t.Errorf("the namespace in use: %+v, %v", now, err)
		}
		v.down(t)
		v.delete(t)
		if now, err := m.Namespace(ctx, "small"); err != nil || now.UUID != small.UUID {
			t.Errorf("the namespace after the deletion: %+v, %v", now, err)
		}
	}
	v := d.mustCreate(t, "on-fsdax", 20*mib, filesystem("ext4"), class)
	v.up(t)
	v.write(t, "on an fsdax namespace")
	v.down(t)
	v.delete(t)
	first := d.mustCreate(t, "first", 40*mib, filesystem(""), class)
	if first.capacity != int64(large.Size) {
		t.Errorf("capacity %d, want that of the one that is large enough, %d", first.capacity, large.Size)
	}
	_, err := d.create(t, "second", 40*mib, filesystem(""), class)
	wantCode(t, err, codes.ResourceExhausted, "no idle, blank devdax namespace")
	first.delete(t)
	if now, err := m.Namespace(ctx, "taken"); err != nil || now.UUID != taken.UUID {
		t.Errorf("the namespace with data: %+v, %v", now, err)
	}
	command(ctx, t, tools, "fsck", "-n", "taken")
}

// zero overwrites a namespace whose memory may hold anything.
func zero(t *testing.T, ns ndctl.Namespace) {
	t.Helper()
	withMemory(t, ns, func(mem []byte) { clear(mem) })
}

// withMemory calls use with the memory of an idle namespace.
func withMemory(t *testing.T, ns ndctl.Namespace, use func(mem []byte)) {
	t.Helper()
	f, err := os.OpenFile(ns.Device, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, int(ns.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	use(mem)
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
}

// What a node that has lost its records knows of a volume that is not NVFS is a
// namespace with its name. It is kept as it is until somebody decides.
func TestRecordOfAKernelVolumeIsLost(t *testing.T) {
	m := emptySystem(t)
	d := startDriver(t)
	for fsType, capability := range map[string]*csi.VolumeCapability{"ext4": filesystem("ext4"), "block": rawBlock()} {
		name := "lost-" + fsType
		v := d.mustCreate(t, name, 28*mib, capability, nil)
		v.up(t)
		v.write(t, textOf(name))
		v.down(t)
		ns, err := m.Namespace(limit(t, callTimeout), v.id)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(v.record()); err != nil {
			t.Fatal(err)
		}
		_, err = d.create(t, name, 28*mib, capability, nil)
		wantCode(t, err, codes.FailedPrecondition, v.record())
		wantCode(t, v.stage(limit(t, callTimeout)), codes.FailedPrecondition, "no record")
		_, err = d.controller.DeleteVolume(limit(t, callTimeout), &csi.DeleteVolumeRequest{VolumeId: v.id})
		wantCode(t, err, codes.FailedPrecondition, "ndctl destroy-namespace")
		if reasons := v.health(t); !slices.Equal(reasons, []string{"RecordLost"}) {
			t.Errorf("health of %s: %v", name, reasons)
		}
		// The remedy: the record is written anew, as docs/persistent-memory.md says.
		record := fmt.Sprintf(`{"version": 1, "id": %q, "name": %q, "phase": "ready", "params": {"csi.storage.k8s.io/fstype": %q},
			"namespace": %q, "namespaceUUID": %q, "region": %q, "requested": %d, "capacity": %d}`,
			v.id, v.id, fsType, ns.Name, ns.UUID, ns.Region, ns.Size, ns.Size)
		if err := os.WriteFile(v.record(), []byte(record), 0o600); err != nil {
			t.Fatal(err)
		}
		v.up(t)
		v.wantText(t, textOf(name))
		v.down(t)
		v.delete(t)
	}
	wantNoneLeft(t, m)
}

// What auto means can be chosen for the node. A mode that it cannot honour is
// refused, and not replaced.
func TestFlushModeOfTheNode(t *testing.T) {
	emptySystem(t)
	file := filepath.Join(t.TempDir(), "flush-mode")
	d := startDriver(t, "--flush-mode=clflush", "--flush-mode-file="+file)
	v := d.mustCreate(t, "chosen", 30*mib, filesystem(""), nil)
	for _, step := range []struct{ file, want string }{{"", "clflush"}, {"nt\n", "nt"}} {
		if err := os.WriteFile(file, []byte(step.file), 0o600); err != nil {
			t.Fatal(err)
		}
		v.up(t)
		if !strings.Contains(d.log(), `flushMode="`+step.want+`"`) {
			t.Errorf("the volume was not staged with %s", step.want)
		}
		v.down(t)
	}
	if err := os.WriteFile(file, []byte("eadr"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantCode(t, v.stage(limit(t, callTimeout)), codes.FailedPrecondition, file)
	if reasons := d.storageHealth(t); !slices.Contains(reasons, "FlushModeNotPossible") {
		t.Errorf("health of the node: %v", reasons)
	}
	v.delete(t)
}

// serverCPUs returns the list of CPUs of the process that serves a device.
func serverCPUs(t *testing.T, device string) string {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range processes {
		args, err := os.ReadFile(process + "/cmdline")
		if err != nil || !strings.Contains(string(args), "serve") || !strings.Contains(string(args), device) {
			continue // one that has ended, or another one
		}
		status, err := os.ReadFile(process + "/status")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(status), "\n") {
			if cpus, found := strings.CutPrefix(line, "Cpus_allowed_list:"); found {
				return strings.TrimSpace(cpus)
			}
		}
	}
	t.Errorf("no process has %s in its command line", device)
	return ""
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
		ns, err := m.Namespace(limit(t, callTimeout), v.id)
		if err != nil || ns.Region != region || ns.NUMANode != node {
			t.Errorf("numaNode %d: %+v, %v", node, ns, err)
		}
		v.up(t)
		if cpus := serverCPUs(t, ns.Device); cpus != string(rune('0'+node)) { // the node's only CPU
			t.Errorf("the server of a volume on NUMA node %d may run on CPUs %q", node, cpus)
		}
		v.down(t)
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
