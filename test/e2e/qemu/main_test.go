//go:build qemu

package qemu

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/qemu/guestjob"
)

// The programs that guests run.
const (
	guestTests = "guest.test" // package guest
	nvfsCSI    = "nvfs-csi"
	nvfsTools  = "nvfs" // the tools and what serves volumes; it starts faster
)

// prepareTimeout bounds downloads, images and builds.
const prepareTimeout = 12 * time.Minute

// base is the machine that all tests start from; set by TestMain.
var base machine

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := prepareAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e/qemu:", err)
		code = 1
	}
	os.Exit(code)
}

func prepareAndRun(m *testing.M) (int, error) {
	work, err := os.MkdirTemp("", "nvfs-qemu-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), prepareTimeout)
	defer cancel()
	if base, err = prepare(ctx, work); err != nil {
		return 0, err
	}
	fmt.Printf("e2e/qemu: images and programs ready after %.0f s; accelerator %s\n", time.Since(start).Seconds(), base.accelerator)
	return m.Run(), nil
}

// prepare makes the images and builds what runs in the guest.
func prepare(ctx context.Context, work string) (machine, error) {
	builder := jobBuilder{repository: "../../..", work: work}
	m := machine{accelerator: tcg, timeout: 4 * time.Minute}
	var init string
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { m.images, err = cachedImages(gctx); return err })
	g.Go(func() error {
		tests, err := builder.tests(gctx, "./test/e2e/qemu/guest", guestTests)
		if err != nil {
			return err
		}
		driver, err := builder.program(gctx, "./cmd/nvfs-csi", nvfsCSI)
		if err != nil {
			return err
		}
		tools, err := builder.program(gctx, "./cmd/nvfs-csi", nvfsTools, "-tags", "nvfstools")
		if err != nil {
			return err
		}
		if init, err = builder.program(gctx, "./test/e2e/qemu/guestinit", "init"); err != nil {
			return err
		}
		m.programs, err = builder.programsImage(gctx, tests, driver, tools)
		return err
	})
	if err := g.Wait(); err != nil {
		return m, err
	}
	archive, err := initramfs(init, m.images.modules)
	if err != nil {
		return m, err
	}
	m.initramfs = filepath.Join(work, "initramfs")
	if err := os.WriteFile(m.initramfs, archive, 0o644); err != nil {
		return m, err
	}
	m.accelerator = chooseAccelerator(ctx, m, work)
	return m, nil
}

// newNVDIMMs makes two NVDIMMs with regions of that size for one test.
func newNVDIMMs(t *testing.T, size int64) []nvdimm {
	t.Helper()
	dir, err := os.MkdirTemp(memoryDir(2*size), "nvfs-qemu-nvdimm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var all []nvdimm
	for node := range 2 {
		n := nvdimm{file: filepath.Join(dir, fmt.Sprintf("nvdimm%d", node)), size: size}
		if err := n.create(); err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

// memoryDir is a tmpfs with room for size bytes; else the directory for
// temporary files, where the files stay sparse.
func memoryDir(size int64) string {
	const shm = "/dev/shm"
	var st unix.Statfs_t
	if err := unix.Statfs(shm, &st); err == nil && st.Type == unix.TMPFS_MAGIC && int64(st.Bavail)*st.Bsize > size {
		return shm
	}
	return ""
}

// guestRun boots a machine that runs guest tests; they appear in the output of
// this test. Each pattern is for one -test.run, one after the other; the guest
// ends with the first that fails.
func guestRun(t *testing.T, m machine, patterns ...string) {
	t.Helper()
	if m.modules == nil {
		m.modules = guestModules
	}
	job := guestjob.Job{Modules: m.modules, State: m.state != ""}
	for _, pattern := range patterns {
		args := []string{guestTests, "-test.run", pattern, "-test.timeout", (m.timeout * 9 / 10).String()}
		if testing.Verbose() {
			args = append(args, "-test.v")
		}
		job.Commands = append(job.Commands, guestjob.Command{Args: args})
	}
	start := time.Now()
	code, err := m.boot(t.Context(), t.TempDir(), job, guestOutput{t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	if code != 0 {
		t.Fatalf("the tests in the guest failed with exit code %d", code)
	}
	t.Logf("guest ran %.0f s", time.Since(start).Seconds())
}

// guestOutput writes lines of a guest to the output of the tests. Guests run two
// at a time, so that each line says whose it is.
type guestOutput struct{ name string }

// Write implements io.Writer; it is given whole lines.
func (o guestOutput) Write(line []byte) (int, error) {
	if _, err := fmt.Fprintf(os.Stdout, "    %s | %s", o.name, line); err != nil {
		return 0, err
	}
	return len(line), nil
}

// newState makes a disk that outlives a guest.
func newState(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	empty, image := filepath.Join(dir, "empty"), filepath.Join(dir, "state.ext4")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := makeExt4(t.Context(), empty, image, "16M"); err != nil {
		t.Fatal(err)
	}
	return image
}
