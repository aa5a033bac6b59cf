package pmem

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestParseMode(t *testing.T) {
	for _, m := range AllModes() {
		if got, err := ParseMode(string(m)); got != m || err != nil {
			t.Errorf("ParseMode(%q) = %q, %v", m, got, err)
		}
	}
	if got, err := ParseMode(""); got != Auto || err != nil {
		t.Errorf("the empty name is %q, %v, want auto", got, err)
	}
	_, err := ParseMode("clflushit")
	if err == nil {
		t.Fatal("an unknown name was accepted")
	}
	for _, m := range AllModes() {
		if !strings.Contains(err.Error(), string(m)) {
			t.Errorf("the error does not name %s: %v", m, err)
		}
	}
}

func TestCPUModes(t *testing.T) {
	modes := CPUModes()
	if modes[len(modes)-1] != MSync {
		t.Errorf("modes are %v: msync must be the last", modes)
	}
	if slices.Contains(modes, Auto) {
		t.Errorf("modes are %v: auto is no mode of a CPU", modes)
	}
	modes[0] = "changed"
	if CPUModes()[0] == "changed" {
		t.Error("the caller can change the list")
	}
}

// TestAllowedModes is the table of what makes a store durable on what.
func TestAllowedModes(t *testing.T) {
	var all, flushing []Mode // what this CPU has, and what of it is durable without help of the platform
	for _, m := range CPUModes() {
		all = append(all, m)
		if m != EADR && m != MSync {
			flushing = append(flushing, m)
		}
	}
	without := func(m Mode) []Mode {
		return slices.DeleteFunc(slices.Clone(all), func(have Mode) bool { return have == m })
	}
	onlyMSync := []Mode{MSync}
	tests := []struct {
		name     string
		b        Backing
		emulated bool
		want     []Mode
	}{
		{"devdax", Backing{Kind: KindDevDax, Domain: DomainMemoryController}, false, flushing},
		{"devdax, domain unknown", Backing{Kind: KindDevDax}, false, flushing},
		{"devdax, cpu_cache", Backing{Kind: KindDevDax, Domain: DomainCPUCache}, false, without(MSync)},
		{"devdax, emulated", Backing{Kind: KindDevDax}, true, without(MSync)},
		{"devdax without a region", Backing{Kind: KindDevDax, Domain: DomainVolatile, Volatile: true}, false, nil},
		{"devdax without a region, emulated", Backing{Kind: KindDevDax, Domain: DomainVolatile, Volatile: true}, true, without(MSync)},
		{"devdax on virtio-pmem", Backing{Kind: KindDevDax, HostFlush: true}, false, nil},
		{"dax file", Backing{Kind: KindDaxFile, Domain: DomainMemoryController}, false, append(slices.Clone(flushing), MSync)},
		{"dax file, cpu_cache", Backing{Kind: KindDaxFile, Domain: DomainCPUCache}, false, all},
		{"block device", Backing{Kind: KindBlock, Domain: DomainMemoryController}, false, onlyMSync},
		{"block device, emulated", Backing{Kind: KindBlock}, true, onlyMSync},
		{"file", Backing{Kind: KindFile}, false, onlyMSync},
		{"file, emulated", Backing{Kind: KindFile}, true, all},
		{"tmpfs", Backing{Kind: KindTmpfs, Domain: DomainVolatile, Volatile: true}, false, all},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := AllowedModes(test.b, test.emulated)
			if !slices.Equal(got, test.want) {
				t.Errorf("allowed %v, want %v", got, test.want)
			}
			for _, m := range AllModes() {
				checkRefusal(t, test.b, test.emulated, m, got)
			}
		})
	}
}

// checkRefusal wants exactly the modes refused that are not allowed, with an
// error that names what can be had.
func checkRefusal(t *testing.T, b Backing, emulated bool, m Mode, allowed []Mode) {
	t.Helper()
	b.Path = "/the/path"
	err := CheckMode(b, emulated, m)
	if slices.Contains(allowed, m) || m == Auto && len(allowed) > 0 {
		if err != nil {
			t.Errorf("%s is refused: %v", m, err)
		}
		return
	}
	var modeError *ModeError
	if !errors.As(err, &modeError) {
		t.Errorf("%s: %v, want a ModeError", m, err)
		return
	}
	if modeError.Mode != m || modeError.Reason == "" || !slices.Equal(modeError.Allowed, allowed) {
		t.Errorf("%s: %+v", m, modeError)
	}
	for _, name := range allowed {
		if !strings.Contains(err.Error(), string(name)) {
			t.Errorf("%s: the error does not offer %s: %v", m, name, err)
		}
	}
	if !strings.Contains(err.Error(), b.Path) {
		t.Errorf("%s: the error does not name the path: %v", m, err)
	}
}

func TestModeErrorNamesTheRemedy(t *testing.T) {
	for _, test := range []struct {
		b    Backing
		mode Mode
		want string
	}{
		{Backing{Kind: KindBlock}, CLWB, "reconfigure to devdax"},
		{Backing{Kind: KindFile}, NT, "emulated"},
		{Backing{Kind: KindDevDax, HostFlush: true}, Auto, "hypervisor"},
		{Backing{Kind: KindDevDax}, EADR, "flush instruction"},
		{Backing{Kind: KindDevDax}, MSync, "flush instruction"},
	} {
		err := CheckMode(test.b, false, test.mode)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s on %s: %v, want a word of %q", test.mode, test.b.Kind, err, test.want)
		}
	}
}

func TestNamedStrategy(t *testing.T) {
	for _, m := range CPUModes() {
		s := NamedStrategy(m)
		if s.Bulk != m {
			t.Errorf("%s: bulk copies use %s", m, s.Bulk)
		}
		if s.Small.streams() || !m.streams() && s.Small != m {
			t.Errorf("%s: small persists use %s", m, s.Small)
		}
		if m.streams() && s.Threshold != 256 {
			t.Errorf("%s: from %d bytes", m, s.Threshold)
		}
	}
}

func TestDefaultStrategy(t *testing.T) {
	for _, b := range []Backing{
		{Kind: KindDevDax, Domain: DomainMemoryController},
		{Kind: KindDevDax, Domain: DomainCPUCache},
		{Kind: KindDaxFile},
		{Kind: KindFile},
		{Kind: KindBlock},
		{Kind: KindTmpfs, Domain: DomainVolatile, Volatile: true},
	} {
		s, why := DefaultStrategy(b, false)
		if len(AllowedModes(b, false)) == 0 { // such as devdax on a CPU without flush instructions
			if s != (Strategy{}) {
				t.Errorf("%s: default %s where nothing is allowed", b.Kind, s)
			}
			continue
		}
		if why == "" {
			t.Errorf("%s: no reason given", b.Kind)
		}
		for _, m := range []Mode{s.Small, s.Bulk} {
			if err := CheckMode(b, false, m); err != nil {
				t.Errorf("%s: default %s: %v", b.Kind, s, err)
			}
			if m == EADR && b.Domain != DomainCPUCache && slices.ContainsFunc(cpuModes, Mode.flushes) {
				t.Errorf("%s: the default leaves stores in the caches", b.Kind)
			}
		}
	}
}
