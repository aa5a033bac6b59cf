package e2e

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
)

// fioRuntime is how long each verified job runs: NVFS_E2E_FIO_SECONDS, or
// short enough for every change.
func fioRuntime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("NVFS_E2E_FIO_SECONDS")
	if text == "" {
		return 3 * time.Second
	}
	seconds, err := strconv.Atoi(text)
	if err != nil || seconds <= 0 {
		t.Fatalf("NVFS_E2E_FIO_SECONDS=%q is no number of seconds", text)
	}
	return time.Duration(seconds) * time.Second
}

// TestFioVerify lets fio read back and compare everything that it writes, in
// each cache mode, with and without the page cache, by write(2) and through a
// mapping.
func TestFioVerify(t *testing.T) {
	runtime := fioRuntime(t)
	jobs := []bench.FioJob{
		{Name: "direct", RW: "randrw", BlockSize: 4096, Size: 32 << 20, Direct: true, Verify: true, Runtime: runtime, CPU: bench.AnyCPU},
		{Name: "buffered", RW: "randrw", BlockSize: 4096, Size: 32 << 20, Verify: true, Runtime: runtime, CPU: bench.AnyCPU},
		{Name: "mapped", RW: "randrw", BlockSize: 4096, Size: 32 << 20, Engine: "mmap", Verify: true, Runtime: runtime, CPU: bench.AnyCPU},
		{Name: "parallel", RW: "randrw", BlockSize: 16384, Size: 8 << 20, Processes: 4, Direct: true, Verify: true, Runtime: runtime, CPU: bench.AnyCPU},
	}
	for _, options := range []string{"cache=through", "cache=direct", "cache=writeback", "cache=through,transport=uring", "cache=direct,transport=uring"} {
		t.Run(options, func(t *testing.T) {
			v := newVolume(t, 512<<20)
			v.mount(t, options)
			for _, job := range jobs {
				res, err := bench.RunFio(t.Context(), v.mnt, job)
				if err != nil {
					t.Errorf("%s: %v", job.Name, err)
					continue
				}
				if res.Write.Bytes == 0 || res.Read.Bytes == 0 {
					t.Errorf("%s: read %d and wrote %d bytes", job.Name, res.Read.Bytes, res.Write.Bytes)
				}
			}
			v.unmount(t)
			v.check(t)
		})
	}
}
