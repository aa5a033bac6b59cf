package fusefs

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// opcodes is above every opcode of the protocol; what is not known counts
	// as the last one.
	opcodes = 64
	// timedEach: of so many requests of one opcode the first is timed. Reading
	// the clock twice costs about as much as NVFS itself takes of a short one.
	timedEach = 8
	// latencyBuckets double from firstBucket on; the last one takes the rest.
	latencyBuckets = 23
	firstBucket    = 1024 * time.Nanosecond
)

// RequestStats are what a connection was asked for with one opcode, since its
// serving process started.
type RequestStats struct {
	Op       string `json:"op"` // as the protocol names it, such as WRITE
	Requests uint64 `json:"requests"`
	// Latency is of the requests that were timed, a fixed share: from when one
	// had been read until its reply was ready. Buckets without any are left out.
	Latency []LatencyBucket `json:"latency,omitempty"`
	Timed   uint64          `json:"timed"`
	Total   time.Duration   `json:"total"` // of all that were timed
}

// LatencyBucket counts requests that took less than Below and not less than the
// Below of the bucket before.
type LatencyBucket struct {
	Below    time.Duration `json:"below"` // 0: no limit
	Requests uint64        `json:"requests"`
}

// RequestCounter is implemented by transports that count what they are asked
// for.
type RequestCounter interface {
	// Requests may be called at any time. Opcodes that were never asked for are
	// left out.
	Requests() []RequestStats
}

// opCount counts the requests with one opcode of one handler.
type opCount struct {
	requests atomic.Uint64
	total    atomic.Uint64 // nanoseconds
	latency  [latencyBuckets]atomic.Uint64
}

// requestCounts are those of one handler. It alone writes them.
type requestCounts [opcodes]opCount

// clockStart is what time.Since is asked about: it reads the monotonic clock only.
var clockStart = time.Now()

// begin counts a request. If it is to be timed, timed is not nil, and end is to
// be called with both.
func (c *requestCounts) begin(op opcode) (timed *opCount, start time.Duration) {
	o := &c[min(op, opcodes-1)]
	if o.requests.Add(1)%timedEach != 1 {
		return nil, 0
	}
	return o, time.Since(clockStart)
}

func (o *opCount) end(start time.Duration) {
	took := time.Since(clockStart) - start
	o.total.Add(uint64(took))
	o.latency[bucketOf(took)].Add(1)
}

func bucketOf(took time.Duration) int {
	return min(bits.Len64(uint64(took/firstBucket)), latencyBuckets-1)
}

// requests implements RequestCounter for the transports.
func (c *conn) requests() []RequestStats {
	c.handlersMu.Lock()
	defer c.handlersMu.Unlock()
	var all []RequestStats
	for op := range opcode(opcodes) {
		if s := c.requestsOf(op); s.Requests > 0 {
			all = append(all, s)
		}
	}
	return all
}

// requestsOf adds up what the handlers have counted of one opcode.
func (c *conn) requestsOf(op opcode) RequestStats {
	s := RequestStats{Op: op.String()}
	var latency [latencyBuckets]uint64
	for _, h := range c.handlers {
		o := &h.counts[op]
		s.Requests += o.requests.Load()
		s.Total += time.Duration(o.total.Load())
		for i := range latency {
			latency[i] += o.latency[i].Load()
		}
	}
	for i, n := range latency {
		if n == 0 {
			continue
		}
		bucket := LatencyBucket{Below: firstBucket << i, Requests: n}
		if i == latencyBuckets-1 {
			bucket.Below = 0
		}
		s.Timed += n
		s.Latency = append(s.Latency, bucket)
	}
	return s
}
