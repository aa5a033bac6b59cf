package cluster

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
)

func someReport() *Report {
	job := func(name string, iops float64) bench.NamedFioResult {
		side := bench.FioSide{Bytes: 1, BytesPerSec: iops * 4096, IOPS: iops, Latency: bench.Latency{Median: 10 * time.Microsecond, P99: time.Millisecond}}
		return bench.NamedFioResult{Name: name, FioResult: bench.FioResult{Write: side}}
	}
	return &Report{
		Nodes:   []Node{{Name: "n1", CPUs: 2, Kernel: "6.18", Kubelet: "v1.37.2"}},
		Classes: []Class{{Name: "a", Provisioner: "csi.nvfs.dev", Parameters: map[string]string{"y": "2", "x": "1"}}, {Name: "<b>", Provisioner: "other"}},
		Results: []Result{
			{Class: "a", Workload: "log", Node: "n1", Jobs: []bench.NamedFioResult{job("log", 1000)}},
			{Class: "a", Workload: "random", Node: "n1", Jobs: []bench.NamedFioResult{job("one", 500)}},
			{Class: "<b>", Workload: "log", Node: "n2", Jobs: []bench.NamedFioResult{job("log", 250)}},
			{Class: "<b>", Workload: "random", Failure: "the pod waits"},
		},
	}
}

// What is to be compared stands together, classes in the order they were asked
// for.
func TestReportText(t *testing.T) {
	var out bytes.Buffer
	if err := someReport().WriteText(&out); err != nil {
		t.Fatal(err)
	}
	at := -1
	for _, part := range []string{"log: write", "1000", "log: write", "<b>", "250", "random one: write", "random on class <b> failed: the pod waits"} {
		next := strings.Index(out.String()[at+1:], part)
		if next < 0 {
			t.Fatalf("%q is missing, or not in that order:\n%s", part, out.String())
		}
		at += 1 + next
	}
}

func TestReportPage(t *testing.T) {
	var out bytes.Buffer
	if err := someReport().WriteHTML(&out); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"csi.nvfs.dev, x=1, y=2", "&lt;b&gt;", "width: 25.0%", "the pod waits"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing:\n%s", part, out.String())
		}
	}
	if strings.Contains(out.String(), "<b>") {
		t.Error("a name was not escaped")
	}
}
