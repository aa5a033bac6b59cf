//go:build qemu

package guest

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// What the second boot must find is written to the volume itself: nothing else
// of the guest outlives it.
type remembered struct {
	UUID    string
	Size    uint64
	Content [32]byte
}

// TestBeforeReboot leaves the namespaces b (NVFS) and c, and the hole that a
// left, so that the kernel numbers them anew.
func TestBeforeReboot(t *testing.T) {
	t.Setenv(keepMarker, "1")
	ctx := limit(t, 3*time.Minute)
	m := emptySystem(t)
	for _, name := range []string{"a", "b", "c"} {
		create(ctx, t, m, ndctl.CreateRequest{Name: name, Region: "region0", Mode: ndctl.DevDax, Size: 62 * mib})
	}
	b, err := m.Namespace(ctx, "b")
	if err != nil {
		t.Fatal(err)
	}
	command(ctx, t, tools, "mkfs", "b")
	dir := t.TempDir()
	mountNVFS(ctx, t, "b", dir, "flush=clwb")
	note := remembered{UUID: b.UUID, Size: b.Size, Content: writeFile(t, filepath.Join(dir, "content"), 4*mib)}
	data, err := json.Marshal(note)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "note"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	command(ctx, t, "umount", dir)
	if err := m.Destroy(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if b.Device != "/dev/dax0.1" {
		t.Logf("namespace b was %s, so that this test may show less than it could", b.Device)
	}
	leaveVolumes(t)
}

// rebooted are the volumes that outlive the reboot, by name.
var rebooted = map[string]*csi.VolumeCapability{"kept-nvfs": filesystem("nvfs"), "kept-ext4": filesystem("ext4"), "kept-block": rawBlock(), "marked": filesystem("nvfs")}

// The marker that the host looks for in the files behind the NVDIMMs.
const marker = "nvfs-csi-qemu-marker-6f1c0a52b7d94e83"

// leaveVolumes makes volumes of every kind, and in each of them a text.
func leaveVolumes(t *testing.T) {
	t.Helper()
	d := startDriver(t)
	for name, capability := range rebooted {
		v := d.mustCreate(t, name, 28*mib, capability, nil)
		v.up(t)
		v.write(t, textOf(name))
		v.down(t)
	}
}

func textOf(name string) string {
	if name == "marked" {
		return strings.Repeat(marker, 1000)
	}
	return "what volume " + name + " holds"
}

// content is where a volume has its text: a file, or the device itself.
func (v *volume) content() string {
	if v.capability.GetBlock() != nil {
		return v.target
	}
	return filepath.Join(v.target, "content")
}

func (v *volume) write(t *testing.T, text string) {
	t.Helper()
	f, err := os.OpenFile(v.content(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func (v *volume) wantText(t *testing.T, text string) {
	t.Helper()
	f, err := os.Open(v.content())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(f, got); err != nil || string(got) != text {
		t.Errorf("%s holds %.40q, %v; want %.40q", v.content(), got, err, text)
	}
}

// The driver starts before the kernel has found the memory: it says so and waits,
// and then serves what was there before the reboot.
func TestLateMemory(t *testing.T) {
	d := launchDriver(t, "--settle-timeout=10m")
	if d.ready(t) {
		t.Error("the driver says that it is ready, and there is no memory yet")
	}
	ids := d.list(t)
	if len(ids) != len(rebooted) {
		t.Fatalf("volumes on record: %v, want %d", ids, len(rebooted))
	}
	for _, id := range ids {
		v := &volume{d: d, id: id, capability: filesystem(""), staging: filepath.Join(d.dir, "plugins", "late")}
		wantCode(t, v.stage(limit(t, callTimeout)), codes.Unavailable, "not there yet")
		if reasons := v.health(t); !slices.Equal(reasons, []string{"MemoryNotThereYet"}) {
			t.Errorf("health of a volume whose memory is late: %v", reasons)
		}
	}
	if reasons := d.storageHealth(t); !slices.Contains(reasons, "MemoryNotThereYet") {
		t.Errorf("health of the node: %v", reasons)
	}
	if !strings.Contains(d.log(), "Waiting for persistent memory") {
		t.Error("the log does not say what is waited for")
	}
	for _, module := range []string{"nfit", "nd_pmem", "nd_btt", "device_dax", "dax_pmem"} {
		command(limit(t, callTimeout), t, "modprobe", module)
	}
	for deadline := time.Now().Add(callTimeout); !d.ready(t); time.Sleep(100 * time.Millisecond) { // what Probe is for
		if time.Now().After(deadline) {
			t.Fatalf("the driver is not ready though the memory is there\n%s", d.log())
		}
	}
	for name, capability := range rebooted {
		v := d.mustCreate(t, name, 28*mib, capability, nil) // finds it
		if !slices.Contains(ids, v.id) {
			t.Errorf("volume %s was made anew: %s", name, v.id)
		}
		v.up(t)
		v.wantText(t, textOf(name))
		v.down(t)
	}
}

// A record that is lost with the node's disk is made again from the superblock,
// and the volume can be erased.
func TestAfterRebootWithoutARecord(t *testing.T) {
	if left, err := filepath.Glob(filepath.Join(stateDir, "volumes", "*marked*")); err != nil || len(left) != 1 {
		t.Fatalf("records of the marked volume: %v, %v", left, err)
	} else if err := os.Remove(left[0]); err != nil {
		t.Fatal(err)
	}
	d := startDriver(t)
	for name, capability := range rebooted {
		d.mustCreate(t, name, 28*mib, capability, nil).delete(t)
	}
	if ids := d.list(t); len(ids) != 0 {
		t.Errorf("left: %v", ids)
	}
}

// ready is what the driver answers to the sidecars.
func (d *driver) ready(t *testing.T) bool {
	t.Helper()
	response, err := csi.NewIdentityClient(d.conn).Probe(limit(t, callTimeout), &csi.ProbeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return response.GetReady().GetValue()
}

func (d *driver) list(t *testing.T) []string {
	t.Helper()
	response, err := d.controller.ListVolumes(limit(t, callTimeout), &csi.ListVolumesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range response.GetEntries() {
		ids = append(ids, e.GetVolume().GetVolumeId())
	}
	return ids
}

func TestAfterReboot(t *testing.T) {
	ctx := limit(t, 3*time.Minute)
	m, err := ndctl.NewSystem(ctx, stateDir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.Namespace(ctx, "b")
	if err != nil {
		t.Fatal(err)
	}
	if b.Device == "/dev/dax0.1" {
		t.Errorf("namespace b is still %s: the kernel was expected to number it anew", b.Device)
	}
	dir := t.TempDir()
	mountNVFS(ctx, t, "b", dir, "flush=clwb")
	data, err := os.ReadFile(filepath.Join(dir, "note"))
	if err != nil {
		t.Fatal(err)
	}
	var note remembered
	if err := json.Unmarshal(data, &note); err != nil {
		t.Fatal(err)
	}
	if b.UUID != note.UUID || b.Size != note.Size {
		t.Errorf("b is %+v, was %+v", b, note)
	}
	if got := sumFile(t, filepath.Join(dir, "content")); got != note.Content {
		t.Error("the content has changed over the reboot")
	}
	command(ctx, t, "umount", dir)
	command(ctx, t, tools, "fsck", "-n", "b")
	if c, err := m.Namespace(ctx, "c"); err != nil || c.Region != "region0" {
		t.Errorf("c: %+v, %v", c, err)
	}
}
