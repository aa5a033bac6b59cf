package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"
)

// sampleReport has figures from which every target follows.
func sampleFigures() *Report {
	c := &Comparison{Rounds: 2, Size: 1 << 30, Machine: Machine{CPU: "a <CPU> & more", CPUs: 2}, LoadStart: 1, Others: []float64{0.1, 1.5},
		Filesystems: []string{"nvfs auto/through", "nvfs auto/through uring", "nvfs nt/through", "null FUSE", "null FUSE uring", "ext4", "xfs", "tmpfs"},
		Variants:    []string{"nvfs nt/through"},
		Kinds: map[string]Kind{"nvfs auto/through": KindNVFS, "nvfs auto/through uring": KindNVFS, "nvfs nt/through": KindNVFS,
			"null FUSE": KindFloor, "null FUSE uring": KindFloor, "ext4": KindKernel, "xfs": KindKernel, "tmpfs": KindMemory},
		Notes: map[string]string{"nvfs auto/through": "nt <always>"}, RSSAnon: map[string]RSSReport{"nvfs auto/through": {3 << 20, 5 << 20}},
		LeftOut: []string{"btrfs: <none>"}}
	add := func(id, better string, values ...float64) {
		row := newComparisonRow(Row{id, id + " <b>", "u", better}, "sync", true)
		for i, v := range values {
			row.All[c.Filesystems[i]] = []float64{v, v * 1.5, v * 2}
		}
		row.summarize()
		c.Rows = append(c.Rows, row)
	}
	add("append-dsync", lower, 10, 20, 10, 10, 10, 100, 30, 1)
	add("direct-read-1m", higher, 600, 500, 600, 600, 600, 900, 900, 1000)
	add("toggle-small", lower, 10, 10, 10, 10, 10, 10, 10, 10)
	add("toggle-large", lower, 11, 20, 11, 11, 11, 10, 10, 10)
	return &Report{Comparison: c,
		Mounts: []MountTime{{Size: 1 << 30, Engine: time.Millisecond, Total: 19 * time.Millisecond, RSSAnon: 40 << 20}},
		Checks: []CheckTime{
			{Filesystem: "nvfs auto/through", Command: "fsck -n --threads 1", Threads: 1, Inodes: 1e6, Seconds: 1, Min: 1, Max: 1},
			{Filesystem: "nvfs auto/through", Command: "fsck -n --threads 2", Threads: 2, Inodes: 1e6, Seconds: 0.5, Min: 0.5, Max: 0.6},
			{Filesystem: "ext4", Command: "e2fsck -fn", Inodes: 1e6, Seconds: 2, Min: 2, Max: 2},
		}}
}

func TestTargetsAreComputed(t *testing.T) {
	results := sampleFigures().Targets()
	for _, tc := range []struct {
		work, goal, filesystem string
		outcome                Outcome
		value                  float64
	}{
		{"4 KiB O_DSYNC append", ">= 8x ext4", "nvfs auto/through", Met, 10},
		{"4 KiB O_DSYNC append", ">= 8x ext4", "nvfs auto/through uring", Missed, 5},
		{"4 KiB O_DSYNC append", ">= 4x xfs", "nvfs auto/through", Missed, 3},
		{"4 KiB O_DSYNC append", "within 1.15x of the floor", "nvfs auto/through", Met, 1},
		{"4 KiB O_DSYNC append", "within 1.15x of the floor", "nvfs auto/through uring", Missed, 2},
		{"1 MiB direct read", ">= 0.6x tmpfs", "nvfs auto/through", Met, 0.6},
		{"1 MiB direct read", ">= 0.6x tmpfs", "nvfs auto/through uring", Missed, 0.5},
		{"directory toggle, growth with size", "within 1.15x of a small directory", "nvfs auto/through", Met, 1.1},
		{"directory toggle, growth with size", "within 1.15x of a small directory", "nvfs auto/through uring", Missed, 2},
		{"mount, any size", "<= 20 ms", "", Met, 19},
		{"RssAnon of the serving process, idle", "<= 32 MiB", "", Missed, 40 << 20},
		{"fsck, one thread", ">= 500,000 inodes/s", "", Met, 1e6},
		{"fsck, all threads", ">= 5x e2fsck -fn", "", Missed, 4},
		{"grep -r cold", "no slower than ext4", "", NotMeasured, 0},
		{"PVC created until the pod runs", "<= 3 s", "", NotMeasured, 0},
	} {
		found := false
		for _, r := range results {
			if r.Work == tc.work && r.Goal == tc.goal && r.Filesystem == tc.filesystem {
				found = true
				if r.Outcome != tc.outcome || math.Abs(r.Value-tc.value) > 1e-9*tc.value {
					t.Errorf("%s, %s, %s: %v %s, want %v %s", tc.work, tc.goal, tc.filesystem, r.Value, r.Outcome, tc.value, tc.outcome)
				}
			}
		}
		if !found {
			t.Errorf("no result for %s, %s, %q", tc.work, tc.goal, tc.filesystem)
		}
	}
	for _, r := range results {
		if r.Filesystem == "nvfs nt/through" {
			t.Errorf("a variant was judged: %+v", r)
		}
	}
}

func TestReportAsText(t *testing.T) {
	var out strings.Builder
	if err := sampleFigures().Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"emulated", "THE MACHINE WAS BUSY: other programs took 1.5 of 2 CPUs", "LEFT OUT: btrfs", "e2fsck -fn", "RssAnon", "10.0x met", "5.00x missed", "not measured"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, out.String())
		}
	}
}

func TestReportAsJSON(t *testing.T) {
	var out bytes.Buffer
	if err := sampleFigures().WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Machine  Machine         `json:"machine"`
		Rows     []ComparisonRow `json:"rows"`
		Targets  []TargetResult  `json:"targets"`
		Checks   []CheckTime     `json:"fsck"`
		Others   []float64       `json:"others"`
		Mounts   []MountTime     `json:"mounts"`
		Emulated *bool           `json:"emulated"`
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	row := got.Rows[0]
	if row.ID != "append-dsync" || row.Min["ext4"] != 100 || row.Median["ext4"] != 150 || row.Max["ext4"] != 200 || len(row.All["ext4"]) != 3 {
		t.Errorf("first row %+v", row)
	}
	if len(got.Targets) == 0 || len(got.Checks) != 3 || len(got.Mounts) != 1 || len(got.Others) != 2 || got.Emulated == nil {
		t.Errorf("incomplete: %s", out.String())
	}
}

func TestReportAsPage(t *testing.T) {
	var out bytes.Buffer
	if err := sampleFigures().WriteHTML(&out); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	for _, want := range []string{"a &lt;CPU&gt; &amp; more", "btrfs: &lt;none&gt;", "append-dsync &lt;b&gt;", "10.0x met", "5.00x missed",
		"Beside: M. Patocka", "here: nvfs auto/through", "Check of the filesystem", "prefers-color-scheme: dark", `id="mount"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if found := regexp.MustCompile(`<script|<link|<img|@import|src=|href="http|url\(|ZgotmplZ`).FindString(page); found != "" {
		t.Errorf("the page is not self-contained: %s", found)
	}
	assertTagsClose(t, page)
}

// assertTagsClose reads the page as XML would be, void elements aside.
func assertTagsClose(t *testing.T, page string) {
	t.Helper()
	dec := xml.NewDecoder(strings.NewReader(page))
	dec.Strict, dec.AutoClose, dec.Entity = false, []string{"meta"}, xml.HTMLEntity
	for {
		_, err := dec.Token()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatalf("the page: %v", err)
		}
	}
}

func TestBarSVG(t *testing.T) {
	got := string(barSVG(50, 25, 100, 200))
	for _, want := range []string{`width="25.00%"`, `x1="12.50%" x2="50.00%"`, `aria-label="50.0"`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s lacks %s", got, want)
		}
	}
	if got := string(barSVG(0, 0, 0, 0)); strings.Contains(got, "NaN") || strings.Contains(got, "Inf") || strings.Contains(got, "line") {
		t.Errorf("a bar of nothing: %s", got)
	}
	if got := string(barSVG(300, 0, 0, 200)); !strings.Contains(got, `width="100.00%"`) {
		t.Errorf("a bar longer than its scale: %s", got)
	}
}

func TestReferences(t *testing.T) {
	all, err := References()
	if err != nil {
		t.Fatal(err)
	}
	p := DefaultParams()
	p.Trees, p.Compile = &Trees{}, &CompileJob{}
	known := map[string]bool{GroupCheck: true}
	for _, w := range Workloads(p) {
		for _, row := range w.Rows {
			known[row.ID] = true
		}
	}
	for _, ref := range all {
		if !known[ref.Row] {
			t.Errorf("%s: %q is no row of ours", ref.Source, ref.Row)
		}
		if ref.Source == "" || ref.Setting == "" || ref.Unit == "" || ref.Better != lower && ref.Better != higher {
			t.Errorf("incomplete: %+v", ref)
		}
		for _, v := range ref.Values {
			if s := ref.Speed(v); s <= 0 || math.IsInf(s, 0) || math.IsNaN(s) {
				t.Errorf("%s, %s: speed of %s is %v", ref.Row, ref.Source, v.Name, s)
			}
		}
	}
	r := Reference{Better: lower, Base: "b", Values: []ReferenceValue{{"a", 2}, {"b", 6}}}
	if got := r.Speed(r.Values[0]); got != 3 {
		t.Errorf("2 s beside 6 s: %v times as fast, want 3", got)
	}
}

// TestTargetsNameRowsThatExist keeps both lists together.
func TestTargetsNameRowsThatExist(t *testing.T) {
	p := DefaultParams()
	p.Trees, p.Compile = &Trees{}, &CompileJob{}
	needed := map[string]bool{}
	for _, w := range Workloads(p) {
		for _, row := range w.Rows {
			needed[row.ID] = w.Target
		}
	}
	for _, target := range speedTargets {
		if !needed[target.row] {
			t.Errorf("%s: row %q is of no workload that --targets runs", target.work, target.row)
		}
	}
}

func TestFloorHasTheSameTransport(t *testing.T) {
	c := sampleFigures().Comparison
	for name, want := range map[string]string{"nvfs auto/through": "null FUSE", "nvfs auto/through uring": "null FUSE uring"} {
		if got := c.floor(name); got != want {
			t.Errorf("floor of %s is %q, want %q", name, got, want)
		}
	}
	delete(c.Kinds, "null FUSE uring")
	if got := c.floor("nvfs auto/through uring"); got != "" {
		t.Errorf("without a floor of the same transport: %q", got)
	}
}
