package controller

import (
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// controllerMetrics are those of one controller process. Only the leader sets
// most of them.
type controllerMetrics struct {
	registry *prometheus.Registry
	leading  prometheus.Gauge
	nodes    *prometheus.GaugeVec
	classes  *prometheus.GaugeVec
	orphans  *prometheus.GaugeVec
	memory   *prometheus.GaugeVec
	webhook  *prometheus.CounterVec
	failures prometheus.Counter
}

func newMetrics(version string) *controllerMetrics {
	m := &controllerMetrics{
		registry: prometheus.NewRegistry(),
		leading: prometheus.NewGauge(prometheus.GaugeOpts{Name: "nvfs_csi_controller_leading",
			Help: "1 in the one process that looks at the cluster."}),
		nodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "nvfs_csi_controller_nodes",
			Help: "Nodes with a driver, by whether they answer."}, []string{"reporting"}),
		classes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "nvfs_csi_controller_classes",
			Help: "StorageClasses of the driver, by whether any node can serve them."}, []string{"servable"}),
		orphans: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "nvfs_csi_orphans",
			Help: "Volumes on a node that no PersistentVolume is about."}, []string{"node"}),
		memory: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "nvfs_csi_numa_memory_bytes",
			Help: "Usable persistent memory by node and NUMA node: size, available, and largest_extent, which is what one volume can take at most."}, []string{"node", "numa_node", "kind"}),
		webhook: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nvfs_csi_webhook_pods_total",
			Help: "Pods that the webhook has decided about: aligned with the NUMA node of their volumes, asks by itself, several NUMA nodes, undecided as the volumes do not exist yet, others without volumes of the driver, failed."}, []string{"decision"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "nvfs_csi_controller_failures_total",
			Help: "Times that the cluster could not be looked at."}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "nvfs_csi_controller_build_info", Help: "Always 1; the labels describe the program.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()}})
	info.Set(1)
	m.registry.MustRegister(m.leading, m.nodes, m.classes, m.orphans, m.memory, m.webhook, m.failures, info)
	return m
}

// set records what was seen at one look.
func (m *controllerMetrics) set(n nodes, pods, classes, unservable int, orphans []orphan) {
	m.nodes.WithLabelValues("true").Set(float64(len(n.reports)))
	m.nodes.WithLabelValues("false").Set(float64(pods - len(n.reports)))
	m.classes.WithLabelValues("true").Set(float64(classes - unservable))
	m.classes.WithLabelValues("false").Set(float64(unservable))
	m.orphans.Reset()
	for _, report := range n.reports {
		m.orphans.WithLabelValues(report.Node).Set(0)
	}
	for _, o := range orphans {
		m.orphans.WithLabelValues(o.node).Inc()
	}
}

// handler serves /healthz, /readyz, for which ready decides, and /metrics.
func (m *controllerMetrics) handler(ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.Handle("/metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	return mux
}
