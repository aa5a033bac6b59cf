//go:build qemu

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

const oldText = "left by the ext4 that was here before"

// An ext4 volume that was not erased leaves its filesystem in the memory, whole
// and mountable. A namespace with it is not taken for blank, and a new ext4 volume
// at the same offset has nothing of it.
func TestOldExt4UnderANewExt4Volume(t *testing.T) {
	ctx := limit(t, 6*time.Minute)
	m := emptySystem(t)
	d := startDriver(t)
	v := d.mustCreate(t, "old", 28*mib, filesystem("ext4"), map[string]string{"eraseOnDelete": "false"})
	v.up(t)
	v.write(t, oldText)
	old, err := m.Namespace(ctx, v.id)
	if err != nil {
		t.Fatal(err)
	}
	offset := offsetOf(t, v.id)
	v.down(t)
	v.delete(t)

	hand := create(ctx, t, m, ndctl.CreateRequest{Name: "by-hand", Region: old.Region, Mode: ndctl.FSDax, Size: old.Size})
	wantOffset(t, "by-hand", offset)
	dir := t.TempDir()
	command(ctx, t, "mount", "-t", "ext4", "-o", "ro", hand.Device, dir)
	text, err := os.ReadFile(filepath.Join(dir, "content"))
	command(ctx, t, "umount", dir)
	if err != nil || string(text) != oldText {
		t.Fatalf("the old filesystem holds %q, %v: without it this test shows nothing", text, err)
	}
	_, err = d.create(t, "adopted", 20*mib, filesystem("ext4"), map[string]string{"provision": "namespace"})
	wantCode(t, err, codes.ResourceExhausted, "no idle, blank fsdax namespace")
	if err := m.Destroy(ctx, "by-hand"); err != nil {
		t.Fatal(err)
	}

	v = d.mustCreate(t, "new", 28*mib, filesystem("ext4"), nil)
	wantOffset(t, v.id, offset)
	ns, err := m.Namespace(ctx, v.id)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(ns.Device)
	if err != nil {
		t.Fatal(err)
	}
	if id := ext4UUID(data); !strings.EqualFold(id, ns.UUID) || strings.EqualFold(id, old.UUID) {
		t.Errorf("the new volume has the ext4 %q; want %s, not %s", id, ns.UUID, old.UUID)
	}
	if bytes.Contains(data, []byte(oldText)) {
		t.Error("a file of the old filesystem is still on the new volume's device")
	}
	v.up(t)
	v.wantFresh(t, unix.EXT4_SUPER_MAGIC)
	v.down(t)
	v.delete(t)
	wantNoneLeft(t, m)
}

// The same with NVFS, which is on devdax, where the kernel would not see an ext4
// but its bytes begin where those of the volume do.
func TestOldExt4UnderANewNVFSVolume(t *testing.T) {
	ctx := limit(t, 6*time.Minute)
	m := emptySystem(t)
	d := startDriver(t)
	image := ext4Image(t)
	request := ndctl.CreateRequest{Name: "by-hand", Region: "region0", Mode: ndctl.DevDax, Size: 30 * mib}
	withMemory(t, create(ctx, t, m, request), func(mem []byte) { copy(mem, image) })
	offset := offsetOf(t, "by-hand")
	if err := m.Destroy(ctx, "by-hand"); err != nil {
		t.Fatal(err)
	}
	withMemory(t, create(ctx, t, m, request), func(mem []byte) {
		if ext4UUID(mem) == "" || !bytes.Contains(mem, []byte(oldText)) {
			t.Fatal("the old filesystem is not there any more: without it this test shows nothing")
		}
	})
	wantOffset(t, "by-hand", offset)
	_, err := d.create(t, "adopted", 20*mib, filesystem("nvfs"), map[string]string{"provision": "namespace"})
	wantCode(t, err, codes.ResourceExhausted, "no idle, blank devdax namespace")
	if err := m.Destroy(ctx, "by-hand"); err != nil {
		t.Fatal(err)
	}

	v := d.mustCreate(t, "new", 30*mib, filesystem("nvfs"), nil)
	wantOffset(t, v.id, offset)
	ns, err := m.Namespace(ctx, v.id)
	if err != nil {
		t.Fatal(err)
	}
	v.up(t)
	v.wantFresh(t, unix.FUSE_SUPER_MAGIC)
	v.wantAllocatedSpaceToBeZero(t)
	v.down(t)
	command(ctx, t, tools, "fsck", "-n", v.id)
	withMemory(t, ns, func(mem []byte) {
		if id := ext4UUID(mem); id != "" {
			t.Errorf("the ext4 %s is still there for who looks for one", id)
		}
	})
	v.delete(t)
	wantNoneLeft(t, m)
}

// offsetOf is where in the machine's memory the namespace of that name begins.
func offsetOf(t *testing.T, name string) string {
	t.Helper()
	names, err := filepath.Glob("/sys/bus/nd/devices/namespace*/alt_name")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range names {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(string(text)) != name {
			continue
		}
		offset, err := os.ReadFile(filepath.Join(filepath.Dir(file), "resource"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(offset))
	}
	t.Fatalf("no namespace has the name %s", name)
	return ""
}

func wantOffset(t *testing.T, name, want string) {
	t.Helper()
	if got := offsetOf(t, name); got != want {
		t.Fatalf("namespace %s begins at %s, the old one did at %s", name, got, want)
	}
}

// ext4UUID returns the UUID of the ext4 that begins where data does, "" for none.
func ext4UUID(data []byte) string {
	const superblock, magic, id = 1024, 0x38, 0x68
	if binary.LittleEndian.Uint16(data[superblock+magic:]) != unix.EXT4_SUPER_MAGIC {
		return ""
	}
	return uuid.UUID(data[superblock+id : superblock+id+16]).String()
}

// ext4Image makes an ext4 with one file.
func ext4Image(t *testing.T) []byte {
	t.Helper()
	dir, image := t.TempDir(), filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(filepath.Join(dir, "content"), []byte(oldText), 0o600); err != nil {
		t.Fatal(err)
	}
	command(limit(t, callTimeout), t, "mkfs.ext4", "-q", "-F", "-b", "4096", "-d", dir, image, "16M")
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// wantFresh wants a mounted volume to have the filesystem with that magic number
// and no file.
func (v *volume) wantFresh(t *testing.T, magic int64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(v.target, &st); err != nil || st.Type != magic {
		t.Errorf("mounted is a filesystem of type %#x, %v; want %#x", st.Type, err, magic)
	}
	entries, err := os.ReadDir(v.target)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "lost+found" {
			t.Errorf("a new volume has the file %s", e.Name())
		}
	}
}

// wantAllocatedSpaceToBeZero wants space that nothing was written to not to show
// what was in the memory.
func (v *volume) wantAllocatedSpaceToBeZero(t *testing.T) {
	t.Helper()
	f, err := os.Create(v.content())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, 16*mib), f.Close()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(v.content())
	if err != nil || len(data) != 16*mib {
		t.Fatalf("read %d bytes, %v", len(data), err)
	}
	if i := bytes.IndexFunc(data, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %d of a file that nobody wrote to is not zero", i)
	}
}
