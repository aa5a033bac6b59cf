package fusefs

import (
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// FuzzHandle sends arbitrary messages. Whatever they hold, the reply is well
// formed, nothing panics, and a request that was begun is ended.
func FuzzHandle(f *testing.F) {
	seed := newRig(f, CacheThrough)
	for op := opcode(0); op < 56; op++ {
		f.Add(append([]byte(nil), seed.request(op, 1, "name", "other", [64]byte{1, 2, 3})...), byte(0))
	}
	f.Add(append([]byte(nil), seed.request(opWrite, 2, readWire{Size: 4}, []byte("data"))...), byte(1))
	f.Add(append([]byte(nil), seed.request(opBatchForget, 0, []w32{2, 0}, []w64{5, 1, 6, 1})...), byte(2))
	f.Add(append([]byte(nil), seed.request(opReaddirplus, 1, readWire{Size: 4096})...), byte(1))
	f.Add(append([]byte(nil), initMessage(seed, 7, 45, allOffered)...), byte(3))
	modes := []CacheMode{CacheThrough, CacheDirect, CacheWriteback}
	f.Fuzz(func(t *testing.T, data []byte, kind byte) {
		var r *rig
		if kind&3 == 3 {
			r = newRawRig(t, CacheThrough)
		} else {
			r = newRig(t, modes[kind&3])
		}
		r.h.conn.onPanic = func(fault Fault) { t.Errorf("%v\n%s", fault, fault.Stack) }
		r.w.entries = someEntries(10)
		r.w.data = []byte("value")
		msg := r.msg[:copy(r.msg, data)]
		if len(data)%2 == 0 && len(msg) >= inHeaderSize { // a right length leads further
			(*fuse.InHeader)(unsafe.Pointer(&msg[0])).Length = uint32(len(msg))
		}
		n := r.h.handle(msg, r.out)
		r.h.done()
		if r.w.begun != r.w.ended {
			t.Errorf("begun %d, ended %d", r.w.begun, r.w.ended)
		}
		if n == 0 {
			return
		}
		o := (*fuse.OutHeader)(unsafe.Pointer(&r.out[0]))
		if int(o.Length) != n || n < outHeaderSize || n > len(r.out) || o.Status > 0 || o.Status <= -512 {
			t.Errorf("reply %+v of %d bytes", o, n)
		}
		if o.Status != 0 && n != outHeaderSize {
			t.Errorf("an error with %d bytes", n-outHeaderSize)
		}
	})
}
