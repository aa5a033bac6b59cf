package nvfs

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// FindSuperblock returns the static half of the superblock as the replay of the
// journal will leave it, without storing anything: the devices that the replay
// needs are those of this table. mem is the first device, of size bytes.
//
// A crash in the middle of a growth can leave block 0 torn. The record that was
// being applied then stands in the journal, so block 0 can be completed from
// it, wherever the copy lies and whatever the size of the device is by now. If
// that does not help the copy in the last block is taken.
func FindSuperblock(mem []byte, size uint64) (*layout.Superblock, error) {
	if size < layout.MinBlocks*layout.BlockSize || size > uint64(len(mem)) {
		return nil, fmt.Errorf("%w: %d bytes are less than the smallest volume", ErrTruncated, size)
	}
	primary := mem[:layout.StaticSize]
	sb, err := layout.DecodeSuperblock(primary)
	if errors.Is(err, layout.ErrIncompat) || errors.Is(err, layout.ErrVersion) || errors.Is(err, layout.ErrMember) {
		return nil, err
	}
	if replayed := replayedStatic(mem); replayed != nil {
		if next, err := layout.DecodeSuperblock(replayed); err == nil {
			return next, nil
		}
	}
	if err == nil {
		return sb, nil
	}
	tail := (size/layout.BlockSize - 1) * layout.BlockSize
	if copied, cerr := layout.DecodeSuperblock(mem[tail : tail+layout.StaticSize]); cerr == nil {
		return copied, nil
	}
	return nil, err
}

// replayedStatic is a copy of the static half in block 0 with the records of
// the journal applied that are to be replayed; nil when none changes it.
func replayedStatic(mem []byte) []byte {
	seed, slots, ok := layout.JournalKey(mem[:layout.StaticSize])
	if !ok {
		return nil
	}
	var pending []layout.Record
	for slot := range slots {
		off := layout.SlotOffset(slot)
		r := layout.Record(mem[off : off+layout.SlotSize])
		if retired, ok := r.Retired(seed); ok && r.Seq() > retired && r.Valid(seed) {
			pending = append(pending, r)
		}
	}
	slices.SortFunc(pending, func(a, b layout.Record) int { return cmp.Compare(a.Seq(), b.Seq()) })
	var static []byte
	for _, r := range pending {
		for pos := uint32(0); pos < r.Length(); {
			patch, next := r.PatchAt(pos)
			if next == 0 {
				return nil
			}
			pos = next
			if patch.Off >= layout.StaticSize {
				continue
			}
			if static == nil {
				static = bytes.Clone(mem[:layout.StaticSize])
			}
			copy(static[patch.Off:], patch.Data)
		}
	}
	return static
}

// findSuperblock is FindSuperblock of a device that may be unreadable.
func findSuperblock(mem []byte, size uint64) (sb *layout.Superblock, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			sb, err = nil, fmt.Errorf("the superblock or the journal cannot be read: %v", v)
		}
	}()
	return FindSuperblock(mem, size)
}
