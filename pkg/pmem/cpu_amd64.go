package pmem

import "golang.org/x/sys/cpu"

// cpuidLeaf7 returns EBX and ECX of CPUID leaf 7, subleaf 0, where the
// cache line write-back bits are.
func cpuidLeaf7() (ebx, ecx uint32)

var (
	hasAVX    = cpu.X86.HasAVX
	hasAVX512 = cpu.X86.HasAVX512F
	cpuModes  = detectModes(cpuidLeaf7())
)

func detectModes(ebx, ecx uint32) []Mode {
	var modes []Mode
	if ebx&(1<<24) != 0 {
		modes = append(modes, CLWB)
	}
	if ebx&(1<<23) != 0 {
		modes = append(modes, CLFLUSHOPT)
	}
	// CLFLUSH and MOVNTI came with SSE2, which every amd64 CPU has.
	modes = append(modes, CLFLUSH, NT)
	if ecx&(1<<28) != 0 {
		modes = append(modes, MOVDIR64B)
	}
	return append(modes, EADR)
}
