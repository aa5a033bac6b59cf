package bench

import (
	"strings"
	"testing"
	"time"
)

func TestTableAlignsColumns(t *testing.T) {
	table := Table{Header: []string{"job", "MB/s"}, Indent: "  "}
	table.Add("sequential", "1")
	table.Add("µ", "1000")
	table.Add("short row")
	var b strings.Builder
	if err := table.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"  job         MB/s\n" +
		"  ----------  ----\n" +
		"  sequential     1\n" +
		"  µ           1000\n" +
		"  short row       \n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestFormat(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{FormatRate(3.456e9), "3.46 GB/s"},
		{FormatRate(12.6e6), "13 MB/s"},
		{FormatRate(4096), "4 kB/s"},
		{FormatSize(512), "512 B"},
		{FormatSize(4096), "4 KiB"},
		{FormatSize(3 << 29), "1.5 GiB"},
		{FormatSize(64 << 40), "64 TiB"},
		{FormatLatency(950 * time.Nanosecond), "0.95 us"},
		{FormatLatency(12345 * time.Nanosecond), "12.3 us"},
		{FormatLatency(12345 * time.Microsecond), "12.3 ms"},
		{FormatLatency(90 * time.Second), "90 s"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}
