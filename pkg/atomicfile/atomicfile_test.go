package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteReplacesAndSurvivesALeftTempFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path+TempSuffix, []byte("left by a crash, longer than the rest"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one", "second"} {
		if err := Write(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Fatalf("read %q, %v; want %q", got, err, want)
		}
	}
	if _, err := os.Stat(path + TempSuffix); !os.IsNotExist(err) {
		t.Errorf("temporary file is left: %v", err)
	}
}

func TestWriteFailureKeepsTheOldContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.Mkdir(path+TempSuffix, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o600); err == nil {
		t.Fatal("Write succeeded over a directory")
	}
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("content is %q", got)
	}
}

func TestRemoveIsIdempotent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := Write(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
