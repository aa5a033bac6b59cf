package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// page is what the template shows.
type page struct {
	Lines    []string // what was measured where
	Warnings []string
	Targets  []targetLine
	Counts   map[string]int // by outcome
	Groups   []pageGroup
	Servers  []plotBar
	Mounts   []pageMount
	Notes    []pageNote
	Sources  []string
}

// pageGroup is a chapter; Name is what --only calls it.
type pageGroup struct {
	Name, Title string
	Cards       []pageCard
}

// pageCard is a workload: a plot for each placement, the targets about it, and
// what earlier documents say.
type pageCard struct {
	Title, Unit string
	Better      string
	Plots       []pagePlot
	References  []pageReference
}

type pagePlot struct {
	Title   string
	Bars    []plotBar
	Targets []targetLine
}

type pageReference struct {
	Source, Setting, Base, OwnBase, Note string
	Bars                                 []plotBar
}

// plotBar is a line of a plot: a name, a bar, a value, and ratios.
type plotBar struct {
	Name, Class  string
	Bar          template.HTML
	Value        string
	Range        string // of the rounds
	Ext4, ToNull string // times as fast
}

type pageMount struct{ Size, Engine, Total, RSS string }

type pageNote struct{ Name, Text string }

var groupTitles = map[string]string{
	"sync": "Synchronous writes", "direct": "Direct reads and writes", "linear": "Linear writes", "jobs": "fio, many jobs",
	"directory": "Directories", "create": "Creation of files", "tree": "Source trees", "between": "Between two volumes",
	"compile": "Executables on the volume", GroupCheck: "Check of the filesystem",
}

// WriteHTML writes the report as one page that needs nothing else: neither
// scripts nor anything from elsewhere.
func (r *Report) WriteHTML(w io.Writer) error {
	references, err := References()
	if err != nil {
		return err
	}
	results := r.Targets()
	p := page{Lines: r.Describe(), Warnings: r.warnings(), Targets: targetLines(results), Counts: map[string]int{}}
	for _, t := range results {
		p.Counts[string(t.Outcome)]++
	}
	for _, name := range Groups {
		g := pageGroup{Name: name, Title: groupTitles[name], Cards: r.cards(name, results, references)}
		if name == GroupCheck && len(r.Checks) > 0 {
			g.Cards = []pageCard{r.checkCard(results, references)}
		}
		if len(g.Cards) > 0 {
			p.Groups = append(p.Groups, g)
		}
	}
	p.Servers, p.Mounts, p.Notes = r.serverBars(), r.pageMounts(), r.pageNotes()
	for _, ref := range references {
		if !slices.Contains(p.Sources, ref.Source) {
			p.Sources = append(p.Sources, ref.Source)
		}
	}
	return pageTemplate.Execute(w, p)
}

func (r *Report) warnings() []string {
	all := r.busy()
	for _, why := range r.LeftOut {
		all = append(all, "Left out: "+why)
	}
	for _, f := range r.Failures {
		all = append(all, "Failed: "+f.Error)
	}
	return all
}

// cards of a group, one for each row ID, in the order of the rows.
func (r *Report) cards(group string, results []TargetResult, references []Reference) []pageCard {
	var cards []pageCard
	index := map[string]int{}
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Group != group || len(row.Median) == 0 {
			continue
		}
		n, found := index[row.ID]
		if !found {
			n = len(cards)
			index[row.ID] = n
			cards = append(cards, r.newCard(row, references))
		}
		cards[n].Plots = append(cards[n].Plots, pagePlot{Title: placement(row.Pinned), Bars: r.bars(row),
			Targets: targetsOf(results, func(t TargetResult) bool {
				return t.Row == row.ID && t.Placement == shortPlacement(row.Pinned)
			})})
	}
	return cards
}

// targetsOf are the measured targets that a plot is about.
func targetsOf(results []TargetResult, about func(TargetResult) bool) []targetLine {
	var chosen []TargetResult
	for _, t := range results {
		if t.Outcome != NotMeasured && about(t) {
			chosen = append(chosen, t)
		}
	}
	return targetLines(chosen)
}

func (r *Report) newCard(row *ComparisonRow, references []Reference) pageCard {
	card := pageCard{Title: row.Name, Unit: row.Unit, Better: row.Better}
	for _, ref := range references {
		if ref.Row == row.ID {
			card.References = append(card.References, r.referencePlot(ref))
		}
	}
	return card
}

// bars of a figure, one for each filesystem.
func (r *Report) bars(row *ComparisonRow) []plotBar {
	scale := 0.0
	for _, v := range row.Max {
		scale = max(scale, v)
	}
	var bars []plotBar
	for _, name := range r.Filesystems {
		if len(row.All[name]) == 0 {
			continue
		}
		bar := plotBar{Name: name, Class: string(r.Kinds[name]), Value: significant(row.Median[name]),
			Bar: barSVG(row.Median[name], row.Min[name], row.Max[name], scale)}
		if len(row.All[name]) > 1 {
			bar.Range = significant(row.Min[name]) + " to " + significant(row.Max[name])
		}
		if name != "ext4" {
			bar.Ext4 = times(row.Speed(name, "ext4"))
		}
		if r.Kinds[name] == KindNVFS {
			bar.ToNull = times(row.Speed(name, r.floor(name)))
		}
		bars = append(bars, bar)
	}
	return bars
}

// times prints a ratio; nothing for one that is not known.
func times(ratio float64) string {
	if ratio <= 0 || math.IsInf(ratio, 0) {
		return ""
	}
	return significant(ratio) + "x"
}

// barSVG draws a bar from 0 to value, and the range of the rounds over it, on
// a scale that ends at full. All is in percent, so it fits any width.
func barSVG(value, low, high, full float64) template.HTML {
	if full <= 0 {
		full = 1
	}
	percent := func(v float64) float64 { return min(100, max(0, 100*v/full)) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="bar" width="100%%" height="16" role="img" aria-label="%s"><rect class="fill" y="2" height="12" rx="2" width="%.2f%%"/>`,
		significant(value), max(0.4, percent(value)))
	if high > low {
		fmt.Fprintf(&b, `<line class="range" x1="%.2f%%" x2="%.2f%%" y1="8" y2="8"/>`, percent(low), percent(high))
		for _, end := range []float64{low, high} {
			fmt.Fprintf(&b, `<line class="range" x1="%.2f%%" x2="%.2f%%" y1="5" y2="11"/>`, percent(end), percent(end))
		}
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) // numbers only
}

// speedBars draws ratios on one scale.
func speedBars(bars []plotBar, speeds []float64) []plotBar {
	full := slices.Max(speeds)
	for i := range bars {
		bars[i].Value, bars[i].Bar = times(speeds[i]), barSVG(speeds[i], 0, 0, full)
	}
	return bars
}

// referencePlot sets the ratios of a document beside our own.
func (r *Report) referencePlot(ref Reference) pageReference {
	p := pageReference{Source: ref.Source, Setting: ref.Setting, Base: ref.Base, OwnBase: ref.OwnBase, Note: ref.Note}
	if p.OwnBase == "" {
		p.OwnBase = "ext4"
	}
	var speeds []float64
	for _, name := range r.besideReference(ref) {
		if speed := r.ownSpeed(ref.Row, name, p.OwnBase); speed > 0 {
			p.Bars = append(p.Bars, plotBar{Name: "here: " + name, Class: string(r.Kinds[name])})
			speeds = append(speeds, speed)
		}
	}
	for _, v := range ref.Values {
		p.Bars = append(p.Bars, plotBar{Name: v.Name, Class: "reference"})
		speeds = append(speeds, ref.Speed(v))
	}
	p.Bars = speedBars(p.Bars, speeds)
	return p
}

func (r *Report) besideReference(ref Reference) []string {
	if len(ref.Own) > 0 {
		return ref.Own
	}
	return append(r.judged(), "ext4", "xfs")
}

// ownSpeed is the ratio in this run; unpinned where there is a choice, as the
// documents have it.
func (r *Report) ownSpeed(id, name, base string) float64 {
	if id == GroupCheck {
		return r.checkSpeed(name, base)
	}
	row := r.row(id, false)
	if row == nil {
		row = r.row(id, true)
	}
	if row == nil {
		return 0
	}
	return row.Speed(name, base)
}

// checkSpeed compares the fastest checks of two filesystems.
func (r *Report) checkSpeed(name, base string) float64 {
	fastest := func(name string) float64 {
		seconds := 0.0
		for _, c := range r.Checks {
			if c.Filesystem == name && (seconds == 0 || c.Seconds < seconds) {
				seconds = c.Seconds
			}
		}
		return seconds
	}
	own, its := fastest(name), fastest(base)
	if own <= 0 {
		return 0
	}
	return its / own
}

func (r *Report) checkCard(results []TargetResult, references []Reference) pageCard {
	card := pageCard{Title: fmt.Sprintf("check of %d inodes, nothing written", r.Checks[0].Inodes), Unit: "s", Better: lower}
	row := newComparisonRow(Row{Better: lower}, GroupCheck, false)
	var bars []plotBar
	full := 0.0
	for _, c := range r.Checks {
		full = max(full, c.Max)
		if c.Filesystem == "ext4" {
			row.Median["ext4"] = c.Seconds
		}
	}
	for _, c := range r.Checks {
		row.Median[c.Command] = c.Seconds
		name := fmt.Sprintf("%s (%s)", c.Filesystem, c.Command)
		bars = append(bars, plotBar{Name: name, Class: string(r.Kinds[c.Filesystem]), Value: fmt.Sprintf("%.4f", c.Seconds),
			Range: fmt.Sprintf("%.4f to %.4f", c.Min, c.Max), Bar: barSVG(c.Seconds, c.Min, c.Max, full), Ext4: times(row.Speed(c.Command, "ext4"))})
	}
	card.Plots = []pagePlot{{Title: "time from start to end", Bars: bars,
		Targets: targetsOf(results, func(t TargetResult) bool { return strings.HasPrefix(t.Work, GroupCheck) })}}
	for _, ref := range references {
		if ref.Row == GroupCheck {
			card.References = append(card.References, r.referencePlot(ref))
		}
	}
	return card
}

func (r *Report) serverBars() []plotBar {
	full := 0.0
	for _, rss := range r.RSSAnon {
		full = max(full, float64(rss.Peak))
	}
	var bars []plotBar
	for _, name := range r.Filesystems {
		if rss, ok := r.RSSAnon[name]; ok {
			bars = append(bars, plotBar{Name: name, Class: string(r.Kinds[name]), Value: FormatSize(rss.Peak),
				Range: "idle " + FormatSize(rss.Idle), Bar: barSVG(float64(rss.Peak), float64(rss.Idle), float64(rss.Peak), full)})
		}
	}
	return bars
}

func (r *Report) pageMounts() []pageMount {
	var all []pageMount
	for _, m := range r.Mounts {
		all = append(all, pageMount{FormatSize(m.Size), FormatLatency(m.Engine), FormatLatency(m.Total), FormatSize(m.RSSAnon)})
	}
	return all
}

func (r *Report) pageNotes() []pageNote {
	var all []pageNote
	for _, name := range r.Filesystems {
		if note := r.Notes[name]; note != "" {
			all = append(all, pageNote{name, note})
		}
	}
	return all
}
