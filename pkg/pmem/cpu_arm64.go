package pmem

import "golang.org/x/sys/unix"

// The auxiliary vector entries and bits of Linux that announce the clean
// instructions to programs.
const (
	atHWCAP      = 16
	atHWCAP2     = 26
	hwcapDCPOP   = 1 << 16
	hwcap2DCPODP = 1 << 0
)

var cpuModes = detectModes(unix.Auxv())

func detectModes(auxv [][2]uintptr, err error) []Mode {
	if err != nil {
		return nil // without the kernel's word for it no instruction is tried
	}
	var hwcap, hwcap2 uintptr
	for _, entry := range auxv {
		switch entry[0] {
		case atHWCAP:
			hwcap = entry[1]
		case atHWCAP2:
			hwcap2 = entry[1]
		}
	}
	var modes []Mode
	if hwcap&hwcapDCPOP != 0 {
		modes = append(modes, DCCVAP)
	}
	if hwcap2&hwcap2DCPODP != 0 {
		modes = append(modes, DCCVADP)
	}
	return append(modes, EADR)
}
