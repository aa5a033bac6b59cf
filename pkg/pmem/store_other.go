//go:build !amd64 && !arm64

package pmem

import "unsafe"

// Without assembly for the architecture only MSync is possible: there are no
// CPU modes, and these leaves, which only a CPU mode would call, do not exist.

const lineSize = 64

var cpuModes []Mode

func noLeaf() { panic("pmem: flush instructions on an architecture that has none") }

func storeWord(unsafe.Pointer, uint64) { noLeaf() }

func copyPlain(_, _ unsafe.Pointer, _ uintptr) { noLeaf() }

func zeroPlain(unsafe.Pointer, uintptr) { noLeaf() }

func storeFence() { noLeaf() }

func methodOf(Mode, Mode) method { return method{} }
