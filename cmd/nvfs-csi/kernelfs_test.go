//go:build !nvfstools

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// What is made is found again, over whatever was there.
func TestKernelFilesystemsFormatAndIdentify(t *testing.T) {
	device := filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(device, 320<<20); err != nil {
		t.Fatal(err)
	}
	var fs kernelFilesystems
	if found, err := fs.Identify(t.Context(), device); err != nil || found != (driver.KernelFilesystem{}) {
		t.Errorf("blank device: %+v, %v", found, err)
	}
	for _, want := range []driver.KernelFilesystem{
		{Type: driver.FSTypeExt4, UUID: "2a65150a-1b74-44d2-9915-f6bf064ef176"},
		{Type: driver.FSTypeXFS, UUID: "7fe16324-09d2-4840-9ee4-9f5489013686"},
	} {
		for _, dax := range []bool{true, false} {
			o := driver.KernelFormat{Type: want.Type, UUID: want.UUID, Label: "a label with spaces that is too long", DAX: dax}
			if err := fs.Format(t.Context(), device, o); err != nil {
				t.Fatal(err)
			}
			if found, err := fs.Identify(t.Context(), device); err != nil || found != want {
				t.Errorf("found %+v, %v; want %+v", found, err, want)
			}
		}
	}
	if err := fs.Format(t.Context(), device, driver.KernelFormat{Type: "btrfs"}); err == nil {
		t.Error("btrfs was made")
	}
	if _, err := fs.Identify(t.Context(), device+"-none"); err == nil {
		t.Log("blkid does not tell a missing device from a blank one") // nothing depends on it
	}
}

// A mkfs for DAX gives the block size and the alignment.
func TestMkfsCommandForDAX(t *testing.T) {
	for fsType, want := range map[string][]string{
		driver.FSTypeExt4: {"-b 4096", "stripe_width=512"},
		driver.FSTypeXFS:  {"-b size=4096", "su=2m,sw=1", "reflink=0"},
	} {
		_, args, err := mkfsCommand("/dev/pmem0", 4<<30, driver.KernelFormat{Type: fsType, DAX: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, option := range want {
			if !strings.Contains(strings.Join(args, " "), option) {
				t.Errorf("%s: %v lacks %s", fsType, args, option)
			}
		}
	}
}

func TestCutLabel(t *testing.T) {
	for label, want := range map[string]string{"": "", "short": "short", "0123456789abcdefgh": "0123456789ab", "elevenchars\u00e4": "elevenchars", "a b": "a_b"} {
		if got := cut(label, xfsLabelLength); got != want {
			t.Errorf("cut(%q) = %q, want %q", label, got, want)
		}
	}
}
