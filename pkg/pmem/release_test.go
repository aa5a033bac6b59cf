package pmem

import (
	"errors"
	"os"
	"testing"
)

// A successor maps the backing while its predecessor uses it, and has it at
// once when that has let go, with what it has grown by meanwhile.
func TestHandOver(t *testing.T) {
	const size = 4 << 20
	path := newFile(t, tmpfsDir(t), "handed over", size)
	m, err := Open(path, Options{Mode: Auto})
	if err != nil {
		t.Fatal(err)
	}
	next, err := Open(path, Options{Mode: Auto, Unlocked: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Lock(); !errors.Is(err, ErrInUse) {
		t.Fatalf("locked twice: %v", err)
	}
	if err := os.Truncate(path, 2*size); err != nil {
		t.Fatal(err)
	}
	if err := m.Release(); err != nil {
		t.Fatal(err)
	}
	if err := next.Lock(); err != nil || next.Size() != 2*size {
		t.Fatalf("locked after the release: %v, %d bytes", err, next.Size())
	}
	if _, err := Open(path, Options{Mode: Auto}); !errors.Is(err, ErrInUse) {
		t.Errorf("opened while the successor has it: %v", err)
	}
	if m.Bytes()[0] != 0 {
		t.Error("what was released is not mapped any more")
	}
	if err := errors.Join(m.Close(), next.Close()); err != nil {
		t.Error(err)
	}
}
