package pmem

import (
	"fmt"
	"slices"
	"strings"
)

// Mode names how stores are made durable. The names are the same in the command
// line, StorageClass parameters, logs and metrics.
type Mode string

// The flush modes.
const (
	Auto       Mode = "auto"       // the best one that the backing allows, by calibration where there is one
	CLWB       Mode = "clwb"       // cached stores, CLWB: write the line back, keep it cached
	CLFLUSHOPT Mode = "clflushopt" // cached stores, CLFLUSHOPT: write back and evict, weakly ordered
	CLFLUSH    Mode = "clflush"    // cached stores, CLFLUSH: write back and evict, one after the other
	NT         Mode = "nt"         // non-temporal stores that bypass the caches
	MOVDIR64B  Mode = "movdir64b"  // 64-byte direct stores that bypass the caches
	EADR       Mode = "eadr"       // cached stores and a fence: the caches are inside the persistence domain
	MSync      Mode = "msync"      // stores to the page cache, msync(2) at each fence
	DCCVAP     Mode = "dccvap"     // arm64: cached stores, clean to the point of persistence
	DCCVADP    Mode = "dccvadp"    // arm64: cached stores, clean to the point of deep persistence
)

// AllModes returns every mode, Auto first, whatever this CPU can do.
func AllModes() []Mode {
	return []Mode{Auto, CLWB, CLFLUSHOPT, CLFLUSH, NT, MOVDIR64B, EADR, MSync, DCCVAP, DCCVADP}
}

// ParseMode returns the mode of that name; the empty name is Auto.
func ParseMode(s string) (Mode, error) {
	if s == "" {
		return Auto, nil
	}
	if m := Mode(s); slices.Contains(AllModes(), m) {
		return m, nil
	}
	return "", fmt.Errorf("unknown flush mode %q; known are %s", s, joinModes(AllModes()))
}

// CPUModes returns the modes that this CPU has instructions for, best guess
// first. Whether they make a store durable is up to the backing: see
// AllowedModes. MSync needs no instruction and is always the last.
func CPUModes() []Mode {
	return append(slices.Clone(cpuModes), MSync)
}

// bestFlush is the cheapest instruction of this CPU that writes back a cache
// line, or EADR (none) on an architecture without.
func bestFlush() Mode {
	for _, m := range cpuModes {
		if m.flushes() {
			return m
		}
	}
	return EADR
}

// streams reports whether the mode stores around the caches.
func (m Mode) streams() bool { return m == NT || m == MOVDIR64B }

// flushes reports whether the mode writes back cache lines by an instruction.
func (m Mode) flushes() bool {
	switch m {
	case CLWB, CLFLUSHOPT, CLFLUSH, DCCVAP, DCCVADP:
		return true
	}
	return false
}

// ModeError says that a flush mode cannot be honoured.
type ModeError struct {
	Mode    Mode
	Path    string // the backing, "" when there is none
	Reason  string // why it cannot
	Allowed []Mode // what can be had instead
	Remedy  string // what to change so that it can, "" if nothing helps
}

func (e *ModeError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "flush mode %s cannot be used", e.Mode)
	if e.Path != "" {
		fmt.Fprintf(&b, " on %s", e.Path)
	}
	fmt.Fprintf(&b, ": %s", e.Reason)
	if len(e.Allowed) > 0 {
		fmt.Fprintf(&b, "; possible: %s", joinModes(e.Allowed))
	} else {
		b.WriteString("; no mode is possible")
	}
	if e.Remedy != "" {
		fmt.Fprintf(&b, "; %s", e.Remedy)
	}
	return b.String()
}

func joinModes(modes []Mode) string {
	names := make([]string, len(modes))
	for i, m := range modes {
		names[i] = string(m)
	}
	return strings.Join(names, ", ")
}
