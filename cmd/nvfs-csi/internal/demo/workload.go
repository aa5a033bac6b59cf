package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
)

// A workload is one row of the table.
type workload struct {
	title string
	job   bench.FioJob
}

// workloads are what databases and file servers do to a volume. All are
// checked or sized so that the whole demo stays below two minutes.
var workloads = []workload{
	{"seq. write 1 MiB, verified", bench.FioJob{
		Name: "seqwrite", RW: "write", BlockSize: 1 << 20, Size: 256 << 20, Direct: true, Verify: true, CPU: bench.AnyCPU}},
	{"seq. read 1 MiB", bench.FioJob{
		Name: "seqread", RW: "read", BlockSize: 1 << 20, Size: 256 << 20, Direct: true, CPU: bench.AnyCPU}},
	{"random write 4 KiB, verified", bench.FioJob{
		Name: "randwrite", RW: "randwrite", BlockSize: 4096, Size: 64 << 20, Direct: true, Verify: true, CPU: bench.AnyCPU}},
	{"random read 4 KiB", bench.FioJob{
		Name: "randread", RW: "randread", BlockSize: 4096, Size: 64 << 20, Direct: true, Runtime: 2 * time.Second, CPU: bench.AnyCPU}},
	{"O_DSYNC append 4 KiB", bench.FioJob{
		Name: "append", RW: "write", BlockSize: 4096, Size: 40 << 20, Sync: "dsync", CPU: bench.AnyCPU}},
}

// comparison is what one workload did on NVFS and on its peer.
type comparison struct {
	title      string
	nvfs, peer bench.FioSide
}

// copyTree copies the source tree into the volume, compares it byte by byte
// and removes it again.
func copyTree(ctx context.Context, c *console, dir string) error {
	tree, err := bench.SourceTree(ctx)
	if err != nil {
		return err
	}
	dst := filepath.Join(dir, "go")
	what := fmt.Sprintf("cp -a %s: %d files, %s", tree.Dir, tree.Files, bench.FormatSize(tree.Bytes))
	if err := c.doing(what, func() error { _, err := bench.CopyTree(ctx, tree, dst); return err }); err != nil {
		return err
	}
	if err := c.doing("diff -r with the original", func() error { return bench.DiffTree(ctx, tree.Dir, dst) }); err != nil {
		return err
	}
	c.say("no difference")
	return c.doing("rm -rf", func() error { return os.RemoveAll(dst) })
}

// runWorkloads runs each workload on both filesystems, one after the other.
func runWorkloads(ctx context.Context, c *console, nvfs, peer string) ([]comparison, error) {
	var rows []comparison
	for _, w := range workloads {
		row := comparison{title: w.title}
		err := c.doing(w.title, func() (err error) {
			if row.nvfs, err = runSide(ctx, nvfs, w.job); err != nil {
				return err
			}
			row.peer, err = runSide(ctx, peer, w.job)
			return err
		})
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func runSide(ctx context.Context, dir string, job bench.FioJob) (bench.FioSide, error) {
	res, err := bench.RunFio(ctx, dir, job)
	return res.Side(job.RW), err
}

func comparisonTable(volume, numa, flush, peer string, rows []comparison) *bench.Table {
	t := &bench.Table{
		Header: []string{"volume", "NUMA", "flush mode", "job", "nvfs", "latency", peer, "latency", "nvfs : " + peer},
		Indent: indent,
	}
	for _, r := range rows {
		ratio := "-"
		if r.peer.BytesPerSec > 0 {
			ratio = fmt.Sprintf("%.2f x", r.nvfs.BytesPerSec/r.peer.BytesPerSec)
		}
		t.Add(volume, numa, flush, r.title,
			bench.FormatRate(r.nvfs.BytesPerSec), bench.FormatLatency(r.nvfs.Latency.Mean),
			bench.FormatRate(r.peer.BytesPerSec), bench.FormatLatency(r.peer.Latency.Mean), ratio)
	}
	return t
}
