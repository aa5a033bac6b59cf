package fsck_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fsck"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// benchTree is a tree that is checked: make makes it in a directory.
type benchTree struct {
	name string
	size uint64 // of the volume
	make func(b *testing.B, dir string)
}

const perInode = 4096

var benchTrees = []benchTree{
	{"200000 small files", 1 << 30, func(b *testing.B, dir string) { smallFiles(b, dir, 1000) }},
	{"a million small files", 5 << 30, func(b *testing.B, dir string) { smallFiles(b, dir, 5000) }},
	{"Go source, 5 copies", 2 << 30, goSource},
}

// smallFiles makes directories of 200 files, every fourth with a block of
// data.
func smallFiles(b *testing.B, dir string, dirs int) {
	for d := range dirs {
		sub := filepath.Join(dir, fmt.Sprintf("directory %d", d))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			b.Fatal(err)
		}
		for i := range 200 {
			var content []byte
			if i%4 == 0 {
				content = make([]byte, 2000)
			}
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file %d", i)), content, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// goSource copies the source of the Go in use.
func goSource(b *testing.B, dir string) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		b.Fatal(err)
	}
	for i := range 5 {
		to := filepath.Join(dir, fmt.Sprint(i))
		if out, err := exec.Command("cp", "-a", filepath.Join(strings.TrimSpace(string(root)), "src"), to).CombinedOutput(); err != nil {
			b.Fatalf("cp: %v\n%s", err, out)
		}
	}
}

// tempDir is a directory in memory.
func tempDir(b *testing.B) string {
	dir, err := os.MkdirTemp("/dev/shm", "nvfs-fsck-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			b.Error(err)
		}
	})
	return dir
}

// benchVolume is an NVFS volume with what is in dir.
func benchVolume(b *testing.B, size uint64, dir string) *pmem.Mapping {
	b.Helper()
	m := newVolume(b, size, mkfs.Options{BytesPerInode: perInode})
	fs, err := nvfs.Mount(m, nvfs.Options{})
	if err != nil {
		b.Fatal(err)
	}
	w, err := fs.NewWorker()
	if err != nil {
		b.Fatal(err)
	}
	load(b, w, nvfs.RootID, dir)
	w.Close()
	if err := fs.Unmount(); err != nil {
		b.Fatal(err)
	}
	return m
}

// load copies the directories and regular files in dir.
func load(b *testing.B, w *nvfs.Worker, to nvfs.NodeID, dir string) {
	list, err := os.ReadDir(dir)
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range list {
		var a nvfs.Attr
		name, path := []byte(e.Name()), filepath.Join(dir, e.Name())
		switch {
		case e.IsDir():
			if err := w.Mkdir(to, name, &nvfs.CreateArgs{Mode: 0o755}, &a); err != nil {
				b.Fatal(err)
			}
			load(b, w, a.ID, path)
		case e.Type().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				b.Fatal(err)
			}
			if err := w.Mknod(to, name, &nvfs.CreateArgs{Mode: unix.S_IFREG | 0o644}, &a); err != nil {
				b.Fatal(err)
			}
			if len(content) == 0 {
				continue
			}
			if _, err := w.Write(a.ID, 0, content, 0); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkCheck checks a tree with one thread; the metric is inodes per
// second and core.
func BenchmarkCheck(b *testing.B) {
	dir := tempDir(b)
	benchTrees[0].make(b, dir)
	m := benchVolume(b, benchTrees[0].size, dir)
	b.ReportAllocs()
	inodes, seconds := 0.0, 0.0
	for b.Loop() {
		r, err := fsck.Check(context.Background(), m, fsck.Options{Threads: 1})
		if err != nil || r.Total() != 0 {
			b.Fatal(err, r.Problems)
		}
		inodes += float64(r.Totals.Inodes)
		seconds += r.Seconds
	}
	b.ReportMetric(inodes/seconds, "inodes/s/core")
}

// BenchmarkBesideE2fsck prints how fast the check is, with one thread and
// with two, beside e2fsck -fn on an ext4 with the same tree in a file on
// tmpfs. The checks take turns, so that all see the same machine; the best
// round of each counts.
func BenchmarkBesideE2fsck(b *testing.B) {
	for _, tree := range benchTrees {
		b.Run(tree.name, func(b *testing.B) {
			dir := tempDir(b)
			files := filepath.Join(dir, "tree")
			if err := os.Mkdir(files, 0o755); err != nil {
				b.Fatal(err)
			}
			tree.make(b, files)
			image := ext4Image(b, filepath.Join(dir, "ext4"), files, tree.size)
			m := benchVolume(b, tree.size, files)
			if err := os.RemoveAll(files); err != nil {
				b.Fatal(err)
			}
			besideE2fsck(b, m, image)
		})
	}
}

func besideE2fsck(b *testing.B, m *pmem.Mapping, image string) {
	var best [3]float64 // seconds: 1 and 2 threads, e2fsck
	note := func(i int, seconds float64) {
		if best[i] == 0 || seconds < best[i] {
			best[i] = seconds
		}
	}
	inodes := 0.0
	for b.Loop() {
		for threads := 1; threads <= 2; threads++ {
			r, err := fsck.Check(context.Background(), m, fsck.Options{Threads: threads})
			if err != nil || r.Total() != 0 {
				b.Fatal(err, r.Problems)
			}
			note(threads-1, r.Seconds)
			inodes = float64(r.Totals.Inodes)
		}
		began := time.Now()
		if out, err := exec.Command("e2fsck", "-fn", image).CombinedOutput(); err != nil {
			b.Fatalf("e2fsck: %v\n%s", err, out)
		}
		note(2, time.Since(began).Seconds())
	}
	b.ReportMetric(inodes/best[0], "inodes/s/1-thread")
	b.ReportMetric(inodes/best[1], "inodes/s/2-threads")
	b.ReportMetric(inodes/best[2], "inodes/s/e2fsck")
	b.ReportMetric(best[2]/best[0], "x-e2fsck/1-thread")
	b.ReportMetric(best[2]/best[1], "x-e2fsck/2-threads")
}

// ext4Image makes an ext4 with the tree, of the same size and with as many
// inodes.
func ext4Image(b *testing.B, image, tree string, size uint64) string {
	b.Helper()
	for _, tool := range []string{"mkfs.ext4", "e2fsck"} {
		if _, err := exec.LookPath(tool); err != nil {
			b.Skipf("%v: install e2fsprogs", err)
		}
	}
	args := []string{"-q", "-F", "-d", tree, "-N", fmt.Sprint(size / perInode), image, fmt.Sprintf("%dk", size>>10)}
	if out, err := exec.Command("mkfs.ext4", args...).CombinedOutput(); err != nil {
		b.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	return image
}
