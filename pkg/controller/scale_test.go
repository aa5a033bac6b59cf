//go:build scale

package controller

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// The cluster of the scale test, and how long it is looked at.
var (
	scaleNodes   = scaleNumber("NVFS_SCALE_NODES", 5000)
	scaleVolumes = scaleNumber("NVFS_SCALE_VOLUMES", 40) // of each node, half on each NUMA node
	scaleLooks   = scaleNumber("NVFS_SCALE_LOOKS", 8)
)

func scaleNumber(name string, initial int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return initial
}

// largeCluster is an API server that keeps nothing: it makes up what it is asked
// for. So the memory of the process is that of the controller. The drivers of the
// nodes are one server on as many addresses of the loopback network.
type largeCluster struct {
	t          *testing.T
	api        *httptest.Server
	drivers    *http.Server
	port       int
	annotation string
	end        chan struct{}
	churn      chan int // numbers of claims that are changed

	requests, changes, reports, bytes atomic.Int64
	mu                                sync.Mutex
	kinds                             map[string]int
	lease                             []byte
}

func newLargeCluster(t *testing.T) *largeCluster {
	c := &largeCluster{t: t, end: make(chan struct{}), churn: make(chan int), kinds: map[string]int{}}
	var err error
	if c.annotation, err = memoryAnnotation(scaleRegions()); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	c.port = listener.Addr().(*net.TCPAddr).Port
	c.drivers = &http.Server{Handler: http.HandlerFunc(c.report)}
	go func() { _ = c.drivers.Serve(listener) }()
	c.api = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(func() { close(c.end); c.api.Close(); _ = c.drivers.Close() })
	return c
}

func (c *largeCluster) client() kubernetes.Interface {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: c.api.URL, QPS: 20, Burst: 40, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

func scaleRegions() []driver.RegionReport {
	const size = 512 << 30
	var regions []driver.RegionReport
	for numa := range 2 {
		regions = append(regions, driver.RegionReport{Name: fmt.Sprintf("region%d", numa), NUMANode: numa, Size: size, Available: size / 2, LargestExtent: size / 4,
			FlushModes: []string{"auto", "nt", "clwb", "clflushopt", "clflush"}})
	}
	return regions
}

// address is that of a node's driver.
func address(node int) string { return fmt.Sprintf("127.1.%d.%d", node/250, node%250+1) }

// report answers for the node whose address was asked.
func (c *largeCluster) report(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.Host)
	var a, b int
	if _, err := fmt.Sscanf(host, "127.1.%d.%d", &a, &b); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.reports.Add(1)
	node := a*250 + b - 1
	report := driver.Report{Node: fmt.Sprintf("node-%d", node), Regions: scaleRegions()}
	for i := range scaleVolumes {
		numa := i % 2
		n := node*scaleVolumes + i
		report.Volumes = append(report.Volumes, driver.VolumeReport{ID: handle(n), Name: fmt.Sprintf("pvc-%d", n), Phase: "ready", Bytes: 8 << 30, NUMANode: &numa,
			Pods: []driver.PodReport{{Namespace: "team", Name: fmt.Sprintf("db-%d", n), UID: fmt.Sprintf("uid-%d", n), Asks: true, Locality: driver.LocalityLocal}}})
	}
	_ = json.NewEncoder(w).Encode(report)
}

func handle(n int) string { return fmt.Sprintf("nvfs-pvc-%d-abcdefghijklmnopqrstuvwxyz", n) }

// managed is what the API server keeps about who has set which field.
const managed = `"managedFields":[{"manager":"csi-provisioner","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{".":{},"f:pv.kubernetes.io/provisioned-by":{}}},"f:spec":{"f:accessModes":{},"f:capacity":{".":{},"f:storage":{}},"f:claimRef":{},"f:csi":{".":{},"f:driver":{},"f:volumeAttributes":{}},"f:nodeAffinity":{},"f:persistentVolumeReclaimPolicy":{},"f:storageClassName":{},"f:volumeMode":{}}}}]`

func (c *largeCluster) class(int) string {
	return `{"kind":"StorageClass","apiVersion":"storage.k8s.io/v1","metadata":{"name":"nvfs","resourceVersion":"1"},"provisioner":"csi.nvfs.dev","volumeBindingMode":"WaitForFirstConsumer"}`
}

func (c *largeCluster) node(n int) string {
	annotation, _ := json.Marshal(c.annotation)
	return fmt.Sprintf(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"node-%d","uid":"node-uid-%d","resourceVersion":"1","annotations":{%q:%s},%s},"status":{"images":[%s{"names":["a"]}]}}`,
		n, n, MemoryAnnotation, annotation, managed, strings.Repeat(`{"names":["registry.example/some/image@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"],"sizeBytes":123456},`, 50))
}

func (c *largeCluster) driver(n int) string {
	return fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"driver-%d","namespace":"nvfs-csi","uid":"driver-uid-%d","resourceVersion":"1",%s},"spec":{"nodeName":"node-%d"},"status":{"phase":"Running","podIP":%q}}`, n, n, managed, n, address(n))
}

func (c *largeCluster) volume(n int) string {
	return fmt.Sprintf(`{"kind":"PersistentVolume","apiVersion":"v1","metadata":{"name":"pvc-%d","uid":"pv-uid-%d","resourceVersion":"1","labels":{"csi.nvfs.dev/numa-node":"%d"},"annotations":{"pv.kubernetes.io/provisioned-by":"csi.nvfs.dev"},"finalizers":["external-provisioner.volume.kubernetes.io/finalizer","kubernetes.io/pv-protection"],%s},`+
		`"spec":{"capacity":{"storage":"8Gi"},"csi":{"driver":"csi.nvfs.dev","volumeHandle":%q,"fsType":"nvfs","volumeAttributes":{"cacheMode":"through","flushMode":"auto","transport":"dev","csi.nvfs.dev/numa-node":"%d","storage.kubernetes.io/csiProvisionerIdentity":"1-2-csi.nvfs.dev"}},`+
		`"accessModes":["ReadWriteOnce"],"claimRef":{"kind":"PersistentVolumeClaim","namespace":"team","name":"data-%d","uid":"uid-%d","apiVersion":"v1"},"persistentVolumeReclaimPolicy":"Delete","storageClassName":"nvfs","volumeMode":"Filesystem",`+
		`"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"topology.csi.nvfs.dev/node","operator":"In","values":["node-%d"]}]}]}}},"status":{"phase":"Bound"}}`,
		n, n, n%2, managed, handle(n), n%2, n, n, n/scaleVolumes)
}

func (c *largeCluster) claim(n int, version string) string {
	return fmt.Sprintf(`{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"name":"data-%d","namespace":"team","uid":"uid-%d","resourceVersion":%q,"annotations":{"pv.kubernetes.io/bind-completed":"yes","pv.kubernetes.io/bound-by-controller":"yes"},%s},`+
		`"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"8Gi"}},"volumeName":"pvc-%d","storageClassName":"nvfs","volumeMode":"Filesystem"},"status":{"phase":%q,"capacity":{"storage":"8Gi"}}}`,
		n, n, version, managed, n, map[bool]string{true: "Bound", false: "Pending"}[version == "1"])
}

func (c *largeCluster) serve(w http.ResponseWriter, r *http.Request) {
	c.requests.Add(1)
	c.mu.Lock()
	c.kinds[r.Method+" "+r.URL.Path]++
	c.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	volumes := scaleNodes * scaleVolumes
	switch path := r.URL.Path; {
	case strings.Contains(path, "/leases"):
		c.serveLease(w, r)
	case r.Method != http.MethodGet:
		c.changes.Add(1)
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	case path == classesPath:
		c.stream(w, r, "StorageClass", "storage.k8s.io/v1", 1, c.class)
	case path == nodesPath:
		c.stream(w, r, "Node", "v1", scaleNodes, c.node)
	case path == podsPath:
		c.stream(w, r, "Pod", "v1", scaleNodes, c.driver)
	case path == volumesPath:
		c.stream(w, r, "PersistentVolume", "v1", volumes, c.volume)
	case path == claimsPath:
		c.stream(w, r, "PersistentVolumeClaim", "v1", volumes, func(n int) string { return c.claim(n, "1") })
	default: // lists of pods
		c.stream(w, r, "Pod", "v1", 0, nil)
	}
}

// stream is a list that is watched on, as API servers since 1.32 send it, or a
// plain one.
func (c *largeCluster) stream(w http.ResponseWriter, r *http.Request, kind, version string, count int, item func(int) string) {
	if r.URL.Query().Get("watch") == "" {
		fmt.Fprintf(w, `{"kind":"%sList","apiVersion":%q,"metadata":{"resourceVersion":"1"},"items":[`, kind, version)
		for n := range count {
			if n > 0 {
				_, _ = w.Write([]byte{','})
			}
			_, _ = io.WriteString(w, item(n))
		}
		_, _ = io.WriteString(w, "]}")
		return
	}
	send := func(event, object string) {
		n, _ := fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", event, object)
		c.bytes.Add(int64(n))
	}
	if r.URL.Query().Get("sendInitialEvents") != "" {
		for n := range count {
			send("ADDED", item(n))
		}
		send("BOOKMARK", fmt.Sprintf(`{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}`, kind, version))
	}
	w.(http.Flusher).Flush()
	var churn chan int
	if kind == "PersistentVolumeClaim" {
		churn = c.churn
	}
	for {
		select {
		case n := <-churn:
			send("MODIFIED", c.claim(n, "2"))
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		case <-c.end:
			return
		}
	}
}

func (c *largeCluster) serveLease(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Method != http.MethodGet {
		c.lease, _ = io.ReadAll(r.Body)
	}
	if c.lease == nil {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		return
	}
	_, _ = w.Write(c.lease)
}

// heap is what the process keeps, in MiB.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / mib
}

// TestScale runs the controller in a cluster of 5,000 nodes with 200,000 volumes.
// Its memory must not grow from look to look, and it must not ask the API server
// for anything when nothing changes, nor more often when very much does.
func TestScale(t *testing.T) {
	c := newLargeCluster(t)
	o := Options{Namespace: "nvfs-csi", Identity: "one", NodeSelector: "a=b", NodePort: c.port, Resync: 10 * time.Second, AnnotateNodes: true, Version: "test"}
	before := heap()
	began := time.Now()
	ctx := t.Context()
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, c.client(), o) }()
	looked := func(times int) {
		for want := int64(times * scaleNodes); c.reports.Load() < want; time.Sleep(100 * time.Millisecond) {
			select {
			case err := <-ended:
				t.Fatalf("the controller has ended: %v", err)
			default:
			}
		}
	}
	looked(1)
	t.Logf("%d nodes, %d volumes: first look after %s, %d requests, %d MiB watched", scaleNodes, scaleNodes*scaleVolumes, time.Since(began).Round(100*time.Millisecond), c.requests.Load(), c.bytes.Load()/mib)
	looked(2)
	var heaps []float64
	requests, steady := c.requests.Load(), time.Now()
	for i := range scaleLooks {
		looked(3 + i)
		heaps = append(heaps, heap()-before)
	}
	seconds := time.Since(steady).Seconds()
	perSecond := float64(c.requests.Load()-requests) / seconds
	t.Logf("nothing changes: %.2f requests/s to the API server, heap %.0f to %.0f MiB over %d looks", perSecond, slices.Min(heaps), slices.Max(heaps), len(heaps))
	if perSecond > 1 { // the lease alone is renewed every two seconds
		t.Errorf("%.2f requests/s", perSecond)
	}
	if first, last := heaps[0], heaps[len(heaps)-1]; last > first*1.1+10 {
		t.Errorf("the heap has grown from %.0f to %.0f MiB", first, last)
	}
	if c.changes.Load() > 0 {
		t.Errorf("%d changes in a cluster that is as it should be", c.changes.Load())
	}
	c.churnFor(t, 30*time.Second, 100)
	c.mu.Lock()
	t.Logf("requests by kind: %v", c.kinds)
	c.mu.Unlock()
}

// churnFor changes so many claims in a second.
func (c *largeCluster) churnFor(t *testing.T, long time.Duration, perSecond int) {
	reports, requests, began := c.reports.Load(), c.requests.Load(), time.Now()
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	n := 0
	for ; time.Since(began) < long; n++ {
		<-tick.C
		c.churn <- n % (scaleNodes * scaleVolumes)
	}
	seconds := time.Since(began).Seconds()
	t.Logf("%d claims change in %.0f s: %.1f requests/s to the API server, %.0f nodes asked each second, heap %.0f MiB", n, seconds,
		float64(c.requests.Load()-requests)/seconds, float64(c.reports.Load()-reports)/seconds, heap())
}
