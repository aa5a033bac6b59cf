package ndctl

import (
	"context"
	"errors"
	"os"
	"testing"
)

// A start before the kernel has found its regions must not take an interrupted
// change for finished: what was left half done shows up later.
func TestInterruptedChangeWaitsForItsRegion(t *testing.T) {
	ctx := context.Background()
	m, tree := newTestSystem(t)
	mustCreate(t, m)
	tree.misbehave(half)
	if err := m.Destroy(ctx, "vol"); err == nil {
		t.Fatal("Destroy reported success")
	}
	if err := os.Rename(tree.path("bus"), tree.path("later")); err != nil {
		t.Fatal(err)
	}
	nothing := func(context.Context, *changing) error { return nil }
	if err := m.change(ctx, nothing); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(ctx, testRequest); !errors.Is(err, ErrBusy) {
		t.Errorf("Create of the name of an unfinished change: %v, want ErrBusy", err)
	}
	if err := os.Rename(tree.path("later"), tree.path("bus")); err != nil {
		t.Fatal(err)
	}
	if err := m.change(ctx, nothing); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, m)
}
