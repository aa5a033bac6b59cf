//go:build soak

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSoakTwoThreads reports how much more two threads do than one, each in
// files of its own, on NVFS and on ext4. The time decides nothing here: read
// the figures, on a machine with nothing else to do.
func TestSoakTwoThreads(t *testing.T) {
	const rounds = 3
	type peer struct{ name, dir string }
	peers := []peer{{"ext4", mountExt4(t)}}
	for _, transport := range []string{"dev", "uring"} {
		v := newVolume(t, 256<<20)
		v.mount(t, "transport="+transport)
		peers = append(peers, peer{"nvfs " + transport, v.mnt})
	}
	rates := map[string][]float64{} // operations a second, a round each
	for range rounds {
		for _, w := range threadWorks {
			for _, p := range peers {
				for _, threads := range []int{1, 2} {
					key := fmt.Sprintf("%s, %s, %d", p.name, w.name, threads)
					rates[key] = append(rates[key], w.rate(t, p.dir, threads))
				}
			}
		}
	}
	for _, w := range threadWorks {
		for _, p := range peers {
			one := medianRate(rates[fmt.Sprintf("%s, %s, 1", p.name, w.name)])
			two := medianRate(rates[fmt.Sprintf("%s, %s, 2", p.name, w.name)])
			t.Logf("%-10s  %-28s  1 thread %8.0f/s  2 threads %8.0f/s  %.2f times", p.name, w.name, one, two, two/one)
		}
	}
}

// threadWork is what a thread does again and again. prepare returns one
// operation, which is told its number, and what ends the work.
type threadWork struct {
	name    string
	prepare func(dir string) (operation func(n int) error, end func() error, err error)
}

var threadWorks = []threadWork{
	{"4 KiB direct write", directWork(func(fd int, block []byte, off int64) error {
		_, err := unix.Pwrite(fd, block, off)
		return err
	})},
	{"4 KiB direct read", directWork(func(fd int, block []byte, off int64) error {
		_, err := unix.Pread(fd, block, off)
		return err
	})},
	{"mknod and unlink", func(dir string) (func(int) error, func() error, error) {
		return func(n int) error {
			name := filepath.Join(dir, fmt.Sprintf("name-%d", n))
			if err := unix.Mknod(name, unix.S_IFREG|0o600, 0); err != nil {
				return fmt.Errorf("mknod %s: %w", name, err)
			}
			return unix.Unlink(name)
		}, func() error { return nil }, nil
	}},
}

// directWork makes a file that is written in full, and transfers a block of it
// at a time.
func directWork(transfer func(fd int, block []byte, off int64) error) func(string) (func(int) error, func() error, error) {
	return func(dir string) (func(int) error, func() error, error) {
		const block, blocks = 4096, 2048
		name := filepath.Join(dir, "f")
		if err := os.WriteFile(name, make([]byte, block*blocks), 0o600); err != nil {
			return nil, nil, err
		}
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, nil, fmt.Errorf("open %s: %w", name, err)
		}
		mem, err := unix.Mmap(-1, 0, block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // O_DIRECT wants whole pages
		if err != nil {
			unix.Close(fd)
			return nil, nil, err
		}
		operation := func(n int) error { return transfer(fd, mem, int64(n*1021%blocks)*block) }
		end := func() error {
			if err := unix.Munmap(mem); err != nil {
				return err
			}
			return unix.Close(fd)
		}
		return operation, end, nil
	}
}

// rate lets so many threads work for a moment, each in a directory of its own,
// and returns the operations a second of all.
func (w threadWork) rate(t *testing.T, dir string, threads int) float64 {
	const span = 500 * time.Millisecond
	t.Helper()
	base, err := os.MkdirTemp(dir, "threads-")
	if err != nil {
		t.Fatal(err)
	}
	perSecond := make([]float64, threads)
	inParallel(t, threads, func(i int) error {
		own := filepath.Join(base, fmt.Sprint(i))
		if err := os.Mkdir(own, 0o700); err != nil {
			return err
		}
		operation, end, err := w.prepare(own)
		if err != nil {
			return err
		}
		n, start := 0, time.Now()
		for ; time.Since(start) < span; n++ {
			if err := operation(n); err != nil {
				return err
			}
		}
		perSecond[i] = float64(n) / time.Since(start).Seconds()
		return end()
	})
	if err := os.RemoveAll(base); err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, r := range perSecond {
		sum += r
	}
	return sum
}

// medianRate is the middle one of an odd number of rates.
func medianRate(rates []float64) float64 {
	slices.Sort(rates)
	return rates[len(rates)/2]
}
