package localcluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSuiteReport(t *testing.T) {
	const report = `<?xml version="1.0"?>
<testsuites tests="4"><testsuite name="suite">
<testcase name="[It] a" status="passed"></testcase>
<testcase name="b" status="skipped"><skipped message="skipped"></skipped></testcase>
<testcase name="c" status="skipped"><skipped message="skipped - Driver &#34;x&#34; does not do snapshots - skipping"></skipped></testcase>
%s
</testsuite></testsuites>`
	const doc = "# Conformance\n\n| Reason | Why |\n|---|---|\n| `does not do snapshots` | node-local memory |\n"
	for name, c := range map[string]struct{ cases, doc, want string }{
		"as listed":   {"", doc, ""},
		"not listed":  {"", "no table", "does not list"},
		"nothing ran": {`<testcase name="[BeforeSuite]" status="passed"></testcase>`, doc, "no test"},
		"failed":      {`<testcase name="d" status="failed"><failure message="no"></failure></testcase>`, doc, "1 tests failed"},
		"interrupted": {`<testcase name="d" status="interrupted"></testcase>`, doc, "1 tests failed"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			s := Suite{Module: filepath.Join(root, "test", "e2e", "conformance")}
			for _, dir := range []string{s.Module, filepath.Join(root, "docs")} {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			text := fmt.Sprintf(report, c.cases)
			if name == "nothing ran" {
				text = strings.Replace(text, `name="[It] a" status="passed"`, `name="[It] a" status="skipped"`, 1)
			}
			write(t, filepath.Join(root, suiteReport), text)
			write(t, filepath.Join(root, "docs", "conformance.md"), c.doc)
			err := s.Report(root, t.Logf)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
