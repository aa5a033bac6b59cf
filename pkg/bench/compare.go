package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CompareOptions say what Compare does.
type CompareOptions struct {
	Memory      *Memory // where all filesystems lie
	Size        int64   // of each filesystem, in bytes
	Rounds      int     // each workload is measured so often on each
	Filesystems []Filesystem
	// Variants are the names of filesystems that only the workloads with
	// Variants set run on.
	Variants  []string
	Workloads []Workload
	Progress  io.Writer // one line a round and workload
}

// Comparison is one run, all filesystems side by side.
type Comparison struct {
	Machine   Machine   `json:"machine"`
	Emulated  bool      `json:"emulated"` // the memory is DRAM
	Started   time.Time `json:"started"`
	Ended     time.Time `json:"ended"`
	LoadStart float64   `json:"loadStart"` // load average of one minute
	// Others is how many CPUs other programs kept busy before each round, and
	// after the last one.
	Others      []float64         `json:"others"`
	Rounds      int               `json:"rounds"`
	Size        int64             `json:"size"` // of each filesystem, in bytes
	HugePages   bool              `json:"hugePages"`
	Filesystems []string          `json:"filesystems"`
	Kinds       map[string]Kind   `json:"kinds"` // by filesystem
	Variants    []string          `json:"variants,omitempty"`
	Notes       map[string]string `json:"notes"` // by filesystem
	// LeftOut are filesystems that this machine cannot mount, with the reason.
	LeftOut []string        `json:"leftOut,omitempty"`
	Rows    []ComparisonRow `json:"rows"`
	// RSSAnon is the DRAM of each serving process in bytes.
	RSSAnon  map[string]RSSReport `json:"rssAnon"`
	Failures []Failure            `json:"failures,omitempty"`
}

// ComparisonRow is one figure. Median, Min and Max are over the rounds; a
// filesystem that cannot give the figure is missing.
type ComparisonRow struct {
	Row
	Group  string               `json:"group"`
	Pinned bool                 `json:"pinned"`
	Median map[string]float64   `json:"median"` // by filesystem
	Min    map[string]float64   `json:"min"`
	Max    map[string]float64   `json:"max"`
	All    map[string][]float64 `json:"all"` // in the order of the rounds
}

// RSSReport is the anonymous memory of a serving process, in bytes.
type RSSReport struct {
	Idle int64 `json:"idle"` // right after the mount
	Peak int64 `json:"peak"` // the most that was seen after a workload
}

// Failure is a workload that did not run to its end.
type Failure struct {
	Filesystem string `json:"filesystem"`
	Workload   string `json:"workload"`
	Error      string `json:"error"`
}

// Compare mounts all filesystems at once and measures them in turn, workload
// by workload and round by round, so that whatever else happens on the machine
// meets all of them. Everything is unmounted when it returns.
//
// A workload that fails on a filesystem is not tried there again, the others
// go on; then the comparison is returned together with an error.
func Compare(ctx context.Context, opt CompareOptions) (c *Comparison, err error) {
	mounted, err := MountAll(ctx, opt.Memory.Dir, opt.Size, opt.Filesystems)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, UnmountAll(context.WithoutCancel(ctx), mounted)) }()

	c = newComparison(opt, mounted)
	if err := c.measureRSS(mounted, func(r *RSSReport, n int64) { r.Idle = n }); err != nil {
		return nil, err
	}
	m := comparing{opt: opt, mounted: mounted, c: c, failed: map[[2]int]bool{}}
	err = m.rounds(ctx)
	for _, row := range c.Rows {
		row.summarize()
	}
	c.Ended = time.Now()
	c.Others = append(c.Others, othersCPUs(ctx))
	return c, err
}

// comparing is a comparison at work.
type comparing struct {
	opt     CompareOptions
	mounted []*Mounted
	c       *Comparison
	failed  map[[2]int]bool // workload, filesystem
	errs    []error
}

func (m *comparing) rounds(ctx context.Context) error {
	for round := range m.opt.Rounds {
		m.c.Others = append(m.c.Others, othersCPUs(ctx))
		row := 0
		for i, w := range m.opt.Workloads {
			if w.MaxRounds == 0 || round < w.MaxRounds {
				fmt.Fprintf(m.opt.Progress, "round %d of %d: %s\n", round+1, m.opt.Rounds, w.Title())
				for fs := range m.mounted {
					if err := m.measure(ctx, i, row, fs); err != nil {
						return err
					}
				}
				if err := m.c.measureRSS(m.mounted, func(r *RSSReport, n int64) { r.Peak = max(r.Peak, n) }); err != nil {
					return err
				}
			}
			row += len(w.Rows)
		}
	}
	return errors.Join(m.errs...)
}

// measure runs a workload, whose first row is given, on one filesystem. It
// fails only when it makes no sense to go on.
func (m *comparing) measure(ctx context.Context, workload, row, fs int) error {
	w, mounted := m.opt.Workloads[workload], m.mounted[fs]
	pair := [2]int{workload, fs}
	if m.failed[pair] || !w.Variants && slices.Contains(m.opt.Variants, mounted.Name) {
		return nil
	}
	values, err := w.Measure(ctx, mounted, func(ctx context.Context) (*Mounted, error) { return m.second(ctx, fs) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		fmt.Fprintf(m.opt.Progress, "FAILED: %v\n", err)
		m.failed[pair] = true
		m.errs = append(m.errs, err)
		m.c.Failures = append(m.c.Failures, Failure{mounted.Name, w.Title(), err.Error()})
		return nil
	}
	for i, v := range values {
		if !math.IsNaN(v) {
			all := m.c.Rows[row+i].All
			all[mounted.Name] = append(all[mounted.Name], v)
		}
	}
	return nil
}

// second mounts another filesystem like the given one. Its directory goes
// with it.
func (m *comparing) second(ctx context.Context, fs int) (*Mounted, error) {
	dir := filepath.Join(m.opt.Memory.Dir, "second")
	mounted, err := mountBelow(ctx, dir, m.opt.Size, m.opt.Filesystems[fs])
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	remove := mounted.remove
	mounted.remove = func() error {
		if remove != nil {
			if err := remove(); err != nil {
				return err
			}
		}
		return os.Remove(dir)
	}
	return mounted, nil
}

func newComparison(opt CompareOptions, mounted []*Mounted) *Comparison {
	c := &Comparison{Machine: ThisMachine(), Emulated: true, Started: time.Now(), LoadStart: loadAverage(),
		Rounds: opt.Rounds, Size: opt.Size, HugePages: opt.Memory.Huge, Variants: opt.Variants,
		Kinds: map[string]Kind{}, Notes: map[string]string{}, RSSAnon: map[string]RSSReport{}}
	for i, m := range mounted {
		c.Filesystems = append(c.Filesystems, m.Name)
		c.Kinds[m.Name] = opt.Filesystems[i].Kind()
		if m.Note != "" {
			c.Notes[m.Name] = m.Note
		}
	}
	for _, w := range opt.Workloads {
		for _, row := range w.Rows {
			c.Rows = append(c.Rows, newComparisonRow(row, w.Group, w.Pinned))
		}
	}
	return c
}

func newComparisonRow(row Row, group string, pinned bool) ComparisonRow {
	return ComparisonRow{Row: row, Group: group, Pinned: pinned, Median: map[string]float64{},
		Min: map[string]float64{}, Max: map[string]float64{}, All: map[string][]float64{}}
}

// summarize computes what is said about the rounds.
func (r *ComparisonRow) summarize() {
	for name, values := range r.All {
		r.Median[name], r.Min[name], r.Max[name] = median(values), slices.Min(values), slices.Max(values)
	}
}

// Speed is how many times as fast a filesystem is as another one; 0 when one of
// them has no figure.
func (r *ComparisonRow) Speed(name, other string) float64 {
	own, its := r.Median[name], r.Median[other]
	if own <= 0 || its <= 0 {
		return 0
	}
	if r.Better == lower {
		return its / own
	}
	return own / its
}

// row finds a figure; nil when it was not measured.
func (c *Comparison) row(id string, pinned bool) *ComparisonRow {
	for i := range c.Rows {
		if c.Rows[i].ID == id && c.Rows[i].Pinned == pinned {
			return &c.Rows[i]
		}
	}
	return nil
}

// floor is the null filesystem with the transport of an NVFS; "" when the run
// has none.
func (c *Comparison) floor(name string) string {
	floor := nullName
	if suffix := transportSuffix("uring"); strings.HasSuffix(name, suffix) {
		floor += suffix
	}
	if c.Kinds[floor] != KindFloor {
		return ""
	}
	return floor
}

func (c *Comparison) measureRSS(mounted []*Mounted, set func(*RSSReport, int64)) error {
	for _, m := range mounted {
		if m.ServerPID == 0 {
			continue
		}
		n, err := RSSAnon(m.ServerPID)
		if err != nil {
			return fmt.Errorf("memory of the process that serves %s: %w", m.Name, err)
		}
		r := c.RSSAnon[m.Name]
		set(&r, n)
		c.RSSAnon[m.Name] = r
	}
	return nil
}

// significant prints a number with three significant digits, without an
// exponent.
func significant(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}
