package ndctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const testMiB = 1 << 20

func newTestSystem(t *testing.T) (*System, fakeTree) {
	t.Helper()
	tree := newFakeTree(t, 1, 256*testMiB, 16*testMiB)
	return tree.system(t.TempDir()), tree
}

var testRequest = CreateRequest{Name: "vol", Region: "region0", Mode: DevDax, Size: 30 * testMiB}

// wantEmpty checks that nothing is left of a namespace: nothing listed, no
// space taken, no intent.
func wantEmpty(t *testing.T, m *System) {
	t.Helper()
	ctx := context.Background()
	s, err := m.read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range s.namespaces {
		t.Errorf("left: %+v", ns)
	}
	for _, i := range s.intents {
		t.Errorf("left: intent %+v", i)
	}
	for _, r := range s.regions {
		if r.Available != r.Size {
			t.Errorf("region %s has %d of %d bytes available", r.Name, r.Available, r.Size)
		}
	}
}

func TestCreateDoesNotTrustExitCodes(t *testing.T) {
	ctx := context.Background()
	for _, wrong := range []misbehaviour{lieSuccess, half, wrongName, noDeviceNode} {
		t.Run(string(wrong), func(t *testing.T) {
			m, tree := newTestSystem(t)
			tree.misbehave(wrong)
			if ns, err := m.Create(ctx, testRequest); err == nil {
				t.Errorf("Create returned %+v", ns)
			}
			wantEmpty(t, m)
			if _, err := m.Create(ctx, testRequest); err != nil {
				t.Errorf("Create again: %v", err)
			}
		})
	}
	t.Run(string(lieFailure), func(t *testing.T) {
		m, tree := newTestSystem(t)
		tree.misbehave(lieFailure)
		if ns, err := m.Create(ctx, testRequest); err != nil || ns.Name != "vol" || ns.Size < testRequest.Size {
			t.Errorf("Create = %+v, %v", ns, err)
		}
	})
}

func TestCreateTakesMoreWhenTheKernelLeavesLess(t *testing.T) {
	m, tree := newTestSystem(t)
	tree.misbehave(tooSmall)
	ns, err := m.Create(context.Background(), testRequest)
	if err != nil || ns.Size < testRequest.Size || ns.Raw != 48*testMiB {
		t.Errorf("Create = %+v, %v; want 48 MiB taken", ns, err)
	}
}

func TestCreateReportsLostSpace(t *testing.T) {
	m, tree := newTestSystem(t)
	tree.misbehave(loseSpace)
	_, err := m.Create(context.Background(), testRequest)
	if err == nil || !strings.Contains(err.Error(), "has lost 33554432 bytes") {
		t.Errorf("Create: %v; want it to name what is lost", err)
	}
}

func TestDestroyDoesNotTrustExitCodes(t *testing.T) {
	ctx := context.Background()
	for _, wrong := range []misbehaviour{lieSuccess, half} {
		t.Run(string(wrong), func(t *testing.T) {
			m, tree := newTestSystem(t)
			mustCreate(t, m)
			tree.misbehave(wrong)
			if err := m.Destroy(ctx, "vol"); err == nil {
				t.Error("Destroy reported success")
			}
			// The next change finishes it.
			if err := m.change(ctx, func(context.Context, *changing) error { return nil }); err != nil {
				t.Fatal(err)
			}
			wantEmpty(t, m)
		})
	}
	t.Run(string(lieFailure), func(t *testing.T) {
		m, tree := newTestSystem(t)
		mustCreate(t, m)
		tree.misbehave(lieFailure)
		if err := m.Destroy(ctx, "vol"); err != nil {
			t.Error(err)
		}
		wantEmpty(t, m)
	})
	t.Run(string(becomeInUse), func(t *testing.T) {
		m, tree := newTestSystem(t)
		mustCreate(t, m)
		tree.misbehave(becomeInUse)
		if err := m.Destroy(ctx, "vol"); !errors.Is(err, ErrBusy) {
			t.Errorf("Destroy: %v, want ErrBusy", err)
		}
		if err := os.Remove(tree.path("used/vol")); err != nil {
			t.Fatal(err)
		}
		// No longer in use: it must not go because somebody once asked.
		if err := m.change(ctx, func(context.Context, *changing) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Namespace(ctx, "vol"); err != nil {
			t.Errorf("after a refused Destroy: %v", err)
		}
	})
}

func mustCreate(t *testing.T, m *System) Namespace {
	t.Helper()
	ns, err := m.Create(context.Background(), testRequest)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// A command that hangs is killed with all its children, and what it left is
// removed.
func TestHangingCommandIsKilledAsAGroup(t *testing.T) {
	for _, wrong := range []misbehaviour{halfAndHang, helperHangs} {
		t.Run(string(wrong), func(t *testing.T) {
			m, tree := newTestSystem(t)
			m.tool.timeout = 5 * time.Second // also for the removal, on a machine that is busy
			tree.misbehave(wrong)
			if _, err := m.Create(context.Background(), testRequest); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Create: %v", err)
			}
			m.tool.timeout = 20 * time.Second
			wantEmpty(t, m)
			commands, err := filepath.Glob(tree.path("commands/*"))
			if err != nil || len(commands) == 0 {
				t.Fatalf("commands: %v, %v", commands, err)
			}
			for _, command := range commands {
				if _, err := os.Stat("/proc/" + filepath.Base(command)); err == nil {
					t.Errorf("process %s still runs", filepath.Base(command))
				}
			}
		})
	}
}

// A change goes on when its caller has given up, and is found by the next one.
func TestChangeOutlivesItsCaller(t *testing.T) {
	m, _ := newTestSystem(t)
	ctx, cancel := context.WithCancel(context.Background())
	running, finish := make(chan struct{}), make(chan struct{})
	go func() {
		<-running
		cancel()
	}()
	err := m.change(ctx, func(ctx context.Context, c *changing) error {
		close(running)
		<-finish
		_, err := c.create(ctx, testRequest)
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("change: %v", err)
	}
	close(finish)
	if _, err := m.Create(context.Background(), testRequest); !errors.Is(err, ErrExists) {
		t.Errorf("Create after the other change: %v, want ErrExists", err)
	}
}

// A driver that is killed leaves an intent at whatever point its ndctl was.
func TestInterruptedCreationIsUndone(t *testing.T) {
	m, tree := newTestSystem(t)
	ns := mustCreate(t, m)
	if err := m.intents.save(intent{Action: creating, Name: ns.Name, UUID: ns.UUID, Mode: FSDax}); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := m.Namespace(ctx, "vol"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a namespace that is being made is shown: %v", err)
	}
	if all, err := m.Namespaces(ctx); err != nil || len(all) != 0 {
		t.Errorf("Namespaces = %+v, %v", all, err)
	}
	other := tree.system(m.lockDir) // as after a restart
	if err := other.change(ctx, func(context.Context, *changing) error { return nil }); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, m)
}

func TestFinishedCreationIsKept(t *testing.T) {
	m, _ := newTestSystem(t)
	ns := mustCreate(t, m)
	if err := m.intents.save(intent{Action: creating, Name: ns.Name, UUID: ns.UUID, Mode: ns.Mode}); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := m.Create(ctx, testRequest); !errors.Is(err, ErrExists) {
		t.Errorf("Create: %v, want ErrExists", err)
	}
	if found, err := m.Namespace(ctx, "vol"); err != nil || found != ns {
		t.Errorf("Namespace = %+v, %v", found, err)
	}
}

// Intents are about UUIDs: another namespace of the same name is left alone.
func TestIntentDoesNotTouchAnotherNamespace(t *testing.T) {
	m, _ := newTestSystem(t)
	ns := mustCreate(t, m)
	if err := m.intents.save(intent{Action: destroying, Name: ns.Name, UUID: "11111111-1111-4111-8111-111111111111"}); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if err := m.change(ctx, func(context.Context, *changing) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if found, err := m.Namespace(ctx, "vol"); err != nil || found != ns {
		t.Errorf("Namespace = %+v, %v", found, err)
	}
}

func TestDamagedIntentStopsChanges(t *testing.T) {
	m, _ := newTestSystem(t)
	mustCreate(t, m)
	if err := os.WriteFile(m.intents.path("x"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Destroy(context.Background(), "vol"); err == nil {
		t.Error("a change beside an intent that cannot be read")
	}
}

func TestSameNameTwiceIsRefused(t *testing.T) {
	m, tree := newTestSystem(t)
	mustCreate(t, m)
	for attribute, value := range map[string]string{"uuid": "22222222-2222-4222-8222-222222222222", "alt_name": "vol", "size": fmt.Sprint(16 * testMiB), "resource": "0x10f000000"} {
		tree.write("bus/namespace0.7/"+attribute, value)
	}
	ctx := context.Background()
	if _, err := m.Namespace(ctx, "vol"); !errors.Is(err, ErrInvalid) {
		t.Errorf("Namespace: %v", err)
	}
	if err := m.Destroy(ctx, "vol"); !errors.Is(err, ErrInvalid) {
		t.Errorf("Destroy: %v", err)
	}
}

func TestViewChangesNothing(t *testing.T) {
	tree := newFakeTree(t, 1, 256*testMiB, 16*testMiB)
	m := tree.system("")
	if _, err := m.Create(context.Background(), testRequest); !errors.Is(err, ErrUnsupported) {
		t.Errorf("Create by whoever only looks: %v", err)
	}
}
