// Package extent places namespaces inside a region: which byte ranges are
// free, and which of them takes a new namespace.
package extent

import "sort"

// Extent is a range of bytes inside a region.
type Extent struct {
	Offset uint64
	Length uint64
}

// End is the first byte after e.
func (e Extent) End() uint64 { return e.Offset + e.Length }

// Holes returns the free extents of a region of the given size, in order of
// offset. Each is cut to multiples of align, because nothing smaller can be
// allocated. The used extents need not be sorted; they must not overlap.
func Holes(size, align uint64, used []Extent) []Extent {
	sorted := append([]Extent(nil), used...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Offset < sorted[j].Offset })
	var holes []Extent
	next := uint64(0)
	for _, u := range append(sorted, Extent{Offset: size}) {
		if hole, ok := trim(next, u.Offset, align); ok {
			holes = append(holes, hole)
		}
		if u.End() > next {
			next = u.End()
		}
	}
	return holes
}

// trim returns the largest aligned extent within [from, to).
func trim(from, to, align uint64) (Extent, bool) {
	from = (from + align - 1) / align * align
	to = to / align * align
	if to <= from {
		return Extent{}, false
	}
	return Extent{Offset: from, Length: to - from}, true
}

// BestFit returns where length bytes go: the smallest hole that holds them,
// and among equals the one at the lowest offset.
func BestFit(holes []Extent, length uint64) (offset uint64, ok bool) {
	best := uint64(0)
	for _, h := range holes {
		if h.Length >= length && (!ok || h.Length < best) {
			offset, best, ok = h.Offset, h.Length, true
		}
	}
	return offset, ok
}

// Largest returns the length of the largest hole.
func Largest(holes []Extent) uint64 {
	largest := uint64(0)
	for _, h := range holes {
		largest = max(largest, h.Length)
	}
	return largest
}

// Total returns the sum of all holes.
func Total(holes []Extent) uint64 {
	total := uint64(0)
	for _, h := range holes {
		total += h.Length
	}
	return total
}
