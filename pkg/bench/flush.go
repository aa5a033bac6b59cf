package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// FlushOptions of RunFlush.
type FlushOptions struct {
	// ScratchOptions say which memory is measured. Path is the device, file or
	// directory; Scratch is needed for devdax and block devices.
	pmem.ScratchOptions
	// Modes, Sizes (bytes) and Writers are what to measure; empty is every
	// mode that the backing allows, 64 bytes to 1 MiB, and 1 to all CPUs. The
	// calibration, too, chooses among Modes.
	Modes   []pmem.Mode
	Sizes   []int
	Writers []int
	// Budget is how long to measure, the calibration aside; 0 is 10 seconds.
	Budget time.Duration
	// JSONFile, where set, receives the report.
	JSONFile string
	// Save puts the calibration where `auto` finds it: CalibrationFile, empty
	// for the default file.
	Save            bool
	CalibrationFile string
}

// FlushReport is what RunFlush measured.
type FlushReport struct {
	Machine  Machine      `json:"machine"`
	Backing  pmem.Backing `json:"backing"`
	Emulated bool         `json:"emulated"`
	NUMANode int          `json:"numaNode"`
	// Persists have random and sequential destinations; Stream is the linear
	// stream of small synchronous writes of the dm-devel thread on Optane.
	Persists    []pmem.Row       `json:"persists"`
	Stream      []pmem.Row       `json:"stream"`
	Calibration pmem.Calibration `json:"calibration"`
}

var (
	flushSizes  = []int{64, 128, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20}
	streamSizes = []int{512, 1024, 2048, 4096}
)

const flushBudget = 10 * time.Second

// RunFlush measures persists by flush mode, size and number of writers, prints
// the tables and the strategy that `auto` would choose, and returns all of it.
func RunFlush(ctx context.Context, opt FlushOptions, w io.Writer) (report *FlushReport, err error) {
	s, err := pmem.OpenScratch(opt.ScratchOptions)
	if err != nil {
		return nil, fmt.Errorf("bench flush: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if slices.Contains(opt.Modes, pmem.Auto) {
		return nil, fmt.Errorf("bench flush: mode %s is what the measurement decides: name others, or none to measure all", pmem.Auto)
	}
	opt.fillIn(s)
	r := &FlushReport{Machine: ThisMachine(), Backing: s.Backing(), Emulated: s.Emulated(), NUMANode: s.NUMANode()}
	if err := r.measure(ctx, s, opt); err != nil {
		return nil, fmt.Errorf("bench flush: %w", err)
	}
	if r.Calibration, err = s.Calibrate(ctx, 0, opt.Modes...); err != nil {
		return nil, fmt.Errorf("bench flush: %w", err)
	}
	if err := r.Write(w); err != nil {
		return nil, err
	}
	return r, r.keep(opt, w)
}

func (opt *FlushOptions) fillIn(s *pmem.Scratch) {
	if len(opt.Modes) == 0 {
		opt.Modes = s.Modes()
	}
	if len(opt.Sizes) == 0 {
		opt.Sizes = flushSizes
	}
	if len(opt.Writers) == 0 {
		opt.Writers = pmem.WriterCounts(s.CPUs())
	}
	if opt.Budget == 0 {
		opt.Budget = flushBudget
	}
}

// measure runs both sets of workloads, sharing the budget by their number.
func (r *FlushReport) measure(ctx context.Context, s *pmem.Scratch, opt FlushOptions) error {
	persists := append(
		flushWorkloads(opt, opt.Sizes, false),
		flushWorkloads(opt, opt.Sizes, true)...)
	stream := flushWorkloads(opt, streamSizes, true)
	each := opt.Budget / time.Duration(len(persists)+len(stream))
	var err error
	if r.Persists, err = s.MeasureAll(ctx, persists, each*time.Duration(len(persists))); err != nil {
		return err
	}
	r.Stream, err = s.MeasureAll(ctx, stream, each*time.Duration(len(stream)))
	return err
}

func flushWorkloads(opt FlushOptions, sizes []int, sequential bool) []pmem.Workload {
	var all []pmem.Workload
	for _, writers := range opt.Writers {
		for _, size := range sizes {
			for _, mode := range opt.Modes {
				all = append(all, pmem.Workload{Mode: mode, Size: size, Writers: writers, Sequential: sequential})
			}
		}
	}
	return all
}

// keep writes the JSON file and saves the calibration, where asked to, and says
// so.
func (r *FlushReport) keep(opt FlushOptions, w io.Writer) error {
	if opt.JSONFile != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			return fmt.Errorf("bench flush: %w", err)
		}
		if err := os.WriteFile(opt.JSONFile, append(text, '\n'), 0o644); err != nil {
			return fmt.Errorf("bench flush: %w", err)
		}
	}
	if !opt.Save {
		return nil
	}
	return r.saveCalibration(opt.CalibrationFile, w)
}

func (r *FlushReport) saveCalibration(file string, w io.Writer) error {
	if !r.Calibration.Measured {
		return fmt.Errorf("bench flush: nothing was saved for the flush mode auto: %s", r.Calibration.Why)
	}
	if file == "" {
		file = pmem.DefaultCalibrationFile
	}
	if err := pmem.SaveCalibration(file, r.Calibration); err != nil {
		return fmt.Errorf("bench flush: %w", err)
	}
	_, err := fmt.Fprintf(w, "  saved to %s: flush mode auto uses it from the next mount on\n", file)
	return err
}

// Write prints the report.
func (r *FlushReport) Write(w io.Writer) error {
	out := &flushWriter{w: w}
	out.printf("%s\n%s\n", r.Machine, r.memory())
	if slices.ContainsFunc(r.Persists, r.notDurable) {
		out.printf("eadr* needs the CPU caches inside the persistence domain, which they are not here: for comparison only\n")
	}
	for _, sequential := range []bool{false, true} {
		for _, writers := range distinctWriters(r.Persists) {
			out.printf("\nPersists to %s destinations, %s: ns per persist, GB/s\n", destination(sequential), countWriters(writers))
			out.table(r.table(r.Persists, sequential, writers, persistCell))
		}
	}
	for _, writers := range distinctWriters(r.Stream) {
		out.printf("\nStream of synchronous writes, %s: MB/s\n", countWriters(writers))
		out.table(r.table(r.Stream, true, writers, streamCell))
	}
	out.printf("\nauto: %s\n  because %s\n", r.Calibration.Choice, r.Calibration.Why)
	return out.err
}

// memory names what was measured, in one line.
func (r *FlushReport) memory() string {
	what := "persistent memory"
	if r.Emulated {
		what = "EMULATED persistent memory: only ratios mean anything"
	} else if r.Backing.Kind == pmem.KindFile || r.Backing.Kind == pmem.KindBlock {
		what = "not persistent memory"
	}
	node := "any NUMA node"
	if r.NUMANode >= 0 {
		node = fmt.Sprintf("NUMA node %d", r.NUMANode)
	}
	return fmt.Sprintf("%s (%s), %s; %s", r.Backing.Path, r.Backing.Kind, node, what)
}

// notDurable marks a row whose mode would lose stores on this backing.
func (r *FlushReport) notDurable(row pmem.Row) bool {
	return row.Mode == pmem.EADR && r.Backing.Domain != pmem.DomainCPUCache
}

// table has a line for each size and a column for each mode, and last the
// fastest of the modes that make stores durable.
func (r *FlushReport) table(rows []pmem.Row, sequential bool, writers int, cell func(pmem.Row) string) *Table {
	t := &Table{Header: []string{"size"}, Indent: "  "}
	var modes []pmem.Mode
	lines := map[int][]string{}
	fastest := map[int]pmem.Row{}
	var sizes []int
	for _, row := range rows {
		if row.Sequential != sequential || row.Writers != writers {
			continue
		}
		if !slices.Contains(modes, row.Mode) {
			modes = append(modes, row.Mode)
			t.Header = append(t.Header, r.modeName(row))
		}
		if lines[row.Size] == nil {
			sizes = append(sizes, row.Size)
			lines[row.Size] = []string{FormatSize(int64(row.Size))}
		}
		lines[row.Size] = append(lines[row.Size], cell(row))
		best, found := fastest[row.Size]
		if !r.notDurable(row) && (!found || row.NsPerPersist < best.NsPerPersist) {
			fastest[row.Size] = row
		}
	}
	t.Header = append(t.Header, "fastest")
	for _, size := range sizes {
		t.Add(append(lines[size], string(fastest[size].Mode))...)
	}
	return t
}

func (r *FlushReport) modeName(row pmem.Row) string {
	if r.notDurable(row) {
		return string(row.Mode) + "*"
	}
	return string(row.Mode)
}

func persistCell(row pmem.Row) string {
	return fmt.Sprintf("%.0f %6.2f", row.NsPerPersist, row.GBps)
}

func streamCell(row pmem.Row) string { return fmt.Sprintf("%.0f", row.GBps*1000) }

func destination(sequential bool) string {
	if sequential {
		return "sequential"
	}
	return "random"
}

func countWriters(n int) string {
	if n == 1 {
		return "1 writer"
	}
	return fmt.Sprintf("%d writers", n)
}

func distinctWriters(rows []pmem.Row) []int {
	var counts []int
	for _, row := range rows {
		if !slices.Contains(counts, row.Writers) {
			counts = append(counts, row.Writers)
		}
	}
	return counts
}

// flushWriter keeps the first error.
type flushWriter struct {
	w   io.Writer
	err error
}

func (o *flushWriter) printf(format string, args ...any) {
	if o.err == nil {
		_, o.err = fmt.Fprintf(o.w, format, args...)
	}
}

func (o *flushWriter) table(t *Table) {
	var b strings.Builder
	if o.err == nil {
		o.err = t.Write(&b)
	}
	o.printf("%s", b.String())
}
