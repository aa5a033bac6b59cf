package pmem

import "unsafe"

// The leaves in store_arm64.s. None of them checks its arguments, and a call
// must not exceed maxLeaf bytes.

//go:noescape
func storeWord(p unsafe.Pointer, v uint64)

//go:noescape
func copyPlain(dst, src unsafe.Pointer, n uintptr)

//go:noescape
func zeroPlain(dst unsafe.Pointer, n uintptr)

//go:noescape
func cleanCVAP(p unsafe.Pointer, n, line uintptr)

//go:noescape
func cleanCVADP(p unsafe.Pointer, n, line uintptr)

// storeFence waits for stores and cleans.
func storeFence()

// cacheTypeRegister reads CTR_EL0.
func cacheTypeRegister() uint64

// lineSize is what flushes and streaming copies are aligned to. cleanLine, the
// step of the clean instructions, may be smaller on some CPUs.
const lineSize = 64

var cleanLine = uintptr(4) << (cacheTypeRegister() >> 16 & 0xf)

// methodOf is the table of leaves for a mode of this CPU. There is no streaming
// mode on arm64.
func methodOf(m, _ Mode) method {
	switch m {
	case DCCVAP:
		return method{flush: flushCVAP}
	case DCCVADP:
		return method{flush: flushCVADP}
	}
	return method{} // EADR
}

func flushCVAP(p unsafe.Pointer, n uintptr) { cleanCVAP(p, n, cleanLine) }

func flushCVADP(p unsafe.Pointer, n uintptr) { cleanCVADP(p, n, cleanLine) }
