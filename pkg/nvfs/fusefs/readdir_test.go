package fusefs

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
)

func someEntries(n int) []nvfs.DirEntry {
	es := []nvfs.DirEntry{
		{Name: []byte("."), Ino: 1, Type: unix.S_IFDIR, Cookie: 1},
		{Name: []byte(".."), Ino: 1, Type: unix.S_IFDIR, Cookie: 2},
	}
	for i := 0; len(es) < n; i++ {
		name := fmt.Sprintf("entry-%d%s", i, strings.Repeat("x", i%9))
		es = append(es, nvfs.DirEntry{Name: []byte(name), ID: nvfs.NodeID(100 + i), Type: unix.S_IFREG, Cookie: uint64(i + 3)})
	}
	return es
}

type listed struct {
	name   string
	ino    uint64
	kind   uint32
	cookie uint64
	node   uint64 // READDIRPLUS only
}

// readAll reads a whole directory in replies of at most size bytes.
func readAll(r *rig, op opcode, size uint32) []listed {
	r.t.Helper()
	var all []listed
	var cookie uint64
	for {
		e, b := r.do(r.request(op, 9, readWire{Offset: cookie, Size: size}))
		if e != 0 {
			r.t.Fatalf("errno %d", e)
		}
		if len(b) > int(size) {
			r.t.Fatalf("%d bytes in a buffer of %d", len(b), size)
		}
		if len(b) == 0 {
			return all
		}
		for len(b) > 0 {
			var l listed
			if op == opReaddirplus {
				l.node = (*direntPlus)(unsafe.Pointer(&b[0])).Entry.NodeId
				b = b[direntPlusSize-direntSize:]
			}
			d := (*dirent)(unsafe.Pointer(&b[0]))
			l.ino, l.kind, l.cookie = d.Ino, d.Type, d.Off
			l.name = string(b[direntSize : direntSize+int(d.NameLen)])
			all = append(all, l)
			b = b[align8(direntSize+int(d.NameLen)):]
			cookie = l.cookie
		}
	}
}

func TestReaddir(t *testing.T) {
	for _, op := range []opcode{opReaddir, opReaddirplus} {
		r := newRig(t, CacheThrough)
		r.w.entries = someEntries(50)
		r.w.missing = "entry-7xxxxxxx"
		got := readAll(r, op, 1000)
		if len(got) != 50 {
			t.Fatalf("%v: %d entries", op, len(got))
		}
		for i, e := range r.w.entries {
			l := got[i]
			ino := max(e.Ino, e.ID.Ino())
			if l.name != string(e.Name) || l.ino != ino || l.kind != e.Type>>12 || l.cookie != e.Cookie {
				t.Errorf("%v: entry %+v, want %+v", op, l, e)
			}
			// Lookups are counted for real names that are still there.
			counted := op == opReaddirplus && !isDots(e.Name) && l.name != r.w.missing
			if (l.node != 0) != counted {
				t.Errorf("%v: %s has node %d", op, l.name, l.node)
			}
		}
	}
}

func TestReaddirBufferTooSmall(t *testing.T) {
	r := newRig(t, CacheThrough)
	r.w.entries = someEntries(5)
	// An empty reply would mean the end of the directory.
	if e, _ := r.do(r.request(opReaddir, 9, readWire{Size: 16})); e != int(syscall.EINVAL) {
		t.Errorf("errno %d, want EINVAL", e)
	}
}
