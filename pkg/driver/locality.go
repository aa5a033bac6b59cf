package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nvfs-csi/nvfs-csi/pkg/numa"
)

// Locality says where the CPUs of a pod are, seen from its volume.
type Locality string

// The localities of a pod.
const (
	// LocalityLocal: all CPUs of the pod's own are beside the memory, or all of
	// the machine are.
	LocalityLocal Locality = "local"
	// LocalityRemote: the pod has CPUs of its own, and not all are beside the
	// memory.
	LocalityRemote Locality = "remote"
	// LocalityShared: the pod has no CPUs of its own and runs on any.
	LocalityShared Locality = "shared"
	// LocalityUnknown: nobody says where the pod or the memory is.
	LocalityUnknown Locality = "unknown"
)

// podReference names a pod that a volume is published to, as the kubelet said.
type podReference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// podOf reads what the kubelet adds to the volume context (podInfoOnMount); nil
// when it adds nothing.
func podOf(context map[string]string) *podReference {
	p := podReference{Namespace: context[reservedPrefix+"pod.namespace"], Name: context[reservedPrefix+"pod.name"], UID: context[reservedPrefix+"pod.uid"]}
	if p.Namespace == "" || p.Name == "" || p.UID == "" {
		return nil
	}
	return &p
}

// PodReport describes a pod that uses a volume.
type PodReport struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	UID       string   `json:"uid"`
	Asks      bool     `json:"asks"` // for the NUMA node of the volume, with a resource of the device plugin
	Locality  Locality `json:"locality"`
}

// PodResources returns what the kubelet has given to the pods that run on this
// node.
type PodResources func(ctx context.Context) ([]*podresources.PodResources, error)

// KubeletPodResources asks the kubelet on its socket, which it serves without any
// configuration.
func KubeletPodResources(socket string) PodResources {
	return func(ctx context.Context) ([]*podresources.PodResources, error) {
		if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("resources of pods: the kubelet serves no socket %s", socket)
		}
		conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPodResources)))
		if err != nil {
			return nil, fmt.Errorf("resources of pods: %w", err)
		}
		defer conn.Close()
		response, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
		if err != nil {
			return nil, fmt.Errorf("resources of pods: %w", err)
		}
		return response.GetPodResources(), nil
	}
}

// maxPodResources is what the kubelet limits its answer to.
const maxPodResources = 16 << 20

// localities judges pods. Without an answer of the kubelet all are unknown.
type localities struct {
	topology numa.Topology
	machine  map[int]bool // CPUs of the machine
	pods     map[string]*podresources.PodResources
}

// localities asks the kubelet once, for a report or a scrape.
func (d *Driver) localities(ctx context.Context) localities {
	l := localities{topology: d.cpus, pods: map[string]*podresources.PodResources{}}
	if d.podResources == nil {
		return l
	}
	l.machine = l.topology.CPUs(l.topology.Nodes())
	all, err := d.podResources(ctx)
	if err != nil {
		klog.V(4).InfoS("Where the CPUs of pods are is not known", "reason", err.Error())
	}
	for _, pod := range all {
		l.pods[pod.GetNamespace()+"/"+pod.GetName()] = pod
	}
	return l
}

// reports returns the pods that a volume is published to, each once.
func (l localities) reports(r *record) []PodReport {
	var reports []PodReport
	for _, target := range r.Published {
		if target.Pod == nil || slices.ContainsFunc(reports, func(p PodReport) bool { return p.UID == target.Pod.UID }) {
			continue
		}
		reports = append(reports, l.report(r, *target.Pod))
	}
	return reports
}

func (l localities) report(r *record, pod podReference) PodReport {
	report := PodReport{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Locality: LocalityUnknown}
	node, known := r.numaNode()
	given := l.pods[pod.Namespace+"/"+pod.Name]
	if given == nil || !known {
		return report
	}
	containers := given.GetContainers()
	if asking := slices.DeleteFunc(slices.Clone(containers), func(c *podresources.ContainerResources) bool { return !asksFor(c, node) }); len(asking) > 0 {
		// Whoever asked is who uses the volume; the others may be anywhere.
		report.Asks, containers = true, asking
	}
	report.Locality = l.of(containers, node)
	return report
}

func asksFor(c *podresources.ContainerResources, node int) bool {
	return slices.ContainsFunc(c.GetDevices(), func(d *podresources.ContainerDevices) bool { return d.GetResourceName() == NUMAResource(node) })
}

// of judges the containers of one pod together: one that is local is taken for the
// one that uses the volume.
func (l localities) of(containers []*podresources.ContainerResources, node int) Locality {
	near := l.topology.CPUs(l.topology.Nearest(node))
	switch {
	case len(near) == 0:
		return LocalityUnknown
	case maps.Equal(near, l.machine):
		return LocalityLocal
	}
	found := LocalityShared
	for _, c := range containers {
		if len(c.GetCpuIds()) == 0 {
			continue
		}
		if !slices.ContainsFunc(c.GetCpuIds(), func(cpu int64) bool { return !near[int(cpu)] }) {
			return LocalityLocal
		}
		found = LocalityRemote
	}
	return found
}

var descPods = prometheus.NewDesc("nvfs_csi_volume_pods",
	"Pods that use volumes, by the NUMA node of the volume and by whether the pod's own CPUs are beside it (local, remote, shared: it has none of its own, unknown).",
	[]string{"node", "numa_node", "locality"}, nil)

// localityMetrics counts pods when it is asked.
type localityMetrics struct{ driver *Driver }

// Describe implements prometheus.Collector.
func (m localityMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- descPods }

// Collect implements prometheus.Collector.
func (m localityMetrics) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	all, err := m.driver.records.list()
	if err != nil {
		klog.V(2).InfoS("Metrics of pods are incomplete", "reason", err.Error())
	}
	type key struct {
		node     int
		locality Locality
	}
	counts := map[key]int{}
	places := m.driver.localities(ctx)
	for _, r := range all {
		node, _ := r.numaNode()
		for _, pod := range places.reports(r) {
			counts[key{node, pod.Locality}]++
		}
	}
	for k, n := range counts {
		ch <- prometheus.MustNewConstMetric(descPods, prometheus.GaugeValue, float64(n), m.driver.options.NodeID, strconv.Itoa(k.node), string(k.locality))
	}
}
