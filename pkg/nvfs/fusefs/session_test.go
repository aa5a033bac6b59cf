package fusefs

import (
	"encoding/json"
	"reflect"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

func initMessage(r *rig, major, minor uint32, offered uint64) []byte {
	return r.request(opInit, 0, [16]w32{major, minor, 128 << 10, w32(offered), w32(offered >> 32)})
}

func TestInit(t *testing.T) {
	for _, cache := range []CacheMode{CacheThrough, CacheDirect, CacheWriteback} {
		r := newRawRig(t, cache)
		e, b := r.do(initMessage(r, 7, 45, allOffered))
		if e != 0 {
			t.Fatalf("%s: errno %d", cache, e)
		}
		o := body[fuse.InitOut](t, b)
		s := r.h.conn.session.Load()
		if o.Flags64() != s.Flags || s.Cache != cache || s.ConnID == 0 || s.Minor != 45 {
			t.Errorf("%s: reply %+v, session %+v", cache, o, s)
		}
		if o.Major != 7 || o.MaxWrite != 512<<10 || o.MaxPages != 128 || o.TimeGran != 1 || o.MaxReadAhead != 128<<10 {
			t.Errorf("%s: %+v", cache, o)
		}
		for flag, name := range map[uint64]string{
			fuse.CAP_READDIRPLUS_AUTO: "READDIRPLUS_AUTO", fuse.CAP_PARALLEL_DIROPS: "PARALLEL_DIROPS",
			fuse.CAP_HANDLE_KILLPRIV_V2: "HANDLE_KILLPRIV_V2", fuse.CAP_POSIX_ACL: "POSIX_ACL", fuse.CAP_DONT_MASK: "DONT_MASK",
			fuse.CAP_SETXATTR_EXT: "SETXATTR_EXT", fuse.CAP_DIRECT_IO_ALLOW_MMAP: "DIRECT_IO_ALLOW_MMAP",
			fuse.CAP_EXPORT_SUPPORT: "EXPORT_SUPPORT", fuse.CAP_MAX_PAGES: "MAX_PAGES", fuse.CAP_INIT_EXT: "INIT_EXT",
			fuse.CAP_HAS_RESEND: "HAS_RESEND", fuse.CAP_ALLOW_IDMAP: "ALLOW_IDMAP", fuse.CAP_ABORT_ERROR: "ABORT_ERROR",
		} {
			if o.Flags64()&flag == 0 {
				t.Errorf("%s: %s is missing", cache, name)
			}
		}
		for flag, name := range map[uint64]string{
			fuse.CAP_POSIX_LOCKS: "POSIX_LOCKS", fuse.CAP_FLOCK_LOCKS: "FLOCK_LOCKS", fuse.CAP_ATOMIC_O_TRUNC: "ATOMIC_O_TRUNC",
			fuse.CAP_AUTO_INVAL_DATA: "AUTO_INVAL_DATA", fuse.CAP_PASSTHROUGH: "PASSTHROUGH", fuse.CAP_SECURITY_CTX: "SECURITY_CTX",
			fuse.CAP_OVER_IO_URING: "OVER_IO_URING", fuse.CAP_NO_EXPORT_SUPPORT: "NO_EXPORT_SUPPORT", fuse.CAP_HANDLE_KILLPRIV: "HANDLE_KILLPRIV",
		} {
			if o.Flags64()&flag != 0 {
				t.Errorf("%s: %s was asked for", cache, name)
			}
		}
		if wb := o.Flags64()&fuse.CAP_WRITEBACK_CACHE != 0; wb != (cache == CacheWriteback) {
			t.Errorf("%s: WRITEBACK_CACHE is %v", cache, wb)
		}
		if s.unimplemented(opOpen) != (cache != CacheDirect) || s.unimplemented(opCreate) != (cache != CacheDirect) {
			t.Errorf("%s: OPEN and CREATE", cache)
		}
	}
}

// Nothing may be asked for that the kernel does not offer, and what an answer
// relies on must be there.
func TestInitOldKernel(t *testing.T) {
	r := newRawRig(t, CacheThrough)
	const offered = fuse.CAP_ASYNC_READ | fuse.CAP_BIG_WRITES | fuse.CAP_MAX_PAGES | fuse.CAP_ALLOW_IDMAP
	if e, _ := r.do(initMessage(r, 7, 31, offered)); e != 0 {
		t.Fatalf("errno %d", e)
	}
	s := r.h.conn.session.Load()
	if s.Flags != offered&^uint64(fuse.CAP_ALLOW_IDMAP) {
		t.Errorf("flags %#x: mapped owners need POSIX_ACL, the rest is as offered", s.Flags)
	}
	if s.unimplemented(opOpen) || s.unimplemented(opOpendir) || s.unimplemented(opCreate) {
		t.Errorf("open is refused on a kernel that cannot do without")
	}
}

func TestInitRefused(t *testing.T) {
	for _, test := range []struct {
		major, minor uint32
		offered      uint64
		cache        CacheMode
	}{
		{7, 30, allOffered, CacheThrough},
		{6, 45, allOffered, CacheThrough},
		{7, 45, allOffered &^ uint64(fuse.CAP_WRITEBACK_CACHE), CacheWriteback},
	} {
		r := newRawRig(t, test.cache)
		if e, _ := r.do(initMessage(r, test.major, test.minor, test.offered)); e != int(syscall.EPROTO) {
			t.Errorf("%+v: errno %d, want EPROTO", test, e)
		}
		if r.h.conn.initErr.Load() == nil || r.h.conn.session.Load() != nil {
			t.Errorf("%+v: accepted", test)
		}
	}
}

// A kernel of a later major version is told ours and asks again.
func TestInitNewerMajor(t *testing.T) {
	r := newRawRig(t, CacheThrough)
	e, b := r.do(initMessage(r, 8, 0, 0))
	if o := body[fuse.InitOut](t, b); e != 0 || o.Major != 7 || r.h.conn.session.Load() != nil {
		t.Errorf("errno %d, %+v", e, o)
	}
	if e, _ := r.do(initMessage(r, 7, 45, allOffered)); e != 0 || r.h.conn.session.Load() == nil {
		t.Errorf("second INIT: errno %d", e)
	}
}

func TestSessionSurvivesJSON(t *testing.T) {
	s, err := negotiate(45, allOffered, CacheDirect)
	must(t, err)
	b, err := json.Marshal(s)
	must(t, err)
	var got Session
	must(t, json.Unmarshal(b, &got))
	if !reflect.DeepEqual(*s, got) {
		t.Errorf("%+v became %+v", *s, got)
	}
}

func TestParseCacheMode(t *testing.T) {
	if m, err := ParseCacheMode(""); err != nil || m != CacheThrough {
		t.Errorf("default %q, %v", m, err)
	}
	if _, err := ParseCacheMode("none"); err == nil {
		t.Errorf("none is accepted")
	}
}
