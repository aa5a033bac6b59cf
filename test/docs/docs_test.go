// Package docs keeps docs/ in step with the code: with -update it rewrites the
// generated parts, without it a part that is out of date is a failure.
package docs

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

const root = "../.."

var update = flag.Bool("update", false, "rewrite the generated parts of docs/")

// The markers around a generated part.
const (
	generatedBegin = "<!-- generated: make docs -->\n"
	generatedEnd   = "<!-- end of generated part -->\n"
)

func TestParameters(t *testing.T) {
	name := filepath.Join(root, "docs/parameters.md")
	text := read(t, name)
	head, rest, found := strings.Cut(text, generatedBegin)
	old, tail, foundEnd := strings.Cut(rest, generatedEnd)
	if !found || !foundEnd {
		t.Fatalf("%s lacks the markers of its generated part", name)
	}
	want := driver.ParameterDocs()
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

var (
	requireLine = regexp.MustCompile(`(?m)^\s+(\S+) v\S+( // indirect)?$`)
	moduleRow   = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
)

// TestDependencies wants a reason for each module that is imported, and no
// reason for one that is not there.
func TestDependencies(t *testing.T) {
	explained := map[string]bool{}
	for _, m := range moduleRow.FindAllStringSubmatch(read(t, filepath.Join(root, "docs/dependencies.md")), -1) {
		explained[m[1]] = true
	}
	required := map[string]bool{}
	for _, m := range requireLine.FindAllStringSubmatch(read(t, filepath.Join(root, "go.mod")), -1) {
		required[m[1]] = true
		if m[2] == "" && !explained[m[1]] {
			t.Errorf("docs/dependencies.md does not say why %s is needed", m[1])
		}
	}
	for module := range explained {
		if !required[module] {
			t.Errorf("docs/dependencies.md explains %s, which go.mod does not require", module)
		}
	}
}

var markdownLink = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

// TestLinks wants every file that a document refers to.
func TestLinks(t *testing.T) {
	var documents []string
	for _, dir := range []string{root, filepath.Join(root, "docs")} {
		found, err := filepath.Glob(filepath.Join(dir, "*.md"))
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, found...)
	}
	if len(documents) < 2 {
		t.Fatalf("found only %v", documents)
	}
	for _, doc := range documents {
		for _, m := range markdownLink.FindAllStringSubmatch(read(t, doc), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s refers to %s, which does not exist", doc, m[1])
			}
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
