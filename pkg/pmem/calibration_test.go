package pmem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// rows makes a table from times in ns, by size in the order of
// calibrationSizes.
func rows(mode Mode, writers int, ns ...float64) []Row {
	var table []Row
	for i, t := range ns {
		if t > 0 {
			table = append(table, Row{Mode: mode, Size: calibrationSizes[i], Writers: writers, NsPerPersist: t, GBps: float64(writers*calibrationSizes[i]) / t})
		}
	}
	return table
}

func TestChoose(t *testing.T) {
	//                          64   128  256  512   1K    4K    16K   64K    1M
	clwb := rows(CLWB, 1, 100, 110, 130, 260, 400, 1000, 4000, 12000, 180000)
	clflush := rows(CLFLUSH, 1, 150, 300, 550, 1250, 2200, 8000, 30000, 120000, 1900000)
	nt := rows(NT, 1, 180, 180, 190, 200, 220, 350, 950, 3400, 50000)
	slowNT := rows(NT, 1, 90, 95, 120, 200, 800, 3000, 12000, 40000, 600000)
	candidates := []Mode{NT, CLFLUSH, CLWB}
	usual := Strategy{Small: CLWB, Bulk: NT, Threshold: 256}
	for _, test := range []struct {
		name  string
		table [][]Row
		want  Strategy
	}{
		{"streaming wins from 512 bytes", [][]Row{clwb, clflush, nt}, Strategy{Small: CLWB, Bulk: NT, Threshold: 512}},
		{"streaming wins below only", [][]Row{clwb, clflush, slowNT}, Strategy{Small: CLWB, Bulk: CLWB}},
		{"order of the table is no matter", [][]Row{nt, clflush, clwb}, Strategy{Small: CLWB, Bulk: NT, Threshold: 512}},
		{
			"throughput falls with writers",
			[][]Row{clwb, clflush, nt, rows(NT, 2, 0, 0, 0, 0, 0, 0, 0, 3600), rows(NT, 4, 0, 0, 0, 0, 0, 0, 0, 9000)},
			Strategy{Small: CLWB, Bulk: NT, Threshold: 512, WriterCap: 2},
		},
		{
			"throughput holds with writers",
			[][]Row{clwb, clflush, nt, rows(NT, 2, 0, 0, 0, 0, 0, 0, 0, 3600), rows(NT, 4, 0, 0, 0, 0, 0, 0, 0, 7300)},
			Strategy{Small: CLWB, Bulk: NT, Threshold: 512},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, why := choose(slices.Concat(test.table...), smallModes(candidates), candidates, usual)
			if got != test.want {
				t.Errorf("chose %s, want %s", got, test.want)
			}
			if !strings.Contains(why, "4096 B: "+string(test.want.Bulk)) {
				t.Errorf("the reason gives no figures: %q", why)
			}
		})
	}
}

// TestChooseIgnoresNoise: what is faster by no more than 5 % does not displace
// the default, and is not presented as worse.
func TestChooseIgnoresNoise(t *testing.T) {
	clwb := rows(CLWB, 1, 104, 114, 132, 260, 400, 1000, 4000, 12000, 180000)
	clflush := rows(CLFLUSH, 1, 100, 110, 260, 520, 800, 2000, 8000, 24000, 360000)
	fasterClflush := rows(CLFLUSH, 1, 90, 100, 125, 520, 800, 2000, 8000, 24000, 360000)
	nt := rows(NT, 1, 180, 180, 128, 128, 220, 350, 950, 3400, 50000)
	movdir := rows(MOVDIR64B, 1, 180, 180, 125, 126, 212, 340, 920, 3300, 49000)
	fasterMovdir := rows(MOVDIR64B, 1, 180, 180, 125, 126, 212, 300, 800, 3000, 40000)
	oneSize := rows(MOVDIR64B, 1, 180, 180, 126, 127, 221, 300, 950, 3400, 50000)
	usual := Strategy{Small: CLWB, Bulk: NT, Threshold: 256}
	for _, test := range []struct {
		name  string
		table [][]Row
		want  Strategy
		why   string
	}{
		{"all within the noise", [][]Row{movdir, clflush, nt, clwb}, usual, "64 B: clwb 104 ns, a tie with clflush; 4096 B: nt 350 ns, a tie with movdir64b"},
		{"clflush wins clearly", [][]Row{clwb, fasterClflush, nt}, Strategy{Small: CLFLUSH, Bulk: NT, Threshold: 256}, "64 B: clflush 90 ns, best other clwb 104 ns"},
		{"movdir64b wins clearly", [][]Row{nt, fasterMovdir, clwb, clflush}, Strategy{Small: CLWB, Bulk: MOVDIR64B, Threshold: 256}, "4096 B: movdir64b 300 ns, best other nt 350 ns"},
		{"one size alone decides nothing", [][]Row{clwb, nt, oneSize}, usual, "4096 B: nt 350 ns (movdir64b 300 ns, but no better"},
		{"one that streams", [][]Row{nt, clwb}, usual, "64 B: clwb 104 ns, best other nt 180 ns"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var candidates []Mode
			for _, table := range test.table {
				candidates = append(candidates, table[0].Mode)
			}
			got, why := choose(slices.Concat(test.table...), smallModes(candidates), candidates, usual)
			if got != test.want || !strings.Contains(why, test.why) {
				t.Errorf("chose %s because %q, want %s because %q", got, why, test.want, test.why)
			}
		})
	}
}

// TestCalibrateAmong: the choice is made among the modes that were asked for.
func TestCalibrateAmong(t *testing.T) {
	if !slices.Contains(cpuModes, NT) {
		t.Skip("this CPU has no non-temporal stores that a cache flush goes with")
	}
	s, err := OpenScratch(ScratchOptions{Path: tmpfsDir(t), Size: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	calibrate := func(modes ...Mode) Calibration {
		t.Helper()
		c, err := s.Calibrate(context.Background(), 20*time.Millisecond, modes...)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := calibrate(CLFLUSH); !c.Measured || c.Choice.Small != CLFLUSH || c.Choice.Bulk != CLFLUSH {
		t.Errorf("clflush alone: %+v", c.Choice)
	}
	want := NamedStrategy(NT)
	if c := calibrate(NT); !c.Measured || c.Choice.Small != want.Small || c.Choice.Bulk != NT || c.Choice.Threshold != want.Threshold {
		t.Errorf("nt alone: %s, want it paired as ever", c.Choice)
	}
	for _, row := range calibrate(CLFLUSH, NT).Table {
		if row.Mode != CLFLUSH && row.Mode != NT {
			t.Fatalf("%s was measured", row.Mode)
		}
	}
	if c := calibrate(MSync); c.Measured || !strings.Contains(c.Why, "nothing to choose among msync") {
		t.Errorf("msync alone: %+v", c)
	}
}

// TestEnsureCalibration: measured once per kind of memory and NUMA node, which
// may be one that this machine does not have.
func TestEnsureCalibration(t *testing.T) {
	if len(persistentModes(Backing{}, CPUModes())) < 2 {
		t.Skip("this CPU leaves no choice of modes")
	}
	dir := tmpfsDir(t)
	volume := newFile(t, dir, "volume", 1<<20)
	file := filepath.Join(t.TempDir(), "calibration.json")
	ensure := func(path string, node int) (Calibration, error) {
		return EnsureCalibration(context.Background(), file, CalibrateOptions{
			ScratchOptions: ScratchOptions{Path: path, Size: 8 << 20, Emulated: true, NUMANode: &node},
			Budget:         20 * time.Millisecond,
		})
	}
	first := map[int]Calibration{}
	for _, node := range []int{0, 1000} {
		c, err := ensure(dir, node)
		if err != nil || !c.Measured || c.NUMANode != node {
			t.Fatalf("node %d: %+v, %v", node, c, err)
		}
		first[node] = c
	}
	for node, want := range first {
		if c, err := ensure(dir, node); err != nil || !c.Time.Equal(want.Time) {
			t.Errorf("node %d was measured again: %v, %v", node, c.Time, err)
		}
		m := open(t, volume, Options{CalibrationFile: file, NUMANode: &node})
		if where := fmt.Sprintf("calibrated on NUMA node %d: ", node); m.Strategy() != want.Choice || !strings.Contains(m.Why(), where) {
			t.Errorf("auto on node %d: %s, %q; want %s", node, m.Strategy(), m.Why(), want.Choice)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	other := first[0]
	other.CPU = "another CPU"
	if err := SaveCalibration(file, other); err != nil {
		t.Fatal(err)
	}
	if c, err := ensure(dir, 0); err != nil || c.CPU != CPUModel() {
		t.Errorf("after a change of CPU: %q, %v", c.CPU, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ensure(dir, 0); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("damaged file: %v", err)
	}
}

// TestEnsureCalibrationSavesNoDefault: what was not measured is not kept.
func TestEnsureCalibrationSavesNoDefault(t *testing.T) {
	file := filepath.Join(t.TempDir(), "calibration.json")
	c, err := EnsureCalibration(context.Background(), file, CalibrateOptions{ScratchOptions: ScratchOptions{Path: diskDir(t), Size: 1 << 20}})
	if err != nil || c.Measured || c.Choice.Small != MSync {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file was written: %v", err)
	}
}

func TestPersistentModes(t *testing.T) {
	modes := []Mode{CLWB, NT, EADR, MSync}
	if got := persistentModes(Backing{Kind: KindTmpfs, Domain: DomainVolatile}, modes); !slices.Equal(got, []Mode{CLWB, NT}) {
		t.Errorf("volatile: %v", got)
	}
	if got := persistentModes(Backing{Kind: KindDevDax, Domain: DomainCPUCache}, modes); !slices.Equal(got, []Mode{CLWB, NT, EADR}) {
		t.Errorf("cpu_cache: %v", got)
	}
}

func calibrateIn(t *testing.T, path string) (Calibration, error) {
	t.Helper()
	return Calibrate(context.Background(), CalibrateOptions{
		ScratchOptions: ScratchOptions{Path: path, Size: 8 << 20},
		Budget:         20 * time.Millisecond,
	})
}

func TestCalibrate(t *testing.T) {
	if len(persistentModes(Backing{}, CPUModes())) < 2 {
		t.Skip("this CPU leaves no choice of modes")
	}
	dir := tmpfsDir(t)
	path := newFile(t, dir, "volume", 1<<20)
	served := open(t, path, Options{}) // a volume in use is no obstacle
	c, err := calibrateIn(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Measured || !c.Emulated || c.Kind != KindTmpfs || c.CPU != CPUModel() || c.Time.IsZero() {
		t.Errorf("calibration %+v", c)
	}
	if !strings.Contains(c.Why, "emulated") || len(c.Table) == 0 {
		t.Errorf("%d rows, because %q", len(c.Table), c.Why)
	}
	if c.Choice.Small == EADR || c.Choice.Bulk == EADR {
		t.Errorf("chose %s: it leaves stores in the caches", c.Choice)
	}
	for _, m := range []Mode{c.Choice.Small, c.Choice.Bulk} {
		if err := CheckMode(served.Backing(), false, m); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestCalibrateUnmeasured: where there is nothing to choose, or nowhere to
// measure, the default is given and says so.
func TestCalibrateUnmeasured(t *testing.T) {
	c, err := calibrateIn(t, diskDir(t))
	if err != nil || c.Measured || c.Choice.Small != MSync || c.Why == "" {
		t.Errorf("disk: %+v, %v", c, err)
	}
	if _, err := calibrateIn(t, filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

func TestScratchMustBeBlank(t *testing.T) {
	dir := tmpfsDir(t)
	path := newFile(t, dir, "scratch", 4<<20)
	opts := ScratchOptions{Path: dir, Scratch: path, Size: 1 << 20}
	for round := range 2 { // what a measurement leaves must do for the next
		s, err := OpenScratch(opts)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Max(content[:scratchBlank]) != 0 || slices.Max(content[scratchBlank:scratchBlank+1<<20]) == 0 {
		t.Error("the signature area must stay blank, and what follows be used")
	}
	content[4096] = 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenScratch(opts); err == nil || !strings.Contains(err.Error(), "not blank") {
		t.Errorf("scratch with data: %v", err)
	}
	served := open(t, newFile(t, dir, "served", 1<<20), Options{})
	opts.Scratch = served.Backing().Path
	if _, err := OpenScratch(opts); !errors.Is(err, ErrInUse) {
		t.Errorf("scratch in use: %v", err)
	}
}

func TestMeasureRefuses(t *testing.T) {
	s, err := OpenScratch(ScratchOptions{Path: tmpfsDir(t), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, w := range []Workload{
		{Mode: MSync, Size: 0, Writers: 1},
		{Mode: MSync, Size: 2 << 20, Writers: 1},
		{Mode: MSync, Size: 64, Writers: 0},
		{Mode: MSync, Size: 512 << 10, Writers: 3},
		{Mode: "fast", Size: 64, Writers: 1},
	} {
		if _, err := s.Measure(context.Background(), w, time.Millisecond); err == nil {
			t.Errorf("measured %+v", w)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Measure(ctx, Workload{Mode: MSync, Size: 64, Writers: 2}, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestCalibrationFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "calibration.json")
	tmpfs := Backing{Kind: KindTmpfs, NUMANode: -1, Domain: DomainVolatile, Volatile: true}
	if _, err := LoadCalibration(path, tmpfs); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	choice := NamedStrategy(CPUModes()[0])
	choice.WriterCap = 3
	saved := Calibration{Kind: KindTmpfs, NUMANode: -1, CPU: CPUModel(), Time: time.Now().UTC(), Measured: true, Choice: choice, Why: "a test", Table: []Row{{Mode: NT, Size: 64, Writers: 1}}}
	var savers sync.WaitGroup
	for node := range 4 { // none may lose another's entry
		savers.Go(func() {
			c := saved
			c.Kind, c.NUMANode, c.Why = KindDevDax, node, fmt.Sprint("node ", node)
			if err := SaveCalibration(path, c); err != nil {
				t.Error(err)
			}
		})
	}
	savers.Wait()
	if err := SaveCalibration(path, saved); err != nil {
		t.Fatal(err)
	}
	got, err := LoadCalibration(path, tmpfs)
	if err != nil || got.Choice != choice || got.Why != "a test" || len(got.Table) != 1 || !got.Time.Equal(saved.Time) {
		t.Errorf("loaded %+v, %v", got, err)
	}
	for node, want := range map[int]string{0: "node 0", 3: "node 3", 9: "node 0", -1: "node 0"} {
		if got, err := LoadCalibration(path, Backing{Kind: KindDevDax, NUMANode: node}); err != nil || got.Why != want {
			t.Errorf("node %d: %q, %v; want %q", node, got.Why, err, want)
		}
	}
	if _, err := LoadCalibration(path, Backing{Kind: KindDaxFile}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another kind: %v", err)
	}
	saved.CPU = "another CPU"
	if err := SaveCalibration(path, saved); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCalibration(path, tmpfs); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another CPU: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	testDamagedCalibration(t, path, saved)
}

func testDamagedCalibration(t *testing.T, path string, c Calibration) {
	t.Helper()
	for _, text := range []string{"", "{", `{"version": 99}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadCalibration(path, Backing{}); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("damaged file %q loaded: %v", text, err)
		}
		if err := SaveCalibration(path, c); err == nil {
			t.Errorf("damaged file %q was overwritten", text)
		}
	}
}

// TestAutoUsesCalibration follows Auto through what it may find.
func TestAutoUsesCalibration(t *testing.T) {
	if !slices.ContainsFunc(cpuModes, Mode.flushes) {
		t.Skip("without a flush instruction auto is always msync")
	}
	volume := newFile(t, tmpfsDir(t), "volume", 1<<20)
	file := filepath.Join(t.TempDir(), "calibration.json")
	calibrated := Calibration{Kind: KindTmpfs, NUMANode: -1, CPU: CPUModel(), Choice: Strategy{Small: CPUModes()[0], Bulk: CPUModes()[0], WriterCap: 7}, Why: "it was fastest"}
	strategyOf := func(opts Options) (Strategy, string) {
		t.Helper()
		opts.CalibrationFile = file
		m := open(t, volume, opts)
		defer m.Close()
		if m.Mode() != Auto {
			t.Errorf("mode %s", m.Mode())
		}
		return m.Strategy(), m.Why()
	}
	b, err := Probe(volume)
	if err != nil {
		t.Fatal(err)
	}
	fallback, why := DefaultStrategy(b, false)
	if got, reason := strategyOf(Options{}); got != fallback || reason != why {
		t.Errorf("no file: %s, %q", got, reason)
	}
	if err := SaveCalibration(file, calibrated); err != nil {
		t.Fatal(err)
	}
	if got, reason := strategyOf(Options{Mode: Auto}); got != calibrated.Choice || !strings.Contains(reason, calibrated.Why) {
		t.Errorf("saved: %s, %q", got, reason)
	}
	passed := calibrated
	passed.Choice.WriterCap = 9
	if got, _ := strategyOf(Options{Calibration: &passed}); got != passed.Choice {
		t.Errorf("passed: %s", got)
	}
	calibrated.Choice.Bulk = "gone"
	if err := SaveCalibration(file, calibrated); err != nil {
		t.Fatal(err)
	}
	if got, reason := strategyOf(Options{}); got != fallback || !strings.Contains(reason, "not possible") {
		t.Errorf("impossible choice: %s, %q", got, reason)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, reason := strategyOf(Options{}); got != fallback || !strings.Contains(reason, "damaged") {
		t.Errorf("damaged file: %s, %q", got, reason)
	}
}

func TestCalibrationJSON(t *testing.T) {
	text, err := json.Marshal(Calibration{Choice: Strategy{Small: CLWB, Bulk: NT, Threshold: 512}})
	if err != nil || !strings.Contains(string(text), `"choice":{"small":"clwb","bulk":"nt","threshold":512}`) {
		t.Errorf("%s, %v", text, err)
	}
}
