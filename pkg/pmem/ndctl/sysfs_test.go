package ndctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The trees in testdata were read in a QEMU guest with kernel 6.1. A line
// "-- PATH" begins an attribute, "-- PATH -> TARGET" is a symbolic link; what a
// test does not need is left out.
func loadTree(t testing.TB, text string) ndBus {
	t.Helper()
	dir := t.TempDir()
	for _, entry := range strings.Split("\n"+text, "\n-- ")[1:] {
		name, content, _ := strings.Cut(entry, "\n")
		name, target, isLink := strings.Cut(name, " -> ")
		if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
			continue
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			continue // a fuzzed path whose parent is a file
		}
		if isLink {
			_ = os.Symlink(target, path)
			continue
		}
		_ = os.WriteFile(path, []byte(content), 0o644)
	}
	// Every node exists and is what the kernel says it is.
	lstat := func(path string, st *unix.Stat_t) error {
		base := filepath.Base(path)
		st.Mode = unix.S_IFBLK
		if strings.HasPrefix(base, "dax") {
			st.Mode = unix.S_IFCHR
		}
		matches, _ := filepath.Glob(filepath.Join(dir, "*", "block", base, "dev"))
		more, _ := filepath.Glob(filepath.Join(dir, "dax*", base, "dev"))
		for _, file := range append(matches, more...) {
			number, _ := readAttribute(file)
			var major, minor uint32
			if _, err := fmt.Sscanf(number, "%d:%d", &major, &minor); err == nil {
				st.Rdev = unix.Mkdev(major, minor)
				return nil
			}
		}
		return unix.ENOENT
	}
	return ndBus{devices: dir, block: dir, dev: "/dev", lstat: lstat}
}

func fixture(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func readFixture(t testing.TB, name string) ([]sysRegion, []sysNamespace) {
	t.Helper()
	return readTree(t, fixture(t, name))
}

func readTree(t testing.TB, text string) ([]sysRegion, []sysNamespace) {
	t.Helper()
	bus := loadTree(t, text)
	regions, err := bus.regions()
	if err != nil {
		t.Fatal(err)
	}
	namespaces, err := bus.namespaces(regions)
	if err != nil {
		t.Fatal(err)
	}
	return regions, namespaces
}

func TestRegionWithLabels(t *testing.T) {
	regions, _ := readFixture(t, "sysfs-namespaces.txt")
	if len(regions) != 2 {
		t.Fatalf("%d regions", len(regions))
	}
	want := Region{Name: "region1", NUMANode: 1, Size: 1 << 30, Available: regions[1].Available, LargestExtent: regions[1].LargestExtent, Align: 16 * testMiB,
		PersistenceDomain: DomainMemoryController, InterleaveWidth: 1, Labels: true}
	if regions[1].Region != want {
		t.Errorf("region1 is %+v, want %+v", regions[1].Region, want)
	}
	if r := regions[0]; r.Available != 688*testMiB || r.LargestExtent != 688*testMiB {
		t.Errorf("region0 has %d available, largest extent %d; the kernel said 688 MiB", r.Available, r.LargestExtent)
	}
}

func TestNamespacesOfAllModes(t *testing.T) {
	_, all := readFixture(t, "sysfs-namespaces.txt")
	type key struct {
		name, region string
		mode         Mode
		size         uint64
		device       string
		numa         int
	}
	var got []key
	for _, ns := range all {
		if ns.Lost != "" || ns.UUID == "" || ns.Raw <= ns.Size && ns.Mode != Raw {
			t.Errorf("%+v", ns)
		}
		name := ns.Name
		if name == ns.UUID {
			name = "(UUID)"
		}
		got = append(got, key{name, ns.Region, ns.Mode, ns.Size, ns.Device, ns.NUMANode})
	}
	want := []key{
		{"vol-devdax", "region0", DevDax, 110 * testMiB, "/dev/dax0.0", 0},
		{"vol-fsdax", "region0", FSDax, 110 * testMiB, "/dev/pmem0.1", 0},
		{"vol-sector", "region0", Sector, 116244480, "/dev/pmem0.2s", 0},
		{"vol-raw", "region1", Raw, 64 * testMiB, "/dev/pmem1", 1},
		{"(UUID)", "region1", FSDax, 62 * testMiB, "/dev/pmem1.1", 1},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("namespaces\n%v, want\n%v", got, want)
	}
}

// A namespace that is disabled and one whose creation failed are listed with
// the mode of their label, and as lost.
func TestDisabledNamespaces(t *testing.T) {
	_, all := readFixture(t, "sysfs-disabled.txt")
	found := map[string]sysNamespace{}
	for _, ns := range all {
		found[ns.Name] = ns
	}
	for name, mode := range map[string]Mode{"vol-devdax": DevDax, "vol-leak": Sector} {
		if ns := found[name]; ns.Mode != mode || ns.Lost == "" || ns.Size != 0 || ns.Raw == 0 || ns.UUID == "" {
			t.Errorf("%s: %+v", name, ns)
		}
	}
	if ns := found["vol-fsdax"]; ns.Lost != "" {
		t.Errorf("vol-fsdax beside them: %+v", ns)
	}
}

func TestUnusableRegionsNameTheRemedy(t *testing.T) {
	for _, test := range []struct{ fixture, region, want string }{
		{"sysfs-unlabelled.txt", "region0", "nvfs-csi discover --prepare region0"},
		{"sysfs-unarmed.txt", "region0", "nmem0 has no room for labels"},
		{"sysfs-unarmed.txt", "region1", "nmem1 is not armed"},
	} {
		regions, _ := readFixture(t, test.fixture)
		for _, r := range regions {
			if r.Name == test.region && (!strings.Contains(r.Unusable, test.want) || r.Available != 0 || r.LargestExtent != 0) {
				t.Errorf("%s: %s: %+v, want %q", test.fixture, test.region, r.Region, test.want)
			}
		}
	}
	replaced := func(old, new string) string {
		return strings.Replace(fixture(t, "sysfs-namespaces.txt"), old, new, 1)
	}
	for want, text := range map[string]string{
		"it is read-only":   replaced("-- region0/read_only\n0", "-- region0/read_only\n1"),
		"it is disabled":    replaced("-- region0/driver -> nd_region\n", ""),
		"volatile memory":   replaced("-- region0/devtype\nnd_pmem", "-- region0/devtype\nnd_volatile"),
		"is not readable":   replaced("-- region0/size\n", "-- region0/other\n"),
		"no NVDIMM that co": replaced("-- region0/mappings\n1", "-- region0/mappings\n0\n-- region0/nstype\n4"),
	} {
		// The last of two values of an attribute counts.
		if want == "no NVDIMM that co" {
			text = strings.Replace(text, "-- region0/nstype\n5", "-- region0/nstype\n4", 1)
		}
		if regions, _ := readTree(t, text); !strings.Contains(regions[0].Unusable, want) {
			t.Errorf("region0: %q, want %q", regions[0].Unusable, want)
		}
	}
}

func TestMissingOrWrongDeviceNode(t *testing.T) {
	for name, lstat := range map[string]func(string, *unix.Stat_t) error{
		"is missing":         func(string, *unix.Stat_t) error { return unix.ENOENT },
		"is not the device ": func(_ string, st *unix.Stat_t) error { st.Mode = unix.S_IFREG; return nil },
	} {
		bus := loadTree(t, fixture(t, "sysfs-namespaces.txt"))
		bus.lstat = lstat
		all, err := bus.namespaces(nil)
		if err != nil || len(all) == 0 {
			t.Fatal(all, err)
		}
		for _, ns := range all {
			if !strings.Contains(ns.Lost, name) {
				t.Errorf("%s: %q, want %q", ns.Name, ns.Lost, name)
			}
		}
	}
}

func TestSystemRAMIsInUse(t *testing.T) {
	text := fixture(t, "sysfs-namespaces.txt") + "\n-- dax0.0/dax0.0/driver -> ../../bus/dax/drivers/kmem\n"
	text = strings.Replace(text, "-- dax0.0/dax0.0/driver -> device_dax\n", "", 1)
	_, all := readTree(t, text)
	if ns := all[0]; ns.Name != "vol-devdax" || !ns.InUse || !strings.Contains(ns.Lost, "system RAM") {
		t.Errorf("%+v", ns)
	}
}

func TestBadBlocksAreOfTheirNamespace(t *testing.T) {
	// region0 starts at 4 GiB; vol-fsdax lies 112 MiB into it.
	text := strings.Replace(fixture(t, "sysfs-namespaces.txt"), "-- region0/badblocks\n", fmt.Sprintf("-- region0/badblocks\n0 8\n%d 16\n", 112<<20/512), 1)
	regions, all := readTree(t, text)
	if regions[0].BadBytes != 24*512 || regions[1].BadBytes != 0 {
		t.Errorf("regions have %d and %d bad bytes", regions[0].BadBytes, regions[1].BadBytes)
	}
	for _, ns := range all {
		want := map[string]uint64{"vol-devdax": 8 * 512, "vol-fsdax": 16 * 512}[ns.Name]
		if ns.BadBytes != want {
			t.Errorf("%s has %d bad bytes, want %d", ns.Name, ns.BadBytes, want)
		}
	}
}

func TestMachineWithoutNVDIMMs(t *testing.T) {
	bus := ndBus{devices: filepath.Join(t.TempDir(), "none")}
	if regions, err := bus.regions(); err != nil || len(regions) != 0 {
		t.Errorf("regions %v, %v", regions, err)
	}
	if all, err := bus.namespaces(nil); err != nil || len(all) != 0 {
		t.Errorf("namespaces %v, %v", all, err)
	}
}

func TestDIMMs(t *testing.T) {
	const two = `[{"dev":"nmem1","id":"8680-57341200","handle":2,"phys_id":0,"flag_failed_arm":true},{"dev":"nmem0","id":"8680-56341200","health":{"health_state":"fatal","temperature_celsius":25.5,"spares_percentage":90,"life_used_percentage":5,"shutdown_state":"dirty"}}]`
	all, err := parseDIMMs([]byte(two))
	if err != nil || len(all) != 2 || !strings.Contains(all[0].FlagError, "not armed") ||
		all[1] != (DIMM{Name: "nmem0", ID: "8680-56341200", Health: "fatal", Temperature: 25.5, Spares: 90, Used: 5, Dirty: true}) {
		t.Errorf("%+v, %v", all, err)
	}
	for _, text := range []string{`{"dev":"nmem0"}`, `[{"dev":"nmem0"}]`} {
		if all, err := parseDIMMs([]byte(text)); err != nil || len(all) != 1 || all[0].Name != "nmem0" {
			t.Errorf("%s: %+v, %v", text, all, err)
		}
	}
	if all, err := parseDIMMs([]byte(" \n")); err != nil || len(all) != 0 {
		t.Errorf("no output: %+v, %v", all, err)
	}
	if _, err := parseDIMMs([]byte(`[{"dev":`)); err == nil {
		t.Error("output that was cut off is accepted")
	}
}

func FuzzSysfs(f *testing.F) {
	for _, name := range []string{"sysfs-namespaces.txt", "sysfs-unlabelled.txt", "sysfs-unarmed.txt", "sysfs-disabled.txt"} {
		f.Add(fixture(f, name))
	}
	f.Fuzz(func(t *testing.T, text string) {
		regions, all := readTree(t, text)
		for _, r := range regions {
			if r.LargestExtent > r.Available || r.LargestExtent%r.Align != 0 || r.BadBytes > r.Size {
				t.Errorf("%+v", r)
			}
		}
		for _, ns := range all {
			if ns.Raw == 0 || ns.BadBytes > ns.Raw || ns.Lost == "" && ns.Device == "" {
				t.Errorf("%+v", ns)
			}
		}
	})
}

func FuzzDIMMs(f *testing.F) {
	f.Add([]byte(`[{"dev":"nmem1","id":"8680-57341200","handle":2,"phys_id":0,"flag_failed_arm":true}]`))
	f.Add([]byte(`{"dev":"nmem0","health":{"health_state":"ok","temperature_celsius":25.0,"spares_percentage":99}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := parseDIMMs(data)
		for _, d := range all {
			if err != nil || d.Name == "" {
				t.Errorf("%+v, %v", d, err)
			}
		}
	})
}

func FuzzIntent(f *testing.F) {
	f.Add([]byte(`{"action":"create","name":"vol","uuid":"11111111-1111-4111-8111-111111111111","mode":"devdax"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if i, err := parseIntent(data); err == nil && (ValidName(i.Name) != nil || i.UUID == "") {
			t.Errorf("%+v", i)
		}
	})
}
