package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// longDefault is the length from which on a default is not shown in the table.
const longDefault = 80

// ValuesTable makes a Markdown table of a values file, one row for each key
// that has a comment that begins with "--".
func ValuesTable(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("| Key | Default | Meaning |\n|---|---|---|\n")
	if err := valueRows(&b, "", document.Content[0]); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return b.String(), nil
}

func valueRows(b *strings.Builder, prefix string, mapping *yaml.Node) error {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := prefix + key.Value
		doc, documented := documentation(key.HeadComment)
		switch {
		case documented:
			text, err := defaultText(value)
			if err != nil {
				return err
			}
			fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, text, doc)
		case value.Kind == yaml.MappingNode && len(value.Content) > 0:
			if err := valueRows(b, name+".", value); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s has no comment that begins with \"--\"", name)
		}
	}
	return nil
}

// documentation returns the text behind "# --", on one line.
func documentation(comment string) (string, bool) {
	_, text, found := strings.Cut(comment, "# -- ")
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "\n#", "\n")), " "), found
}

func defaultText(value *yaml.Node) (string, error) {
	var v any
	if err := value.Decode(&v); err != nil {
		return "", err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	if len(text) > longDefault {
		return "see values.yaml", nil
	}
	return "`" + string(text) + "`", nil
}
