package cpulist

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	for s, want := range map[string][]int{
		"":          nil,
		"0":         {0},
		"0-3,8":     {0, 1, 2, 3, 8},
		"1,3-4,7-7": {1, 3, 4, 7},
	} {
		if got, err := Parse(s); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"a", "1-", "-1", "1-x", "99999999"} {
		if got, err := Parse(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cpulist")
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte("4-5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if cpus, err := Read(path); err != nil || !slices.Equal(cpus, []int{4, 5}) {
		t.Errorf("%v, %v", cpus, err)
	}
}
