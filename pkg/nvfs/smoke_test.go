package nvfs_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

func TestSmoke(t *testing.T) {
	m, err := pmem.NewMemory(256 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := mkfs.Format(m, mkfs.Options{Label: "x"}); err != nil {
		t.Fatal(err)
	}
	fs, err := nvfs.Mount(m, nvfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := fs.NewWorker()
	if err != nil {
		t.Fatal(err)
	}
	var st0, st nvfs.StatFS
	if err := w.StatFS(&st0); err != nil {
		t.Fatal(err)
	}
	var a, d nvfs.Attr
	if err := w.Mkdir(nvfs.RootID, []byte("dir"), &nvfs.CreateArgs{Mode: 0755}, &d); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 3<<20)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	for i := range 5000 {
		name := fmt.Appendf(nil, "file-%d", i)
		if err := w.Mknod(d.ID, name, &nvfs.CreateArgs{Mode: 0100644}, &a); err != nil {
			t.Fatal(i, err)
		}
		n := (i * 37) % 9000
		if i%500 == 0 {
			n = len(data) - i
		}
		if k, err := w.Write(a.ID, 0, data[:n], 0); err != nil || k != n {
			t.Fatal(i, k, err)
		}
		w.Forget(a.ID, 1)
	}
	buf := make([]byte, len(data))
	for i := range 5000 {
		name := fmt.Appendf(nil, "file-%d", i)
		if err := w.Lookup(d.ID, name, &a); err != nil {
			t.Fatal(i, err)
		}
		n := (i * 37) % 9000
		if i%500 == 0 {
			n = len(data) - i
		}
		if k, err := w.Read(a.ID, 0, buf); err != nil || k != n || !bytes.Equal(buf[:k], data[:n]) {
			t.Fatal(i, k, n, err)
		}
		w.Forget(a.ID, 1)
	}
	n := 0
	if err := w.ReadDir(d.ID, 0, func(e *nvfs.DirEntry) bool { n++; return true }); err != nil || n != 5002 {
		t.Fatal(n, err)
	}
	for i := range 5000 {
		if err := w.Unlink(d.ID, fmt.Appendf(nil, "file-%d", i)); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := w.Rmdir(nvfs.RootID, []byte("dir")); err != nil {
		t.Fatal(err)
	}
	w.Forget(d.ID, 1)
	if err := w.StatFS(&st); err != nil {
		t.Fatal(err)
	}
	if st != st0 {
		t.Fatalf("%+v\n%+v", st0, st)
	}
	w.Close()
	if err := fs.Unmount(); err != nil {
		t.Fatal(err)
	}
	if h := fs.Health(); h != "" {
		t.Fatal(h)
	}
}
