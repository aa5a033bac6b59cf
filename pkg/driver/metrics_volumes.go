package driver

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

// askedAtOnce bounds how many volumes a scrape looks at at the same time.
const askedAtOnce = 8

var (
	volumeLabels = []string{"node", "volume"}

	descVolumeInfo = prometheus.NewDesc("nvfs_csi_volume_info",
		"Always 1, for each volume: its name as it was asked for (by default that of its PersistentVolume), where it is, and how it is mounted, if it is.",
		[]string{"node", "volume", "persistentvolume", "region", "fstype", "flush_mode", "cache_mode", "transport"}, nil)
	descVolumeSize = prometheus.NewDesc("nvfs_csi_volume_size_bytes",
		"Usable size of the memory of a volume.", volumeLabels, nil)
	descVolumeHealthy = prometheus.NewDesc("nvfs_csi_volume_healthy",
		"0 when something is wrong with a volume; the health of the volume, in the status of its pod, says what.", volumeLabels, nil)
	descRequests = prometheus.NewDesc("nvfs_csi_fuse_requests_total",
		"Requests of the kernel to the process that serves a volume, by operation.", append(volumeLabels, "operation"), nil)
	descRequestSeconds = prometheus.NewDesc("nvfs_csi_fuse_request_seconds",
		"Histogram of the time that the serving process took for one of every eight requests of an operation, without the way from and to the kernel.",
		append(volumeLabels, "operation"), nil)
)

// latencyBounds are the limits of the buckets of a histogram. They are some of
// those that a serving process has: each of them is a series for every
// operation of every volume.
var latencyBounds = func() []time.Duration {
	var bounds []time.Duration
	for below := 1024 * time.Nanosecond; below <= 4*time.Second; below *= 2 {
		if below > 128*time.Microsecond {
			below *= 2
		}
		bounds = append(bounds, below)
	}
	return bounds
}()

// collectEachVolume asks the processes that serve volumes. A volume whose
// process does not answer in time lacks what it would have said.
func (m *driverMetrics) collectEachVolume(ch chan<- prometheus.Metric) {
	all, err := m.driver.records.list()
	if err != nil {
		klog.V(2).InfoS("Metrics of volumes are incomplete", "reason", err.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	var asked errgroup.Group
	asked.SetLimit(askedAtOnce)
	var mu sync.Mutex
	for _, r := range all {
		if r.Phase != phaseReady {
			continue
		}
		asked.Go(func() error {
			found := m.driver.volumeMetrics(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			for _, metric := range found {
				ch <- metric
			}
			return nil
		})
	}
	_ = asked.Wait() // none of them fails
}

// volumeMetrics are all metrics of one volume.
func (d *Driver) volumeMetrics(ctx context.Context, r *record) []prometheus.Metric {
	params, err := r.params()
	if err != nil {
		return nil // its health says so
	}
	node := d.options.NodeID
	var status mountd.Status
	var metrics []prometheus.Metric
	if r.Staged != nil && !params.kernel() {
		if status, err = d.nvfs.Status(ctx, r.ID); err != nil {
			klog.V(4).InfoS("Metrics of a volume are incomplete", "volumeID", r.ID, "reason", err.Error())
		}
		metrics = append(metrics, d.requestMetrics(ctx, r.ID)...)
	}
	healthy := 0.0
	if len(d.conditions(ctx, r)) == 0 {
		healthy = 1
	}
	flush, _, _ := strings.Cut(status.Flush, " (") // the rest says why
	return append(metrics,
		prometheus.MustNewConstMetric(descVolumeInfo, prometheus.GaugeValue, 1, node, r.ID, r.Name, r.Region, params.FSType, flush, status.Cache, status.Transport),
		prometheus.MustNewConstMetric(descVolumeSize, prometheus.GaugeValue, float64(r.Capacity), node, r.ID),
		prometheus.MustNewConstMetric(descVolumeHealthy, prometheus.GaugeValue, healthy, node, r.ID))
}

// requestMetrics are what the kernel has asked of the process that serves a
// volume. They start anew with each process.
func (d *Driver) requestMetrics(ctx context.Context, id string) []prometheus.Metric {
	requests, err := d.nvfs.Requests(ctx, id)
	if err != nil {
		klog.V(4).InfoS("No metrics of the requests of a volume", "volumeID", id, "reason", err.Error())
		return nil
	}
	var metrics []prometheus.Metric
	for _, s := range requests {
		labels := []string{d.options.NodeID, id, strings.ToLower(s.Op)}
		metrics = append(metrics,
			prometheus.MustNewConstMetric(descRequests, prometheus.CounterValue, float64(s.Requests), labels...),
			prometheus.MustNewConstHistogram(descRequestSeconds, s.Timed, s.Total.Seconds(), cumulative(s.Latency), labels...))
	}
	return metrics
}

// cumulative are the buckets of a histogram, by their limits in seconds.
func cumulative(latency []mountd.LatencyBucket) map[float64]uint64 {
	buckets := map[float64]uint64{}
	for _, bound := range latencyBounds {
		n := uint64(0)
		for _, b := range latency {
			if b.Below != 0 && b.Below <= bound {
				n += b.Requests
			}
		}
		buckets[bound.Seconds()] = n
	}
	return buckets
}
