package driver

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nvfs-csi/nvfs-csi/pkg/numa"
)

// twoSockets is a machine with CPUs 0 and 1 on NUMA node 0, 2 and 3 on node 1, and
// none on node 2, which is near to node 1.
func twoSockets(t *testing.T) numa.Topology {
	t.Helper()
	sys := t.TempDir()
	for node, files := range map[string][2]string{"node0": {"0-1", "10 21 28"}, "node1": {"2-3", "21 10 17"}, "node2": {"", "28 17 10"}} {
		dir := filepath.Join(sys, "devices/system/node", node)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"cpulist", "distance"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(files[i]+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return numa.Topology(sys)
}

// container is one with CPUs of its own and perhaps a token of the device plugin.
func container(resource string, cpus ...int64) *podresources.ContainerResources {
	c := &podresources.ContainerResources{CpuIds: cpus}
	if resource != "" {
		c.Devices = []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: []string{"7"}}}
	}
	return c
}

func TestLocality(t *testing.T) {
	one, two, none := 1, 2, -1
	for name, c := range map[string]struct {
		node       *int
		containers []*podresources.ContainerResources
		asks       bool
		want       Locality
	}{
		"beside it":                             {&one, []*podresources.ContainerResources{container("csi.nvfs.dev/numa-1", 2)}, true, LocalityLocal},
		"on the other socket":                   {&one, []*podresources.ContainerResources{container("csi.nvfs.dev/numa-1", 0, 1)}, true, LocalityRemote},
		"on both":                               {&one, []*podresources.ContainerResources{container("", 1, 2)}, false, LocalityRemote},
		"no CPUs of its own":                    {&one, []*podresources.ContainerResources{container("csi.nvfs.dev/numa-1")}, true, LocalityShared},
		"beside it without asking":              {&one, []*podresources.ContainerResources{container("", 2, 3)}, false, LocalityLocal},
		"a sidecar elsewhere":                   {&one, []*podresources.ContainerResources{container(""), container("csi.nvfs.dev/numa-1", 2), container("", 0)}, true, LocalityLocal},
		"only the sidecar is beside it":         {&one, []*podresources.ContainerResources{container("", 2), container("csi.nvfs.dev/numa-1", 0)}, true, LocalityRemote},
		"asks for another NUMA node":            {&one, []*podresources.ContainerResources{container("csi.nvfs.dev/numa-0", 0)}, false, LocalityRemote},
		"memory on a node without CPUs":         {&two, []*podresources.ContainerResources{container("csi.nvfs.dev/numa-2", 3)}, true, LocalityLocal},
		"memory on a node without CPUs, remote": {&two, []*podresources.ContainerResources{container("csi.nvfs.dev/numa-2", 0)}, true, LocalityRemote},
		"memory of an unknown node":             {&none, []*podresources.ContainerResources{container("", 0)}, false, LocalityUnknown},
		"a record of before":                    {nil, []*podresources.ContainerResources{container("", 0)}, false, LocalityUnknown},
	} {
		d := &Driver{cpus: twoSockets(t), podResources: func(context.Context) ([]*podresources.PodResources, error) {
			return []*podresources.PodResources{{Namespace: "team", Name: "pod", Containers: c.containers}}, nil
		}}
		pod := &podReference{Namespace: "team", Name: "pod", UID: "u"}
		// Two mounts of one volume in one pod are one user.
		r := &record{NUMANode: c.node, Published: []published{{Path: "/a", Pod: pod}, {Path: "/b", Pod: pod}, {Path: "/c"}}}
		got := d.localities(t.Context()).reports(r)
		want := PodReport{Namespace: "team", Name: "pod", UID: "u", Asks: c.asks, Locality: c.want}
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestLocalityOfAPodThatNobodyKnows(t *testing.T) {
	zero := 0
	r := &record{NUMANode: &zero, Published: []published{{Path: "/a", Pod: &podReference{Namespace: "team", Name: "pod", UID: "u"}}}}
	for name, ask := range map[string]PodResources{
		"no kubelet": nil,
		"a kubelet that does not answer": func(context.Context) ([]*podresources.PodResources, error) {
			return nil, errors.New("no answer")
		},
		"a kubelet that does not know it": func(context.Context) ([]*podresources.PodResources, error) { return nil, nil },
	} {
		d := &Driver{cpus: twoSockets(t), podResources: ask}
		if got := d.localities(t.Context()).reports(r); len(got) != 1 || got[0].Locality != LocalityUnknown {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestLocalityWithoutAChoice: on a machine with one NUMA node everything is local;
// memory that only declares another node is near to nothing.
func TestLocalityWithoutAChoice(t *testing.T) {
	sys := t.TempDir()
	dir := filepath.Join(sys, "devices/system/node/node0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cpulist"), []byte("0-3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := localities{topology: numa.Topology(sys), machine: map[int]bool{0: true, 1: true, 2: true, 3: true}}
	for node, want := range map[int]Locality{0: LocalityLocal, 1: LocalityUnknown} {
		if got := l.of([]*podresources.ContainerResources{container("")}, node); got != want {
			t.Errorf("NUMA node %d: %s, want %s", node, got, want)
		}
	}
}

func TestPodOf(t *testing.T) {
	full := map[string]string{"csi.storage.k8s.io/pod.name": "pod", "csi.storage.k8s.io/pod.namespace": "team", "csi.storage.k8s.io/pod.uid": "u"}
	if got := podOf(full); got == nil || *got != (podReference{"team", "pod", "u"}) {
		t.Errorf("%v", got)
	}
	for key := range full {
		part := map[string]string{}
		for k, v := range full {
			if k != key {
				part[k] = v
			}
		}
		if got := podOf(part); got != nil {
			t.Errorf("without %s: %v", key, got)
		}
	}
}

// lister is the kubelet's service.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (lister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{Name: "pod"}}}, nil
}

func TestKubeletPodResources(t *testing.T) {
	dir, err := os.MkdirTemp("", "nvfs-pr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "kubelet.sock")
	ask := KubeletPodResources(socket)
	if _, err := ask(t.Context()); err == nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("without a socket: %v", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, lister{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
	if pods, err := ask(t.Context()); err != nil || len(pods) != 1 || pods[0].GetName() != "pod" {
		t.Errorf("%v, %v", pods, err)
	}
}
