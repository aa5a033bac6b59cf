package bench

import (
	"fmt"
	"io"
	"slices"
)

// Describe says in a few lines what was measured where.
func (c *Comparison) Describe() []string {
	pages := "4 KiB"
	if c.HugePages {
		pages = "2 MiB"
	}
	return []string{
		c.Machine.String(),
		fmt.Sprintf("load average %.1f at the start; between rounds others kept up to %.1f CPUs busy; %s, %s", c.LoadStart, c.others(),
			c.Started.UTC().Format("2006-01-02 15:04 MST"), FormatLatency(c.Ended.Sub(c.Started))),
		fmt.Sprintf("medians of up to %d rounds; each filesystem has %s of emulated persistent memory (DRAM, %s pages): only ratios mean anything",
			c.Rounds, FormatSize(c.Size), pages),
	}
}

// others is the most that other programs took.
func (c *Comparison) others() float64 {
	if len(c.Others) == 0 {
		return 0
	}
	return slices.Max(c.Others)
}

// othersAllowed is the part of a CPU that other programs may take.
const othersAllowed = 0.25

// busy warns of other programs that make figures doubtful.
func (c *Comparison) busy() []string {
	switch {
	case c.others() > othersAllowed:
		return []string{fmt.Sprintf("THE MACHINE WAS BUSY: other programs took %.1f of %d CPUs, which makes figures and ratios doubtful", c.others(), c.Machine.CPUs)}
	case c.LoadStart > float64(c.Machine.CPUs):
		return []string{fmt.Sprintf("THE MACHINE WAS BUSY: a load average of %.1f on %d CPUs at the start makes figures and ratios doubtful", c.LoadStart, c.Machine.CPUs)}
	}
	return nil
}

// placement names where client and server ran.
func placement(pinned bool) string {
	if pinned {
		return "client and serving process on one CPU"
	}
	return "placement left to the scheduler"
}

// Write prints the comparison as tables.
func (c *Comparison) Write(w io.Writer) error {
	for _, line := range append(c.Describe(), c.busy()...) {
		fmt.Fprintln(w, line)
	}
	for _, why := range c.LeftOut {
		fmt.Fprintf(w, "LEFT OUT: %s\n", why)
	}
	fmt.Fprintln(w)
	for _, pinned := range placements {
		for _, names := range c.columns() {
			if err := c.writeRows(w, pinned, names); err != nil {
				return err
			}
		}
	}
	for _, f := range c.Failures {
		fmt.Fprintf(w, "FAILED: %s\n", f.Error)
	}
	return c.writeServers(w)
}

// columns are the filesystems of each table: NVFS beside its peers, and, where
// they are many, the variants of NVFS in a table of their own.
func (c *Comparison) columns() [][]string {
	if len(c.Variants) == 0 {
		return [][]string{c.Filesystems}
	}
	main := slices.DeleteFunc(slices.Clone(c.Filesystems), func(name string) bool { return slices.Contains(c.Variants, name) })
	return [][]string{main, c.Variants}
}

func (c *Comparison) writeRows(w io.Writer, pinned bool, names []string) error {
	t := Table{Header: append([]string{placement(pinned), "unit"}, names...)}
	for _, row := range c.Rows {
		if row.Pinned != pinned || !row.hasAny(names) {
			continue
		}
		cells := []string{row.Name, row.Unit}
		for _, name := range names {
			cells = append(cells, row.cell(name))
		}
		t.Add(cells...)
	}
	if len(t.Rows) == 0 {
		return nil
	}
	if err := t.Write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

func (r *ComparisonRow) hasAny(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return len(r.All[name]) > 0 })
}

func (r *ComparisonRow) cell(name string) string {
	if len(r.All[name]) == 0 {
		return "-"
	}
	return significant(r.Median[name])
}

func (c *Comparison) writeServers(w io.Writer) error {
	t := Table{Header: []string{"serving process", "RssAnon idle", "RssAnon at most"}}
	for _, name := range c.Filesystems {
		if r, ok := c.RSSAnon[name]; ok {
			t.Add(name, FormatSize(r.Idle), FormatSize(r.Peak))
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
