package e2e

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// wantError wants a failure with the given exit code whose message contains
// all of the words.
func wantError(t *testing.T, r result, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d", r.code, code)
	}
	for _, w := range words {
		if !strings.Contains(r.stderr, w) {
			t.Errorf("the message lacks %q: %s", w, r.stderr)
		}
	}
	if strings.Contains(r.stderr, "goroutine ") || strings.Contains(r.stderr, "panic") {
		t.Errorf("crashed: %s", r)
	}
	if t.Failed() {
		t.Log(r)
	}
}

// digest is of the whole content, to see that nothing was changed.
func digest(t *testing.T, name string) [32]byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(data)
}

// TestPathsThatCannotBeVolumes gives each tool paths that are no device.
func TestPathsThatCannotBeVolumes(t *testing.T) {
	dir := memoryDir(t)
	small := sparse(t, filepath.Join(dir, "small"), 1<<20)
	empty := sparse(t, filepath.Join(dir, "empty"), 0)
	loop := filepath.Join(dir, "loop")
	fifo := filepath.Join(dir, "fifo")
	mnt := filepath.Join(dir, "mnt")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(mnt, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, path string
		words      []string
	}{
		{"missing", filepath.Join(dir, "missing"), []string{"missing"}},
		{"no such namespace", "no-such-namespace", []string{"no-such-namespace", "discover"}},
		{"directory", dir, []string{dir, "directory"}},
		{"empty file", empty, []string{empty}},
		{"too small", small, []string{"small"}},
		{"loop of links", loop, []string{"loop"}},
		{"FIFO", fifo, []string{"FIFO"}},
		{"other character device", "/dev/null", []string{"/dev/null"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantError(t, nvfs(t, "mkfs", tc.path), 1, tc.words...)
			wantError(t, nvfs(t, "mkfs", "--force", tc.path), 1, tc.words...)
			if tc.name != "too small" { // a check reports that as damage
				wantError(t, nvfs(t, "fsck", "-n", tc.path), 8, tc.words...)
			}
			wantError(t, nvfs(t, "mount", "-o", "emulated", tc.path, mnt), 1, filepath.Base(tc.path))
			if isMounted(t, mnt) {
				t.Error("mounted")
			}
		})
	}
}

// TestForeignContentIsKept wants mkfs to refuse what is not blank, to leave it
// as it is, and to obey --force.
func TestForeignContentIsKept(t *testing.T) {
	write := func(off int64, text string) func(t *testing.T, name string) {
		return func(t *testing.T, name string) {
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte(text), off); err != nil {
				t.Fatal(err)
			}
		}
	}
	program := func(args ...string) func(t *testing.T, name string) {
		return func(t *testing.T, name string) { must(t, args[0], append(args[1:], name)...) }
	}
	for _, tc := range []struct {
		name string
		make func(t *testing.T, name string)
		word string
	}{
		{"ext4", program("mkfs.ext4", "-q", "-F"), "ext4"},
		{"xfs", program("mkfs.xfs", "-q", "-f"), "xfs"},
		{"swap", program("mkswap"), "swap"},
		{"LVM", write(512, "LABELONE\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00\x00\x00LVM2 001"), "LVM"},
		{"unknown data", write(5<<20, "something that matters to somebody"), "unknown data"},
		{"NVFS", program(binary, "mkfs", "--label", "mine"), "NVFS"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := memoryDir(t)
			device := sparse(t, filepath.Join(dir, "pmem"), 320<<20) // xfs needs 300 MiB
			mnt := filepath.Join(dir, "mnt")
			if err := os.Mkdir(mnt, 0o700); err != nil {
				t.Fatal(err)
			}
			tc.make(t, device)
			before := digest(t, device)
			wantError(t, nvfs(t, "mkfs", device), 1, tc.word, "--force")
			if tc.name != "NVFS" {
				wantError(t, nvfs(t, "mount", "-o", "emulated", device, mnt), 1)
				if r := nvfs(t, "fsck", "-n", device); r.code != 4 && r.code != 8 {
					t.Errorf("fsck: %s", r)
				}
			}
			if digest(t, device) != before {
				t.Error("the content was changed")
			}
			mustNVFS(t, "mkfs", "--force", device)
			mustNVFS(t, "fsck", "-n", device)
			// Nothing of what was there is to be found by other programs.
			if r := execute(t, "blkid", "-p", "-s", "TYPE", device); r.code == 0 && strings.TrimSpace(r.stdout) != "" {
				t.Errorf("blkid still finds %s", r.stdout)
			}
		})
	}
}

// TestVolumeInUse wants a mounted volume to be left alone.
func TestVolumeInUse(t *testing.T) {
	v := newVolume(t, 64<<20)
	v.mount(t)
	writePayload(t, v)
	second := filepath.Join(filepath.Dir(v.mnt), "second")
	if err := os.Mkdir(second, 0o700); err != nil {
		t.Fatal(err)
	}
	wantError(t, nvfs(t, "mkfs", "--force", v.device), 1, "in use", "unmount")
	wantError(t, nvfs(t, "fsck", "-n", v.device), 8, "in use", "unmount")
	wantError(t, nvfs(t, "mount", "-o", "emulated", v.device, second), 1, "in use")
	wantError(t, nvfs(t, "mount", "-o", "emulated", v.device, v.mnt), 1, "mounted at", "unmount")
	if got := mountsBelow(t, filepath.Dir(v.mnt)); len(got) != 1 {
		t.Errorf("mounts: %v, want only %s", got, v.mnt)
	}
	wantPayload(t, v)
	v.unmount(t)
	wantClean(t, v)
}

// damage changes bytes of a file; its length stays.
func damage(t *testing.T, name string, off int64, change func([]byte)) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 4096)
	if _, err := f.ReadAt(block, off); err != nil {
		t.Fatal(err)
	}
	change(block)
	if _, err := f.WriteAt(block, off); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedVolumes wants damage of the superblock and of the length to be
// found by mount and fsck, and never to crash them.
func TestDamagedVolumes(t *testing.T) {
	const size = 64 << 20
	flip := func(at int) func([]byte) { return func(b []byte) { b[at] ^= 0x10 } }
	clear := func(b []byte) { copy(b, make([]byte, len(b))) }
	for _, tc := range []struct {
		name   string
		damage func(t *testing.T, device string)
	}{
		{"truncated", func(t *testing.T, device string) {
			if err := os.Truncate(device, size-(1<<20)); err != nil {
				t.Fatal(err)
			}
		}},
		{"flipped bit in the magic", func(t *testing.T, device string) { damage(t, device, 0, flip(0)) }},
		{"flipped bit in the middle", func(t *testing.T, device string) { damage(t, device, 0, flip(130)) }},
		{"flipped bit in the device table", func(t *testing.T, device string) { damage(t, device, 0, flip(600)) }},
		{"superblock gone", func(t *testing.T, device string) { damage(t, device, 0, clear) }},
		{"both superblocks gone", func(t *testing.T, device string) {
			damage(t, device, 0, clear)
			damage(t, device, size-4096, clear)
		}},
		{"random superblock", func(t *testing.T, device string) {
			damage(t, device, 0, func(b []byte) { copy(b[64:], bytes.Repeat([]byte{0x5a, 0xc3, 0x99}, 1300)) })
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newVolume(t, size)
			v.mount(t)
			writePayload(t, v)
			v.unmount(t)
			tc.damage(t, v.device)
			before := digest(t, v.device)

			r := nvfs(t, "fsck", "-n", v.device)
			if r.code != 4 && r.code != 8 {
				t.Errorf("fsck: %s", r)
			}
			wantError(t, nvfs(t, "mount", "-o", "emulated", v.device, v.mnt), 1)
			if tc.name != "both superblocks gone" { // which may well look like nobody's data
				wantError(t, nvfs(t, "mkfs", v.device), 1, "--force")
			}
			if isMounted(t, v.mnt) {
				t.Error("mounted")
			}
			if digest(t, v.device) != before {
				t.Error("the damaged volume was changed")
			}
		})
	}
}

// TestSuperblockCopyDamage wants a volume whose second superblock is damaged
// to be reported by fsck.
func TestSuperblockCopyDamage(t *testing.T) {
	const size = 64 << 20
	v := newVolume(t, size)
	damage(t, v.device, size-4096, func(b []byte) { b[100] ^= 1 })
	if r := nvfs(t, "fsck", "-n", v.device); r.code != 4 {
		t.Errorf("fsck: %s", r)
	}
}

// TestRandomDamage flips bytes all over the metadata: whatever happens, fsck
// and mount end by themselves with an exit code, and reading never hangs.
func TestRandomDamage(t *testing.T) {
	const size = 64 << 20
	v := newVolume(t, size)
	v.mount(t)
	for _, name := range []string{"a", "b", "c"} {
		if err := os.MkdirAll(v.path(name, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(v.path(name, "f"), bytes.Repeat([]byte(name), 20000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	v.unmount(t)
	pristine, err := os.ReadFile(v.device)
	if err != nil {
		t.Fatal(err)
	}
	var used []int64 // blocks that hold something, the superblock aside
	for off := int64(4096); off < size; off += 4096 {
		if !bytes.Equal(pristine[off:off+4096], make([]byte, 4096)) {
			used = append(used, off)
		}
	}
	for i := range 20 {
		if err := os.WriteFile(v.device, pristine, 0o600); err != nil {
			t.Fatal(err)
		}
		for j := range 5 {
			off := used[(i*31+j*17)%len(used)]
			damage(t, v.device, off, func(b []byte) {
				for k := i; k < len(b); k += 61 + j {
					b[k] ^= byte(k + i + 1)
				}
			})
		}
		if r := nvfs(t, "fsck", "-n", v.device); r.code != 4 && r.code != 8 && r.code != 0 {
			t.Fatalf("damage %d: fsck: %s", i, r)
		}
		r := nvfs(t, "mount", "-o", "emulated", v.device, v.mnt)
		if r.code != 0 {
			continue
		}
		// What is damaged gives an error; what is read is not looked at.
		execute(t, "find", v.mnt, "-type", "f", "-exec", "cat", "{}", "+")
		_ = os.WriteFile(v.path("new"), []byte(payload), 0o600)
		if pids := serversOf(t, v.device); len(pids) != 1 {
			t.Fatalf("damage %d: the serving process is gone", i)
		}
		v.unmount(t)
	}
}

// TestOptionsThatAreRefused tries what mount cannot do.
func TestOptionsThatAreRefused(t *testing.T) {
	v := newVolume(t, 64<<20)
	for options, words := range map[string][]string{
		"emulated,nosuch":        {"nosuch", "known are", "flush", "cache"},
		"emulated,flush=nosuch":  {"nosuch", "clwb", "nt", "msync"},
		"emulated,flush=dccvap":  {"dccvap", "possible"},
		"emulated,cache=nosuch":  {"nosuch", "through", "direct", "writeback"},
		"emulated,transport=tcp": {"tcp", "auto", "uring", "dev"},
		"emulated=yes":           {"emulated", "no value"},
		"emulated,numa=4096":     {"4096"},
	} {
		t.Run(options, func(t *testing.T) {
			wantError(t, nvfs(t, "mount", "-o", options, v.device, v.mnt), 1, words...)
			if isMounted(t, v.mnt) {
				t.Error("mounted")
			}
			if pids := serversOf(t, v.device); len(pids) != 0 {
				t.Errorf("left running: %v", pids)
			}
		})
	}
}

// TestFlushModeNeedsPersistentMemory wants a flush instruction on an ordinary
// file to be refused unless the file is declared emulated.
func TestFlushModeNeedsPersistentMemory(t *testing.T) {
	dir, err := os.MkdirTemp(".", "volume-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	device, err := filepath.Abs(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	sparse(t, device, 64<<20)
	var st unix.Statfs_t
	if err := unix.Statfs(device, &st); err != nil {
		t.Fatal(err)
	}
	if st.Type == unix.TMPFS_MAGIC {
		t.Skip("the working directory is a tmpfs, where every mode is emulated")
	}
	mustNVFS(t, "mkfs", device)
	v := testVolume{device: device, mnt: filepath.Join(memoryDir(t), "mnt")}
	if err := os.Mkdir(v.mnt, 0o700); err != nil {
		t.Fatal(err)
	}
	wantError(t, nvfs(t, "mount", "-o", "flush=eadr", v.device, v.mnt), 1, "eadr", "msync")
	mustNVFS(t, "mount", "-o", "flush=msync", v.device, v.mnt)
	v.unmount(t)
	mustNVFS(t, "mount", "-o", "flush=eadr,emulated", v.device, v.mnt)
	v.unmount(t)
}

// TestMountPointsThatAreRefused tries mount points that are none.
func TestMountPointsThatAreRefused(t *testing.T) {
	v := newVolume(t, 64<<20)
	file := sparse(t, filepath.Join(filepath.Dir(v.mnt), "file"), 1)
	wantError(t, nvfs(t, "mount", "-o", "emulated", v.device, v.mnt+"-missing"), 1, "mount point")
	wantError(t, nvfs(t, "mount", "-o", "emulated", v.device, file), 1, "directory")
}
