package driver

import (
	"context"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"
)

// scrapeTimeout bounds the reading of regions during a scrape.
const scrapeTimeout = 5 * time.Second

var (
	regionLabels = []string{"node", "region", "numa_node"}

	descRegionSize = prometheus.NewDesc("nvfs_csi_region_size_bytes",
		"Size of a persistent memory region.", regionLabels, nil)
	descRegionAvailable = prometheus.NewDesc("nvfs_csi_region_available_bytes",
		"Free bytes of a region, in all its extents together.", regionLabels, nil)
	descRegionMaxExtent = prometheus.NewDesc("nvfs_csi_region_max_extent_bytes",
		"Largest free extent of a region: what a new namespace can take at most.", regionLabels, nil)
	descNamespaces = prometheus.NewDesc("nvfs_csi_region_namespaces",
		"Namespaces in a region, those of others included.", regionLabels, nil)
	descFlushMode = prometheus.NewDesc("nvfs_csi_region_flush_mode_info",
		"Always 1, for each flush mode that volumes in a region can have.", append(regionLabels, "flush_mode"), nil)
	descFlushChoice = prometheus.NewDesc("nvfs_csi_flush_mode_choice_info",
		"Always 1: what flush mode auto means on the node, and who says so; auto is what was measured.", []string{"node", "flush_mode", "source"}, nil)
	descVolumes = prometheus.NewDesc("nvfs_csi_volumes",
		"Volumes of the node by phase (creating, ready, deleting).", []string{"node", "phase"}, nil)
	descStaged = prometheus.NewDesc("nvfs_csi_staged_volumes",
		"Volumes that are mounted on the node.", []string{"node"}, nil)
	descUnserved = prometheus.NewDesc("nvfs_csi_unserved_volumes",
		"Mounted volumes whose serving process was gone when last looked at.", []string{"node"}, nil)
	descRestarts = prometheus.NewDesc("nvfs_csi_daemon_restarts_total",
		"Serving processes of mounted volumes that were replaced since the driver started.", []string{"node"}, nil)
	descRegistered = prometheus.NewDesc("nvfs_csi_registered",
		"1 when the kubelet has registered the driver.", []string{"node"}, nil)
	descBuildInfo = prometheus.NewDesc("nvfs_csi_build_info",
		"Always 1; the labels describe the program.", []string{"version", "go_version"}, nil)
)

// driverMetrics are all metrics of one driver. Gauges are read when they are
// asked for.
type driverMetrics struct {
	driver     *Driver
	operations metrics.CSIMetricsManager
	registry   *prometheus.Registry
	registered atomic.Bool
}

func newMetrics(d *Driver) *driverMetrics {
	m := &driverMetrics{
		driver:     d,
		operations: metrics.NewCSIMetricsManagerForPlugin(Name),
		registry:   prometheus.NewRegistry(),
	}
	m.registry.MustRegister(m)
	return m
}

func (m *driverMetrics) setRegistered(registered bool) { m.registered.Store(registered) }

// Describe implements prometheus.Collector.
func (m *driverMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{descRegionSize, descRegionAvailable, descRegionMaxExtent, descVolumes, descStaged,
		descVolumeInfo, descVolumeSize, descVolumeHealthy, descRequests, descRequestSeconds, descNamespaces, descFlushMode, descFlushChoice,
		descUnserved, descRestarts, descRegistered, descBuildInfo} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *driverMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	node := m.driver.options.NodeID
	gauge(descBuildInfo, 1, m.driver.options.Version, runtime.Version())
	registered := 0.0
	if m.registered.Load() {
		registered = 1
	}
	gauge(descRegistered, registered, node)
	restarts, unserved := m.driver.servers.counts()
	gauge(descUnserved, float64(unserved), node)
	ch <- prometheus.MustNewConstMetric(descRestarts, prometheus.CounterValue, float64(restarts), node)
	if choice, err := m.driver.flushChoice(); err != nil {
		klog.ErrorS(err, "No metric of the node's flush mode")
	} else {
		gauge(descFlushChoice, 1, node, choice.mode, choice.source)
	}
	m.collectVolumes(gauge)
	m.collectEachVolume(ch)
	m.collectRegions(gauge)
}

func (m *driverMetrics) collectVolumes(gauge func(*prometheus.Desc, float64, ...string)) {
	all, err := m.driver.records.list()
	if err != nil {
		klog.V(2).InfoS("Metrics of volumes are incomplete", "reason", err.Error())
	}
	phases, staged := map[phase]int{phaseCreating: 0, phaseReady: 0, phaseDeleting: 0}, 0
	for _, r := range all {
		phases[r.Phase]++
		if r.Staged != nil {
			staged++
		}
	}
	for p, n := range phases {
		gauge(descVolumes, float64(n), m.driver.options.NodeID, string(p))
	}
	gauge(descStaged, float64(staged), m.driver.options.NodeID)
}

func (m *driverMetrics) collectRegions(gauge func(*prometheus.Desc, float64, ...string)) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	regions, err := m.driver.namespaces.Regions(ctx)
	if err != nil {
		klog.ErrorS(err, "No metrics of regions")
		return
	}
	counts, err := m.namespacesByRegion(ctx)
	if err != nil {
		klog.ErrorS(err, "No metrics of namespaces")
	}
	for _, r := range regions {
		labels := []string{m.driver.options.NodeID, r.Name, strconv.Itoa(r.NUMANode)}
		gauge(descRegionSize, float64(r.Size), labels...)
		gauge(descRegionAvailable, float64(r.Available), labels...)
		gauge(descRegionMaxExtent, float64(r.LargestExtent), labels...)
		if err == nil {
			gauge(descNamespaces, float64(counts[r.Name]), labels...)
		}
		for _, mode := range m.driver.reportRegion(r).FlushModes {
			gauge(descFlushMode, 1, append(labels, mode)...)
		}
	}
}

func (m *driverMetrics) namespacesByRegion(ctx context.Context) (map[string]int, error) {
	all, err := m.driver.namespaces.Namespaces(ctx)
	counts := map[string]int{}
	for _, ns := range all {
		counts[ns.Region]++
	}
	return counts, err
}

// Registry returns the registry of the driver's own metrics; the program may
// add its own.
func (d *Driver) Registry() *prometheus.Registry { return d.metrics.registry }

// MetricsHandler serves /metrics: those of the driver and those of its calls.
func (d *Driver) MetricsHandler() http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{d.metrics.registry, d.metrics.operations.GetRegistry()},
		promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// HealthHandler serves /healthz: 200 while the driver can work. Like Probe it
// touches no device.
func (d *Driver) HealthHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		path, err := d.options.socketPath()
		if err == nil {
			_, err = os.Lstat(path)
		}
		if err != nil {
			http.Error(w, "not serving: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		if _, err := os.ReadDir(d.records.dir); err != nil {
			http.Error(w, "state directory: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
}
