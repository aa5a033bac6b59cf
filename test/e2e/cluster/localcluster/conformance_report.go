package localcluster

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// SuiteResult is what a run of the suite came to.
type SuiteResult struct {
	Passed, Failed int
	// Skipped counts the tests that did not want to run, by the reason that they
	// gave.
	Skipped map[string]int
}

type junitCase struct {
	Name    string `xml:"name,attr"`
	Status  string `xml:"status,attr"`
	Skipped *struct {
		Message string `xml:"message,attr"`
	} `xml:"skipped"`
}

// readSuiteReport reads a JUnit report of Ginkgo. Tests that were not asked for
// are in it as well, skipped without a reason.
func readSuiteReport(file string) (SuiteResult, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return SuiteResult{}, err
	}
	var report struct {
		Cases []junitCase `xml:"testsuite>testcase"`
	}
	if err := xml.Unmarshal(text, &report); err != nil {
		return SuiteResult{}, fmt.Errorf("%s: %w", file, err)
	}
	r := SuiteResult{Skipped: map[string]int{}}
	for _, c := range report.Cases {
		switch c.Status {
		case "passed":
			if strings.HasPrefix(c.Name, "[It]") { // what goes before and after is there too
				r.Passed++
			}
		case "skipped", "pending":
			if reason, ok := skipReason(c); ok {
				r.Skipped[reason]++
			}
		default:
			r.Failed++
		}
	}
	return r, nil
}

func skipReason(c junitCase) (string, bool) {
	if c.Skipped == nil {
		return "", false
	}
	return strings.CutPrefix(c.Skipped.Message, "skipped - ")
}

// Report prints what the last run came to, and fails if nothing has passed, or a
// test was skipped for a reason that docs/conformance.md does not list.
func (s Suite) Report(dir string, log func(format string, args ...any)) error {
	r, err := readSuiteReport(filepath.Join(dir, suiteReport))
	if err != nil {
		return err
	}
	doc := filepath.Join(s.Module, "..", "..", "..", "docs", "conformance.md")
	text, err := os.ReadFile(doc)
	if err != nil {
		return err
	}
	known := listedReasons(string(text))
	var unlisted []string
	skipped := 0
	for reason, n := range r.Skipped {
		skipped += n
		if !slices.ContainsFunc(known, func(k string) bool { return strings.Contains(reason, k) }) {
			unlisted = append(unlisted, fmt.Sprintf("%q (%d tests)", reason, n))
		}
	}
	log("%d passed, %d failed, %d skipped for the reasons in docs/conformance.md", r.Passed, r.Failed, skipped)
	slices.Sort(unlisted)
	switch {
	case len(unlisted) > 0:
		return fmt.Errorf("tests were skipped for reasons that docs/conformance.md does not list: %s", strings.Join(unlisted, "; "))
	case r.Failed > 0:
		return fmt.Errorf("%d tests failed", r.Failed)
	case r.Passed == 0:
		return fmt.Errorf("no test has run")
	}
	return nil
}

// listedReasons are the reasons for skips in the table of the document: what stands
// between backquotes in the first column.
func listedReasons(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "| `"); ok {
			if reason, _, ok := strings.Cut(rest, "` |"); ok {
				all = append(all, reason)
			}
		}
	}
	return all
}
