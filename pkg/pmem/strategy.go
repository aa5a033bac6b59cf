package pmem

import (
	"fmt"
	"slices"
)

// Strategy says how the stores of a Mapping are made durable.
type Strategy struct {
	// Small is the mode of word stores, flushes, and copies below Threshold.
	// Words cannot be stored with a streaming mode: where Small is NT or
	// MOVDIR64B they are stored cached and flushed by the CPU's best
	// instruction.
	Small Mode `json:"small"`
	// Bulk is the mode of copies and zeroing of at least Threshold bytes.
	Bulk Mode `json:"bulk"`
	// Threshold is in bytes.
	Threshold uint64 `json:"threshold"`
	// WriterCap is how many bulk copies of at least writerCapBytes may be
	// under way at once; 0 is no limit. Some memory gets slower with many
	// writers.
	WriterCap int `json:"writerCap,omitempty"`
}

const (
	// streamThreshold is where streaming stores start to win on most of the
	// memory that was measured.
	streamThreshold = 256
	// writerCapBytes is the least copy that WriterCap limits: a smaller one is
	// over sooner than the waiting would take.
	writerCapBytes = 4096
)

// String is what logs and tables show, such as "clwb, nt from 256 B".
func (s Strategy) String() string {
	text := string(s.Small)
	if s.Bulk != s.Small {
		text += fmt.Sprintf(", %s from %d B", s.Bulk, s.Threshold)
	}
	if s.WriterCap > 0 {
		text += fmt.Sprintf(", at most %d bulk writers", s.WriterCap)
	}
	return text
}

// NamedStrategy is the fixed strategy of a mode other than Auto. The streaming
// modes pair with the CPU's best flush instruction for small persists.
func NamedStrategy(m Mode) Strategy {
	if m.streams() {
		return Strategy{Small: bestFlush(), Bulk: m, Threshold: streamThreshold}
	}
	return Strategy{Small: m, Bulk: m}
}

// DefaultStrategy is what Auto uses on a backing that has not been calibrated,
// and why.
func DefaultStrategy(b Backing, emulated bool) (Strategy, string) {
	allowed := AllowedModes(b, emulated)
	has := func(m Mode) bool { return slices.Contains(allowed, m) }
	switch {
	case b.Domain == DomainCPUCache && has(EADR):
		s := NamedStrategy(EADR)
		if has(NT) {
			// Large copies would push everything else out of the caches, and
			// their eviction order defeats the memory's write combining.
			s.Bulk, s.Threshold = NT, 4096
		}
		return s, "default: the CPU caches are inside the persistence domain"
	case has(NT):
		return NamedStrategy(NT), "default: not calibrated; non-temporal stores win from a few cache lines on with most memory"
	case has(DCCVAP):
		return NamedStrategy(DCCVAP), "default: not calibrated; clean to the point of persistence"
	case has(MSync):
		return NamedStrategy(MSync), "only msync makes stores to this backing durable"
	case has(EADR):
		return NamedStrategy(EADR), "default: no flush instruction on this CPU"
	}
	return Strategy{}, ""
}
