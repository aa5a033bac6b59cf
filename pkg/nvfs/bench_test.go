package nvfs_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// benchVolume is a volume in memory with a directory of 1000 files.
type benchVolume struct {
	*mounted
	dir  nvfs.NodeID
	file nvfs.NodeID // of benchFile bytes
	buf  []byte
}

const benchFile = 32 << 20

func newBenchVolume(tb testing.TB) *benchVolume {
	tb.Helper()
	space, err := pmem.NewMemory(256 << 20)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = space.Close() })
	if _, ok := tb.(*testing.B); ok { // not the page faults of fresh memory are to be measured
		space.NewPersister().Zero(0, space.Size())
	}
	format(tb, space, mkfs.Options{})
	v := &benchVolume{mounted: mount(tb, space, nil), buf: data('b', 1<<20)}
	v.totals()
	must := func(id nvfs.NodeID, err error) nvfs.NodeID {
		if err != nil {
			tb.Fatal(err)
		}
		return id
	}
	v.dir = must(v.create(nvfs.RootID, "dir", unix.S_IFDIR|0755))
	for i := range 1000 {
		must(v.create(v.dir, fmt.Sprintf("file-%d", i), unix.S_IFREG|0644))
	}
	v.file = must(v.create(nvfs.RootID, "big", unix.S_IFREG|0644))
	for off := 0; off < benchFile; off += len(v.buf) {
		if _, err := v.Write(v.file, uint64(off), v.buf, 0); err != nil {
			tb.Fatal(err)
		}
	}
	return v
}

// benchOps are the operations whose cost matters most. Each is called with
// the number of the call.
var benchOps = []struct {
	name   string
	bytes  int64
	allocs float64 // allowed for a call
	run    func(v *benchVolume, i int) error
}{
	{"Lookup", 0, 0, func(v *benchVolume, i int) error {
		var a nvfs.Attr
		err := v.Lookup(v.dir, []byte("file-500"), &a)
		v.Forget(a.ID, 1)
		return err
	}},
	{"GetAttr", 0, 0, func(v *benchVolume, i int) error {
		var a nvfs.Attr
		return v.GetAttr(v.file, &a)
	}},
	{"Read4K", 4096, 0, func(v *benchVolume, i int) error {
		_, err := v.Read(v.file, uint64(i*7919*4096%benchFile), v.buf[:4096])
		return err
	}},
	{"Read1M", 1 << 20, 0, func(v *benchVolume, i int) error {
		_, err := v.Read(v.file, uint64(i<<20%benchFile), v.buf)
		return err
	}},
	{"Overwrite4K", 4096, 0, func(v *benchVolume, i int) error {
		_, err := v.Write(v.file, uint64(i*7919*4096%benchFile), v.buf[:4096], 0)
		return err
	}},
	{"Overwrite1M", 1 << 20, 0, func(v *benchVolume, i int) error {
		_, err := v.Write(v.file, uint64(i<<20%benchFile), v.buf, 0)
		return err
	}},
	{"Append4K", 4096, 0, func(v *benchVolume, i int) error {
		const most = 20_000
		if i%most == 0 {
			var a nvfs.Attr
			if err := v.SetAttr(v.file, &nvfs.SetAttr{Valid: nvfs.SetSize, Size: benchFile}, &a); err != nil {
				return err
			}
		}
		_, err := v.Write(v.file, benchFile+uint64(i%most)*4096, v.buf[:4096], 0)
		return err
	}},
	{"CreateUnlink", 0, 0, func(v *benchVolume, i int) error {
		var a nvfs.Attr
		if err := v.Mknod(v.dir, []byte("new"), &nvfs.CreateArgs{Mode: unix.S_IFREG | 0644}, &a); err != nil {
			return err
		}
		v.Forget(a.ID, 1)
		return v.Unlink(v.dir, []byte("new"))
	}},
	{"Rename", 0, 0, func(v *benchVolume, i int) error {
		names := [2]string{"file-7", "renamed"}
		return v.Rename(v.dir, []byte(names[i%2]), v.dir, []byte(names[1-i%2]), 0)
	}},
	{"ReadDir1000", 0, 8, func(v *benchVolume, i int) error {
		n := 0
		err := v.ReadDir(v.dir, 0, func(*nvfs.DirEntry) bool { n++; return true })
		if n < 1000 {
			return fmt.Errorf("%d names", n)
		}
		return err
	}},
}

// request runs call i of an operation as a request of its own.
func (v *benchVolume) request(i int, run func(v *benchVolume, i int) error) error {
	v.Begin(&nvfs.Request{Conn: 1, Unique: uint64(i) + 3})
	defer v.End()
	return run(v, i)
}

func BenchmarkEngine(b *testing.B) {
	for _, op := range benchOps {
		b.Run(op.name, func(b *testing.B) {
			v := newBenchVolume(b)
			b.SetBytes(op.bytes)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if err := v.request(i, op.run); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

// TestNoAllocations keeps the garbage collector out of the data path.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	v := newBenchVolume(t)
	for _, op := range benchOps {
		i := 0
		got := testing.AllocsPerRun(200, func() {
			if err := v.request(i, op.run); err != nil {
				t.Fatal(op.name, err)
			}
			i++
		})
		if got > op.allocs {
			t.Errorf("%s allocates %v times", op.name, got)
		}
	}
}
