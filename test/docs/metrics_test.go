package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nvfs-csi/nvfs-csi/pkg/controller"
	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// metric is what a description says; it has no accessors.
type metric struct{ name, help, labels string }

var descText = regexp.MustCompile(`fqName: "([^"]+)", help: "(.*?)", (?:unit: "[^"]*", )?constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)

func metricsOf(t *testing.T, descriptions []*prometheus.Desc) []metric {
	t.Helper()
	var list []metric
	for _, desc := range descriptions {
		m := descText.FindStringSubmatch(desc.String())
		if m == nil {
			t.Fatalf("a description of another form: %s", desc)
		}
		var labels []string
		for _, label := range strings.FieldsFunc(m[3]+","+m[4], func(r rune) bool { return r == ',' }) {
			name, _, _ := strings.Cut(label, "=")
			labels = append(labels, "`"+name+"`")
		}
		list = append(list, metric{m[1], strings.ReplaceAll(m[2], `\"`, `"`), strings.Join(labels, ", ")})
	}
	slices.SortFunc(list, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	return list
}

func metricsTable(list []metric) string {
	var b strings.Builder
	b.WriteString("| Metric | Labels | What it says |\n|---|---|---|\n")
	for _, m := range list {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.name, m.labels, m.help)
	}
	return b.String()
}

// TestMetrics keeps the tables of docs/metrics.md.
func TestMetrics(t *testing.T) {
	name := filepath.Join(root, "docs/metrics.md")
	text := read(t, name)
	head, rest, found := strings.Cut(text, generatedBegin)
	old, tail, foundEnd := strings.Cut(rest, generatedEnd)
	if !found || !foundEnd {
		t.Fatalf("%s lacks the markers of its generated part", name)
	}
	want := "\n## Driver, port 9810 of the node pods\n\n" + metricsTable(metricsOf(t, driver.MetricDescriptions())) +
		"\n## Controller, port 9812 of the controller pods\n\n" + metricsTable(metricsOf(t, controller.MetricDescriptions())) + "\n"
	if old == want {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date: run make docs", name)
	}
	if err := os.WriteFile(name, []byte(head+generatedBegin+want+generatedEnd+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestDashboardShowsMetricsThatExist: a panel of a metric that was renamed would
// stay empty for ever.
func TestDashboardShowsMetricsThatExist(t *testing.T) {
	known := map[string]bool{}
	for _, m := range metricsOf(t, append(driver.MetricDescriptions(), controller.MetricDescriptions()...)) {
		known[m.name] = true
	}
	shown := regexp.MustCompile(`nvfs_csi_[a-z_]+`).FindAllString(read(t, filepath.Join(root, "charts/nvfs-csi/dashboards/nvfs-csi.json")), -1)
	if len(shown) == 0 {
		t.Fatal("the dashboard shows none of our metrics")
	}
	for _, name := range shown {
		if !known[strings.TrimSuffix(name, "_bucket")] {
			t.Errorf("the dashboard shows %s, which does not exist", name)
		}
	}
}
