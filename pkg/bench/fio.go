package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// FioJob describes one run of fio on one filesystem.
type FioJob struct {
	Name      string
	RW        string // read, write, randread, randwrite, randrw
	BlockSize int    // bytes
	Size      int64  // bytes of the file, per process
	Processes int    // 0 is 1
	Threads   bool   // threads in place of processes
	OneFile   bool   // all of them work on the same file
	Keep      bool   // leave the files for a job of the same name and size
	Direct    bool   // O_DIRECT
	Sync      string // "", "dsync" or "sync"
	Engine    string // "" is psync
	Depth     int    // requests in flight of an asynchronous engine; 0 is 1
	Runtime   time.Duration
	Verify    bool // checksum in each block, read back and compared
	CPU       int  // AnyCPU or the CPU that fio is bound to
}

// FioSide is the reading or the writing half of a run.
type FioSide struct {
	Bytes       int64   `json:"bytes"`
	BytesPerSec float64 `json:"bytesPerSec"`
	IOPS        float64 `json:"iops"`
	Latency     Latency `json:"latency"`
}

// FioResult is what fio measured. A run with a failed verification is an
// error, not a result.
type FioResult struct {
	Read  FioSide `json:"read"`
	Write FioSide `json:"write"`
}

// Side returns the half that the job's kind is about; of a mixed job the
// reads.
func (r FioResult) Side(rw string) FioSide {
	if strings.HasSuffix(rw, "write") {
		return r.Write
	}
	return r.Read
}

// fioStopGrace is how long fio has to remove its processes when it is told
// to stop.
const fioStopGrace = 5 * time.Second

// RunFio runs the job in dir and removes its files. It needs fio 3 on PATH.
func RunFio(ctx context.Context, dir string, job FioJob) (FioResult, error) {
	out, err := os.CreateTemp("", "nvfs-fio-*.json")
	if err != nil {
		return FioResult{}, err
	}
	out.Close()
	defer os.Remove(out.Name())
	if !job.Keep {
		defer removeFioFiles(dir, job.Name)
	}

	cmd := exec.CommandContext(ctx, "fio", fioArgs(dir, out.Name(), job)...)
	// fio drops verify state and other files where it stands.
	cmd.Dir = filepath.Dir(out.Name())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = fioStopGrace
	var messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &messages, &messages
	runErr := cmd.Run()
	if ctx.Err() != nil {
		return FioResult{}, ctx.Err()
	}
	if errors.Is(runErr, exec.ErrNotFound) {
		return FioResult{}, fmt.Errorf("fio is not installed: apt-get install fio: %w", runErr)
	}
	report, err := os.ReadFile(out.Name())
	if err != nil {
		return FioResult{}, err
	}
	res, parseErr := parseFio(report)
	if runErr != nil || parseErr != nil {
		return FioResult{}, fmt.Errorf("fio job %s in %s: %w\n%s", job.Name, dir,
			errors.Join(runErr, parseErr), strings.TrimSpace(messages.String()))
	}
	return res, nil
}

func fioArgs(dir, output string, job FioJob) []string {
	engine := job.Engine
	if engine == "" {
		engine = "psync"
	}
	args := []string{
		"--output-format=json", "--output=" + output,
		"--name=" + job.Name, "--directory=" + dir,
		"--rw=" + job.RW, "--bs=" + strconv.Itoa(job.BlockSize),
		"--size=" + strconv.FormatInt(job.Size, 10),
		"--ioengine=" + engine, "--iodepth=" + strconv.Itoa(max(1, job.Depth)),
		"--numjobs=" + strconv.Itoa(max(1, job.Processes)),
		"--group_reporting", "--randrepeat=1", "--fallocate=none",
	}
	if job.Threads {
		args = append(args, "--thread")
	}
	if job.OneFile {
		args = append(args, "--filename="+job.Name+".shared")
	}
	if job.Direct {
		args = append(args, "--direct=1")
	}
	if job.Sync != "" {
		args = append(args, "--sync="+job.Sync)
	}
	if job.Runtime > 0 {
		args = append(args, "--time_based", "--runtime="+strconv.FormatInt(job.Runtime.Milliseconds(), 10)+"ms")
	}
	if job.Verify {
		args = append(args, "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--serialize_overlap=1")
	}
	if job.CPU != AnyCPU {
		args = append(args, "--cpus_allowed="+strconv.Itoa(job.CPU))
	}
	return args
}

func removeFioFiles(dir, name string) {
	files, _ := filepath.Glob(filepath.Join(dir, name+".*"))
	for _, f := range files {
		os.Remove(f)
	}
}

// fioReport is the part of fio's JSON output that is used; durations are
// nanoseconds.
type fioReport struct {
	Jobs []struct {
		Name     string        `json:"jobname"`
		Error    int           `json:"error"`
		TotalErr int           `json:"total_err"`
		Read     fioReportSide `json:"read"`
		Write    fioReportSide `json:"write"`
	} `json:"jobs"`
}

type fioReportSide struct {
	Bytes       int64   `json:"io_bytes"`
	BytesPerSec float64 `json:"bw_bytes"`
	IOPS        float64 `json:"iops"`
	Latency     struct {
		Mean       float64          `json:"mean"`
		Percentile map[string]int64 `json:"percentile"`
	} `json:"clat_ns"`
}

func parseFio(report []byte) (FioResult, error) {
	// Notes about the job may stand before the JSON document.
	if i := bytes.IndexByte(report, '{'); i > 0 {
		report = report[i:]
	}
	var r fioReport
	if err := json.Unmarshal(report, &r); err != nil {
		return FioResult{}, fmt.Errorf("parse fio's report: %w", err)
	}
	if len(r.Jobs) != 1 {
		return FioResult{}, fmt.Errorf("fio reported %d jobs, expected 1", len(r.Jobs))
	}
	job := r.Jobs[0]
	if job.Error != 0 || job.TotalErr != 0 {
		return FioResult{}, fmt.Errorf("fio reports error %d (%w), %d errors in all", job.Error, syscall.Errno(job.Error), job.TotalErr)
	}
	return FioResult{Read: job.Read.side(), Write: job.Write.side()}, nil
}

func (s fioReportSide) side() FioSide {
	return FioSide{
		Bytes:       s.Bytes,
		BytesPerSec: s.BytesPerSec,
		IOPS:        s.IOPS,
		Latency: Latency{
			Mean:   time.Duration(s.Latency.Mean),
			Median: time.Duration(s.Latency.Percentile["50.000000"]),
			P99:    time.Duration(s.Latency.Percentile["99.000000"]),
		},
	}
}
