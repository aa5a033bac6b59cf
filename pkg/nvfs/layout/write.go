package layout

// Writer is the part of a pmem.Persister that making a group needs.
type Writer interface {
	Copy(off uint64, src []byte)
}

// WriteGroup stores the metadata of an empty group: descriptor and bitmaps. In
// group 0 one inode is in use: the root directory, which the caller makes. It
// is durable after the caller's fence.
func WriteGroup(p Writer, seed uint32, group uint64, blocks, inodes uint32) {
	start := GroupStart(group)
	var block [BlockSize]byte
	d := GroupDesc(block[:GroupDescSize])
	d.Init(uint32(group), blocks, inodes)
	Seal(seed, start, d)
	p.Copy(start*BlockSize, d)
	meta := GroupInodeTable + uint32(InodeTableBlocks(inodes))
	writeBitmap(p, seed, start+GroupBlockBitmap, block[:], meta, blocks, true)
	firstFree := uint32(0)
	if group == 0 {
		firstFree = 1
	}
	writeBitmap(p, seed, start+GroupInodeBitmap, block[:], firstFree, inodes, true)
	writeBitmap(p, seed, start+GroupOrphans, block[:], 0, 0, false)
}

// writeBitmap stores a bitmap in which bits [from, to) are clear and, if
// filled, all others set.
func writeBitmap(p Writer, seed uint32, block uint64, buf []byte, from, to uint32, filled bool) {
	for i := range uint32(ChunksBlock) {
		c := Chunk(buf[i*ChunkSize : (i+1)*ChunkSize])
		clear(c)
		for w := range ChunkWords {
			first := i*ChunkBits + uint32(w)*64
			v := ^uint64(0)
			if lo, hi := max(from, first), min(to, first+64); lo < hi {
				v &^= ^uint64(0) >> (64 - (hi - lo)) << (lo - first)
			}
			if !filled {
				v = 0
			}
			c.SetWord(w, v)
		}
		count := c.Ones()
		if filled {
			count = ChunkBits - count
		}
		c.SetCount(count)
		Seal(seed, ChunkLocation(block*BlockSize+uint64(i)*ChunkSize), c)
	}
	p.Copy(block*BlockSize, buf)
}
