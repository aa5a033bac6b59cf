package ndctl_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/ndctltest"
)

const mib = 1 << 20

func regions(t *testing.T) []ndctl.EmulatedRegion {
	dir := t.TempDir()
	return []ndctl.EmulatedRegion{
		{Name: ndctltest.RegionB, Dir: filepath.Join(dir, "b"), NUMANode: 1, Size: ndctltest.RegionSize, Align: ndctltest.RegionAlign},
		{Name: ndctltest.RegionA, Dir: filepath.Join(dir, "a"), NUMANode: 0, Size: ndctltest.RegionSize, Align: ndctltest.RegionAlign},
	}
}

func open(t *testing.T, regions []ndctl.EmulatedRegion) *ndctl.Emulated {
	t.Helper()
	m, err := ndctl.NewEmulated(regions, "")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func mustCreate(t *testing.T, m ndctl.Manager, name string) ndctl.Namespace {
	t.Helper()
	ns, err := m.Create(context.Background(), ndctl.CreateRequest{Name: name, Region: ndctltest.RegionA, Mode: ndctl.DevDax, Size: 30 * mib})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func TestEmulatedConformance(t *testing.T) {
	ndctltest.Conformance(t, func(t *testing.T) ndctl.Manager { return open(t, regions(t)) })
	t.Run("with lock directory", func(t *testing.T) {
		ndctltest.Conformance(t, func(t *testing.T) ndctl.Manager {
			m, err := ndctl.NewEmulated(regions(t), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			return m
		})
	})
}

func TestParseEmulated(t *testing.T) {
	got, err := ndctl.ParseEmulated("dir=/dev/shm/nvfs/,numa=1,size=4100Mi,align=32Mi,name=r0")
	want := ndctl.EmulatedRegion{Name: "r0", Dir: "/dev/shm/nvfs", NUMANode: 1, Size: 4096 * mib, Align: 32 * mib}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	got, err = ndctl.ParseEmulated("size=4Gi,dir=/dev/shm/nvfs")
	want = ndctl.EmulatedRegion{Name: "nvfs", Dir: "/dev/shm/nvfs", NUMANode: -1, Size: 4 << 30, Align: 16 * mib}
	if err != nil || got != want {
		t.Errorf("defaults: got %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{
		"", "dir=/x", "size=4Gi", "dir=x,size=4Gi", "dir=/x,size=4G", "dir=/x,size=-1", "dir=/x,size=1Mi", "dir=/x,size=9999999999Gi",
		"dir=/x,size=4Gi,numa=x", "dir=/x,size=4Gi,numa=-2", "dir=/x,size=4Gi,align=3Mi", "dir=/x,size=4Gi,align=1Mi", "dir=/x,size=4Gi,align=0",
		"dir=/x,size=4Gi,name=a/b", "dir=/x,size=4Gi,colour=red", "dir=/x,dir=/y,size=4Gi", "dir=/x,size=4Gi,", "dir=,size=4Gi", "dir=/,size=4Gi",
	} {
		if r, err := ndctl.ParseEmulated(bad); !errors.Is(err, ndctl.ErrInvalid) {
			t.Errorf("%q: got %+v, %v; want ErrInvalid", bad, r, err)
		}
	}
}

func TestRegionsMustDiffer(t *testing.T) {
	r := regions(t)
	r[1].Name = r[0].Name
	if _, err := ndctl.NewEmulated(r, ""); !errors.Is(err, ndctl.ErrInvalid) {
		t.Errorf("same name twice: %v", err)
	}
	r = regions(t)
	r[1].Dir = r[0].Dir + "/."
	if _, err := ndctl.NewEmulated(r, ""); !errors.Is(err, ndctl.ErrInvalid) {
		t.Errorf("same directory twice: %v", err)
	}
}

func TestBackingIsASparseFileOfUsableSize(t *testing.T) {
	ns := mustCreate(t, open(t, regions(t)), "n")
	var st unix.Stat_t
	if err := unix.Stat(ns.Device, &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != int64(ns.Size) || st.Blocks != 0 || st.Mode&0o777 != 0o600 {
		t.Errorf("backing has %d bytes, %d blocks, mode %o; want %d bytes, none, 600", st.Size, st.Blocks, st.Mode, ns.Size)
	}
}

func TestStateSurvivesRestart(t *testing.T) {
	r := regions(t)
	want := mustCreate(t, open(t, r), "n")
	if got, err := open(t, r).Namespace(context.Background(), "n"); err != nil || got != want {
		t.Errorf("after a restart: %+v, %v; want %+v", got, err, want)
	}
}

// TestTwoManagersShareARegion stands for two processes: each has its own
// process-wide lock, so only the file lock keeps them apart.
func TestTwoManagersShareARegion(t *testing.T) {
	r := regions(t)
	a, b := open(t, r), open(t, r)
	done := make(chan error, 2)
	for i, m := range []ndctl.Manager{a, b} {
		go func() {
			var errs []error
			for j := range 8 {
				name := string(rune('a'+i)) + string(rune('a'+j))
				_, err := m.Create(context.Background(), ndctl.CreateRequest{Name: name, Region: ndctltest.RegionA, Mode: ndctl.DevDax, Size: 14 * mib})
				errs = append(errs, err)
			}
			done <- errors.Join(errs...)
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	list, err := a.Namespaces(context.Background())
	if err != nil || len(list) != 16 {
		t.Errorf("%d namespaces, %v; want 16", len(list), err)
	}
}

func TestLockIsHostWideAndHonoursContext(t *testing.T) {
	r := regions(t)
	m := open(t, r)
	f, err := os.Open(filepath.Join(r[0].Dir, "ndctl.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() {
		_, err := m.Create(ctx, ndctl.CreateRequest{Name: "n", Region: ndctltest.RegionA, Mode: ndctl.DevDax, Size: mib})
		result <- err
	}()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("Create under somebody's lock: %v", err)
	}
}

func TestInUseAndBusy(t *testing.T) {
	m := open(t, regions(t))
	ns := mustCreate(t, m, "n")
	f, err := os.Open(ns.Device)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Namespace(context.Background(), "n"); err != nil || !got.InUse {
		t.Errorf("locked namespace: %+v, %v; want InUse", got, err)
	}
	if err := m.Destroy(context.Background(), "n"); !errors.Is(err, ndctl.ErrBusy) {
		t.Errorf("Destroy of a locked namespace: %v, want ErrBusy", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Namespace(context.Background(), "n"); err != nil || got.InUse {
		t.Errorf("unlocked namespace: %+v, %v", got, err)
	}
	if err := m.Destroy(context.Background(), "n"); err != nil {
		t.Error(err)
	}
}

func TestLoopDeviceIsInUse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: setting up a loop device needs root")
	}
	m := open(t, regions(t))
	ns := mustCreate(t, m, "n")
	out, err := exec.Command("losetup", "--find", "--show", ns.Device).Output()
	if err != nil {
		t.Skipf("NOT TESTED: no loop device to be had: %v", err)
	}
	loop := strings.TrimSpace(string(out))
	busy := m.Destroy(context.Background(), "n")
	got, errGet := m.Namespace(context.Background(), "n")
	if err := exec.Command("losetup", "-d", loop).Run(); err != nil {
		t.Errorf("detach of %s: %v", loop, err)
	}
	if !errors.Is(busy, ndctl.ErrBusy) || errGet != nil || !got.InUse {
		t.Errorf("Destroy: %v, Namespace: %+v, %v; want ErrBusy and InUse", busy, got, errGet)
	}
}

// rewrite changes the metadata of region A like an interrupted call does.
func rewrite(t *testing.T, r ndctl.EmulatedRegion, state string, change func(entry map[string]any)) {
	t.Helper()
	path := filepath.Join(r.Dir, "region.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var md map[string]any
	if err := json.Unmarshal(data, &md); err != nil {
		t.Fatal(err)
	}
	entry := md["namespaces"].([]any)[0].(map[string]any)
	entry["state"] = state
	if change != nil {
		change(entry)
	}
	data, err = json.Marshal(md)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCrashWhileCreatingOrDestroyingLeavesNothing(t *testing.T) {
	for _, state := range []string{"creating", "destroying"} {
		for _, fileExists := range []bool{true, false} {
			r := regions(t)
			m := open(t, r)
			ns := mustCreate(t, m, "n")
			rewrite(t, r[1], state, nil)
			if !fileExists {
				if err := os.Remove(ns.Device); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := m.Namespace(context.Background(), "n"); !errors.Is(err, ndctl.ErrNotFound) {
				t.Errorf("%s, file %v: found before the repair: %v", state, fileExists, err)
			}
			if list, err := m.Namespaces(context.Background()); err != nil || len(list) != 0 {
				t.Errorf("%s, file %v: listed %v, %v", state, fileExists, list, err)
			}
			m = open(t, r)
			if all, _ := m.Regions(context.Background()); all[0].Available != ndctltest.RegionSize {
				t.Errorf("%s, file %v: space is leaked: %+v", state, fileExists, all[0])
			}
			if _, err := os.Stat(ns.Device); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s, file %v: file is left: %v", state, fileExists, err)
			}
			mustCreate(t, m, "n")
		}
	}
}

func TestCrashWhileExtendingIsCompleted(t *testing.T) {
	r := regions(t)
	m := open(t, r)
	before := mustCreate(t, m, "n")
	rewrite(t, r[1], "extending", func(e map[string]any) { e["raw"], e["size"] = 64*mib, 62*mib })
	if ns, err := m.Namespace(context.Background(), "n"); err != nil || ns.Size != before.Size {
		t.Errorf("before the repair: %+v, %v; want size %d", ns, err, before.Size)
	}
	m = open(t, r)
	ns, err := m.Namespace(context.Background(), "n")
	if err != nil || ns.Size != 62*mib {
		t.Errorf("after the repair: %+v, %v; want 62 MiB", ns, err)
	}
	if info, err := os.Stat(ns.Device); err != nil || info.Size() != 62*mib {
		t.Errorf("file: %v, %v", info, err)
	}
}

func TestLostBackingIsReportedAndNeverRecreated(t *testing.T) {
	for _, how := range []string{"removed", "cut"} {
		r := regions(t)
		m := open(t, r)
		ns := mustCreate(t, m, "n")
		if how == "removed" {
			if err := os.Remove(ns.Device); err != nil {
				t.Fatal(err)
			}
		} else if err := os.Truncate(ns.Device, 4096); err != nil {
			t.Fatal(err)
		}
		m = open(t, r)
		got, err := m.Namespace(context.Background(), "n")
		if !errors.Is(err, ndctl.ErrLost) || !strings.Contains(err.Error(), ns.Device) || got.Lost == "" {
			t.Errorf("%s: %+v, %v; want ErrLost that names the file", how, got, err)
		}
		if list, err := m.Namespaces(context.Background()); err != nil || len(list) != 1 || list[0].Lost == "" {
			t.Errorf("%s: listed %+v, %v", how, list, err)
		}
		if _, err := m.Extend(context.Background(), "n", 64*mib); !errors.Is(err, ndctl.ErrLost) {
			t.Errorf("%s: Extend: %v", how, err)
		}
		_, err = m.Create(context.Background(), ndctl.CreateRequest{Name: "n", Region: ndctltest.RegionA, Mode: ndctl.DevDax, Size: mib})
		if !errors.Is(err, ndctl.ErrExists) {
			t.Errorf("%s: Create over the lost one: %v", how, err)
		}
		if err := m.Destroy(context.Background(), "n"); err != nil {
			t.Errorf("%s: Destroy: %v", how, err)
		}
	}
}

func TestEmptiedRegionForgetsItsNamespaces(t *testing.T) {
	r := regions(t)
	m := open(t, r)
	mustCreate(t, m, "n")
	if err := os.RemoveAll(r[1].Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Namespace(context.Background(), "n"); !errors.Is(err, ndctl.ErrNotFound) {
		t.Errorf("Namespace: %v, want ErrNotFound", err)
	}
	mustCreate(t, m, "other") // the directory is made again
}

func TestStrayFileIsNeverTakenOver(t *testing.T) {
	r := regions(t)
	m := open(t, r)
	path := filepath.Join(r[1].Dir, "n.pmem")
	if err := os.WriteFile(path, []byte("somebody's data"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := m.Create(context.Background(), ndctl.CreateRequest{Name: "n", Region: ndctltest.RegionA, Mode: ndctl.DevDax, Size: mib})
	if !errors.Is(err, ndctl.ErrExists) || !strings.Contains(err.Error(), path) {
		t.Errorf("Create: %v; want ErrExists that names %s", err, path)
	}
	if data, _ := os.ReadFile(path); string(data) != "somebody's data" {
		t.Errorf("the file was changed: %q", data)
	}
}

func TestDamagedMetadataIsFailClosed(t *testing.T) {
	for _, content := range []string{"", "{", `{"version":99}`, `{"version":1,"align":3}`, `{"version":1,"align":16777216,"namespaces":[{"name":"../../x"}]}`} {
		r := regions(t)
		m := open(t, r)
		path := filepath.Join(r[1].Dir, "region.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Create(context.Background(), ndctl.CreateRequest{Name: "n", Region: ndctltest.RegionA, Mode: ndctl.DevDax, Size: mib}); err == nil {
			t.Errorf("%q: Create succeeded", content)
		}
		if _, err := m.Namespace(context.Background(), "n"); err == nil || errors.Is(err, ndctl.ErrNotFound) {
			t.Errorf("%q: Namespace says %v, which reads like \"there is none\"", content, err)
		}
		all, err := m.Regions(context.Background())
		if err != nil || all[0].Unusable == "" || all[0].LargestExtent != 0 {
			t.Errorf("%q: Regions = %+v, %v; want it unusable", content, all, err)
		}
		if _, err := ndctl.NewEmulated(r, ""); err == nil {
			t.Errorf("%q: opened", content)
		}
		if data, _ := os.ReadFile(path); string(data) != content {
			t.Errorf("%q was overwritten", content)
		}
	}
}

func TestRegionMayGrowButNotLoseNamespaces(t *testing.T) {
	r := regions(t)
	mustCreate(t, open(t, r), "n")
	r[1].Size *= 2
	all, err := open(t, r).Regions(context.Background())
	if err != nil || all[0].LargestExtent != 2*ndctltest.RegionSize-32*mib {
		t.Errorf("grown region: %+v, %v", all, err)
	}
	r[1].Size = 16 * mib
	if _, err := ndctl.NewEmulated(r, ""); !errors.Is(err, ndctl.ErrInvalid) {
		t.Errorf("shrunk below its namespaces: %v", err)
	}
	r[1].Size, r[1].Align = ndctltest.RegionSize, 32*mib
	if _, err := ndctl.NewEmulated(r, ""); !errors.Is(err, ndctl.ErrInvalid) {
		t.Errorf("other alignment: %v", err)
	}
}
