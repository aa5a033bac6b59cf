package main

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

const deviceSize = 32 << 20

func newDevice(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, deviceSize); err != nil {
		t.Fatal(err)
	}
	return name
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestFormatterKeepsIdentity(t *testing.T) {
	device := newDevice(t)
	var f formatter
	if found, err := f.Probe(t.Context(), device); err != nil || found.Content != driver.ContentBlank {
		t.Fatalf("a fresh device: %+v, %v", found, err)
	}
	params := map[string]string{"flushMode": "clwb", "numaNode": "1"}
	options := driver.FormatOptions{VolumeID: "nvfs-pvc-1", Label: "pvc", Params: params}
	if err := f.Format(t.Context(), device, options); err != nil {
		t.Fatal(err)
	}
	found, err := f.Probe(t.Context(), device)
	if err != nil || found.Content != driver.ContentNVFS || found.VolumeID != "nvfs-pvc-1" || !maps.Equal(found.Params, params) {
		t.Errorf("after Format: %+v, %v", found, err)
	}

	before := readFile(t, device)
	options.VolumeID = "another"
	if err := f.Format(t.Context(), device, options); err == nil || !strings.Contains(err.Error(), "left as it is") {
		t.Errorf("Format of a volume: %v, want a refusal", err)
	}
	if !bytes.Equal(readFile(t, device), before) {
		t.Error("the refused Format changed the device")
	}
	options.Wipe = true
	if err := f.Format(t.Context(), device, options); err != nil {
		t.Fatal(err)
	}
	if found, err := f.Probe(t.Context(), device); err != nil || found.VolumeID != "another" {
		t.Errorf("after Format with Wipe: %+v, %v", found, err)
	}
}

func TestFormatterZero(t *testing.T) {
	device := newDevice(t)
	if err := os.WriteFile(device, bytes.Repeat([]byte{0xaa}, deviceSize), 0o600); err != nil {
		t.Fatal(err)
	}
	var f formatter
	if found, err := f.Probe(t.Context(), device); err != nil || found.Content != driver.ContentForeign {
		t.Fatalf("unknown data: %+v, %v", found, err)
	}
	const from = 12345
	var last uint64
	if err := f.Zero(t.Context(), device, from, func(to uint64) { last = to }); err != nil {
		t.Fatal(err)
	}
	data := readFile(t, device)
	if last != deviceSize || !bytes.Equal(data[:from], bytes.Repeat([]byte{0xaa}, from)) || !bytes.Equal(data[from:], make([]byte, deviceSize-from)) {
		t.Errorf("progress %d of %d, or other bytes than asked for were zeroed", last, deviceSize)
	}

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Zero(cancelled, device, 0, func(uint64) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if readFile(t, device)[0] != 0xaa {
		t.Error("zeroed although the context had ended")
	}
}

func TestFormatterRefusesWhatIsInUse(t *testing.T) {
	device := newDevice(t)
	m, err := pmem.Open(device, pmem.Options{Emulated: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var f formatter
	if err := f.Format(t.Context(), device, driver.FormatOptions{Wipe: true}); !errors.Is(err, pmem.ErrInUse) {
		t.Errorf("Format: %v, want ErrInUse", err)
	}
	if err := f.Zero(t.Context(), device, 0, func(uint64) {}); !errors.Is(err, pmem.ErrInUse) {
		t.Errorf("Zero: %v, want ErrInUse", err)
	}
}

// TestForceDestroysNothingInVain wants options that cannot be honoured to be
// refused before anything is overwritten.
func TestForceDestroysNothingInVain(t *testing.T) {
	device := newDevice(t)
	if err := os.WriteFile(device, bytes.Repeat([]byte{0xaa}, deviceSize), 0o600); err != nil {
		t.Fatal(err)
	}
	before := readFile(t, device)
	for name, opt := range map[string]mkfs.Options{
		"too large":       {Size: deviceSize + 1},
		"too small":       {Size: 1 << 20},
		"bytes per inode": {BytesPerInode: 1},
		"label":           {Label: strings.Repeat("x", 1000)},
	} {
		if _, err := formatDevice(t.Context(), device, true, true, opt); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if !bytes.Equal(readFile(t, device), before) {
			t.Fatalf("%s: the device was changed", name)
		}
	}
}

func TestDeviceThatShrinksIsAnError(t *testing.T) {
	device := newDevice(t)
	err := withDevice(device, true, func(m *pmem.Mapping) error {
		if err := os.Truncate(device, 0); err != nil {
			return err
		}
		p := m.NewPersister()
		p.Zero(0, 4096)
		return p.Fence()
	})
	if err == nil || !strings.Contains(err.Error(), "cannot be accessed") {
		t.Errorf("got %v, want an error about the medium", err)
	}
}
