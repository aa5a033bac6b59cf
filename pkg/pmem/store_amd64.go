package pmem

import "unsafe"

// The leaves in store_amd64.s. None of them checks its arguments, and a call
// must not exceed maxLeaf bytes.

//go:noescape
func storeWord(p unsafe.Pointer, v uint64)

//go:noescape
func copyPlain(dst, src unsafe.Pointer, n uintptr)

//go:noescape
func zeroPlain(dst unsafe.Pointer, n uintptr)

// The streaming leaves take a destination that is aligned to a cache line and
// a multiple of a line.

//go:noescape
func copyMOVNTI(dst, src unsafe.Pointer, n uintptr)

//go:noescape
func copyNTAVX(dst, src unsafe.Pointer, n uintptr)

//go:noescape
func copyNTAVX512(dst, src unsafe.Pointer, n uintptr)

//go:noescape
func copyMOVDIR64B(dst, src unsafe.Pointer, n uintptr)

//go:noescape
func zeroMOVNTI(dst unsafe.Pointer, n uintptr)

//go:noescape
func zeroNTAVX(dst unsafe.Pointer, n uintptr)

//go:noescape
func zeroNTAVX512(dst unsafe.Pointer, n uintptr)

//go:noescape
func zeroMOVDIR64B(dst unsafe.Pointer, n uintptr)

// The flush leaves write back every line that overlaps [p, p+n), n > 0.

//go:noescape
func flushCLWB(p unsafe.Pointer, n uintptr)

//go:noescape
func flushCLFLUSHOPT(p unsafe.Pointer, n uintptr)

//go:noescape
func flushCLFLUSH(p unsafe.Pointer, n uintptr)

// storeFence waits for flushes and streaming stores.
func storeFence()

const lineSize = 64

// methodOf is the table of leaves for a mode of this CPU. flush is for the
// partly covered lines of a streaming mode.
func methodOf(m, flush Mode) method {
	switch m {
	case NT:
		copyLines, zeroLines := streamLeaves()
		return method{copyLines: copyLines, zeroLines: zeroLines, flush: flushLeaf(flush)}
	case MOVDIR64B:
		return method{copyLines: copyMOVDIR64B, zeroLines: zeroMOVDIR64B, flush: flushLeaf(flush)}
	}
	return method{flush: flushLeaf(m)}
}

// streamLeaves are the widest non-temporal stores: a line that is filled by one
// store never leaves the write-combining buffer in parts.
func streamLeaves() (copyLeaf, rangeLeaf) {
	switch {
	case hasAVX512:
		return copyNTAVX512, zeroNTAVX512
	case hasAVX:
		return copyNTAVX, zeroNTAVX
	}
	return copyMOVNTI, zeroMOVNTI
}

func flushLeaf(m Mode) rangeLeaf {
	switch m {
	case CLWB:
		return flushCLWB
	case CLFLUSHOPT:
		return flushCLFLUSHOPT
	case CLFLUSH:
		return flushCLFLUSH
	}
	return nil // EADR
}
