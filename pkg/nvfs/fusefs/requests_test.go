package fusefs

import (
	"testing"
	"time"
)

// Every request is counted, and one of eight of each opcode is timed, so that
// opcodes that alternate are timed alike.
func TestRequestsAreCountedAndTimed(t *testing.T) {
	r := newRig(t, CacheDirect)
	r.w.quiet = true
	before := statsOf(r.h.conn, opGetattr).Requests
	const pairs = 3*timedEach + 1
	for range pairs {
		for op, arguments := range map[opcode]any{opGetattr: [4]w32{}, opLookup: "name"} {
			if r.h.handle(r.request(op, 9, arguments), r.out) == 0 {
				t.Fatal("no reply")
			}
			r.h.done()
		}
	}
	for _, op := range []opcode{opGetattr, opLookup} {
		s := statsOf(r.h.conn, op)
		if op == opGetattr {
			s.Requests -= before
		}
		if s.Requests != pairs || s.Timed != 4 || s.Total <= 0 {
			t.Errorf("%v: %+v, want %d requests and 4 that were timed", op, s, pairs)
		}
		sum := uint64(0)
		for _, b := range s.Latency {
			sum += b.Requests
		}
		if sum != s.Timed {
			t.Errorf("%v: the buckets have %d, not %d", op, sum, s.Timed)
		}
	}
	if s := statsOf(r.h.conn, opWrite); s.Op != "" {
		t.Errorf("nobody has asked for it: %+v", s)
	}
}

func statsOf(c *conn, op opcode) RequestStats {
	for _, s := range c.requests() {
		if s.Op == op.String() {
			return s
		}
	}
	return RequestStats{}
}

func TestUnknownOpcodesAreCountedTogether(t *testing.T) {
	r := newRig(t, CacheDirect)
	for _, op := range []opcode{opcodes, 9999, 1 << 31} {
		r.h.handle(r.request(op, 9), r.out)
		r.h.done()
	}
	all := r.h.conn.requests()
	if last := all[len(all)-1]; last.Op != "unknown opcode" || last.Requests != 3 {
		t.Errorf("%+v", all)
	}
}

func TestLatencyBuckets(t *testing.T) {
	for took, want := range map[time.Duration]int{0: 0, firstBucket - 1: 0, firstBucket: 1, 2*firstBucket - 1: 1, 2 * firstBucket: 2, time.Hour: latencyBuckets - 1} {
		if got := bucketOf(took); got != want {
			t.Errorf("%v is in bucket %d, want %d", took, got, want)
		}
	}
	var o opCount
	o.end(time.Since(clockStart) - time.Hour)
	if o.latency[latencyBuckets-1].Load() != 1 || time.Duration(o.total.Load()) < time.Hour {
		t.Error("a request of an hour is not in the last bucket")
	}
}
