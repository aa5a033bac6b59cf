// Package ndctltest holds the tests that every ndctl.Manager has to pass.
package ndctltest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

const mib = 1 << 20

// The regions that a manager under test has, both empty.
const (
	RegionA     = "region-a"
	RegionB     = "region-b"
	RegionAlign = 16 * mib
	RegionSize  = 256 * mib // of either
)

// Conformance tests managers made by newManager, which have RegionA on NUMA
// node 0 and RegionB on NUMA node 1 and are new for each test.
func Conformance(t *testing.T, newManager func(t *testing.T) ndctl.Manager) {
	for name, test := range map[string]func(*testing.T, ndctl.Manager){
		"regions are described":             regionsAreDescribed,
		"create, find, list and destroy":    lifecycle,
		"usable size covers the request":    usableSizeCoversRequest,
		"names are checked":                 namesAreChecked,
		"requests are checked":              requestsAreChecked,
		"a name exists once":                nameExistsOnce,
		"fragmentation limits the extent":   fragmentation,
		"best fit keeps large holes":        bestFit,
		"extend needs the following space":  extend,
		"an ended context changes nothing":  endedContext,
		"concurrent creates do not overlap": concurrentCreates,
	} {
		t.Run(name, func(t *testing.T) { test(t, newManager(t)) })
	}
}

func regionsAreDescribed(t *testing.T, m ndctl.Manager) {
	regions, err := m.Regions(context.Background())
	if err != nil || len(regions) != 2 {
		t.Fatalf("Regions = %v, %v; want two", regions, err)
	}
	for i, want := range []string{RegionA, RegionB} {
		r := regions[i]
		if r.Name != want || r.NUMANode != i || r.Align != RegionAlign || r.Unusable != "" {
			t.Errorf("region %d is %+v", i, r)
		}
		if r.Size != RegionSize || r.Available != RegionSize || r.LargestExtent != RegionSize {
			t.Errorf("empty region %s: size %d, available %d, largest extent %d; want %d each", r.Name, r.Size, r.Available, r.LargestExtent, RegionSize)
		}
	}
}

func lifecycle(t *testing.T, m ndctl.Manager) {
	ctx := context.Background()
	created := create(t, m, "vol.1_x-y", RegionB, ndctl.DevDax, 60*mib)
	if created.Region != RegionB || created.NUMANode != 1 || created.Mode != ndctl.DevDax || created.UUID == "" || created.Device == "" || created.InUse || created.Lost != "" {
		t.Errorf("created %+v", created)
	}
	found, err := m.Namespace(ctx, created.Name)
	if err != nil || found != created {
		t.Errorf("Namespace = %+v, %v; want %+v", found, err, created)
	}
	create(t, m, "a", RegionA, ndctl.FSDax, mib)
	list, err := m.Namespaces(ctx)
	if err != nil || len(list) != 2 || list[0].Name != "a" || list[1] != created {
		t.Errorf("Namespaces = %+v, %v", list, err)
	}
	if err := m.Destroy(ctx, created.Name); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Namespace(ctx, created.Name); !errors.Is(err, ndctl.ErrNotFound) {
		t.Errorf("Namespace after Destroy: %v, want ErrNotFound", err)
	}
	if err := m.Destroy(ctx, created.Name); !errors.Is(err, ndctl.ErrNotFound) {
		t.Errorf("second Destroy: %v, want ErrNotFound", err)
	}
	if r := region(t, m, RegionB); r.Available != RegionSize {
		t.Errorf("%d bytes available after Destroy, want %d", r.Available, RegionSize)
	}
}

func usableSizeCoversRequest(t *testing.T, m ndctl.Manager) {
	for _, mode := range []ndctl.Mode{ndctl.DevDax, ndctl.FSDax, ndctl.Sector} {
		for _, size := range []uint64{1, 14 * mib, 14*mib + 1, 16 * mib, 100*mib - 1} {
			ns := create(t, m, "n", RegionA, mode, size)
			if ns.Size < size || ns.Raw%RegionAlign != 0 || ns.Raw <= ns.Size {
				t.Errorf("%s of %d bytes: usable %d, raw %d", mode, size, ns.Size, ns.Raw)
			}
			if smaller := ns.Raw - RegionAlign; smaller > 0 && ndctl.UsableSize(mode, smaller) >= size {
				t.Errorf("%s of %d bytes takes %d, %d would do", mode, size, ns.Raw, smaller)
			}
			if r := region(t, m, RegionA); r.Available != RegionSize-ns.Raw {
				t.Errorf("%d available beside a namespace of %d", r.Available, ns.Raw)
			}
			if err := m.Destroy(context.Background(), "n"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func namesAreChecked(t *testing.T, m ndctl.Manager) {
	create(t, m, strings.Repeat("n", 63), RegionA, ndctl.DevDax, mib)
	for _, name := range []string{"", ".", "..", "a..b", "../a", "a/b", "a b", "a\n", "ä", strings.Repeat("n", 64)} {
		_, err := m.Create(context.Background(), ndctl.CreateRequest{Name: name, Region: RegionA, Mode: ndctl.DevDax, Size: mib})
		if !errors.Is(err, ndctl.ErrInvalid) {
			t.Errorf("Create of name %q: %v, want ErrInvalid", name, err)
		}
	}
}

func requestsAreChecked(t *testing.T, m ndctl.Manager) {
	for _, req := range []ndctl.CreateRequest{
		{Name: "n", Region: "none", Mode: ndctl.DevDax, Size: mib},
		{Name: "n", Region: RegionA, Mode: "raw", Size: mib},
		{Name: "n", Region: RegionA, Mode: ndctl.DevDax},
	} {
		if _, err := m.Create(context.Background(), req); !errors.Is(err, ndctl.ErrInvalid) {
			t.Errorf("Create(%+v): %v, want ErrInvalid", req, err)
		}
	}
	for _, size := range []uint64{RegionSize, 1 << 62, 1<<64 - 1} {
		_, err := m.Create(context.Background(), ndctl.CreateRequest{Name: "n", Region: RegionA, Mode: ndctl.DevDax, Size: size})
		wantNoSpace(t, err, ndctl.UsableSize(ndctl.DevDax, RegionSize))
	}
	if _, err := m.Namespace(context.Background(), "n"); !errors.Is(err, ndctl.ErrNotFound) {
		t.Errorf("a refused request left something: %v", err)
	}
}

func nameExistsOnce(t *testing.T, m ndctl.Manager) {
	first := create(t, m, "n", RegionA, ndctl.DevDax, mib)
	for _, r := range []string{RegionA, RegionB} {
		_, err := m.Create(context.Background(), ndctl.CreateRequest{Name: "n", Region: r, Mode: ndctl.DevDax, Size: mib})
		if !errors.Is(err, ndctl.ErrExists) {
			t.Errorf("second Create in %s: %v, want ErrExists", r, err)
		}
	}
	if found, err := m.Namespace(context.Background(), "n"); err != nil || found != first {
		t.Errorf("the first one is now %+v, %v", found, err)
	}
}

func fragmentation(t *testing.T, m ndctl.Manager) {
	ctx := context.Background()
	for _, name := range []string{"a", "b", "c", "d"} {
		create(t, m, name, RegionA, ndctl.DevDax, 62*mib)
	}
	for _, name := range []string{"b", "d"} {
		if err := m.Destroy(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	r := region(t, m, RegionA)
	if r.Available != 128*mib || r.LargestExtent != 64*mib {
		t.Errorf("available %d, largest extent %d; want 128 MiB and 64 MiB", r.Available, r.LargestExtent)
	}
	_, err := m.Create(ctx, ndctl.CreateRequest{Name: "e", Region: RegionA, Mode: ndctl.DevDax, Size: 63 * mib})
	wantNoSpace(t, err, 62*mib)
	create(t, m, "e", RegionA, ndctl.DevDax, 62*mib)
}

func bestFit(t *testing.T, m ndctl.Manager) {
	for name, size := range map[string]uint64{"small": 14 * mib} {
		create(t, m, name, RegionA, ndctl.DevDax, size)
	}
	create(t, m, "keep", RegionA, ndctl.DevDax, 14*mib)
	if err := m.Destroy(context.Background(), "small"); err != nil {
		t.Fatal(err)
	}
	before := region(t, m, RegionA).LargestExtent
	create(t, m, "again", RegionA, ndctl.DevDax, 14*mib)
	if after := region(t, m, RegionA).LargestExtent; after != before {
		t.Errorf("largest extent went from %d to %d though a smaller hole fitted", before, after)
	}
}

func extend(t *testing.T, m ndctl.Manager) {
	ctx := context.Background()
	ns := create(t, m, "n", RegionA, ndctl.DevDax, 30*mib)
	got, err := m.Extend(ctx, "n", 100*mib)
	if errors.Is(err, ndctl.ErrUnsupported) {
		t.Skip("this manager's regions cannot grow namespaces in place")
	}
	if err != nil || got.Size < 100*mib || got.UUID != ns.UUID {
		t.Fatalf("Extend = %+v, %v", got, err)
	}
	if again, err := m.Extend(ctx, "n", 50*mib); err != nil || again != got {
		t.Errorf("Extend to less = %+v, %v; want no change", again, err)
	}
	create(t, m, "next", RegionA, ndctl.DevDax, 14*mib)
	_, err = m.Extend(ctx, "n", got.Size+1)
	wantNoSpace(t, err, got.Size)
	if found, err := m.Namespace(ctx, "n"); err != nil || found != got {
		t.Errorf("after a refused Extend: %+v, %v; want %+v", found, err, got)
	}
	if _, err := m.Extend(ctx, "none", mib); !errors.Is(err, ndctl.ErrNotFound) {
		t.Errorf("Extend of nothing: %v, want ErrNotFound", err)
	}
}

func endedContext(t *testing.T, m ndctl.Manager) {
	create(t, m, "n", RegionA, ndctl.DevDax, mib)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, errCreate := m.Create(ctx, ndctl.CreateRequest{Name: "x", Region: RegionA, Mode: ndctl.DevDax, Size: mib})
	_, errExtend := m.Extend(ctx, "n", 100*mib)
	_, errNamespace := m.Namespace(ctx, "n")
	_, errNamespaces := m.Namespaces(ctx)
	_, errRegions := m.Regions(ctx)
	for call, err := range map[string]error{"Create": errCreate, "Extend": errExtend, "Destroy": m.Destroy(ctx, "n"),
		"Namespace": errNamespace, "Namespaces": errNamespaces, "Regions": errRegions} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with an ended context: %v", call, err)
		}
	}
	list, err := m.Namespaces(context.Background())
	if err != nil || len(list) != 1 || list[0].Name != "n" {
		t.Errorf("Namespaces = %v, %v; want n alone", list, err)
	}
}

func concurrentCreates(t *testing.T, m ndctl.Manager) {
	var g errgroup.Group
	for i := range 20 {
		g.Go(func() error {
			_, err := m.Create(context.Background(), ndctl.CreateRequest{Name: string(rune('a' + i)), Region: RegionA, Mode: ndctl.DevDax, Size: 14 * mib})
			var noSpace *ndctl.NoSpaceError
			if errors.As(err, &noSpace) {
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	list, err := m.Namespaces(context.Background())
	if err != nil || len(list) != RegionSize/RegionAlign {
		t.Errorf("%d namespaces, %v; want the region full with %d", len(list), err, RegionSize/RegionAlign)
	}
	if r := region(t, m, RegionA); r.Available != 0 || r.LargestExtent != 0 {
		t.Errorf("full region: %+v", r)
	}
}

func create(t *testing.T, m ndctl.Manager, name, region string, mode ndctl.Mode, size uint64) ndctl.Namespace {
	t.Helper()
	ns, err := m.Create(context.Background(), ndctl.CreateRequest{Name: name, Region: region, Mode: mode, Size: size})
	if err != nil {
		t.Fatalf("Create %s of %d bytes: %v", name, size, err)
	}
	return ns
}

func region(t *testing.T, m ndctl.Manager, name string) ndctl.Region {
	t.Helper()
	regions, err := m.Regions(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range regions {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("no region %s in %v", name, regions)
	return ndctl.Region{}
}

func wantNoSpace(t *testing.T, err error, largest uint64) {
	t.Helper()
	var noSpace *ndctl.NoSpaceError
	if !errors.As(err, &noSpace) {
		t.Errorf("error is %v, want NoSpaceError", err)
	} else if noSpace.Largest != largest {
		t.Errorf("NoSpaceError says that %d would fit, want %d", noSpace.Largest, largest)
	}
}
