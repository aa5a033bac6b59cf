package bench

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Table is a text table for a terminal: the first column is aligned to the
// left, all others to the right.
type Table struct {
	Header []string
	Rows   [][]string
	Indent string
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Write prints the table.
func (t *Table) Write(w io.Writer) error {
	widths := make([]int, len(t.Header))
	for _, row := range append([][]string{t.Header}, t.Rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	line := func(row []string) {
		b.WriteString(t.Indent)
		for i, width := range widths {
			cell := ""
			if i < len(row) {
				cell = row[i]
			}
			pad := strings.Repeat(" ", width-utf8.RuneCountInString(cell))
			switch {
			case i == 0 && len(widths) == 1:
				b.WriteString(cell)
			case i == 0:
				b.WriteString(cell + pad)
			default:
				b.WriteString("  " + pad + cell)
			}
		}
		b.WriteByte('\n')
	}
	line(t.Header)
	rule := make([]string, len(widths))
	for i, width := range widths {
		rule[i] = strings.Repeat("-", width)
	}
	line(rule)
	for _, row := range t.Rows {
		line(row)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// FormatRate prints a throughput in decimal units, as fio and dd do.
func FormatRate(bytesPerSec float64) string {
	switch {
	case bytesPerSec >= 1e9:
		return fmt.Sprintf("%.2f GB/s", bytesPerSec/1e9)
	case bytesPerSec >= 1e6:
		return fmt.Sprintf("%.0f MB/s", bytesPerSec/1e6)
	default:
		return fmt.Sprintf("%.0f kB/s", bytesPerSec/1e3)
	}
}

// FormatSize prints a size in binary units.
func FormatSize(bytes int64) string {
	const units = "KMGTP"
	if bytes < 1024 {
		return fmt.Sprintf("%d B", bytes)
	}
	v, unit := float64(bytes)/1024, 0
	for v >= 1024 && unit < len(units)-1 {
		v /= 1024
		unit++
	}
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d %ciB", int64(v), units[unit])
	}
	return fmt.Sprintf("%.1f %ciB", v, units[unit])
}

// FormatLatency prints a duration in the unit that fits it, with three
// significant digits.
func FormatLatency(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
	default:
		return fmt.Sprintf("%.3g us", float64(d)/float64(time.Microsecond))
	}
}
