package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// shm is a directory on tmpfs.
func shm(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "bench-flush-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestRunFlush(t *testing.T) {
	dir := shm(t)
	opt := FlushOptions{
		ScratchOptions:  pmem.ScratchOptions{Path: dir, Size: 8 << 20},
		Sizes:           []int{64, 4096},
		Writers:         []int{1, 2},
		Budget:          50 * time.Millisecond,
		JSONFile:        filepath.Join(dir, "flush.json"),
		Save:            true,
		CalibrationFile: filepath.Join(dir, "calibration.json"),
	}
	var out bytes.Buffer
	report, err := RunFlush(context.Background(), opt, &out)
	if err != nil {
		t.Fatal(err)
	}
	modes := len(pmem.CPUModes())
	if got, want := len(report.Persists), modes*2*2*2; got != want {
		t.Errorf("%d persist rows, want %d", got, want)
	}
	if got, want := len(report.Stream), modes*4*2; got != want {
		t.Errorf("%d stream rows, want %d", got, want)
	}
	for _, row := range append(report.Persists, report.Stream...) {
		if row.NsPerPersist <= 0 || row.GBps <= 0 {
			t.Errorf("nothing measured: %+v", row)
		}
	}
	for _, want := range []string{"EMULATED", "random destinations, 2 writers", "Stream of synchronous writes, 1 writer", "auto: ", "because ", "saved to " + opt.CalibrationFile} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
	checkFlushFiles(t, opt, report)
}

// checkFlushFiles looks at what a run leaves behind: the report, the
// calibration, and no temporary file.
func checkFlushFiles(t *testing.T, opt FlushOptions, report *FlushReport) {
	t.Helper()
	text, err := os.ReadFile(opt.JSONFile)
	if err != nil {
		t.Fatal(err)
	}
	var read FlushReport
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	if len(read.Persists) != len(report.Persists) || !read.Emulated {
		t.Errorf("the JSON report differs: %d rows, emulated %v", len(read.Persists), read.Emulated)
	}
	c, err := pmem.LoadCalibration(opt.CalibrationFile, report.Backing)
	if err != nil || c.Choice != report.Calibration.Choice {
		t.Errorf("saved calibration: %v, %v; want %v", c.Choice, err, report.Calibration.Choice)
	}
	left, err := os.ReadDir(opt.Path)
	if err != nil || len(left) != 2 {
		t.Errorf("left behind: %v, %v; want the report and the calibration", left, err)
	}
}

// TestRunFlushChoosesAmongModes: what is saved is one of the modes asked for.
func TestRunFlushChoosesAmongModes(t *testing.T) {
	flush := pmem.CPUModes()[0]
	dir := shm(t)
	opt := FlushOptions{
		ScratchOptions:  pmem.ScratchOptions{Path: dir, Size: 8 << 20},
		Modes:           []pmem.Mode{flush},
		Sizes:           []int{64},
		Writers:         []int{1},
		Budget:          10 * time.Millisecond,
		Save:            true,
		CalibrationFile: filepath.Join(dir, "calibration.json"),
	}
	var out bytes.Buffer
	report, err := RunFlush(context.Background(), opt, &out)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pmem.LoadCalibration(opt.CalibrationFile, report.Backing)
	if err != nil || c.Choice.Small != flush || c.Choice.Bulk != flush {
		t.Errorf("saved %s, %v; want %s", c.Choice, err, flush)
	}
	opt.Modes, opt.CalibrationFile = []pmem.Mode{pmem.MSync}, filepath.Join(dir, "none.json")
	if _, err := RunFlush(context.Background(), opt, &out); err == nil || !strings.Contains(err.Error(), "nothing was saved") {
		t.Errorf("msync alone: %v, want to be told that there is no choice", err)
	}
	opt.Modes = []pmem.Mode{pmem.Auto}
	if _, err := RunFlush(context.Background(), opt, &out); err == nil || !strings.Contains(err.Error(), "auto") {
		t.Errorf("auto: %v, want a refusal", err)
	}
}

func TestRunFlushRefusals(t *testing.T) {
	opt := FlushOptions{ScratchOptions: pmem.ScratchOptions{Path: t.TempDir(), Size: 1 << 20}, Modes: []pmem.Mode{pmem.NT}, Budget: time.Millisecond}
	var modeError *pmem.ModeError
	if _, err := RunFlush(context.Background(), opt, &bytes.Buffer{}); !errors.As(err, &modeError) {
		t.Errorf("nt on a disk file: %v, want a ModeError", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	opt = FlushOptions{ScratchOptions: pmem.ScratchOptions{Path: shm(t), Size: 1 << 20}}
	if _, err := RunFlush(ctx, opt, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
