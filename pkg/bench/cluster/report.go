package cluster

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
)

// Report is what a run has found. Results are in the order in which they were
// measured.
type Report struct {
	Begin   time.Time `json:"begin"`
	Nodes   []Node    `json:"nodes"`
	Classes []Class   `json:"classes"`
	Results []Result  `json:"results"`
}

// Node is a node of the cluster.
type Node struct {
	Name    string `json:"name"`
	CPUs    int64  `json:"cpus"`
	Kernel  string `json:"kernel"`
	Kubelet string `json:"kubelet"`
}

// Class is a StorageClass that was measured.
type Class struct {
	Name        string            `json:"name"`
	Provisioner string            `json:"provisioner"`
	Parameters  map[string]string `json:"parameters,omitempty"`
}

// Result is one workload on one class.
type Result struct {
	Class    string                 `json:"class"`
	Workload string                 `json:"workload"`
	Node     string                 `json:"node,omitempty"`
	Jobs     []bench.NamedFioResult `json:"jobs,omitempty"`
	Failure  string                 `json:"failure,omitempty"` // why there are no jobs
}

// Failed returns how many workloads have no result.
func (r *Report) Failed() int {
	n := 0
	for _, result := range r.Results {
		if result.Failure != "" {
			n++
		}
	}
	return n
}

// line is one half, reading or writing, of a job of fio on one class.
type line struct {
	Title, Class, Node string
	Side               bench.FioSide
}

// lines groups what is to be compared: the same half of the same job on all
// classes.
func (r *Report) lines() [][]line {
	var groups [][]line
	at := map[string]int{}
	add := func(l line) {
		i, known := at[l.Title]
		if !known {
			i = len(groups)
			at[l.Title] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], l)
	}
	for _, result := range r.Results {
		for _, job := range result.Jobs {
			title := result.Workload
			if job.Name != result.Workload {
				title += " " + job.Name
			}
			if job.Read.Bytes > 0 {
				add(line{title + ": read", result.Class, result.Node, job.Read})
			}
			if job.Write.Bytes > 0 {
				add(line{title + ": write", result.Class, result.Node, job.Write})
			}
		}
	}
	return groups
}

// WriteText writes the table for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	table := bench.Table{Header: []string{"workload", "class", "node", "throughput", "requests/s", "median", "99 %"}}
	for _, group := range r.lines() {
		for _, l := range group {
			table.Add(l.Title, l.Class, l.Node, bench.FormatRate(l.Side.BytesPerSec), fmt.Sprintf("%.0f", l.Side.IOPS),
				bench.FormatLatency(l.Side.Latency.Median), bench.FormatLatency(l.Side.Latency.P99))
		}
	}
	if err := table.Write(w); err != nil {
		return err
	}
	for _, result := range r.Results {
		if result.Failure == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s on class %s failed: %s\n", result.Workload, result.Class, result.Failure); err != nil {
			return err
		}
	}
	return nil
}

// WriteJSON writes all of the report.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// page is what the template shows.
type page struct {
	*Report
	Groups []pageGroup
}

type pageGroup struct {
	Title string
	Bars  []pageBar
}

type pageBar struct {
	Class, Node, Rate, IOPS, Median, P99 string
	Percent                              float64 // of the longest bar
}

// WriteHTML writes one page that needs nothing from elsewhere.
func (r *Report) WriteHTML(w io.Writer) error {
	p := page{Report: r}
	for _, lines := range r.lines() {
		best := 0.0
		for _, l := range lines {
			best = max(best, l.Side.IOPS)
		}
		group := pageGroup{Title: lines[0].Title}
		for _, l := range lines {
			bar := pageBar{Class: l.Class, Node: l.Node, Rate: bench.FormatRate(l.Side.BytesPerSec), IOPS: fmt.Sprintf("%.0f", l.Side.IOPS),
				Median: bench.FormatLatency(l.Side.Latency.Median), P99: bench.FormatLatency(l.Side.Latency.P99)}
			if best > 0 {
				bar.Percent = 100 * l.Side.IOPS / best
			}
			group.Bars = append(group.Bars, bar)
		}
		p.Groups = append(p.Groups, group)
	}
	return pageTemplate.Execute(w, p)
}

// Text is the class in one line.
func (c Class) Text() string {
	var parts []string
	for key, value := range c.Parameters {
		parts = append(parts, key+"="+value)
	}
	slices.Sort(parts)
	return strings.Join(append([]string{c.Provisioner}, parts...), ", ")
}
