package mountd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fusefs"
)

// foregroundCommand makes the test binary serve a volume by itself, with nobody
// to look after it.
const foregroundCommand = "foreground"

func foregroundSpec(path, mountpoint string) Spec {
	return Spec{VolumeID: "vol-foreground", Path: path, Mountpoint: mountpoint, Transport: survivingTransport, NUMANode: -1, Emulated: true, AllowOther: true}
}

// BenchmarkSupervisor compares a volume that keeper and mountd look after with
// one that a process serves alone: the same program, transport and kind of
// volume, mounted at the same time and measured in turn, so that whatever else
// happens on the machine happens to both. An iteration is one batch on each;
// the metrics are medians of the batches.
func BenchmarkSupervisor(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Fatal("this benchmark mounts FUSE and must run as root")
	}
	b.Setenv(helperEnv, "1")
	dir, err := os.MkdirTemp("/dev/shm", "nvfs-mountd-bench-")
	must(b, err)
	b.Cleanup(func() { must(b, os.RemoveAll(dir)) })
	supervised, alone := mountSupervised(b, filepath.Join(dir, "a")), mountAlone(b, filepath.Join(dir, "b"))
	for _, w := range workloads {
		b.Run(w.name, func(b *testing.B) {
			var first, second []time.Duration
			for b.Loop() {
				first = append(first, w.batch(b, supervised))
				second = append(second, w.batch(b, alone))
			}
			x, y := median(first), median(second)
			b.ReportMetric(float64(x)/float64(w.ops), "supervised-ns/op")
			b.ReportMetric(float64(y)/float64(w.ops), "alone-ns/op")
			b.ReportMetric(float64(x)/float64(y), "ratio")
			b.ReportMetric(0, "ns/op") // of both together: says nothing
		})
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// benchSpace makes what a mount needs in a new directory.
func benchSpace(b *testing.B, dir string) (medium, mountpoint string) {
	medium, mountpoint = filepath.Join(dir, "medium"), filepath.Join(dir, "mnt")
	must(b, os.MkdirAll(mountpoint, 0o755))
	must(b, os.WriteFile(medium, nil, 0o600))
	makeVolume(b, medium+realSuffix)
	return medium, mountpoint
}

func mountSupervised(b *testing.B, dir string) string {
	medium, mountpoint := benchSpace(b, dir)
	l := NewLauncher(LauncherOptions{Executable: os.Args[0], StateDir: filepath.Join(dir, "state"), LogDir: filepath.Join(dir, "log")})
	spec := foregroundSpec(medium, mountpoint)
	spec.VolumeID = "vol-supervised"
	must(b, l.Mount(b.Context(), spec))
	b.Cleanup(func() { must(b, l.Unmount(context.Background(), spec.VolumeID, mountpoint)) })
	return mountpoint
}

func mountAlone(b *testing.B, dir string) string {
	medium, mountpoint := benchSpace(b, dir)
	cmd := exec.Command(os.Args[0], foregroundCommand, "--state-dir", filepath.Join(dir, "state"), "--path", medium, "--mountpoint", mountpoint)
	cmd.Stderr = os.Stderr
	// Where the kernel groups processes by session it prefers to run those of one
	// group after another; neither server is to be in that of its user.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must(b, cmd.Start())
	b.Cleanup(func() {
		must(b, fusefs.Unmount(mountpoint))
		must(b, cmd.Wait())
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		mounted, err := fusefs.IsMountPoint(mountpoint)
		must(b, err)
		if mounted {
			must(b, Ping(mountpoint))
			return mountpoint
		}
		if time.Now().After(deadline) {
			b.Fatal("the volume is not mounted")
		}
	}
}

const (
	benchFileBytes = 8 << 20
	benchPiece     = 4 << 10
)

// workload is measured in batches of ops operations.
type workload struct {
	name string
	ops  int
	do   func(dir string, ops int) error
}

var workloads = []workload{
	{"write-4k-dsync", 500, func(dir string, ops int) error { return pieces(dir, ops, unix.O_DSYNC, (*os.File).WriteAt) }},
	{"read-4k-direct", 500, func(dir string, ops int) error { return pieces(dir, ops, unix.O_DIRECT, (*os.File).ReadAt) }},
	{"write-1M", 8, writeWhole},
	{"create-remove", 200, createRemove},
}

// batch returns how long a batch took.
func (w workload) batch(b *testing.B, dir string) time.Duration {
	begin := time.Now()
	must(b, w.do(dir, w.ops))
	return time.Since(begin)
}

// pieces reads or writes pieces of a file in an order that looks random.
func pieces(dir string, ops, flags int, do func(*os.File, []byte, int64) (int, error)) error {
	f, err := os.OpenFile(filepath.Join(dir, "pieces"), os.O_RDWR|os.O_CREATE|flags, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(benchFileBytes); err != nil {
		return err
	}
	buf, err := unix.Mmap(-1, 0, benchPiece, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // aligned
	if err != nil {
		return err
	}
	for i := range ops {
		const step = 769 // prime to the number of pieces
		if _, err := do(f, buf, int64(i*step%(benchFileBytes/benchPiece))*benchPiece); err != nil {
			return errors.Join(err, unix.Munmap(buf))
		}
	}
	return unix.Munmap(buf)
}

func writeWhole(dir string, ops int) error {
	f, err := os.OpenFile(filepath.Join(dir, "whole"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for i := range ops {
		if _, err := f.WriteAt(buf, int64(i%8)<<20); err != nil {
			return err
		}
	}
	return nil
}

func createRemove(dir string, ops int) error {
	for i := range ops {
		name := filepath.Join(dir, fmt.Sprintf("name %d", i))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Close(), os.Remove(name)); err != nil {
			return err
		}
	}
	return nil
}
