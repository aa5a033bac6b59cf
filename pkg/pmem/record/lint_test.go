package record_test

import (
	"strings"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

func TestLint(t *testing.T) {
	word := make([]byte, 8)
	for _, c := range []struct {
		name string
		run  func(p pmem.Persister)
		want []record.Rule
	}{
		{"right", func(p pmem.Persister) {
			p.Copy(3, word)
			p.Store64(64, 1)
			p.Store64(72, 1)
			p.Flush(64, 16)
			fence(t, p)
			p.Store64(64, 2)
			p.Flush(64, 8)
			fence(t, p)
		}, nil},
		{"copy flushes what was stored to its line", func(p pmem.Persister) {
			p.Store64(0, 1)
			p.Copy(8, word)
			fence(t, p)
		}, nil},
		{"not flushed", func(p pmem.Persister) {
			p.Store64(0, 1)
			p.Store64(64, 1)
			p.Flush(0, 8)
			fence(t, p)
		}, []record.Rule{record.Uncovered}},
		{"stored after the flush", func(p pmem.Persister) {
			p.Store64(0, 1)
			p.Flush(0, 8)
			p.Store64(8, 1)
			fence(t, p)
		}, []record.Rule{record.Uncovered}},
		{"stored after the fence", func(p pmem.Persister) {
			p.Copy(64, word)
			fence(t, p)
			p.Store64(0, 1)
		}, []record.Rule{record.Unflushed}},
		{"a long copy over a line that awaits a flush, and another", func(p pmem.Persister) {
			p.Store64(128, 1)
			p.Copy(0, make([]byte, 1024))
			p.Flush(128, 8)
			fence(t, p)
		}, []record.Rule{record.DoubleFlush}},
		{"not fenced", func(p pmem.Persister) { p.Zero(0, 8) }, []record.Rule{record.Unfenced}},
		{"clean flush", func(p pmem.Persister) {
			p.Store64(0, 1)
			p.Flush(0, 128)
			fence(t, p)
		}, []record.Rule{record.CleanFlush}},
		{"double flush", func(p pmem.Persister) {
			p.Store64(0, 1)
			p.Flush(0, 8)
			p.Flush(0, 8)
			fence(t, p)
		}, []record.Rule{record.DoubleFlush}},
		{"flush of a copy", func(p pmem.Persister) {
			p.Copy(0, word)
			p.Flush(0, 8)
			fence(t, p)
		}, []record.Rule{record.DoubleFlush}},
		{"two copies to a line", func(p pmem.Persister) {
			p.Copy(0, word)
			p.Zero(8, 8)
			fence(t, p)
		}, []record.Rule{record.DoubleFlush}},
		{"nothing to fence", func(p pmem.Persister) { fence(t, p) }, []record.Rule{record.EmptyFence}},
		{"nothing to copy", func(p pmem.Persister) { p.Copy(0, nil) }, []record.Rule{record.EmptyStore}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := record.New(4096, 4096)
			c.run(s.NewPersister())
			found := s.Lint()
			if len(found) != len(c.want) {
				t.Fatalf("found %v, want %v", found, c.want)
			}
			for i, f := range found {
				if f.Rule != c.want[i] {
					t.Errorf("found %v, want %v", f.Rule, c.want[i])
				}
				if !strings.Contains(f.String(), "lint_test.go:") && !strings.Contains(f.String(), "image_test.go:") {
					t.Errorf("finding %q does not name the caller", f)
				}
			}
			if again := s.Lint(); len(again) > 0 {
				t.Errorf("found again: %v", again)
			}
		})
	}
}

func TestTraceNamesTheCaller(t *testing.T) {
	s := record.New(4096, 4096)
	s.Freeze()
	p := s.NewPersister()
	s.Record()
	p.Copy(4, make([]byte, 16))
	fence(t, p)
	events := s.Stop().Events()
	if len(events) != 4 || events[0].Mask != 0xf0 || events[1].Mask != 0xff || events[2].Mask != 0x0f {
		t.Fatalf("events %+v", events)
	}
	if at := events[0].Where(); !strings.HasPrefix(at, "lint_test.go:") {
		t.Errorf("the store comes from %s", at)
	}
	if events[3].Kind != record.Fence || events[3].Kind.String() != "fence" {
		t.Errorf("last event %v", events[3].Kind)
	}
}

func TestStoresOutsidePanic(t *testing.T) {
	s := record.New(4096, 4096)
	p := s.NewPersister()
	for name, f := range map[string]func(){
		"copy behind the end": func() { p.Copy(4090, make([]byte, 8)) },
		"odd word":            func() { p.Store64(4, 1) },
		"overflow":            func() { p.Zero(1<<63, 1<<63) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}
