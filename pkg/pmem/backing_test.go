package pmem

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestProbeFiles(t *testing.T) {
	page := int64(os.Getpagesize())
	tests := []struct {
		name string
		dir  string
		want Backing
	}{
		{"tmpfs", tmpfsDir(t), Backing{Kind: KindTmpfs, Domain: DomainVolatile, Volatile: true}},
		{"disk", diskDir(t), Backing{Kind: KindFile}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := newFile(t, test.dir, "file", 10*page+100)
			got, err := Probe(path)
			if err != nil {
				t.Fatal(err)
			}
			if got.Kind != test.want.Kind || got.Domain != test.want.Domain || got.Volatile != test.want.Volatile {
				t.Errorf("probed %+v, want like %+v", got, test.want)
			}
			if got.Size != uint64(10*page) {
				t.Errorf("size %d, want %d: whole pages only", got.Size, 10*page)
			}
			link := filepath.Join(test.dir, "link")
			if err := os.Symlink(path, link); err != nil {
				t.Fatal(err)
			}
			if through, err := Probe(link); err != nil || through.Kind != got.Kind {
				t.Errorf("through a link: %+v, %v", through, err)
			}
		})
	}
}

func TestProbeRefuses(t *testing.T) {
	dir := tmpfsDir(t)
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	missing := filepath.Join(dir, "missing")
	for _, test := range []struct {
		name, path, want string
		is               error
	}{
		{"missing", missing, "no device or file", fs.ErrNotExist},
		{"missing directory", filepath.Join(missing, "x"), "no device or file", fs.ErrNotExist},
		{"directory", dir, "is a directory", unix.EISDIR},
		{"loop", loop, "loop of symbolic links", unix.ELOOP},
		{"fifo", fifo, "is a FIFO", nil},
		{"socket", socket, "is a socket", nil},
		{"character device", "/dev/null", "not of the dax subsystem", nil},
		{"empty file", newFile(t, dir, "empty", 0), "truncate", nil},
		{"less than a page", newFile(t, dir, "small", 100), "less than one page", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Probe(test.path)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.path) {
				t.Errorf("Probe: %v, want %q and the path", err, test.want)
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("Probe: %v is not %v", err, test.is)
			}
			if _, err := Open(test.path, Options{}); err == nil {
				t.Error("Open succeeded")
			}
		})
	}
	if _, err := os.Lstat(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the missing file was created: %v", err)
	}
}

// fakeSysfs builds a device tree.
type fakeSysfs struct {
	t    *testing.T
	root string
}

func newFakeSysfs(t *testing.T) fakeSysfs { return fakeSysfs{t, t.TempDir()} }

func (f fakeSysfs) file(name, content string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content+"\n"), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// link makes name point to the directory target, which is made where missing.
func (f fakeSysfs) link(name, target string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	for _, dir := range []string{filepath.Dir(path), filepath.Join(f.root, target)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			f.t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(f.root, target), path); err != nil {
		f.t.Fatal(err)
	}
}

// TestProbeDevDax lets the tree say that /dev/null, which every machine has, is
// a device of the dax subsystem.
func TestProbeDevDax(t *testing.T) {
	const region = "devices/platform/ndbus0/region0"
	tests := []struct {
		name   string
		device string
		build  func(f fakeSysfs)
		want   Backing
	}{
		{"persistent", region + "/dax0.0/dax0.0", func(f fakeSysfs) {
			f.file(region+"/persistence_domain", "memory_controller")
			f.file(region+"/numa_node", "1")
		}, Backing{NUMANode: 1, Domain: DomainMemoryController}},
		{"caches persistent", region + "/dax0.0/dax0.0", func(f fakeSysfs) {
			f.file(region+"/persistence_domain", "cpu_cache")
		}, Backing{NUMANode: -1, Domain: DomainCPUCache}},
		{"domain not known", region + "/dax0.0/dax0.0", func(f fakeSysfs) {
			f.file(region+"/persistence_domain", "")
			f.file(region+"/numa_node", "-1")
		}, Backing{NUMANode: -1}},
		{"no region", "devices/platform/hmem.0/dax1.0", func(f fakeSysfs) {
			f.file("devices/platform/hmem.0/numa_node", "2")
		}, Backing{NUMANode: 2, Domain: DomainVolatile, Volatile: true}},
		{"virtio-pmem", "devices/pci0/virtio3/ndbus1/region1/dax1.0/dax1.0", func(f fakeSysfs) {
			f.file("devices/pci0/virtio3/ndbus1/region1/numa_node", "-1")
		}, Backing{NUMANode: -1, HostFlush: true}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFakeSysfs(t)
			test.build(f)
			f.file(test.device+"/size", "6291456")
			f.file(test.device+"/align", "2097152")
			f.link(test.device+"/subsystem", "bus/dax")
			f.link("dev/char/1:3", test.device)
			file, got, err := openBacking("/dev/null", os.O_RDONLY, sysfs(f.root))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			want := test.want
			want.Path, want.Kind, want.Size, want.Align = "/dev/null", KindDevDax, 6<<20, 2<<20
			if got != want {
				t.Errorf("probed %+v, want %+v", got, want)
			}
		})
	}
}

// TestSurvey asks for the domain of stacked devices.
func TestSurvey(t *testing.T) {
	const (
		regionA = "devices/ndbus0/region0"
		regionB = "devices/ndbus0/region1"
		diskDev = "devices/pci0/virtio1/block/vda"
		stack   = "devices/virtual/block/dm-0"
	)
	build := func(t *testing.T, domainA, domainB string) fakeSysfs {
		f := newFakeSysfs(t)
		f.file(regionA+"/persistence_domain", domainA)
		f.file(regionB+"/persistence_domain", domainB)
		f.file(regionA+"/numa_node", "0")
		f.file(regionA+"/namespace0.0/block/pmem0/pmem0p1/partition", "1")
		f.link("dev/block/259:1", regionA+"/namespace0.0/block/pmem0/pmem0p1")
		f.link(stack+"/slaves/pmem0p1", regionA+"/namespace0.0/block/pmem0/pmem0p1")
		f.link(stack+"/slaves/pmem1", regionB+"/namespace1.0/block/pmem1")
		f.link("dev/block/253:0", stack)
		f.link("dev/block/254:0", diskDev)
		return f
	}
	for _, test := range []struct {
		name             string
		domainA, domainB string
		major, minor     uint32
		regions          int
		want             PersistenceDomain
	}{
		{"partition", "cpu_cache", "", 259, 1, 1, DomainCPUCache},
		{"stack, all in caches", "cpu_cache", "cpu_cache", 253, 0, 2, DomainCPUCache},
		{"stack, one not", "cpu_cache", "memory_controller", 253, 0, 2, DomainMemoryController},
		{"stack, one unknown", "cpu_cache", "", 253, 0, 2, DomainUnknown},
		{"stack, one new to us", "somewhere", "cpu_cache", 253, 0, 2, DomainUnknown},
		{"disk", "cpu_cache", "cpu_cache", 254, 0, 0, DomainUnknown},
		{"no such device", "cpu_cache", "cpu_cache", 9, 9, 0, DomainUnknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := build(t, test.domainA, test.domainB)
			var b Backing
			regions := sysfs(f.root).describe(&b, deviceNumber{"block", test.major, test.minor})
			if regions != test.regions || b.Domain != test.want || b.HostFlush {
				t.Errorf("%d regions, %+v; want %d regions, domain %q", regions, b, test.regions, test.want)
			}
			if test.regions > 0 && b.NUMANode != 0 {
				t.Errorf("NUMA node %d, want 0", b.NUMANode)
			}
		})
	}
}

func TestNodeCPUs(t *testing.T) {
	f := newFakeSysfs(t)
	all, err := sysfs(f.root).nodeCPUs(-1)
	if err != nil || len(all) == 0 {
		t.Fatalf("CPUs of this process: %v, %v", all, err)
	}
	f.file("devices/system/node/node0/cpulist", "0-4095")
	f.file("devices/system/node/node1/cpulist", "")
	for node, want := range map[int]int{0: len(all), 1: len(all), 7: len(all)} {
		if got, err := sysfs(f.root).nodeCPUs(node); err != nil || len(got) != want {
			t.Errorf("node %d: %v, %v; want %d CPUs", node, got, err, want)
		}
	}
	cpus := parseCPUList("0-2,8,10-11")
	for _, cpu := range []int{0, 1, 2, 8, 10, 11} {
		if !cpus[cpu] {
			t.Errorf("CPU %d is missing in %v", cpu, cpus)
		}
	}
	if len(cpus) != 6 {
		t.Errorf("%v: want 6 CPUs", cpus)
	}
}
