package fsck

import (
	"bytes"
	"encoding/binary"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// scanForCopy looks for the copy of the superblock where the volume is
// smaller than the device. A file can hold the image of a volume, so a copy
// counts only in the place that it names itself, with group 0 of its volume
// there, and only if there is no second one.
func scanForCopy(mem []byte, size uint64) *layout.Superblock {
	var found *layout.Superblock
	for b := uint64(layout.MinBlocks - 1); b < size/blockSize; b++ {
		p := mem[b*blockSize : (b+1)*blockSize]
		if binary.LittleEndian.Uint64(p[8:]) != layout.Magic {
			continue
		}
		sb, err := layout.DecodeSuperblock(p)
		if err != nil || sb.Devices[0].Blocks-1 != b {
			continue
		}
		start := layout.GroupStart(0)
		if !layout.Verify(sb.Seed(), start, mem[start*blockSize:][:layout.GroupDescSize]) {
			continue
		}
		if found != nil {
			return nil
		}
		found = sb
	}
	return found
}

// repairSuperblocks makes both superblocks and the dynamic half right.
func (r *repairer) repairSuperblocks() {
	primary := r.mem[:layout.StaticSize]
	sb, err := layout.DecodeSuperblock(primary)
	if err != nil {
		sb = r.sb
		r.did(Problem{Code: Superblock}, "the superblock was restored from its copy")
	}
	total := uint64(0)
	for _, d := range sb.Devices {
		for g := range d.Groups {
			total += layout.GroupLen(d.Blocks, g)
		}
	}
	if sb.Reserved >= total {
		sb.Reserved = layout.ReservedBlocks(sb.Devices[0].Blocks)
		err = layout.ErrNonsense
		r.did(Problem{Code: Geometry}, "the reserve was set to %d blocks", sb.Reserved)
	}
	if err != nil {
		static := r.ch.stage(0, layout.StaticSize, 0, false)
		if r.ch.err = sb.Encode(static); r.ch.err != nil {
			return
		}
		r.ch.commit()
	}
	if r.ch.err == nil {
		r.ch.err = r.adopt(sb)
	}
	r.repairCopy((sb.Devices[0].Blocks - 1) * blockSize)
	r.repairDynamic()
}

func (r *repairer) repairCopy(tail uint64) {
	if bytes.Equal(r.mem[:layout.StaticSize], r.mem[tail:tail+layout.StaticSize]) {
		return
	}
	copy(r.ch.stage(tail, layout.StaticSize, 0, false), r.mem[:layout.StaticSize])
	r.did(Problem{Code: SuperblockCopy, Block: tail / blockSize}, "the copy of the superblock was written anew")
	r.ch.commit()
}

func (r *repairer) dynamic() layout.Dynamic {
	return layout.Dynamic(r.mem[layout.DynamicOffset:][:layout.StaticSize])
}

func (r *repairer) stageDynamic() layout.Dynamic {
	return r.ch.stage(layout.DynamicOffset, layout.StaticSize, layout.DynamicLocation, false)
}

func (r *repairer) repairDynamic() {
	d := r.dynamic()
	if layout.Verify(r.seed, layout.DynamicLocation, d) && (d.State() == layout.StateClean || d.State() == layout.StateMounted) {
		return
	}
	n := r.stageDynamic()
	clear(n)
	n.SetState(layout.StateMounted)
	r.did(Problem{Code: SuperblockDynamic}, "the dynamic half of the superblock was made anew")
	r.ch.commit()
}

// beginRepair marks the volume as in use, so that an interrupted repair shows.
func (r *repairer) beginRepair() {
	if r.dynamic().State() != layout.StateMounted {
		r.stageDynamic().SetState(layout.StateMounted)
		r.ch.commit()
	}
}

// clearErrors takes the error flags back.
func (r *repairer) clearErrors() {
	if r.dynamic().Errors() != 0 {
		r.stageDynamic().SetErrors(0)
		r.did(Problem{Code: ErrorFlag}, "the error flags were cleared")
		r.ch.commit()
	}
}
