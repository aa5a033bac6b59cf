package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nvfs-csi/nvfs-csi/pkg/numa/numatest"
)

// memory is a source that a test changes.
type memory struct {
	mu    sync.Mutex
	nodes map[int]bool
	err   error
}

func (m *memory) get(context.Context) (map[int]bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	nodes := map[int]bool{}
	for node, healthy := range m.nodes {
		nodes[node] = healthy
	}
	return nodes, m.err
}

func (m *memory) set(err error, nodes map[int]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes, m.err = nodes, err
}

// socketDir returns a directory whose path is short enough for sockets.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nvfs-dp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// start runs a plugin and returns a function that ends it. It looks at its source
// often: what a test changes must not take long to be seen.
func start(t *testing.T, dir string, m *memory, sys string) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Run(ctx, Options{Dir: dir, SysFS: sys, Interval: 20 * time.Millisecond}, m.get)
	}()
	stop := func() { cancel(); <-ended }
	t.Cleanup(stop)
	return stop
}

// sysfs is a machine with NUMA nodes that are all as far from each other.
func sysfs(t *testing.T, cpus ...string) string {
	t.Helper()
	return numatest.Sysfs(t, cpus, slices.Repeat([]string{strings.Repeat("20 ", len(cpus))}, len(cpus))...)
}

func hint(d *api.Device) []int64 {
	var nodes []int64
	for _, n := range d.GetTopology().GetNodes() {
		nodes = append(nodes, n.GetID())
	}
	return nodes
}

func TestRegistersOneResourceForEachNUMANode(t *testing.T) {
	dir := socketDir(t)
	k := startKubelet(t, dir)
	start(t, dir, &memory{nodes: map[int]bool{0: true, 1: false}}, sysfs(t, "0-1", "2-3"))
	seen := map[string][]*api.Device{}
	for len(seen) < 2 {
		select {
		case o := <-k.offers:
			seen[o.resource] = o.devices
		case <-time.After(patience):
			t.Fatalf("the kubelet was told of %d resources", len(seen))
		}
	}
	for node, health := range []string{api.Healthy, api.Unhealthy} {
		devices := seen[fmt.Sprintf("csi.nvfs.dev/numa-%d", node)]
		if len(devices) != Tokens {
			t.Fatalf("NUMA node %d: %d devices", node, len(devices))
		}
		ids := map[string]bool{}
		for _, d := range devices {
			ids[d.GetID()] = true
			if d.GetHealth() != health || !slices.Equal(hint(d), []int64{int64(node)}) {
				t.Fatalf("NUMA node %d: device %v", node, d)
			}
		}
		if len(ids) != Tokens {
			t.Errorf("NUMA node %d: %d different IDs", node, len(ids))
		}
	}
}

func TestHealthFollowsTheMemory(t *testing.T) {
	const resource = "csi.nvfs.dev/numa-0"
	dir := socketDir(t)
	k := startKubelet(t, dir)
	m := &memory{nodes: map[int]bool{0: true}}
	start(t, dir, m, sysfs(t, "0"))
	k.awaitHealth(resource, api.Healthy)
	m.set(nil, map[int]bool{0: false})
	k.awaitHealth(resource, api.Unhealthy)
	m.set(nil, map[int]bool{0: true})
	k.awaitHealth(resource, api.Healthy)
	// Memory that has disappeared is not healthy.
	m.set(nil, nil)
	k.awaitHealth(resource, api.Unhealthy)
	m.set(nil, map[int]bool{0: true})
	k.awaitHealth(resource, api.Healthy)
}

// TestSilenceIsNotBad: whoever cannot say how the memory is does not say that it
// is bad.
func TestSilenceIsNotBad(t *testing.T) {
	m := &memory{nodes: map[int]bool{0: true}}
	p := &plugin{Options: Options{Dir: t.TempDir(), SysFS: t.TempDir()}, source: m.get, resources: map[int]*resource{}}
	if err := p.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.set(errors.New("sysfs does not answer"), nil)
	if err := p.refresh(t.Context()); err == nil || !p.resources[0].healthy {
		t.Errorf("error %v, healthy %v", err, p.resources[0].healthy)
	}
}

// TestKubeletRestarts: a kubelet that starts has removed all sockets and knows no
// plugin. That happens again and again.
func TestKubeletRestarts(t *testing.T) {
	dir := socketDir(t)
	m := &memory{nodes: map[int]bool{0: true, 1: true}}
	start(t, dir, m, sysfs(t, "0", "1"))
	for i := range 3 {
		k := startKubelet(t, dir)
		k.awaitHealth("csi.nvfs.dev/numa-0", api.Healthy)
		if i == 1 { // nothing but the kubelet's own socket is new
			k.stop()
			k = listenKubelet(t, dir)
			k.awaitHealth("csi.nvfs.dev/numa-1", api.Healthy)
		}
		k.stop()
	}
}

// TestRestartIsNoticedByTheWatch: it is not the interval that notices a kubelet.
func TestRestartIsNoticedByTheWatch(t *testing.T) {
	dir := socketDir(t)
	k := startKubelet(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Run(ctx, Options{Dir: dir, SysFS: t.TempDir(), Interval: 24 * time.Hour}, (&memory{nodes: map[int]bool{0: true}}).get)
	}()
	defer func() { cancel(); <-ended }()
	k.awaitHealth("csi.nvfs.dev/numa-0", api.Healthy)
	k.stop()
	k = startKubelet(t, dir)
	k.awaitHealth("csi.nvfs.dev/numa-0", api.Healthy)
}

func TestKubeletThatRefusesIsAskedAgain(t *testing.T) {
	dir := socketDir(t)
	k := startKubelet(t, dir)
	k.mu.Lock()
	k.refuse = status.Error(codes.Unavailable, "not now")
	k.mu.Unlock()
	start(t, dir, &memory{nodes: map[int]bool{0: true}}, t.TempDir())
	k.awaitHealth("csi.nvfs.dev/numa-0", api.Healthy)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.refuse != nil {
		t.Error("it was never refused")
	}
}

func TestDirectoryThatComesLater(t *testing.T) {
	dir := filepath.Join(socketDir(t), "later")
	start(t, dir, &memory{nodes: map[int]bool{0: true}}, t.TempDir())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	startKubelet(t, dir).awaitHealth("csi.nvfs.dev/numa-0", api.Healthy)
}

func TestAllocate(t *testing.T) {
	dir := socketDir(t)
	k := startKubelet(t, dir)
	stop := start(t, dir, &memory{nodes: map[int]bool{1: true}}, t.TempDir())
	k.awaitHealth("csi.nvfs.dev/numa-1", api.Healthy)
	client, done := k.dial("csi.nvfs.dev-numa-1.sock")
	defer done()
	options, err := client.GetDevicePluginOptions(t.Context(), &api.Empty{})
	if err != nil || options.GetPreStartRequired() || options.GetGetPreferredAllocationAvailable() {
		t.Errorf("options %v, %v", options, err)
	}
	ask := func(ids ...string) (*api.AllocateResponse, error) {
		req := &api.AllocateRequest{}
		for _, id := range ids {
			req.ContainerRequests = append(req.ContainerRequests, &api.ContainerAllocateRequest{DevicesIds: []string{id}})
		}
		return client.Allocate(t.Context(), req)
	}
	response, err := ask("0", "999")
	if err != nil || len(response.GetContainerResponses()) != 2 {
		t.Fatalf("%v, %v", response, err)
	}
	if c := response.GetContainerResponses()[0]; len(c.GetDevices())+len(c.GetMounts())+len(c.GetEnvs())+len(c.GetAnnotations())+len(c.GetCdiDevices()) > 0 {
		t.Errorf("a container gets %v", c)
	}
	for _, id := range []string{"1000", "-1", "x", ""} {
		if _, err := ask(id); status.Code(err) != codes.InvalidArgument {
			t.Errorf("device %q: %v", id, err)
		}
	}
	stop()
	if left, err := filepath.Glob(filepath.Join(dir, "csi.nvfs.dev*")); err != nil || len(left) > 0 {
		t.Errorf("sockets are left: %v, %v", left, err)
	}
}

// TestNoHintWithoutTheNode: for emulated memory with a NUMA node that the machine
// lacks, a kubelet is given no hint; one that it cannot follow would refuse pods.
func TestNoHintWithoutTheNode(t *testing.T) {
	dir := socketDir(t)
	k := startKubelet(t, dir)
	start(t, dir, &memory{nodes: map[int]bool{5: true}}, sysfs(t, "0"))
	if d := k.await("csi.nvfs.dev/numa-5")[0]; d.GetTopology() != nil {
		t.Errorf("device %v", d)
	}
}

// TestMemoryOnANodeWithoutCPUs: the hint is of those that are near; a pod that had
// to have CPUs of a node without any would be refused for ever.
func TestMemoryOnANodeWithoutCPUs(t *testing.T) {
	dir := socketDir(t)
	k := startKubelet(t, dir)
	start(t, dir, &memory{nodes: map[int]bool{2: true}}, sysfs(t, "0", "1", ""))
	if got := hint(k.await("csi.nvfs.dev/numa-2")[0]); !slices.Equal(got, []int64{0, 1}) {
		t.Errorf("hint %v", got)
	}
}

func TestSocketPathIsShort(t *testing.T) {
	// The kernel takes 107 bytes.
	r := newResource("/var/snap/microk8s/common/var/lib/kubelet/device-plugins", 127, nil, true)
	if len(r.socket) > 107 || strings.Contains(filepath.Base(r.socket), "/") {
		t.Errorf("%s has %d bytes", r.socket, len(r.socket))
	}
}
