package bench

import (
	"slices"
	"time"
)

// Latency summarises the durations of single operations.
type Latency struct {
	Mean   time.Duration `json:"mean"` // nanoseconds, as all below
	Median time.Duration `json:"median"`
	P99    time.Duration `json:"p99"`
}

// summarize sorts its argument.
func summarize(d []time.Duration) Latency {
	if len(d) == 0 {
		return Latency{}
	}
	slices.Sort(d)
	var sum time.Duration
	for _, v := range d {
		sum += v
	}
	return Latency{
		Mean:   sum / time.Duration(len(d)),
		Median: d[len(d)/2],
		P99:    d[(len(d)*99)/100],
	}
}

// median returns the middle value, or 0 of nothing. The argument stays as it
// is.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Clone(v)
	slices.Sort(s)
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}
