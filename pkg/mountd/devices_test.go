package mountd

import (
	"slices"
	"testing"
)

// A successor learns of the devices that its predecessor has grown onto, and
// the next mount of the volume does not.
func TestDeviceList(t *testing.T) {
	dir := t.TempDir()
	var first deviceList
	if err := first.load(dir, "vol", "a"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/two", "/three", "/two"} {
		if _, err := first.add(dir, "vol", "a", []string{path}); err != nil {
			t.Fatal(err)
		}
	}
	undo, err := first.add(dir, "vol", "a", []string{"/refused", "/two"})
	if err != nil {
		t.Fatal(err)
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	want := []string{"/one", "/two", "/three"}
	if have := first.with([]string{"/one", "/two"}); !slices.Equal(have, want) {
		t.Errorf("devices %v, want %v", have, want)
	}
	var successor, stranger, alone deviceList
	for instance, l := range map[string]*deviceList{"a": &successor, "b": &stranger, "": &alone} {
		if err := l.load(dir, "vol", instance); err != nil {
			t.Fatal(err)
		}
	}
	if have := successor.with([]string{"/one"}); !slices.Equal(have, want) {
		t.Errorf("devices of the successor %v, want %v", have, want)
	}
	if len(stranger.with(nil)) != 0 || len(alone.with(nil)) != 0 {
		t.Error("another mount has taken the devices over")
	}
}
