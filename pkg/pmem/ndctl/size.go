package ndctl

// A namespace offers less than it takes from its region: the kernel keeps an
// info block and, for some modes, page structures or a sector map in it. What
// follows models a kernel with map=dev for fsdax and map=mem for devdax, and
// was compared with a 6.1 kernel: 256 MiB of fsdax offer 250 MiB, 128 MiB of
// sector offer 126.8 MiB.
const (
	infoBlock  = 2 << 20 // pfn or dax info block, padded to a huge page
	hugePage   = 2 << 20
	bttArena   = 1 << 20 // BTT info blocks and flog
	bttMap     = 1024    // one 4-byte map entry a 4 KiB sector
	sectorSize = 4096
)

// UsableSize returns how many bytes a namespace of that mode offers when it
// takes raw bytes from its region; 0 when raw is too small to hold one.
//
//	devdax: raw - 2 MiB
//	fsdax:  raw - raw/64 (page structures, rounded up to 2 MiB) - 2 MiB
//	sector: raw - raw/1024 (sector map) - 1 MiB, in whole sectors
func UsableSize(mode Mode, raw uint64) uint64 {
	switch mode {
	case DevDax:
		return without(raw, infoBlock) / hugePage * hugePage
	case FSDax:
		return without(raw, roundUp(raw/64, hugePage)+infoBlock) / hugePage * hugePage
	case Sector:
		return without(raw, raw/bttMap+bttArena) / sectorSize * sectorSize
	}
	return 0
}

// RawSize returns the smallest multiple of align that offers at least usable
// bytes in that mode; false when no uint64 does or the mode is unknown.
func RawSize(mode Mode, usable, align uint64) (uint64, bool) {
	if align == 0 || usable > 1<<62 || UsableSize(mode, 1<<40) == 0 {
		return 0, false
	}
	// The overhead grows with raw, so the answer is at least usable plus the
	// overhead of usable itself, and at most a few units above.
	raw := roundUp(usable+(usable-UsableSize(mode, usable)), align)
	for raw > align && UsableSize(mode, raw-align) >= usable {
		raw -= align
	}
	for UsableSize(mode, raw) < usable || raw == 0 {
		raw += align
	}
	return raw, true
}

func without(n, overhead uint64) uint64 {
	if overhead >= n {
		return 0
	}
	return n - overhead
}

func roundUp(n, unit uint64) uint64 { return (n + unit - 1) / unit * unit }
