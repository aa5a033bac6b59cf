package driver

import (
	"fmt"
	"strings"
)

// ParameterDocs returns the table of all parameters in Markdown, which
// docs/parameters.md embeds.
func ParameterDocs() string {
	var b strings.Builder
	b.WriteString("| Parameter | Values | Default | Meaning |\n")
	b.WriteString("|---|---|---|---|\n")
	for _, def := range parameters {
		if def.origins&OriginClass == 0 {
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", def.key, def.documentValues(), code(def.initial), def.doc)
	}
	return b.String()
}

func (d *parameter) documentValues() string {
	if d.format != "" {
		return d.format
	}
	var values []string
	for _, v := range d.values {
		values = append(values, code(v))
	}
	return strings.Join(values, ", ")
}

func code(s string) string {
	if s == "" {
		return "unset"
	}
	return "`" + s + "`"
}
