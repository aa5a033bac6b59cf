package bench

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// TargetResult is one target for one NVFS of a run.
type TargetResult struct {
	Work      string `json:"work"`
	Goal      string `json:"goal"`
	Placement string `json:"placement,omitempty"`
	// Row is the figure that it is about; "" for other measurements.
	Row        string  `json:"row,omitempty"`
	Filesystem string  `json:"filesystem,omitempty"`
	Measured   string  `json:"measured,omitempty"`
	Value      float64 `json:"value,omitempty"` // the number in Measured
	Bound      float64 `json:"bound,omitempty"`
	Outcome    Outcome `json:"outcome"`
	Detail     string  `json:"detail,omitempty"`
}

// Outcome of a target.
type Outcome string

// The outcomes.
const (
	Met         Outcome = "met"
	Missed      Outcome = "missed"
	NotMeasured Outcome = "not measured"
)

// anyFloor stands for the null filesystem with the same transport.
const anyFloor = "floor"

// speedTarget compares NVFS with another filesystem of the run. Exactly one of
// atLeast (times as fast) and within (times as slow) is set.
type speedTarget struct {
	work, row, against string
	atLeast, within    float64
	goal               string
}

// floorTolerance is what NVFS may cost more than FUSE alone.
const floorTolerance = 1.15

var speedTargets = []speedTarget{
	{work: "4 KiB O_DSYNC append", row: "append-dsync", against: "ext4", atLeast: 8, goal: ">= 8x ext4"},
	{work: "4 KiB O_DSYNC append", row: "append-dsync", against: "xfs", atLeast: 4, goal: ">= 4x xfs"},
	{work: "4 KiB O_DSYNC append", row: "append-dsync", against: anyFloor, within: floorTolerance, goal: "within 1.15x of the floor"},
	{work: "4 KiB random direct read", row: "direct-randread-4k", against: "ext4", within: 1, goal: "no slower than ext4"},
	{work: "4 KiB random direct write", row: "direct-randwrite-4k", against: "ext4", within: 1, goal: "no slower than ext4"},
	{work: "48 jobs on one file", row: "jobs-one-file", against: "ext4", atLeast: 1, goal: "faster than ext4"},
	{work: "directory toggle, files", row: "toggle-files", against: anyFloor, within: floorTolerance, goal: "within 1.15x of the floor"},
	{work: "directory toggle, hard links", row: "toggle-links", against: anyFloor, within: floorTolerance, goal: "within 1.15x of the floor"},
	{work: "directory toggle, directories", row: "toggle-dirs", against: anyFloor, within: floorTolerance, goal: "within 1.15x of the floor"},
	{work: "cp -a of a tree, made durable", row: "tree-copy-sync", against: anyFloor, within: floorTolerance, goal: "within 1.15x of the floor"},
	{work: "cp -a of a tree, made durable", row: "tree-copy-sync", against: "ext4", within: 1, goal: "stretch: ext4 and sync"},
	{work: "grep -r cold", row: "tree-grep-cold", against: "ext4", within: 1, goal: "no slower than ext4"},
	{work: "1 MiB direct read", row: "direct-read-1m", against: "tmpfs", atLeast: 0.6, goal: ">= 0.6x tmpfs"},
	{work: "1 MiB direct write", row: "direct-write-1m", against: "tmpfs", atLeast: 0.8, goal: ">= 0.8x tmpfs"},
}

// Targets computes what the report says about every target, for each NVFS that
// is no variant of another one.
func (r *Report) Targets() []TargetResult {
	var all []TargetResult
	for _, t := range speedTargets {
		all = append(all, r.speedResults(t)...)
	}
	all = append(all, r.growthResults()...)
	all = append(all, r.mountResults()...)
	all = append(all, r.checkResults()...)
	for _, t := range []TargetResult{
		{Work: "RssAnon after a walk over a million files", Goal: "<= 64 MiB", Detail: "shown by make soak"},
		{Work: "CreateVolume, Stage and Publish", Goal: "median <= 100 ms", Detail: "make demo shows the time of each call"},
		{Work: "PVC created until the pod runs", Goal: "<= 3 s", Detail: "shown by TestTimeToRunning in the test cluster"},
	} {
		t.Outcome = NotMeasured
		all = append(all, t)
	}
	return all
}

// judged are the filesystems that targets are about.
func (c *Comparison) judged() []string {
	var names []string
	for _, name := range c.Filesystems {
		if c.Kinds[name] == KindNVFS && !slices.Contains(c.Variants, name) {
			names = append(names, name)
		}
	}
	return names
}

func outcome(met bool) Outcome {
	if met {
		return Met
	}
	return Missed
}

func (r *Report) speedResults(t speedTarget) []TargetResult {
	var all []TargetResult
	for _, pinned := range placements {
		row := r.row(t.row, pinned)
		if row == nil {
			continue
		}
		for _, name := range r.judged() {
			all = append(all, t.result(r.Comparison, row, name))
		}
	}
	if len(all) == 0 {
		all = append(all, TargetResult{Work: t.work, Goal: t.goal, Row: t.row, Outcome: NotMeasured})
	}
	return all
}

func (t speedTarget) result(c *Comparison, row *ComparisonRow, name string) TargetResult {
	res := TargetResult{Work: t.work, Goal: t.goal, Placement: shortPlacement(row.Pinned), Row: t.row, Filesystem: name, Outcome: NotMeasured}
	against := t.against
	if against == anyFloor {
		against = c.floor(name)
	}
	speed := row.Speed(name, against)
	if speed == 0 {
		return res
	}
	res.Detail = fmt.Sprintf("%s %s, %s %s %s", name, significant(row.Median[name]), against, significant(row.Median[against]), row.Unit)
	if t.within > 0 {
		res.Value, res.Bound = 1/speed, t.within
		res.Outcome = outcome(res.Value <= t.within)
	} else {
		res.Value, res.Bound = speed, t.atLeast
		res.Outcome = outcome(res.Value >= t.atLeast)
	}
	res.Measured = significant(res.Value) + "x"
	return res
}

func shortPlacement(pinned bool) string {
	if pinned {
		return "one CPU"
	}
	return "unpinned"
}

// growthResults compare a small with a large directory.
func (r *Report) growthResults() []TargetResult {
	base := TargetResult{Work: "directory toggle, growth with size", Goal: "within 1.15x of a small directory", Row: "toggle-large", Outcome: NotMeasured}
	small, large := r.row("toggle-small", true), r.row("toggle-large", true)
	if small == nil || large == nil {
		return []TargetResult{base}
	}
	growth := func(name string) float64 {
		if small.Median[name] <= 0 {
			return 0
		}
		return large.Median[name] / small.Median[name]
	}
	var all []TargetResult
	for _, name := range r.judged() {
		t := base
		t.Filesystem, t.Placement = name, shortPlacement(true)
		if t.Value = growth(name); t.Value > 0 {
			t.Bound, t.Measured, t.Outcome = floorTolerance, significant(t.Value)+"x", outcome(t.Value <= floorTolerance)
			for _, other := range []string{r.floor(name), "ext4"} {
				if g := growth(other); g > 0 {
					t.Detail = joinDetail(t.Detail, fmt.Sprintf("%s %sx", other, significant(g)))
				}
			}
		}
		all = append(all, t)
	}
	return all
}

func joinDetail(a, b string) string {
	if a == "" {
		return b
	}
	return a + ", " + b
}

const (
	mountTarget   = 20 * time.Millisecond
	rssIdleTarget = 32 << 20
)

// mountResults judge the slowest of all sizes: they must not differ.
func (r *Report) mountResults() []TargetResult {
	mount := TargetResult{Work: "mount, any size", Goal: "<= 20 ms", Outcome: NotMeasured}
	rss := TargetResult{Work: "RssAnon of the serving process, idle", Goal: "<= 32 MiB", Outcome: NotMeasured}
	if len(r.Mounts) > 0 {
		slowest := slices.MaxFunc(r.Mounts, func(a, b MountTime) int { return int(a.Total - b.Total) })
		mount.Value, mount.Bound = micros(slowest.Total)/1000, micros(mountTarget)/1000
		mount.Measured, mount.Outcome = FormatLatency(slowest.Total), outcome(slowest.Total <= mountTarget)
		mount.Detail = fmt.Sprintf("%s, until it answers; the engine alone %s", FormatSize(slowest.Size), FormatLatency(slowest.Engine))
		largest := slices.MaxFunc(r.Mounts, func(a, b MountTime) int { return int(a.RSSAnon - b.RSSAnon) })
		rss.Value, rss.Bound = float64(largest.RSSAnon), rssIdleTarget
		rss.Measured, rss.Outcome = FormatSize(largest.RSSAnon), outcome(largest.RSSAnon <= rssIdleTarget)
	}
	return []TargetResult{mount, rss}
}

const (
	inodesTarget = 500e3 // inodes a second and core
	e2fsckTarget = 5
)

func (r *Report) checkResults() []TargetResult {
	rate := TargetResult{Work: "fsck, one thread", Goal: ">= 500,000 inodes/s", Outcome: NotMeasured}
	ratio := TargetResult{Work: "fsck, all threads", Goal: ">= 5x e2fsck -fn", Outcome: NotMeasured}
	var most, ext4 *CheckTime
	for i := range r.Checks {
		c := &r.Checks[i]
		switch {
		case c.Filesystem == "ext4":
			ext4 = c
		case c.Threads == 0:
		case most == nil || c.Threads > most.Threads:
			most = c
		}
		if c.Threads == 1 {
			rate.Value, rate.Bound = c.InodesPerSecond(), inodesTarget
			rate.Measured, rate.Outcome = fmt.Sprintf("%.0f inodes/s", rate.Value), outcome(rate.Value >= inodesTarget)
		}
	}
	if most != nil && ext4 != nil && most.Seconds > 0 {
		ratio.Value, ratio.Bound = ext4.Seconds/most.Seconds, e2fsckTarget
		ratio.Measured, ratio.Outcome = significant(ratio.Value)+"x", outcome(ratio.Value >= e2fsckTarget)
		ratio.Detail = fmt.Sprintf("%d threads", most.Threads)
	}
	return []TargetResult{rate, ratio}
}

// targetLine is a target with the results of all filesystems.
type targetLine struct {
	Work, Goal, Placement string
	Results               []TargetResult
}

// targetLines gathers results by target and placement.
func targetLines(results []TargetResult) []targetLine {
	var lines []targetLine
	for _, t := range results {
		n := len(lines)
		if n == 0 || lines[n-1].Work != t.Work || lines[n-1].Goal != t.Goal || lines[n-1].Placement != t.Placement {
			lines = append(lines, targetLine{Work: t.Work, Goal: t.Goal, Placement: t.Placement})
			n++
		}
		lines[n-1].Results = append(lines[n-1].Results, t)
	}
	return lines
}

// WriteTargets prints a line for each target, with a column for each NVFS.
func WriteTargets(w io.Writer, results []TargetResult) error {
	var names []string
	for _, t := range results {
		if t.Filesystem != "" && !slices.Contains(names, t.Filesystem) {
			names = append(names, t.Filesystem)
		}
	}
	if len(names) == 0 {
		names = []string{"measured"}
	}
	t := Table{Header: append([]string{"target", "goal", "placement"}, names...)}
	for _, line := range targetLines(results) {
		cells := append([]string{line.Work, line.Goal, line.Placement}, slices.Repeat([]string{""}, len(names))...)
		for _, res := range line.Results {
			column := max(0, slices.Index(names, res.Filesystem))
			cells[3+column] = res.text()
		}
		t.Add(cells...)
	}
	return t.Write(w)
}

// text is measured value and outcome; what was not measured says where it is.
func (t TargetResult) text() string {
	switch {
	case t.Outcome != NotMeasured:
		return t.Measured + " " + string(t.Outcome)
	case t.Detail != "":
		return string(NotMeasured) + ", " + t.Detail
	default:
		return string(NotMeasured)
	}
}
