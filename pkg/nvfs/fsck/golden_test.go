package fsck_test

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

var update = flag.Bool("update-golden", false, "make the golden volume of the current format version anew")

const (
	goldenVolume = "testdata/v1.img.gz"
	goldenSize   = 16 << 20
)

// goldenFiles is what the golden volume holds, in the root and in a
// directory of so many names that it has index blocks.
func goldenFiles(visit func(dir bool, name string, size int)) {
	for i, size := range []int{0, 1, 300, 4096, 70000, 1 << 20} {
		visit(false, fmt.Sprintf("file %d", i), size)
	}
	for i := range 300 {
		visit(true, fmt.Sprintf("name number %d", i), i%3*200)
	}
}

func goldenData(name string, size int) []byte {
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(i*7>>3) ^ name[i%len(name)]
	}
	return p
}

func makeGolden(t *testing.T) {
	t.Helper()
	m := newVolume(t, goldenSize, mkfs.Options{Label: "golden", BytesPerInode: 16 << 10})
	fs, err := nvfs.Mount(m, nvfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := fs.NewWorker()
	if err != nil {
		t.Fatal(err)
	}
	var d, f nvfs.Attr
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.Mkdir(nvfs.RootID, []byte("directory"), &nvfs.CreateArgs{Mode: 0o755}, &d))
	goldenFiles(func(dir bool, name string, size int) {
		in := nvfs.RootID
		if dir {
			in = d.ID
		}
		must(w.Mknod(in, []byte(name), &nvfs.CreateArgs{Mode: unix.S_IFREG | 0o640}, &f))
		_, err := w.Write(f.ID, 0, goldenData(name, size), 0)
		must(err)
		must(w.SetXattr(f.ID, []byte("user.size"), fmt.Append(nil, size), 0))
	})
	must(w.Symlink(nvfs.RootID, []byte("link"), []byte("directory/name number 7"), &nvfs.CreateArgs{}, &f))
	w.Close()
	must(fs.Unmount())
	var z bytes.Buffer
	out, err := gzip.NewWriterLevel(&z, gzip.BestCompression)
	must(err)
	_, err = out.Write(m.Bytes()[:goldenSize])
	must(err)
	must(out.Close())
	must(os.MkdirAll("testdata", 0o755))
	must(os.WriteFile(goldenVolume, z.Bytes(), 0o644))
}

func loadGolden(t *testing.T) *pmem.Mapping {
	t.Helper()
	f, err := os.Open(goldenVolume)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	m, err := pmem.NewMemory(uint64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	p := m.NewPersister()
	p.Copy(0, data)
	if err := p.Fence(); err != nil {
		t.Fatal(err)
	}
	return m
}

// A volume that version 1 made stays readable.
func TestGoldenVolume(t *testing.T) {
	if *update {
		makeGolden(t)
	}
	m := loadGolden(t)
	if r := mustBeClean(t, m, "golden"); r.Label != "golden" || r.Totals.Names != 308 {
		t.Errorf("label %q, %d names", r.Label, r.Totals.Names)
	}
	fs, err := nvfs.Mount(m, nvfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := fs.NewWorker()
	if err != nil {
		t.Fatal(err)
	}
	var d, f nvfs.Attr
	if err := w.Lookup(nvfs.RootID, []byte("directory"), &d); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2<<20)
	goldenFiles(func(dir bool, name string, size int) {
		in := nvfs.RootID
		if dir {
			in = d.ID
		}
		if err := w.Lookup(in, []byte(name), &f); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if n, err := w.Read(f.ID, 0, buf); err != nil || !bytes.Equal(buf[:n], goldenData(name, size)) {
			t.Errorf("%s reads otherwise (%d bytes, %v)", name, n, err)
		}
		if n, err := w.GetXattr(f.ID, []byte("user.size"), buf); err != nil || string(buf[:n]) != fmt.Sprint(size) {
			t.Errorf("%s: attribute %q, %v", name, buf[:max(n, 0)], err)
		}
	})
	if err := w.Lookup(nvfs.RootID, []byte("link"), &f); err != nil {
		t.Fatal(err)
	}
	if n, err := w.Readlink(f.ID, buf); err != nil || string(buf[:n]) != "directory/name number 7" {
		t.Errorf("link leads to %q, %v", buf[:max(n, 0)], err)
	}
	w.Close()
	if err := fs.Unmount(); err != nil {
		t.Fatal(err)
	}
	mustBeClean(t, m, "unmounted")
}
