package ndctl

// A namespace offers less than it takes from its region: the kernel keeps an
// info block and, for some modes, page structures or a sector map in it. What
// follows models a kernel with map=dev for fsdax and map=mem for devdax, and
// was compared with a 6.1 kernel; a small fsdax namespace may offer up to 2 MiB
// more.
const (
	infoBlock  = 2 << 20 // pfn or dax info block, padded to a huge page
	hugePage   = 2 << 20
	bttMinimum = 16 << 20          // what is not larger holds no arena
	bttArena   = 1<<20 + 32<<10    // free blocks, flog and info blocks of an arena
	bttLargest = uint64(512) << 30 // bytes of an arena
	bttMap     = 1024              // one 4-byte map entry a 4 KiB sector
	sectorSize = 4096
)

// UsableSize returns how many bytes a namespace of that mode offers when it
// takes raw bytes from its region; 0 when raw is too small to hold one.
//
//	devdax: raw - 2 MiB
//	fsdax:  raw - raw/64 (page structures, rounded up to 2 MiB) - 2 MiB
//	sector: raw - raw/1024 (sector map) - 1056 KiB an arena of 512 GiB, in whole sectors
func UsableSize(mode Mode, raw uint64) uint64 {
	switch mode {
	case DevDax:
		return without(raw, infoBlock) / hugePage * hugePage
	case FSDax:
		return without(raw, roundUp(raw/64, hugePage)+infoBlock) / hugePage * hugePage
	case Sector:
		if raw <= bttMinimum {
			return 0
		}
		arenas := (raw-1)/bttLargest + 1
		return without(raw, raw/bttMap+arenas*bttArena) / sectorSize * sectorSize
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
