package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// CompareOptions say what Compare does.
type CompareOptions struct {
	Memory      *Memory // where all filesystems lie
	Size        int64   // of each filesystem, in bytes
	Rounds      int     // each workload is measured so often on each
	Filesystems []Filesystem
	Workloads   []Workload
	Progress    io.Writer // one line a round and workload
}

// Comparison is one run, all filesystems side by side.
type Comparison struct {
	Machine     Machine           `json:"machine"`
	Started     time.Time         `json:"started"`
	Rounds      int               `json:"rounds"`
	HugePages   bool              `json:"hugePages"`
	Filesystems []string          `json:"filesystems"`
	Notes       map[string]string `json:"notes"` // by filesystem
	Rows        []ComparisonRow   `json:"rows"`
	// RSSAnon is the DRAM of each serving process in bytes.
	RSSAnon map[string]RSSReport `json:"rssAnon"`
}

// ComparisonRow is one workload. Values are medians over the rounds.
type ComparisonRow struct {
	Workload string               `json:"workload"`
	Pinned   bool                 `json:"pinned"`
	Unit     string               `json:"unit"`
	Better   string               `json:"better"`
	Median   map[string]float64   `json:"median"` // by filesystem
	All      map[string][]float64 `json:"all"`
}

// RSSReport is the anonymous memory of a serving process, in bytes.
type RSSReport struct {
	Idle  int64 `json:"idle"`  // right after the mount
	After int64 `json:"after"` // after all workloads
}

// Compare mounts all filesystems at once and measures them in turn, workload
// by workload and round by round, so that whatever else happens on the machine
// meets all of them. Everything is unmounted when it returns.
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
	for round := range opt.Rounds {
		for i, w := range opt.Workloads {
			fmt.Fprintf(opt.Progress, "round %d of %d: %s%s\n", round+1, opt.Rounds, w.Name, pinnedSuffix(w.Pinned))
			for _, m := range mounted {
				v, err := w.Measure(ctx, m)
				if err != nil {
					return nil, err
				}
				c.Rows[i].All[m.Name] = append(c.Rows[i].All[m.Name], v)
			}
		}
	}
	for _, row := range c.Rows {
		for name, values := range row.All {
			row.Median[name] = median(values)
		}
	}
	return c, c.measureRSS(mounted, func(r *RSSReport, n int64) { r.After = n })
}

func newComparison(opt CompareOptions, mounted []*Mounted) *Comparison {
	c := &Comparison{Machine: ThisMachine(), Started: time.Now(), Rounds: opt.Rounds, HugePages: opt.Memory.Huge,
		Notes: map[string]string{}, RSSAnon: map[string]RSSReport{}}
	for _, m := range mounted {
		c.Filesystems = append(c.Filesystems, m.Name)
		if m.Note != "" {
			c.Notes[m.Name] = m.Note
		}
	}
	for _, w := range opt.Workloads {
		c.Rows = append(c.Rows, ComparisonRow{Workload: w.Name, Pinned: w.Pinned, Unit: w.Unit, Better: w.Better,
			Median: map[string]float64{}, All: map[string][]float64{}})
	}
	return c
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

// Write prints the comparison as tables.
func (c *Comparison) Write(w io.Writer) error {
	pages := "4 KiB"
	if c.HugePages {
		pages = "2 MiB"
	}
	fmt.Fprintf(w, "%s\nmedians of %d rounds, all filesystems in emulated persistent memory (DRAM, %s pages)\n\n", c.Machine, c.Rounds, pages)
	for _, pinned := range []bool{true, false} {
		title := "placement left to the scheduler"
		if pinned {
			title = "client and serving process on one CPU"
		}
		t := Table{Header: append([]string{title, "unit"}, c.Filesystems...)}
		for _, row := range c.Rows {
			if row.Pinned != pinned {
				continue
			}
			cells := []string{row.Workload, row.Unit}
			for _, name := range c.Filesystems {
				cells = append(cells, significant(row.Median[name]))
			}
			t.Add(cells...)
		}
		if len(t.Rows) == 0 {
			continue
		}
		if err := t.Write(w); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	return c.writeServers(w)
}

func (c *Comparison) writeServers(w io.Writer) error {
	t := Table{Header: []string{"serving process", "RssAnon idle", "RssAnon after all"}}
	for _, name := range c.Filesystems {
		if r, ok := c.RSSAnon[name]; ok {
			t.Add(name, FormatSize(r.Idle), FormatSize(r.After))
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	if err := t.Write(w); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, name := range c.Filesystems {
		if note := c.Notes[name]; note != "" {
			fmt.Fprintf(w, "%s: %s\n", name, note)
		}
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

func pinnedSuffix(pinned bool) string {
	if pinned {
		return ", on one CPU"
	}
	return ""
}
