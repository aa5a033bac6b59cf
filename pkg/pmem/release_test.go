package pmem

import (
	"errors"
	"testing"
)

// After Release another process may have the backing at once; what is mapped
// stays so.
func TestRelease(t *testing.T) {
	path := newFile(t, tmpfsDir(t), "released", 4<<20)
	m, err := Open(path, Options{Mode: NT})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Options{Mode: NT}); !errors.Is(err, ErrInUse) {
		t.Fatalf("opened twice: %v", err)
	}
	if err := m.Release(); err != nil {
		t.Fatal(err)
	}
	next, err := Open(path, Options{Mode: NT})
	if err != nil {
		t.Fatal(err)
	}
	if m.Bytes()[0] != 0 {
		t.Error("the content has changed")
	}
	if err := errors.Join(m.Close(), next.Close()); err != nil {
		t.Error(err)
	}
}
