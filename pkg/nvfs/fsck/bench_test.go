package fsck_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fsck"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// The tree that is checked: small files, every fourth with a block of data.
const (
	benchDirs  = 1000
	benchFiles = 200 // in each
	benchSize  = 1 << 30
	benchBytes = 2000
	perInode   = 4096
)

// benchVolume is an NVFS volume with the tree.
func benchVolume(b *testing.B) *pmem.Mapping {
	b.Helper()
	m := newVolume(b, benchSize, mkfs.Options{BytesPerInode: perInode})
	fs, err := nvfs.Mount(m, nvfs.Options{})
	if err != nil {
		b.Fatal(err)
	}
	w, err := fs.NewWorker()
	if err != nil {
		b.Fatal(err)
	}
	for d := range benchDirs {
		var at, f nvfs.Attr
		if err := w.Mkdir(nvfs.RootID, fmt.Appendf(nil, "directory %d", d), &nvfs.CreateArgs{Mode: 0o755}, &at); err != nil {
			b.Fatal(err)
		}
		for i := range benchFiles {
			if err := w.Mknod(at.ID, fmt.Appendf(nil, "file %d", i), &nvfs.CreateArgs{Mode: unix.S_IFREG | 0o644}, &f); err != nil {
				b.Fatal(err)
			}
			if i%4 == 0 {
				if _, err := w.Write(f.ID, 0, make([]byte, benchBytes), 0); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	w.Close()
	if err := fs.Unmount(); err != nil {
		b.Fatal(err)
	}
	return m
}

// BenchmarkCheck checks the tree with one thread; the metric is inodes per
// second and core.
func BenchmarkCheck(b *testing.B) {
	m := benchVolume(b)
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
// tmpfs. The checks take turns, so that all see the same machine.
func BenchmarkBesideE2fsck(b *testing.B) {
	m := benchVolume(b)
	image := ext4Image(b)
	var best [3]float64 // inodes per second: 1 and 2 threads, e2fsck
	for b.Loop() {
		for threads := 1; threads <= 2; threads++ {
			r, err := fsck.Check(context.Background(), m, fsck.Options{Threads: threads})
			if err != nil || r.Total() != 0 {
				b.Fatal(err, r.Problems)
			}
			best[threads-1] = max(best[threads-1], float64(r.Totals.Inodes)/r.Seconds)
		}
		began := time.Now()
		if out, err := exec.Command("e2fsck", "-fn", image).CombinedOutput(); err != nil {
			b.Fatalf("e2fsck: %v\n%s", err, out)
		}
		best[2] = max(best[2], benchDirs*(benchFiles+1)/time.Since(began).Seconds())
	}
	b.ReportMetric(best[0], "inodes/s/1-thread")
	b.ReportMetric(best[1], "inodes/s/2-threads")
	b.ReportMetric(best[2], "inodes/s/e2fsck")
	b.ReportMetric(best[0]/best[2], "x-e2fsck/1-thread")
	b.ReportMetric(best[1]/best[2], "x-e2fsck/2-threads")
}

// ext4Image makes an ext4 with the tree, of the same size and with as many
// inodes.
func ext4Image(b *testing.B) string {
	b.Helper()
	for _, tool := range []string{"mkfs.ext4", "e2fsck"} {
		if _, err := exec.LookPath(tool); err != nil {
			b.Skipf("%v: install e2fsprogs", err)
		}
	}
	dir, err := os.MkdirTemp("/dev/shm", "nvfs-e2fsck-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			b.Error(err)
		}
	})
	tree := filepath.Join(dir, "tree")
	for d := range benchDirs {
		sub := filepath.Join(tree, fmt.Sprintf("directory %d", d))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			b.Fatal(err)
		}
		for i := range benchFiles {
			var content []byte
			if i%4 == 0 {
				content = make([]byte, benchBytes)
			}
			if err := os.WriteFile(filepath.Join(sub, fmt.Sprintf("file %d", i)), content, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	image := filepath.Join(dir, "ext4")
	args := []string{"-q", "-F", "-d", tree, "-N", fmt.Sprint(benchSize / perInode), image, fmt.Sprintf("%dk", benchSize>>10)}
	if out, err := exec.Command("mkfs.ext4", args...).CombinedOutput(); err != nil {
		b.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	return image
}
