package fsck

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

type memWriter []byte

func (w memWriter) Copy(off uint64, src []byte) { copy(w[off:], src) }

// A volume may span devices with a gap between them.
func TestTwoDevices(t *testing.T) {
	const second = 2 // group that the second device begins with
	im := newImage(t, layout.MinBlocks)
	im.mem = zeroMemory(t, (second*layout.GroupBlocks+layout.MinBlocks)*layout.BlockSize)
	im.sb.Devices = append(im.sb.Devices, layout.Device{UUID: [16]byte{2}, Base: second * layout.GroupBlocks, Blocks: layout.MinBlocks,
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
	im.writeLabels()
	for i := range uint32(7) {
		im.setBit(start+layout.GroupBlockBitmap, blocks-7+i, true)
	}
	im.setBit(start+layout.GroupInodeBitmap, 0, true)

	space := twoDevices(im)
	r, err := Check(context.Background(), &space, Options{})
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
	if r, err = Check(context.Background(), &space, Options{}); err != nil || r.Counts[BlockRange] != 1 || r.Counts[BlockLeaked] != 1 {
		t.Errorf("extent in the gap: %v, %v", r, err)
	}

	alone := fileSpace{im.mem[:layout.MinBlocks*layout.BlockSize], layout.MinBlocks * layout.BlockSize}
	if r, err = Check(context.Background(), alone, Options{}); err != nil || r.Counts[Geometry] != 1 || r.ExitCode() != ExitErrors {
		t.Errorf("second device missing: %v, %v", r, err)
	}
	cut := space
	cut.parts = []pmem.Part{space.parts[0], {Off: space.parts[1].Off, Len: space.parts[1].Len - layout.BlockSize}}
	if r, err = Check(context.Background(), &cut, Options{}); err != nil || r.Counts[Geometry] != 1 {
		t.Errorf("second device cut: %v, %v", r, err)
	}
	short := space
	short.parts = []pmem.Part{{Len: layout.MinBlocks*layout.BlockSize - 4096}, space.parts[1]}
	if r, err = Check(context.Background(), &short, Options{}); err != nil || r.Counts[Geometry] != 1 {
		t.Errorf("first device cut: %v, %v", r, err)
	}
}

// deviceSpace is a Space of several devices that can be stored to.
type deviceSpace struct {
	storeSpace
	size  uint64
	parts []pmem.Part
}

func (s *deviceSpace) Size() uint64       { return s.size }
func (s *deviceSpace) Parts() []pmem.Part { return s.parts }

func twoDevices(im *image) deviceSpace {
	const size = layout.MinBlocks * layout.BlockSize
	second := im.sb.Devices[1].Base * layout.BlockSize
	return deviceSpace{storeSpace{memSpace: memSpace(im.mem)}, size, []pmem.Part{{Len: size}, {Off: second, Len: size}}}
}

// newTwoDevices is the image of an empty volume on two devices.
func newTwoDevices(t *testing.T) *image {
	t.Helper()
	const second = 1
	im := newImage(t, layout.MinBlocks)
	first := im.mem
	im.mem = zeroMemory(t, (second*layout.GroupBlocks+layout.MinBlocks)*layout.BlockSize)
	copy(im.mem, first)
	im.sb.Devices = append(im.sb.Devices, layout.Device{UUID: [16]byte{2}, Base: second * layout.GroupBlocks, Blocks: layout.MinBlocks,
		FirstGroup: second, Groups: layout.GroupsIn(layout.MinBlocks, testPerGroup)})
	layout.WriteGroup(memWriter(im.mem), im.seed, second, uint32(layout.GroupLen(layout.MinBlocks, 0)), testPerGroup)
	im.write()
	im.writeLabels()
	return im
}

// writeLabels stores the labels of the further devices.
func (im *image) writeLabels() {
	for row := 1; row < len(im.sb.Devices); row++ {
		m := im.sb.Member(row)
		for _, b := range labelPlaces(m.Device) {
			m.Encode(im.block(b))
		}
	}
}

// A label that is destroyed is found, and made anew when something on the
// device proves which one it is.
func TestDeviceLabel(t *testing.T) {
	im := newTwoDevices(t)
	d := im.sb.Devices[1]
	label, copied, desc := d.Base, d.Base+d.Blocks-1, layout.GroupStart(uint64(d.FirstGroup))
	for name, c := range map[string]struct {
		destroy []uint64 // blocks
		found   uint64   // broken labels
	}{
		"label":                {[]uint64{label}, 1},
		"copy":                 {[]uint64{copied}, 1},
		"both":                 {[]uint64{label, copied}, 2},
		"label and descriptor": {[]uint64{label, desc}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			im := newTwoDevices(t)
			for _, b := range c.destroy {
				clear(im.block(b))
			}
			space := twoDevices(im)
			r, err := Check(context.Background(), &space, Options{})
			if err != nil || r.Counts[DeviceLabel] != c.found {
				t.Fatalf("%v, %v, want %d broken labels", r, err, c.found)
			}
			if r, err = Repair(context.Background(), &space, Options{}); err != nil || r.ExitCode() != ExitRepaired {
				t.Errorf("%v, %v", r, err)
			}
		})
	}
	// A label that verifies but is of another row is as bad as none.
	other := im.sb.Member(1)
	other.UUID[3]++
	other.Encode(im.block(label))
	space := twoDevices(im)
	if r, err := Check(context.Background(), &space, Options{}); err != nil || r.Counts[DeviceLabel] != 1 || r.Total() != 1 {
		t.Errorf("exchanged label: %v, %v", r, err)
	}
}
