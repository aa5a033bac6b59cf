package fsck

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// checkParts makes sure that every device of the table is there, whole.
func (v *volume) checkParts() error {
	for row, d := range v.sb.Devices {
		i := slices.IndexFunc(v.parts, func(p pmem.Part) bool { return p.Off == d.Base*blockSize })
		switch {
		case i < 0 || v.parts[i].End() > uint64(len(v.mem)):
			return fmt.Errorf("the volume spans %d devices, and device %d (UUID %s) is not there; give them all", len(v.sb.Devices), row+1, layout.FormatUUID(d.UUID))
		case v.parts[i].Len/blockSize < d.Blocks:
			return fmt.Errorf("device %d has %d blocks, the volume %d on it; restore the device to its full size", row+1, v.parts[i].Len/blockSize, d.Blocks)
		}
	}
	return nil
}

// labelPlaces are the blocks of the label of a device and of its copy.
func labelPlaces(d layout.Device) []uint64 { return []uint64{d.Base, d.Base + d.Blocks - 1} }

// isLabel reports whether a block begins with the label of a further device, or
// its copy.
func (v *volume) isLabel(block uint64) bool {
	return slices.ContainsFunc(v.sb.Devices[1:], func(d layout.Device) bool { return slices.Contains(labelPlaces(d), block) })
}

// checkLabels compares the labels of the further devices, and the copies of
// these, with the device table.
func (w *worker) checkLabels() error {
	for row := 1; row < len(w.sb.Devices); row++ {
		var want [layout.MemberSize]byte
		m := w.sb.Member(row)
		m.Encode(want[:])
		for i, block := range labelPlaces(m.Device) {
			if !bytes.Equal(w.block(block)[:layout.MemberSize], want[:]) {
				w.found.add(Problem{Code: DeviceLabel, Block: block}, "%s of device %d is not what the device table says", [2]string{"the label", "the copy of the label"}[i], row+1)
			}
		}
	}
	return nil
}

// repairLabels writes labels anew that are not what the device table says, when
// the device is proven to be the one that the table means: by its other label,
// or by the descriptor of its first group.
func (r *repairer) repairLabels() {
	for row := 1; row < len(r.sb.Devices) && !r.halted(); row++ {
		var want [layout.MemberSize]byte
		m := r.sb.Member(row)
		m.Encode(want[:])
		places := labelPlaces(m.Device)
		start := layout.GroupStart(uint64(m.FirstGroup))
		proven := layout.Verify(r.seed, start, r.block(start)[:layout.GroupDescSize])
		for _, block := range places {
			proven = proven || bytes.Equal(r.block(block)[:layout.MemberSize], want[:])
		}
		for _, block := range places {
			if bytes.Equal(r.block(block)[:layout.MemberSize], want[:]) {
				continue
			}
			if !proven {
				r.left(Problem{Code: DeviceLabel, Block: block}, "nothing proves that this is device %d of the volume", row+1)
				continue
			}
			copy(r.ch.stage(block*blockSize, layout.MemberSize, m.Base, false), want[:])
			r.did(Problem{Code: DeviceLabel, Block: block}, "the label of device %d was written anew from the device table", row+1)
			r.ch.commit()
		}
	}
}
