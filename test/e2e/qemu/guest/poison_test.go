//go:build qemu

package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// The platform that nfit_test makes up, with errors that can be injected.
const testBus = "nfit_test.0"

// poisonMarker is at the place that becomes unreadable.
const poisonMarker = "what is here is going to be unreadable"

// prepareTestBus writes labels on the modules of the platform. Its regions share
// them, so this is not a matter of discover --prepare.
func prepareTestBus(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, args := range [][]string{{"disable-region", "-b", testBus, "all"}, {"init-labels", "-f", "-b", testBus, "all"}, {"enable-region", "-b", testBus, "all"}} {
		command(ctx, t, "ndctl", args...)
	}
}

// A range of a volume becomes unreadable: it is told, it gives EIO, all else goes
// on, and it can be cleared.
func TestPoisonInAnExt4Volume(t *testing.T) {
	ctx := limit(t, 6*time.Minute)
	prepareTestBus(ctx, t)
	m, err := ndctl.NewSystem(ctx, stateDir)
	if err != nil {
		t.Fatal(err)
	}
	d := launchDriver(t)
	v := d.mustCreate(t, "poisoned", 28*mib, filesystem("ext4"), nil)
	v.up(t)
	bad, good := filepath.Join(v.target, "bad"), filepath.Join(v.target, "good")
	writePoisonFile(t, bad)
	want := writeFile(t, good, mib)
	unix.Sync()
	if reasons := v.health(t); len(reasons) != 0 {
		t.Errorf("health before: %v", reasons)
	}
	ns := injectError(ctx, t, m, v.id)

	wantOnePageUnreadable(t, bad)
	if sumFile(t, good) != want {
		t.Error("another file has changed")
	}
	writeFile(t, filepath.Join(v.target, "new"), mib)
	if reasons := v.health(t); !slices.Equal(reasons, []string{"UnreadableBytes"}) {
		t.Errorf("health of the volume: %v", reasons)
	}
	if reasons := d.storageHealth(t); !slices.Contains(reasons, "UnreadableBytes") {
		t.Errorf("health of the node: %v", reasons)
	}
	wantDiscovered(ctx, t, ns)

	v.down(t)
	clearErrors(ctx, t, m, ns)
	v.up(t)
	if data, err := os.ReadFile(bad); err != nil || len(data) != 8*pageSize {
		t.Errorf("after clear-errors: %d bytes, %v", len(data), err)
	}
	if reasons := v.health(t); len(reasons) != 0 {
		t.Errorf("health after clear-errors: %v", reasons)
	}
	v.down(t)
	v.delete(t)
}

// An erasure writes whole blocks, which clears what cannot be read: a volume with
// poison can be deleted.
func TestPoisonDoesNotKeepAVolumeFromBeingErased(t *testing.T) {
	ctx := limit(t, 6*time.Minute)
	m, err := ndctl.NewSystem(ctx, stateDir)
	if err != nil {
		t.Fatal(err)
	}
	d := launchDriver(t)
	v := d.mustCreate(t, "to-delete", 28*mib, rawBlock(), nil)
	v.up(t)
	data := bytes.Repeat([]byte(poisonMarker), pageSize/len(poisonMarker))
	f, err := os.OpenFile(v.target, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(data, 4*mib); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	injectError(ctx, t, m, v.id)
	v.down(t)
	v.delete(t)
	for _, r := range discover(ctx, t).Regions {
		if r.BadBytes != 0 {
			t.Errorf("region after the erasure: %+v", r)
		}
	}
}

// NVFS on the page cache of an fsdax namespace: a fault in its mapping is EIO of
// one operation.
func TestPoisonUnderNVFS(t *testing.T) {
	ctx := limit(t, 6*time.Minute)
	m, err := ndctl.NewSystem(ctx, stateDir)
	if err != nil {
		t.Fatal(err)
	}
	ns := create(ctx, t, m, ndctl.CreateRequest{Name: "nvfs", Region: regionWithRoom(ctx, t, m), Mode: ndctl.FSDax, Size: 28 * mib})
	command(ctx, t, tools, "mkfs", "--force", ns.Device)
	dir := t.TempDir()
	mount := func() { mountNVFS(ctx, t, ns.Device, dir, "flush=msync") }
	mount()
	bad, good := filepath.Join(dir, "bad"), filepath.Join(dir, "good")
	writePoisonFile(t, bad)
	want := writeFile(t, good, mib)
	command(ctx, t, "umount", dir)
	injectError(ctx, t, m, ns.Name)
	mount()
	wantOnePageUnreadable(t, bad)
	if sumFile(t, good) != want {
		t.Error("another file has changed")
	}
	writeFile(t, filepath.Join(dir, "new"), mib)
	command(ctx, t, "umount", dir)
	clearErrors(ctx, t, m, ns)
	command(ctx, t, tools, "fsck", "--repair", ns.Device)
	mount()
	if sumFile(t, good) != want {
		t.Error("another file has changed over the repair")
	}
	command(ctx, t, "umount", dir)
	if err := m.Destroy(ctx, ns.Name); err != nil {
		t.Error(err)
	}
}

func regionWithRoom(ctx context.Context, t *testing.T, m *ndctl.System) string {
	t.Helper()
	regions, err := m.Regions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range regions {
		if r.Unusable == "" && r.LargestExtent >= 32*mib {
			return r.Name
		}
	}
	t.Fatalf("no region has 32 MiB: %+v", regions)
	return ""
}

const pageSize = 4096

// writePoisonFile writes eight pages, of which the fourth has the marker.
func writePoisonFile(t *testing.T, path string) {
	t.Helper()
	data := bytes.Repeat([]byte{'.'}, 8*pageSize)
	copy(data[3*pageSize:], poisonMarker)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func wantOnePageUnreadable(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// Readahead would ask for neighbours in one request.
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, pageSize)
	for page := range 8 {
		_, err := f.ReadAt(buf, int64(page)*pageSize)
		if (page == 3) != errors.Is(err, unix.EIO) || page != 3 && err != nil {
			t.Errorf("page %d: %v; want EIO for page 3 alone", page, err)
		}
	}
}

// injectError makes the place of the marker in the namespace unreadable, and lets
// the kernel find out.
func injectError(ctx context.Context, t *testing.T, m *ndctl.System, name string) ndctl.Namespace {
	t.Helper()
	ns, err := m.Namespace(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(ns.Device)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(content, []byte(poisonMarker))
	if at < 0 {
		t.Fatalf("the marker is not in %s", ns.Device)
	}
	dev := numberOf(ctx, t, ns)
	command(ctx, t, "ndctl", "inject-error", "--block="+strconv.Itoa(at/512), "--count=1", dev)
	scrub(ctx, t)
	if ns, err = m.Namespace(ctx, name); err != nil || ns.BadBytes == 0 {
		t.Fatalf("after inject-error at byte %d: %+v, %v", at, ns, err)
	}
	return ns
}

// scrub lets the platform search its memory for errors, as it does by itself from
// time to time.
func scrub(ctx context.Context, t *testing.T) {
	t.Helper()
	command(ctx, t, "ndctl", "start-scrub", testBus)
	command(ctx, t, "ndctl", "wait-scrub", testBus)
}

// clearErrors does what docs/persistent-memory.md tells an administrator to.
func clearErrors(ctx context.Context, t *testing.T, m *ndctl.System, ns ndctl.Namespace) {
	t.Helper()
	command(ctx, t, "ndctl", "clear-errors", numberOf(ctx, t, ns))
	if now, err := m.Namespace(ctx, ns.Name); err != nil || now.BadBytes != 0 {
		t.Errorf("after clear-errors: %+v, %v", now, err)
	}
}

// numberOf is the kernel's present name for a namespace.
func numberOf(ctx context.Context, t *testing.T, ns ndctl.Namespace) string {
	t.Helper()
	var all []struct {
		Dev  string `json:"dev"`
		Name string `json:"name"`
	}
	out := command(ctx, t, "ndctl", "list", "-N", "-b", testBus)
	if !strings.HasPrefix(strings.TrimSpace(out), "[") {
		out = "[" + out + "]"
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, n := range all {
		if n.Name == ns.Name {
			return n.Dev
		}
	}
	t.Fatalf("namespace %s is not in %s", ns.Name, out)
	return ""
}

func wantDiscovered(ctx context.Context, t *testing.T, ns ndctl.Namespace) {
	t.Helper()
	d := discover(ctx, t)
	found := false
	for _, n := range d.Namespaces {
		found = found || n.Name == ns.Name && n.BadBytes == ns.BadBytes && strings.Contains(n.Remark, "cannot be read (poison)")
	}
	if !found {
		t.Errorf("discover says nothing of the poison in %s: %+v", ns.Name, d.Namespaces)
	}
	found = false
	for _, r := range d.Regions {
		found = found || r.Name == ns.Region && r.BadBytes > 0 && strings.Contains(r.Remark, "cannot be read (poison)")
	}
	if !found {
		t.Errorf("discover says nothing of the poison in %s: %+v", ns.Region, d.Regions)
	}
}
