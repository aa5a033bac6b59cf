package driver

import "github.com/prometheus/client_golang/prometheus"

// MetricDescriptions returns the descriptions of the driver's own metrics, for
// the documentation.
func MetricDescriptions() []*prometheus.Desc {
	all := make(chan *prometheus.Desc)
	go func() {
		defer close(all)
		(&driverMetrics{}).Describe(all)
		localityMetrics{}.Describe(all)
	}()
	var list []*prometheus.Desc
	for desc := range all {
		list = append(list, desc)
	}
	return list
}
