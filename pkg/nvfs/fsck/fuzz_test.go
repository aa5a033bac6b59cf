package fsck

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// vandal damages a populated image and repairs it again.
type vandal struct {
	p       *populated
	objects []object
	words   []uint64 // values that lead somewhere
	undo    []func()
}

func newVandal(t testing.TB) *vandal {
	v := &vandal{p: populate(t, true)}
	v.fill()
	return v
}

// fill collects what to damage, and with what.
func (v *vandal) fill() {
	v.words = []uint64{0, 1, 2, 7, 8, 255, 256, 4095, 1<<16 - 1, 1 << 31, 1<<32 - 1, 1 << 51, 1 << 62, 1<<63 - 1, 1 << 63, 1<<64 - 1}
	v.objects = sealedObjects(v.p)
	v.words = append(v.words, v.p.blocks...)
	for ino := range v.p.nodes {
		v.words = append(v.words, ino, v.p.inode(ino).DirRoot())
	}
	for g := range v.p.next {
		v.words = append(v.words, layout.GroupStart(uint64(g)), layout.GroupStart(uint64(g))+5)
	}
}

// damage changes up to 8 bytes of an object and, with seal, makes its
// checksum right again, over whatever it covers then.
func (v *vandal) damage(which, off uint32, value uint64, size uint8, seal bool) {
	o := v.objects[int(which)%len(v.objects)]
	p := v.p.mem[o.off : o.off+uint64(o.len)]
	at := 4 + int(off)%(o.len-4)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], value)
	old := append([]byte(nil), v.p.mem[o.off:o.off+layout.BlockSize-o.off%layout.BlockSize]...)
	v.undo = append(v.undo, func() { copy(v.p.mem[o.off:], old) })
	copy(p[at:], b[:1+size%8])
	if seal {
		v.seal(o)
	}
}

func (v *vandal) seal(o object) {
	p := v.p.mem[o.off : o.off+uint64(o.len)]
	switch block := o.off / layout.BlockSize; o.what {
	case "superblock", "superblock copy":
		layout.Seal(layout.Seed([16]byte(p[48:64])), 0, p)
	case "dynamic half":
		layout.Seal(v.p.seed, layout.DynamicLocation, p)
	case "group descriptor":
		layout.Seal(v.p.seed, block, p)
	case "bitmap":
		layout.Seal(v.p.seed, layout.ChunkLocation(o.off), p)
	case "inode":
		group := layout.GroupOf(block)
		index := (o.off - (layout.GroupStart(group)+layout.GroupInodeTable)*layout.BlockSize) / layout.InodeSize
		layout.Seal(v.p.seed, group*testPerGroup+index+1, p)
	default:
		v.p.sealNode(block)
	}
}

// survives checks the damaged image: the check ends and finds no defect of
// its own.
func (v *vandal) survives(t testing.TB) {
	_, err := Check(context.Background(), memSpace(v.p.mem), Options{Threads: 2, MaxProblems: 50})
	if err != nil && isInternal(err) {
		t.Fatal(err)
	}
	v.takeBack()
}

// takeBack undoes all damage.
func (v *vandal) takeBack() {
	for i := len(v.undo) - 1; i >= 0; i-- {
		v.undo[i]()
	}
	v.undo = v.undo[:0]
}

func TestRandomDamage(t *testing.T) {
	v := newVandal(t)
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		for range 1 + r.IntN(4) {
			value := r.Uint64()
			if r.IntN(4) != 0 {
				value = v.words[r.IntN(len(v.words))]
			}
			v.damage(r.Uint32(), r.Uint32(), value, uint8(r.IntN(8)), r.IntN(8) != 0)
		}
		v.survives(t)
	}
	if r := check(t, v.p.mem, Options{}); r.Total() != 0 {
		t.Fatal("the image was not repaired")
	}
}

// A volume full of noise, with nothing right but its superblock.
func TestNoise(t *testing.T) {
	im := newImage(t, layout.MinBlocks)
	im.write()
	head := append([]byte(nil), im.mem[:layout.BlockSize]...)
	r := rand.NewChaCha8([32]byte{1})
	for range 3 {
		_, _ = r.Read(im.mem)
		copy(im.mem, head)
		rep := check(t, im.mem, Options{})
		if rep.Total() == 0 {
			t.Error("noise is clean")
		}
	}
	for i := range im.mem {
		im.mem[i] = 0xff
	}
	copy(im.mem, head)
	if check(t, im.mem, Options{}).Total() == 0 {
		t.Error("ones are clean")
	}
}

func FuzzCheck(f *testing.F) {
	v := newVandal(f)
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	f.Fuzz(func(t *testing.T, in []byte) {
		for len(in) >= 10 {
			value := uint64(binary.LittleEndian.Uint32(in[5:]))
			if in[9]&1 == 0 {
				value = v.words[value%uint64(len(v.words))]
			}
			v.damage(uint32(binary.LittleEndian.Uint16(in)), uint32(binary.LittleEndian.Uint16(in[2:])), value, in[4], in[9]&2 == 0)
			in = in[10:]
		}
		v.survives(t)
	})
}
