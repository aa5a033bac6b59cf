package fusefs

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkMounted measures whole operations over the kernel on a filesystem
// that does next to nothing.
func BenchmarkMounted(b *testing.B) {
	for _, transport := range transports {
		b.Run(transport, func(b *testing.B) { benchMounted(b, transport) })
	}
}

func benchMounted(b *testing.B, transport string) {
	dir := mounted(b, nullKind, CacheThrough, transport)
	path := filepath.Join(dir, "f")
	must(b, os.WriteFile(path, make([]byte, 1<<20), 0o644))
	for _, size := range []int{4 << 10, 512 << 10} {
		b.Run(fmt.Sprintf("write-%dK", size>>10), func(b *testing.B) { benchData(b, path, size, unix.Pwrite) })
		b.Run(fmt.Sprintf("read-%dK", size>>10), func(b *testing.B) { benchData(b, path, size, unix.Pread) })
	}
	b.Run("create+unlink", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			name := filepath.Join(dir, strconv.Itoa(i))
			fd, err := unix.Open(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
			must(b, err)
			must(b, unix.Close(fd))
			must(b, unix.Unlink(name))
		}
	})
	b.Run("open+close", func(b *testing.B) {
		for b.Loop() {
			fd, err := unix.Open(path, unix.O_RDONLY, 0)
			must(b, err)
			must(b, unix.Close(fd))
		}
	})
}

func benchData(b *testing.B, path string, size int, op func(int, []byte, int64) (int, error)) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT, 0)
	must(b, err)
	defer unix.Close(fd)
	buf, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(b, err)
	defer unix.Munmap(buf)
	b.SetBytes(int64(size))
	for b.Loop() {
		n, err := op(fd, buf, 0)
		if n != size || err != nil {
			b.Fatalf("%d bytes, %v", n, err)
		}
	}
}
