package mkfs

import (
	"encoding/binary"
	"fmt"
)

// signature recognises one format. The places are those that the formats'
// own documentation gives.
type signature struct {
	format string
	find   func(im *image) string // the name to show, "" when it is not there
}

// signatures in the order in which they are tried: what wraps other content
// (RAID, encryption, volume managers) comes before that content, partition
// tables and 2-byte magics come last.
var signatures = []signature{
	{"nvdimm", findNVDIMM},
	{"mdraid", findMD},
	{"ddf", fromEnd("DDF RAID member", 512, "\xde\x11\xde\x11")},
	{"imsm", fromEnd("Intel RAID member", 1024, "Intel Raid ISM Cfg Sig. ")},
	{"luks", findLUKS},
	{"bitlocker", magics("BitLocker", at{3, "-FVE-FS-"})},
	{"lvm2", findLVM2},
	{"lvm1", magics("LVM1 physical volume", at{0, "HM\x01\x00"}, at{0, "HM\x02\x00"})},
	{"stratis", magics("Stratis pool member", at{516, "!Stra0tis\x86\xff\x02^\x41rh"})},
	{"vdo", magics("VDO volume", at{0, "dmvdo001"})},
	{"dm-integrity", magics("dm-integrity", at{0, "integrt\x00"})},
	{"dm-verity", magics("dm-verity", at{0, "verity\x00\x00"})},
	{"dm-snapshot", magics("device-mapper snapshot store", at{0, "SnAp"})},
	{"dm-writecache", magics("dm-writecache", at{0, "\x21\x93\x48\x23"})},
	{"bcache", findBcache},
	{"bluestore", magics("Ceph BlueStore", at{0, "bluestore block device"})},
	{"zfs", findZFS},
	{"vmfs", magics("VMFS", at{1 << 20, "\x0d\xd0\x01\xc0"}, at{2 << 20, "\x5e\xf1\xab\x2f"})},
	{"pmdk", findPMDK},
	{"gpt", findGPT},
	{"xfs", magics("xfs", at{0, "XFSB"})},
	{"btrfs", magics("btrfs", at{0x10040, "_BHRfS_M"})},
	{"f2fs", magics("f2fs", at{1024, "\x10\x20\xf5\xf2"})},
	{"erofs", magics("erofs", at{1024, "\xe2\xe1\xf5\xe0"})},
	{"squashfs", magics("squashfs", at{0, "hsqs"}, at{0, "sqsh"})},
	{"cramfs", magics("cramfs", at{0, "\x45\x3d\xcd\x28"}, at{512, "\x45\x3d\xcd\x28"}, at{0, "\x28\xcd\x3d\x45"})},
	{"romfs", magics("romfs", at{0, "-rom1fs-"})},
	{"jfs", magics("jfs", at{32768, "JFS1"})},
	{"reiserfs", findReiser},
	{"ocfs2", magics("ocfs2", at{1024, "OCFSV2"}, at{2048, "OCFSV2"}, at{4096, "OCFSV2"}, at{8192, "OCFSV2"})},
	{"gfs2", findGFS},
	{"apfs", magics("apfs", at{32, "NXSB"})},
	{"swap", findSwap},
	{"ufs", magics("ufs", at{8192 + 1372, "\x54\x19\x01\x00"}, at{65536 + 1372, "\x19\x01\x54\x19"},
		at{8192 + 1372, "\x00\x01\x19\x54"}, at{65536 + 1372, "\x19\x54\x01\x19"})},
	{"iso9660", magics("iso9660", at{32769, "CD001"}, at{32777, "CDROM"})},
	{"udf", magics("udf", at{32769, "BEA01"}, at{32769, "NSR02"}, at{32769, "NSR03"})},
	{"exfat", magics("exfat", at{3, "EXFAT   "})},
	{"ntfs", magics("ntfs", at{3, "NTFS    "})},
	{"refs", magics("ReFS", at{3, "ReFS\x00"})},
	{"vfat", magics("vfat", at{54, "FAT12   "}, at{54, "FAT16   "}, at{54, "FAT     "}, at{82, "FAT32   "}, at{54, "MSDOS"}, at{82, "MSWIN"})},
	{"ext", findExt},
	{"nilfs2", findNILFS},
	{"hfs", findHFS},
	{"minix", findMinix},
	{"mbr", findMBR},
}

// at is a magic at an offset from the start of the device.
type at struct {
	off   uint64
	magic string
}

// magics finds a format by one of several magics.
func magics(name string, list ...at) func(*image) string {
	return func(im *image) string {
		for _, m := range list {
			if im.has(m.off, m.magic) {
				return name
			}
		}
		return ""
	}
}

// fromEnd finds a magic that lies back bytes before the end of the device.
func fromEnd(name string, back uint64, magic string) func(*image) string {
	return func(im *image) string {
		if im.size >= back && im.has(im.size-back, magic) {
			return name
		}
		return ""
	}
}

// u16, u32 and their siblings read a number, 0 where the image ends.
func (im *image) u16(off uint64) uint16 {
	if p := im.at(off, 2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

func (im *image) u32(off uint64) uint32 {
	if p := im.at(off, 4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (im *image) be16(off uint64) uint16 {
	if p := im.at(off, 2); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (im *image) be32(off uint64) uint32 {
	if p := im.at(off, 4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

// Info blocks of the kernel's nvdimm drivers: a raw namespace that is in use
// as fsdax, devdax or sector device.
func findNVDIMM(im *image) string {
	for _, off := range [...]uint64{0, 4096} {
		switch {
		case im.has(off, "NVDIMM_PFN_INFO\x00"):
			return "nvdimm fsdax (pfn) info block"
		case im.has(off, "NVDIMM_DAX_INFO\x00"):
			return "nvdimm devdax info block"
		case im.has(off, "BTT_ARENA_INFO\x00\x00"):
			return "nvdimm sector (BTT) info block"
		}
	}
	return ""
}

const mdMagic = 0xa92b4efc

func findMD(im *image) string {
	if im.u32(0) == mdMagic && im.u32(4) == 1 {
		return "mdraid 1.1 member"
	}
	if im.u32(4096) == mdMagic && im.u32(4100) == 1 {
		return "mdraid 1.2 member"
	}
	if sectors := im.size / 512; sectors > 16 {
		if off := (sectors - 16) &^ 7 * 512; im.u32(off) == mdMagic && im.u32(off+4) == 1 {
			return "mdraid 1.0 member"
		}
	}
	if im.size >= 128<<10 {
		if off := im.size&^(64<<10-1) - 64<<10; im.u32(off) == mdMagic || im.be32(off) == mdMagic {
			return "mdraid 0.90 member"
		}
	}
	return ""
}

func findLUKS(im *image) string {
	if im.has(0, "LUKS\xba\xbe") {
		return fmt.Sprintf("LUKS%d", im.be16(6))
	}
	for off := uint64(16 << 10); off <= 4<<20; off *= 2 { // where LUKS2 keeps its second header
		if im.has(off, "SKUL\xba\xbe") {
			return "LUKS2"
		}
	}
	return ""
}

func findLVM2(im *image) string {
	for off := uint64(0); off < 2048; off += 512 {
		if im.has(off, "LABELONE") && im.has(off+24, "LVM2 001") {
			return "LVM2 physical volume"
		}
	}
	return ""
}

func findBcache(im *image) string {
	const off = 4096 + 24
	switch {
	case im.has(off, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"):
		return "bcache"
	case im.has(off, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"):
		return "bcachefs"
	}
	return ""
}

// findZFS looks for an uberblock in each of the four labels.
func findZFS(im *image) string {
	const label, ring = 256 << 10, 128 << 10
	starts := []uint64{0, label}
	if end := im.size &^ (label - 1); end >= 4*label {
		starts = append(starts, end-2*label, end-label)
	}
	for _, s := range starts {
		for off := s + ring; off < s+label; off += 1024 {
			if im.has(off, "\x0c\xb1\xba\x00\x00\x00\x00\x00") || im.has(off, "\x00\x00\x00\x00\x00\xba\xb1\x0c") {
				return "zfs member"
			}
		}
	}
	return ""
}

func findPMDK(im *image) string {
	for _, m := range [...]string{"PMEMOBJ\x00", "PMEMBLK\x00", "PMEMLOG\x00", "PMEMPOOL", "PMEMPSET"} {
		if im.has(0, m) || im.has(4096, m) {
			return "PMDK pool"
		}
	}
	return ""
}

func findGPT(im *image) string {
	const magic = "EFI PART"
	for _, sector := range [...]uint64{512, 4096} {
		if im.has(sector, magic) || im.size > sector && im.has(im.size-sector, magic) {
			return "GPT partition table"
		}
	}
	return ""
}

func findReiser(im *image) string {
	for _, off := range [...]uint64{65536, 8192} {
		switch {
		case im.has(off, "ReIsEr4"):
			return "reiser4"
		case im.has(off+52, "ReIsErFs"), im.has(off+52, "ReIsEr2Fs"), im.has(off+52, "ReIsEr3Fs"):
			return "reiserfs"
		}
	}
	return ""
}

func findGFS(im *image) string {
	const off = 65536
	if im.be32(off) != 0x01161970 || im.be32(off+4) != 1 {
		return ""
	}
	if im.be32(off+24) < 1400 { // GFS1 has format 1309, GFS2 1801 and up
		return "gfs"
	}
	return "gfs2"
}

// findSwap tries the end of the first page for each page size in use.
func findSwap(im *image) string {
	for page := uint64(4096); page <= 64<<10; page *= 2 {
		switch {
		case im.has(page-10, "SWAPSPACE2"), im.has(page-10, "SWAP-SPACE"):
			return "swap"
		case im.has(page-10, "S1SUSPEND"), im.has(page-10, "S2SUSPEND"), im.has(page-10, "ULSUSPEND"), im.has(page-10, "LINHIB0001"):
			return "swap with a suspended system"
		}
	}
	return ""
}

func findExt(im *image) string {
	const sb = 1024
	if im.u16(sb+56) != 0xef53 || im.u32(sb+24) > 6 { // magic; block size 1 KiB << n
		return ""
	}
	const (
		hasJournal = 0x4
		journalDev = 0x8
		ext4Incomp = 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x1000 | 0x4000 // extents, 64bit, mmp, flex_bg ...
		ext4ROComp = 0x8 | 0x10 | 0x20 | 0x40 | 0x400                      // huge_file, gdt_csum ...
	)
	compat, incompat, roCompat := im.u32(sb+92), im.u32(sb+96), im.u32(sb+100)
	switch {
	case incompat&journalDev != 0:
		return "ext3/ext4 external journal"
	case incompat&ext4Incomp != 0, roCompat&ext4ROComp != 0:
		return "ext4"
	case compat&hasJournal != 0:
		return "ext3"
	}
	return "ext2"
}

func findNILFS(im *image) string {
	const magic = 0x3434
	if im.u32(1024) == 2 && im.u16(1030) == magic { // revision 2
		return "nilfs2"
	}
	if blocks := im.size / 4096; blocks > 1 {
		if off := (blocks - 1) * 4096; im.u32(off) == 2 && im.u16(off+6) == magic {
			return "nilfs2"
		}
	}
	return ""
}

func findHFS(im *image) string {
	switch version := im.be16(1026); {
	case im.has(1024, "H+") && version == 4, im.has(1024, "HX") && version == 5:
		return "hfs+"
	case im.has(1024, "BD"):
		return "hfs"
	}
	return ""
}

func findMinix(im *image) string {
	switch im.u16(1024 + 16) {
	case 0x137f, 0x138f, 0x2468, 0x2478:
		return "minix"
	}
	if im.u16(1024+24) == 0x4d5a {
		return "minix"
	}
	return ""
}

// findMBR names a boot sector a partition table only when its four rows can
// be one.
func findMBR(im *image) string {
	if !im.has(510, "\x55\xaa") {
		return ""
	}
	used := false
	for row := uint64(446); row < 510; row += 16 {
		p := im.at(row, 16)
		if p[0]&0x7f != 0 {
			return "boot sector"
		}
		used = used || p[4] != 0
	}
	if !used {
		return "boot sector"
	}
	return "MBR partition table"
}
