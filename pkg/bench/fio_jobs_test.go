package bench

import (
	"strings"
	"testing"
)

func TestParseFioOfSeveralJobs(t *testing.T) {
	const report = "fio: this is a note\n" + `{
  "jobs": [
    {"jobname": "one", "error": 0, "read": {"io_bytes": 4096, "bw_bytes": 100, "iops": 2.5, "clat_ns": {"mean": 5, "percentile": {"50.000000": 7, "99.000000": 9}}}},
    {"jobname": "two", "error": ERROR}
  ]
}
more`
	got, err := ParseFio([]byte(strings.Replace(report, "ERROR", "0", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Name != "one" || got[0].Read.IOPS != 2.5 || got[0].Read.Latency.P99 != 9 || got[1].Name != "two" {
		t.Errorf("%+v", got)
	}
	for text, says := range map[string]string{strings.Replace(report, "ERROR", "5", 1): "fio job two", "": "no report", "{\n \"jobs\": []}": "no job", "{\n": "parse"} {
		if _, err := ParseFio([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
