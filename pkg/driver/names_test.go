package driver

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

func TestVolumeIDs(t *testing.T) {
	names := []string{"pvc-0a1b2c3d-1111-2222-3333-444455556666", "a", strings.Repeat("x", 128), "Grüße aus dem PMEM", "a b", "a-b", "a_b", "....", "名"}
	seen := map[string]string{}
	for _, name := range names {
		id := volumeIDFor(name)
		if id != volumeIDFor(name) {
			t.Errorf("%q: not deterministic", name)
		}
		if err := ndctl.ValidName(id); err != nil || !isOurID(id) || checkVolumeID(id) != nil {
			t.Errorf("%q: ID %q is not a namespace name of ours: %v", name, id, err)
		}
		if other, ok := seen[id]; ok {
			t.Errorf("%q and %q share ID %s", name, other, id)
		}
		seen[id] = name
	}
	if id := volumeIDFor(names[0]); !strings.HasPrefix(id, "nvfs-pvc-0a1b2c3d-1111") {
		t.Errorf("the name cannot be recognised in %s", id)
	}
	for _, id := range []string{"", "nvfs-", "data", "nvfs-x-ABCDEFGHIJKLMNOPQRSTUVWXYZ", "pvc-0a1b2c3d-1111-2222-3333-444455556666"} {
		if isOurID(id) {
			t.Errorf("%q passes for an ID of ours", id)
		}
	}
}

func TestBadNamesIDsAndPaths(t *testing.T) {
	for _, name := range []string{"", "../x", "a/b", "a..b", strings.Repeat("x", 129), "a\x00", "\x08", "\x0b", "\x0c", "\x0e", "\x1f", "\x7f", "a\u0080", "\u009f"} {
		if err := checkVolumeName(name); codeOf(err) != codes.InvalidArgument {
			t.Errorf("name %q: %v", name, err)
		}
	}
	for _, name := range []string{"a\tb", "a\nb", "a\rb", "a\u00a0b"} {
		if err := checkVolumeName(name); err != nil {
			t.Errorf("name %q: %v", name, err)
		}
	}
	for _, id := range []string{"", "..", "../x", "a/b", "a..b", "a b", strings.Repeat("x", 64)} {
		if err := checkVolumeID(id); codeOf(err) != codes.InvalidArgument {
			t.Errorf("ID %q: %v", id, err)
		}
	}
	for _, path := range []string{"", "x", "./x", "/a/../b", "/.."} {
		if err := checkPath("path", path); codeOf(err) != codes.InvalidArgument {
			t.Errorf("path %q: %v", path, err)
		}
	}
	for _, path := range []string{"/a/..b", "/var/lib/kubelet/pods/x/"} {
		if err := checkPath("path", path); err != nil {
			t.Errorf("path %q: %v", path, err)
		}
	}
}

func TestMountFlags(t *testing.T) {
	flags, readOnly, err := parseMountFlags([]string{"noatime,ro", "nosuid", "sync", "noatime"})
	if err != nil || !readOnly || strings.Join(flags, " ") != "noatime nosuid sync" {
		t.Errorf("got %v, %v, %v", flags, readOnly, err)
	}
	if got := strings.Join(bindOptions(flags, true), " "); got != "bind noatime nosuid ro" {
		t.Errorf("bind options %q", got)
	}
	if got := strings.Join(bindOptions(nil, false), " "); got != "bind" {
		t.Errorf("bind options %q", got)
	}
	for _, bad := range []string{"dax", "flush=clwb", "remount", "bind", "", "noatime, ro", "context=system_u"} {
		_, _, err := parseMountFlags([]string{bad})
		if codeOf(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "noatime") {
			t.Errorf("%q: %v; want InvalidArgument with the list", bad, err)
		}
	}
}
