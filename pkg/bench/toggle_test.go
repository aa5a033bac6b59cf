package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestToggle(t *testing.T) {
	for _, kind := range ToggleKinds {
		t.Run(string(kind), func(t *testing.T) {
			parent := memoryDir(t)
			dir := filepath.Join(parent, "toggle")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			res, err := ToggleTest{Kind: kind, Names: 100, Operations: 1000, CPU: AnyCPU}.Run(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			if res.Created+res.Deleted != 1000 || res.Present != 50+res.Created-res.Deleted || res.Elapsed <= 0 {
				t.Errorf("implausible result %+v", res)
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			if len(entries) != res.Present {
				t.Errorf("%d entries, want %d", len(entries), res.Present)
			}
			for _, e := range entries {
				if e.IsDir() != (kind == ToggleDirectories) {
					t.Errorf("%s: directory %v", e.Name(), e.IsDir())
				}
			}
		})
	}
}

func TestToggleVerifyFindsWhatIsWrong(t *testing.T) {
	for name, harm := range map[string]func(dir string) error{
		"a name missing": func(dir string) error { return os.Remove(filepath.Join(dir, toggleName(0))) },
		"a name too many": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "x"), nil, 0o600)
		},
		"another name": func(dir string) error {
			return os.Rename(filepath.Join(dir, toggleName(0)), filepath.Join(dir, "x"))
		},
	} {
		dir := memoryDir(t)
		d, err := openToggleDir(ToggleTest{Kind: ToggleFiles, Names: 4}, dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		if err := d.fill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := d.verify(dir); err != nil {
			t.Fatalf("before: %v", err)
		}
		if err := harm(dir); err != nil {
			t.Fatal(err)
		}
		if d.verify(dir) == nil {
			t.Errorf("%s: not found", name)
		}
	}
}

func TestToggleStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (ToggleTest{Kind: ToggleFiles, Names: 4, Operations: 4, CPU: AnyCPU}).Run(ctx, memoryDir(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestToggleNamesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for i := range 100000 {
		name := toggleName(i)
		if seen[name] {
			t.Fatalf("%s twice", name)
		}
		seen[name] = true
	}
}
