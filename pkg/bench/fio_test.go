package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

const sampleReport = `fio: a note before the document
{
  "fio version" : "fio-3.33",
  "jobs" : [ {
    "jobname" : "x", "error" : 0, "total_err" : 0,
    "read" : { "io_bytes" : 8192, "bw_bytes" : 4096.5, "iops" : 2.0,
      "clat_ns" : { "mean" : 1500.4, "percentile" : { "50.000000" : 1400, "99.000000" : 9000 } } },
    "write" : { "io_bytes" : 0, "bw_bytes" : 0, "iops" : 0.0, "clat_ns" : { "mean" : 0.0 } }
  } ]
}`

func TestParseFio(t *testing.T) {
	got, err := parseFio([]byte(sampleReport))
	if err != nil {
		t.Fatal(err)
	}
	want := FioSide{Bytes: 8192, BytesPerSec: 4096.5, IOPS: 2, Latency: Latency{Mean: 1500, Median: 1400, P99: 9000}}
	if got.Read != want {
		t.Errorf("read half %+v, want %+v", got.Read, want)
	}
	if got.Write != (FioSide{}) {
		t.Errorf("write half %+v, want zeros", got.Write)
	}
}

func TestParseFioRefuses(t *testing.T) {
	for name, report := range map[string]string{
		"nothing":      "",
		"no JSON":      "fio: bad option",
		"no job":       `{"jobs": []}`,
		"two jobs":     `{"jobs": [{}, {}]}`,
		"job error":    strings.Replace(sampleReport, `"error" : 0`, `"error" : 84`, 1),
		"hidden error": strings.Replace(sampleReport, `"total_err" : 0`, `"total_err" : 1`, 1),
	} {
		if _, err := parseFio([]byte(report)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestFioArgs(t *testing.T) {
	args := fioArgs("/d", "/o", FioJob{
		Name: "j", RW: "randwrite", BlockSize: 4096, Size: 1 << 20,
		Direct: true, Sync: "dsync", Runtime: 1500 * time.Millisecond, Verify: true, CPU: 1,
		Threads: true, OneFile: true,
	})
	for _, want := range []string{
		"--directory=/d", "--thread", "--filename=j.shared", "--rw=randwrite", "--bs=4096", "--size=1048576", "--ioengine=psync", "--numjobs=1",
		"--direct=1", "--sync=dsync", "--runtime=1500ms", "--verify=crc32c", "--cpus_allowed=1",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("%s is missing in %v", want, args)
		}
	}
	for _, arg := range fioArgs("/d", "/o", FioJob{CPU: AnyCPU}) {
		for _, unwanted := range []string{"--direct=", "--sync", "--time_based", "--verify", "--cpus_allowed"} {
			if strings.HasPrefix(arg, unwanted) {
				t.Errorf("unasked option %s", arg)
			}
		}
	}
}

func TestRunFio(t *testing.T) {
	dir := t.TempDir()
	res, err := RunFio(t.Context(), dir, FioJob{
		Name: "verified", RW: "randwrite", BlockSize: 4096, Size: 1 << 20, Verify: true, CPU: AnyCPU,
	})
	if err != nil {
		t.Fatal(err)
	}
	// Verification reads every block back.
	if res.Write.Bytes != 1<<20 || res.Read.Bytes != 1<<20 {
		t.Errorf("wrote %d and read %d bytes, want %d each", res.Write.Bytes, res.Read.Bytes, 1<<20)
	}
	if side := res.Side("randwrite"); side != res.Write || side.IOPS <= 0 || side.Latency.Mean <= 0 {
		t.Errorf("implausible result %+v", res)
	}
	assertEmptyDir(t, dir)
}

func TestRunFioReportsWhatFioSays(t *testing.T) {
	_, err := RunFio(t.Context(), t.TempDir(), FioJob{Name: "bad", RW: "sideways", BlockSize: 4096, Size: 4096, CPU: AnyCPU})
	if err == nil || !strings.Contains(err.Error(), "sideways") {
		t.Errorf("got %v, want fio's message about the bad value", err)
	}
}

func TestRunFioStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	dir := t.TempDir()
	_, err := RunFio(ctx, dir, FioJob{
		Name: "endless", RW: "randwrite", BlockSize: 4096, Size: 1 << 20, Runtime: time.Hour, CPU: AnyCPU,
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want context.DeadlineExceeded", err)
	}
	assertEmptyDir(t, dir)
}
