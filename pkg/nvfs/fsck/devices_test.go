package fsck

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

type memWriter []byte

func (w memWriter) Copy(off uint64, src []byte) { copy(w[off:], src) }

// A volume may span devices with a gap between them.
func TestTwoDevices(t *testing.T) {
	const second = 2 // group that the second device begins with
	im := newImage(t, layout.MinBlocks)
	im.mem = zeroMemory(t, (second*layout.GroupBlocks+layout.MinBlocks)*layout.BlockSize)
	im.sb.Devices = append(im.sb.Devices, layout.Device{Base: second * layout.GroupBlocks, Blocks: layout.MinBlocks,
		FirstGroup: second, Groups: layout.GroupsIn(layout.MinBlocks, testPerGroup)})
	blocks := uint32(layout.GroupLen(layout.MinBlocks, 0))
	layout.WriteGroup(memWriter(im.mem), im.seed, second, blocks, testPerGroup)

	start := layout.GroupStart(second)
	f := im.mkfile(im.root(), "far", unix.S_IFREG, "")
	f.extents = []layout.Extent{{Physical: start + uint64(blocks) - 7, Len: 7}}
	f.blocks, f.size = 7, 7*layout.BlockSize
	far := &file{ino: second*testPerGroup + 1, mode: unix.S_IFREG, gen: 9}
	im.nodes[far.ino] = far
	im.link(im.root(), "far inode", far)
	im.write()
	for i := range uint32(7) {
		im.setBit(start+layout.GroupBlockBitmap, blocks-7+i, true)
	}
	im.setBit(start+layout.GroupInodeBitmap, 0, true)

	space := fileSpace{im.mem, layout.MinBlocks * layout.BlockSize}
	r, err := Check(context.Background(), space, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range r.Problems {
		t.Error(x)
	}
	if r.Totals.Groups != 2 || r.Totals.Inodes != 3 || r.Totals.Extents != 1 {
		t.Errorf("totals %+v", r.Totals)
	}

	layout.PutExtent(im.inode(f.ino).Body(), 0, layout.Extent{Physical: layout.GroupStart(1) + 200, Len: 7})
	im.sealInode(f.ino)
	if r, err = Check(context.Background(), space, Options{}); err != nil || r.Counts[BlockRange] != 1 || r.Counts[BlockLeaked] != 1 {
		t.Errorf("extent in the gap: %v, %v", r, err)
	}

	alone := fileSpace{im.mem[:layout.MinBlocks*layout.BlockSize], layout.MinBlocks * layout.BlockSize}
	if r, err = Check(context.Background(), alone, Options{}); err != nil || r.Counts[Geometry] != 1 || r.ExitCode() != ExitErrors {
		t.Errorf("second device missing: %v, %v", r, err)
	}
	short := fileSpace{im.mem, layout.MinBlocks*layout.BlockSize - 4096}
	if r, err = Check(context.Background(), short, Options{}); err == nil && r.Counts[Geometry] != 1 {
		t.Errorf("first device cut: %v", r)
	}
}
