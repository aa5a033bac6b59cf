package mkfs

import (
	"context"
	"errors"
	"fmt"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
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

// UsableMember proves that a device may become a further one of a volume: it is
// blank, or was meant for this volume by a growth that was interrupted. uuid is
// what that growth called it, zero when there was none. A device that is in the
// volume's table gives ErrMemberNow. It only reads.
func UsableMember(ctx context.Context, c *pmem.Candidate, volume *layout.Superblock) (uuid [16]byte, err error) {
	size := c.Backing.Size
	if size < layout.MinBlocks*layout.BlockSize {
		return uuid, fmt.Errorf("%w: %d bytes; at least %d are needed", ErrTooSmall, size, uint64(layout.MinBlocks*layout.BlockSize))
	}
	n := min(size, probeWindow)
	im := &image{head: make([]byte, n), tail: make([]byte, n), size: size}
	if _, err := c.ReadAt(im.head, 0); err != nil {
		return uuid, err
	}
	if _, err := c.ReadAt(im.tail, int64(size-n)); err != nil {
		return uuid, err
	}
	found, err := im.prove(ctx, im.classify(), c.NextData, chunksOf(c))
	switch {
	case err != nil:
		return uuid, err
	case found.Kind == Blank:
		return uuid, nil
	case found.Kind == NVFSMember && found.Member != nil && found.Member.Volume == volume.UUID:
		for _, d := range volume.Devices {
			if d.UUID == found.Member.UUID {
				return d.UUID, ErrMemberNow
			}
		}
		return found.Member.UUID, nil
	case found.Kind == NVFSMember && found.Member == nil:
		if justBegun, err := im.onlyLabels(ctx, c); justBegun || err != nil {
			return uuid, err
		}
	}
	return uuid, fmt.Errorf("it holds %s, which would be destroyed: give a blank device", found.What)
}

// ErrMemberNow says that a device is a part of the volume already.
var ErrMemberNow = errors.New("the device is a part of the volume already")

// onlyLabels reports whether everything is zero but the labels: then a growth
// onto this device had just begun.
func (im *image) onlyLabels(ctx context.Context, c *pmem.Candidate) (bool, error) {
	places := labels(im.size)
	for _, gap := range [][2]uint64{{places[0] + layout.MemberSize, places[1]}, {places[1] + layout.MemberSize, im.size}} {
		if _, data, err := findData(ctx, gap[0], gap[1], c.NextData, chunksOf(c)); data || err != nil {
			return false, err
		}
	}
	return true, nil
}
