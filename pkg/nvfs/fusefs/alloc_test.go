package fusefs

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Garbage would be collected at the expense of requests.
func TestNoAllocations(t *testing.T) {
	data := make([]byte, 4096)
	for name, compose := range map[string]func(r *rig) []byte{
		"LOOKUP":      func(r *rig) []byte { return r.request(opLookup, 9, "name") },
		"GETATTR":     func(r *rig) []byte { return r.request(opGetattr, 9, [4]w32{}) },
		"READ":        func(r *rig) []byte { return r.request(opRead, 9, readWire{Size: 4096}) },
		"WRITE":       func(r *rig) []byte { return r.request(opWrite, 9, readWire{Size: 4096}, data) },
		"MKNOD":       func(r *rig) []byte { return r.request(opMknod, 9, []w32{unix.S_IFREG | 0o644, 0, 0, 0}, "name") },
		"CREATE":      func(r *rig) []byte { return r.request(opCreate, 9, []w32{0, 0o644, 0, 0}, "name") },
		"STATX":       func(r *rig) []byte { return r.request(opStatx, 9, [4]w64{}) },
		"READDIRPLUS": func(r *rig) []byte { return r.request(opReaddirplus, 9, readWire{Size: 4096}) },
	} {
		r := newRig(t, CacheDirect)
		r.w.quiet, r.w.data, r.w.entries = true, data, someEntries(20)
		msg := compose(r)
		run := func() {
			if n := r.h.handle(msg, r.out); n == 0 {
				t.Fatal("no reply")
			}
			r.h.done()
		}
		if n := testing.AllocsPerRun(100, run); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		r.w.err = syscall.ENOENT
		if n := testing.AllocsPerRun(100, run); n != 0 {
			t.Errorf("%s that fails: %v allocations", name, n)
		}
	}
}

func BenchmarkHandle(b *testing.B) {
	for _, op := range []struct {
		name    string
		compose func(r *rig) []byte
	}{
		{"getattr", func(r *rig) []byte { return r.request(opGetattr, 9, [4]w32{}) }},
		{"lookup", func(r *rig) []byte { return r.request(opLookup, 9, "some-name") }},
	} {
		b.Run(op.name, func(b *testing.B) {
			r := newRig(b, CacheThrough)
			r.w.quiet = true
			msg := op.compose(r)
			for b.Loop() {
				r.h.handle(msg, r.out)
				r.h.done()
			}
		})
	}
}
