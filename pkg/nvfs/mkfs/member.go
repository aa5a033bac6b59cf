package mkfs

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// labels are the places of the label of a further device and of its copy.
func labels(size uint64) [2]uint64 {
	return [2]uint64{0, (size/layout.BlockSize - 1) * layout.BlockSize}
}

// member tells whether the device is a further one of a volume.
func (im *image) member() (Found, bool) {
	if im.size < layout.MinBlocks*layout.BlockSize {
		return Found{}, false
	}
	_, headErr := layout.DecodeSuperblock(im.at(0, layout.StaticSize))
	began := errors.Is(headErr, layout.ErrMember)
	for _, off := range labels(im.size) {
		m, err := layout.DecodeMember(im.at(off, layout.MemberSize))
		if err != nil || off != 0 && m.Blocks != im.size/layout.BlockSize {
			continue
		}
		// As with a superblock, what lies over the unused bytes counts, and over
		// the label itself when only the copy of it is left.
		from := uint64(0)
		if off == 0 {
			from = layout.BlockSize
		}
		if what := im.within(from, reservedEnd).signature(); what != "" {
			return Found{Kind: Foreign, What: what + " (over a device of an NVFS volume)"}, true
		}
		return Found{Kind: NVFSMember, What: m.String(), Member: m}, true
	}
	if began {
		return Found{Kind: NVFSMember, What: "a further device of an NVFS volume, with a damaged label"}, true
	}
	return Found{}, false
}

// Device is what UsableMember looks at, as a pmem.Candidate.
type Device interface {
	io.ReaderAt
	Size() uint64
	// NextData is that of package pmem.
	NextData(off uint64) (start, end uint64, err error)
}

// UsableMember proves that a device may become a further one of a volume: it is
// blank, or was meant for this volume by a growth that was interrupted. uuid is
// what that growth called it, zero when there was none. A device that is in the
// volume's table gives ErrMemberNow. It only reads.
func UsableMember(ctx context.Context, d Device, volume *layout.Superblock) (uuid [16]byte, err error) {
	size := d.Size()
	if size < layout.MinBlocks*layout.BlockSize {
		return uuid, fmt.Errorf("%w: %d bytes; at least %d are needed", ErrTooSmall, size, uint64(layout.MinBlocks*layout.BlockSize))
	}
	n := min(size, probeWindow)
	head, tail := make([]byte, n), make([]byte, n)
	if _, err := d.ReadAt(head, 0); err != nil {
		return uuid, err
	}
	if _, err := d.ReadAt(tail, int64(size-n)); err != nil {
		return uuid, err
	}
	im := &image{head: head, tail: tail, size: size}
	found, err := im.prove(ctx, im.classify(), d.NextData, chunksOf(d))
	switch {
	case err != nil:
		return uuid, err
	case found.Kind == Blank:
		return uuid, nil
	case found.Kind == NVFSMember && found.Member != nil && found.Member.Volume == volume.UUID:
		for _, row := range volume.Devices {
			if row.UUID == found.Member.UUID {
				return row.UUID, ErrMemberNow
			}
		}
		return found.Member.UUID, nil
	case found.Kind == NVFSMember && found.Member == nil:
		if justBegun, err := im.onlyLabels(ctx, d); justBegun || err != nil {
			return uuid, err
		}
	}
	return uuid, fmt.Errorf("it holds %s, which would be destroyed: give a blank device", found.What)
}

// ErrMemberNow says that a device is a part of the volume already.
var ErrMemberNow = errors.New("the device is a part of the volume already")

// onlyLabels reports whether everything is zero but the labels: then a growth
// onto this device had just begun.
func (im *image) onlyLabels(ctx context.Context, d Device) (bool, error) {
	places := labels(im.size)
	for _, gap := range [][2]uint64{{places[0] + layout.MemberSize, places[1]}, {places[1] + layout.MemberSize, im.size}} {
		if _, data, err := findData(ctx, gap[0], gap[1], d.NextData, chunksOf(d)); data || err != nil {
			return false, err
		}
	}
	return true, nil
}
