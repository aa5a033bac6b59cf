package main

import "testing"

func TestParseSize(t *testing.T) {
	for text, want := range map[string]uint64{
		"4096": 4096, "1K": 1 << 10, "64M": 64 << 20, "64Mi": 64 << 20, "64MiB": 64 << 20, "2G": 2 << 30, "3T": 3 << 40,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "1X", "1MB", "G", "1.5G", "99999999T", "18446744073709551615", "1G2"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("parseSize(%q) = %d, want an error", text, got)
		}
	}
}
