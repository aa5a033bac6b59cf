package mkfs

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

const testSize = 32 << 20

// foreignImages is at least one handcrafted image of each format: what it is
// called and how it is made.
var foreignImages = []struct {
	want string
	make func(p []byte)
}{
	{"ext2", extImage(0, 0x2, 0x1)},
	{"ext3", extImage(0x4, 0x2, 0x1)},
	{"ext4", extImage(0x4, 0x2|0x40, 0x1)},
	{"ext4", extImage(0, 0x2, 0x8)},
	{"ext3/ext4 external journal", extImage(0, 0x8, 0)},
	{"xfs", puts(0, "XFSB")},
	{"btrfs", puts(0x10040, "_BHRfS_M")},
	{"f2fs", put32At(1024, 0xf2f52010)},
	{"LVM2 physical volume", func(p []byte) { copy(p[512:], "LABELONE"); copy(p[536:], "LVM2 001") }},
	{"LVM2 physical volume", func(p []byte) { copy(p[1536:], "LABELONE"); copy(p[1560:], "LVM2 001") }},
	{"LVM1 physical volume", puts(0, "HM\x01\x00")},
	{"LUKS1", puts(0, "LUKS\xba\xbe\x00\x01")},
	{"LUKS2", puts(0, "LUKS\xba\xbe\x00\x02")},
	{"LUKS2", puts(0x8000, "SKUL\xba\xbe\x00\x02")},
	{"BitLocker", puts(3, "-FVE-FS-")},
	{"mdraid 0.90 member", put32At(testSize-64<<10, mdMagic)},
	{"mdraid 0.90 member", func(p []byte) { binary.BigEndian.PutUint32(p[testSize-64<<10:], mdMagic) }},
	{"mdraid 1.0 member", func(p []byte) { put32At(testSize-8<<10, mdMagic)(p); put32At(testSize-8<<10+4, 1)(p) }},
	{"mdraid 1.1 member", func(p []byte) { put32At(0, mdMagic)(p); put32At(4, 1)(p) }},
	{"mdraid 1.2 member", func(p []byte) { put32At(4096, mdMagic)(p); put32At(4100, 1)(p) }},
	{"DDF RAID member", puts(testSize-512, "\xde\x11\xde\x11")},
	{"Intel RAID member", puts(testSize-1024, "Intel Raid ISM Cfg Sig. 1.1.00")},
	{"swap", puts(4086, "SWAPSPACE2")},
	{"swap", puts(65526, "SWAPSPACE2")},
	{"swap", puts(4086, "SWAP-SPACE")},
	{"swap with a suspended system", puts(4086, "S1SUSPEND\x00")},
	{"bcache", puts(4120, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")},
	{"bcachefs", puts(4120, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef")},
	{"zfs member", puts(128<<10+5*1024, "\x0c\xb1\xba\x00\x00\x00\x00\x00")},
	{"zfs member", puts(testSize-256<<10+128<<10, "\x00\x00\x00\x00\x00\xba\xb1\x0c")},
	{"ntfs", puts(3, "NTFS    ")},
	{"ReFS", puts(3, "ReFS\x00")},
	{"vfat", puts(82, "FAT32   ")},
	{"vfat", func(p []byte) { copy(p[54:], "FAT16   "); copy(p[510:], "\x55\xaa") }},
	{"exfat", puts(3, "EXFAT   ")},
	{"iso9660", puts(32769, "CD001")},
	{"udf", puts(32769, "BEA01")},
	{"squashfs", puts(0, "hsqs")},
	{"cramfs", put32At(0, 0x28cd3d45)},
	{"romfs", puts(0, "-rom1fs-")},
	{"erofs", put32At(1024, 0xe0f5e1e2)},
	{"GPT partition table", func(p []byte) { mbrImage(0xee)(p); copy(p[512:], "EFI PART") }},
	{"GPT partition table", puts(testSize-512, "EFI PART")},
	{"GPT partition table", puts(4096, "EFI PART")},
	{"MBR partition table", mbrImage(0x83)},
	{"boot sector", puts(510, "\x55\xaa")},
	{"boot sector", func(p []byte) { copy(p, strings.Repeat("\x90", 510)); copy(p[510:], "\x55\xaa") }},
	{"jfs", puts(32768, "JFS1")},
	{"reiserfs", puts(65536+52, "ReIsEr2Fs")},
	{"reiserfs", puts(8192+52, "ReIsErFs")},
	{"reiser4", puts(65536, "ReIsEr4")},
	{"nvdimm fsdax (pfn) info block", puts(4096, "NVDIMM_PFN_INFO\x00")},
	{"nvdimm devdax info block", puts(4096, "NVDIMM_DAX_INFO\x00")},
	{"nvdimm sector (BTT) info block", puts(4096, "BTT_ARENA_INFO\x00\x00")},
	{"nvdimm sector (BTT) info block", puts(0, "BTT_ARENA_INFO\x00\x00")},
	{"nilfs2", nilfsImage(1024)},
	{"nilfs2", nilfsImage(testSize - 4096)},
	{"ocfs2", puts(8192, "OCFSV2")},
	{"gfs2", gfsImage(1801)},
	{"gfs", gfsImage(1309)},
	{"hfs+", puts(1024, "H+\x00\x04")},
	{"hfs+", puts(1024, "HX\x00\x05")},
	{"hfs", puts(1024, "BD")},
	{"apfs", puts(32, "NXSB")},
	{"VMFS", put32At(1<<20, 0xc001d00d)},
	{"VMFS", put32At(2<<20, 0x2fabf15e)},
	{"ufs", put32At(65536+1372, 0x19540119)},
	{"minix", func(p []byte) { binary.LittleEndian.PutUint16(p[1040:], 0x138f) }},
	{"minix", func(p []byte) { binary.LittleEndian.PutUint16(p[1048:], 0x4d5a) }},
	{"PMDK pool", puts(0, "PMEMOBJ\x00")},
	{"PMDK pool", puts(4096, "PMEMPOOL")},
	{"Stratis pool member", puts(516, "!Stra0tis\x86\xff\x02^\x41rh")},
	{"VDO volume", puts(0, "dmvdo001")},
	{"dm-integrity", puts(0, "integrt\x00")},
	{"dm-verity", puts(0, "verity\x00\x00")},
	{"device-mapper snapshot store", puts(0, "SnAp")},
	{"dm-writecache", put32At(0, 0x23489321)},
	{"Ceph BlueStore", puts(0, "bluestore block device\n")},
	{"unknown data", puts(0, "x")},
	{"unknown data", puts(8<<20-1, "x")},
	{"unknown data", puts(testSize-8<<20, "x")},
	{"unknown data", puts(testSize-1, "x")},
	{"unknown data", puts(0, "\x1f\x8b\x08 some archive")},
}

func puts(off int, s string) func([]byte) { return func(p []byte) { copy(p[off:], s) } }

func put32At(off int, v uint32) func([]byte) {
	return func(p []byte) { binary.LittleEndian.PutUint32(p[off:], v) }
}

func extImage(compat, incompat, roCompat uint32) func([]byte) {
	return func(p []byte) {
		binary.LittleEndian.PutUint16(p[1080:], 0xef53)
		put32At(1024+24, 2)(p)
		put32At(1024+92, compat)(p)
		put32At(1024+96, incompat)(p)
		put32At(1024+100, roCompat)(p)
	}
}

func mbrImage(partition byte) func([]byte) {
	return func(p []byte) { p[446+4] = partition; copy(p[510:], "\x55\xaa") }
}

func nilfsImage(off int) func([]byte) {
	return func(p []byte) { put32At(off, 2)(p); binary.LittleEndian.PutUint16(p[off+6:], 0x3434) }
}

func gfsImage(format uint32) func([]byte) {
	return func(p []byte) {
		binary.BigEndian.PutUint32(p[65536:], 0x01161970)
		binary.BigEndian.PutUint32(p[65540:], 1)
		binary.BigEndian.PutUint32(p[65560:], format)
	}
}

func probeBytes(t *testing.T, p []byte) Found {
	t.Helper()
	f, err := probeMapped(t.Context(), p, uint64(len(p)), noHoles(uint64(len(p))))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestProbeForeign(t *testing.T) {
	tested := map[string]bool{}
	p := make([]byte, testSize)
	for _, im := range foreignImages {
		clear(p)
		im.make(p)
		f := probeBytes(t, p)
		if f.Kind != Foreign || f.What != im.want {
			t.Errorf("%s: probe says %v %q", im.want, f.Kind, f.What)
		}
		for _, s := range signatures {
			if s.find((&image{head: p[:probeWindow], tail: p[testSize-probeWindow:], size: testSize})) != "" {
				tested[s.format] = true
			}
		}
	}
	for _, s := range signatures {
		if !tested[s.format] {
			t.Errorf("no image tests the signature of %s", s.format)
		}
	}
}

func TestProbeBlank(t *testing.T) {
	for _, size := range []int{1, 512, 4096, 1 << 20, 16 << 20, 16<<20 + 1, testSize} {
		if f := probeBytes(t, make([]byte, size)); f.Kind != Blank {
			t.Errorf("%d zero bytes: %v %q", size, f.Kind, f.What)
		}
	}
}

// A single set bit anywhere that the probe promises to look at is not blank.
func TestProbeSeesEveryByteOfSmallDevice(t *testing.T) {
	p := make([]byte, 300<<10+7)
	for _, off := range []int{0, 1, 511, 4095, 65535, 65536, 65537, 128 << 10, 256<<10 + 3, len(p) - 1} {
		p[off] = 1
		if f := probeBytes(t, p); f.Kind != Foreign {
			t.Errorf("a byte at %d goes unnoticed: %v", off, f.Kind)
		}
		p[off] = 0
	}
}

func volumeImage(t *testing.T) []byte {
	t.Helper()
	p := make([]byte, testSize)
	const blocks = testSize / layout.BlockSize
	sb := layout.Superblock{UUID: [16]byte{1, 2, 3}, Label: "probe", InodesPerGroup: 1984, Slots: 4,
		Devices: []layout.Device{{Blocks: blocks, Groups: layout.GroupsIn(blocks, 1984)}}}
	for _, off := range []int{0, testSize - layout.BlockSize} {
		if err := sb.Encode(p[off:]); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func TestProbeVolume(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(p []byte)
		kind Kind
		what string
		copy bool // a superblock is given
	}{
		"good":               {func([]byte) {}, NVFS, "NVFS", true},
		"copy damaged":       {func(p []byte) { p[testSize-layout.BlockSize+100]++ }, NVFS, "NVFS", true},
		"primary damaged":    {func(p []byte) { p[100]++ }, NVFSDamaged, "", true},
		"primary gone":       {func(p []byte) { clear(p[:4096]) }, NVFSDamaged, "", true},
		"start gone":         {func(p []byte) { clear(p[:8<<20]) }, NVFSDamaged, "", true},
		"both damaged":       {func(p []byte) { p[100]++; p[testSize-layout.BlockSize+100]++ }, NVFSDamaged, "", false},
		"ext4 over it":       {extImage(4, 0x40, 0), Foreign, "ext4 (over an NVFS volume)", false},
		"md over it":         {func(p []byte) { put32At(4096, mdMagic)(p); put32At(4100, 1)(p) }, Foreign, "mdraid 1.2 member (over an NVFS volume)", false},
		"btrfs over it":      {puts(0x10040, "_BHRfS_M"), Foreign, "btrfs (over an NVFS volume)", false},
		"btrfs in a file":    {puts(8<<20, "_BHRfS_M"), NVFS, "NVFS", true},
		"GPT at end of file": {puts(testSize-512, "EFI PART"), NVFS, "NVFS", true},
		"newer version":      {func(p []byte) { p[16] = 2; resealStatic(p) }, Foreign, "NVFS of a newer version: unknown format version 2; this program knows 1", false},
		"newer feature":      {func(p []byte) { p[40] = 1; resealStatic(p) }, Foreign, "NVFS of a newer version: unknown incompatible features 0x1; use a newer version", false},
		"nonsense":           {func(p []byte) { p[308] = 0; resealStatic(p) }, NVFSDamaged, "", true},
	} {
		p := volumeImage(t)
		c.edit(p)
		f := probeBytes(t, p)
		if f.Kind != c.kind || c.what != "" && f.What != c.what || (f.Superblock != nil) != c.copy {
			t.Errorf("%s: %v %q, superblock %v", name, f.Kind, f.What, f.Superblock != nil)
		}
	}
}

func resealStatic(p []byte) {
	layout.Seal(layout.Seed([16]byte(p[48:64])), 0, p[:layout.StaticSize])
}

// A copy that a larger or smaller device once had is not this device's.
func TestProbeCopyOfOtherSize(t *testing.T) {
	p := volumeImage(t)
	clear(p[:4096])
	larger := append(make([]byte, 4<<20), p...)
	if f := probeBytes(t, larger); f.Kind != Foreign || f.What != "unknown data" {
		t.Errorf("%v %q", f.Kind, f.What)
	}
}

func TestSignatureRangesLeaveNoSignature(t *testing.T) {
	for _, size := range []uint64{1, 5 << 20, 16 << 20, 16<<20 + 1, testSize} {
		p := make([]byte, size)
		for i := range p {
			p[i] = 0xa5
		}
		next := uint64(0)
		for _, r := range SignatureRanges(size) {
			if r.Off < next || r.Len == 0 || r.Off+r.Len > size {
				t.Errorf("size %d: range %+v", size, r)
			}
			next = r.Off + r.Len
			clear(p[r.Off:next])
		}
		if f := probeBytes(t, p); f.Kind != Blank && !strings.HasPrefix(f.What, "unknown data at byte ") {
			t.Errorf("size %d: %v %q after wiping", size, f.Kind, f.What)
		}
	}
	if SignatureRanges(0) != nil {
		t.Error("an empty device has ranges")
	}
}

func writeImage(t *testing.T, p []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestProbeFile(t *testing.T) {
	path := writeImage(t, volumeImage(t))
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, link} {
		f, err := Probe(t.Context(), name)
		if err != nil || f.Kind != NVFS || f.Superblock.Label != "probe" {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

func TestProbeErrors(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "absent"), dir, empty, "/dev/null", "/dev/zero"} {
		if f, err := Probe(t.Context(), path); err == nil || f.Kind == Blank {
			t.Errorf("%s: %+v, %v", path, f, err)
		}
	}
	if _, err := probeMapped(t.Context(), make([]byte, 10), 11, noHoles(11)); err == nil {
		t.Error("more than is mapped was probed")
	}
	if _, err := probeMapped(t.Context(), nil, 0, noHoles(0)); err == nil {
		t.Error("nothing was probed")
	}
}

// Bytes that cannot be read are an error, not zeros.
func TestProbeFaultIsError(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "short"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4 << 20); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, testSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	if found, err := probeMapped(t.Context(), b, testSize, noHoles(testSize)); err == nil || found.Kind == Blank {
		t.Errorf("%+v, %v", found, err)
	}
}

// Images that the formats' own tools make.
func TestProbeToolImages(t *testing.T) {
	for _, c := range []struct {
		want string
		tool []string
	}{
		{"ext2", []string{"mkfs.ext4", "-q", "-F", "-t", "ext2"}},
		{"ext3", []string{"mkfs.ext4", "-q", "-F", "-t", "ext3"}},
		{"ext4", []string{"mkfs.ext4", "-q", "-F", "-t", "ext4"}},
		{"swap", []string{"mkswap"}},
		{"xfs", []string{"mkfs.xfs", "-q"}},
		{"btrfs", []string{"mkfs.btrfs", "-q"}},
		{"f2fs", []string{"mkfs.f2fs", "-q"}},
		{"vfat", []string{"mkfs.vfat"}},
		{"ntfs", []string{"mkfs.ntfs", "-F", "-Q"}},
		{"minix", []string{"mkfs.minix"}},
		{"LUKS2", []string{"cryptsetup", "luksFormat", "--type", "luks2", "--pbkdf", "pbkdf2", "-q", "--key-file", "/etc/hostname"}},
	} {
		t.Run(c.want, func(t *testing.T) {
			tool, err := exec.LookPath(c.tool[0])
			if err != nil {
				t.Skipf("%s is not installed; only the handcrafted image was tested", c.tool[0])
			}
			path := filepath.Join(t.TempDir(), "image")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, 320<<20); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(tool, append(c.tool[1:], path)...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v\n%s", c.tool, err, out)
			}
			if f, err := Probe(t.Context(), path); err != nil || f.Kind != Foreign || f.What != c.want {
				t.Errorf("%+v, %v", f, err)
			}
		})
	}
}
