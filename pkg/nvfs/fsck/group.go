package fsck

import (
	"math/bits"
	"sync/atomic"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// group is what the check keeps of a group.
type group struct {
	num    uint64
	start  uint64 // first block
	blocks uint32
	inodes uint32
	meta   uint32 // blocks of metadata at the start

	bad [4]uint16 // damaged chunks of each bitmap, by its block in the group

	// Made when the first block or inode of the group is referred to.
	claimed   atomic.Pointer[[bitmapWords]uint64] // blocks that something refers to
	walked    atomic.Pointer[[]uint64]            // directory blocks that were looked at
	names     atomic.Pointer[[]uint32]            // names of each inode: four counts a word
	kinds     atomic.Pointer[[]uint8]             // of each inode: see note
	expected  atomic.Pointer[[]uint8]             // of each inode: see expectNames
	connected atomic.Pointer[[]uint64]            // directories that the root leads to
	lost      atomic.Pointer[[]uint64]            // directories that it does not

	// Of a repair: directories that their parent names, and that have the
	// name which stays; blocks that several files refer to, or a file and a
	// tree.
	byParent, kept, contested atomic.Pointer[[]uint64]
}

// word is the i-th word of the bitmap in block which of the group.
func (g *group) word(v *volume, which int, i int) uint64 {
	p := v.block(g.start + uint64(which))
	return layout.Chunk(p[i/layout.ChunkWords*layout.ChunkSize:]).Word(i % layout.ChunkWords)
}

// wordBad reports whether the chunk that holds word i is damaged.
func (g *group) wordBad(which, i int) bool { return g.bad[which]>>(i/layout.ChunkWords)&1 == 1 }

func (g *group) inUse(v *volume, index uint32) bool {
	return g.word(v, layout.GroupInodeBitmap, int(index/64))>>(index%64)&1 == 1
}

// claims returns the group's map of claimed blocks.
func (g *group) claims() *[bitmapWords]uint64 {
	if p := g.claimed.Load(); p != nil {
		return p
	}
	g.claimed.CompareAndSwap(nil, new([bitmapWords]uint64))
	return g.claimed.Load()
}

// lazily returns *p, made with n elements on first use.
func lazily[T any](p *atomic.Pointer[[]T], n uint32) []T {
	if s := p.Load(); s != nil {
		return *s
	}
	s := make([]T, n)
	p.CompareAndSwap(nil, &s)
	return *p.Load()
}

// checkBitmaps is the first pass: the descriptor and the bitmaps of a group.
func (w *worker) checkBitmaps() {
	g := w.group
	w.next = g.inodes // nothing to go on with behind a fault
	w.checkDescriptor(g)
	for which := layout.GroupBlockBitmap; which <= layout.GroupOrphans; which++ {
		w.checkBitmap(g, which)
	}
}

func (w *worker) checkDescriptor(g *group) {
	p := Problem{Code: GroupDescriptor, Group: g.num, Block: g.start}
	d := layout.GroupDesc(w.block(g.start)[:layout.GroupDescSize])
	switch {
	case !layout.Verify(w.seed, g.start, d):
		w.found.add(p, "the checksum of group %d's descriptor is wrong", g.num)
	case d.Magic() != layout.GroupMagic:
		w.found.add(p, "the descriptor of group %d has magic %#x", g.num, d.Magic())
	case uint64(d.Group()) != g.num:
		w.found.add(p, "the descriptor of group %d is that of group %d", g.num, d.Group())
	case d.Blocks() != g.blocks:
		w.found.add(p, "group %d has %d blocks, its descriptor says %d", g.num, g.blocks, d.Blocks())
	case d.Inodes() != g.inodes:
		w.found.add(p, "group %d has %d inodes, its descriptor says %d", g.num, g.inodes, d.Inodes())
	}
}

var bitmapNames = [...]string{layout.GroupBlockBitmap: "block", layout.GroupInodeBitmap: "inode", layout.GroupOrphans: "orphan"}

func (w *worker) checkBitmap(g *group, which int) {
	block := g.start + uint64(which)
	p := w.block(block)
	name := bitmapNames[which]
	problem := Problem{Group: g.num, Block: block}
	for i := range layout.ChunksBlock {
		c := layout.Chunk(p[i*layout.ChunkSize : (i+1)*layout.ChunkSize])
		if !layout.Verify(w.seed, layout.ChunkLocation(block*blockSize+uint64(i)*layout.ChunkSize), c) {
			problem.Code = BitmapChecksum
			w.found.add(problem, "group %d: the checksum of chunk %d of the %s bitmap is wrong", g.num, i, name)
			g.bad[which] |= 1 << i
			continue
		}
		count := c.Ones()
		if which != layout.GroupOrphans {
			count = layout.ChunkBits - count
		}
		if c.Count() != count {
			problem.Code = BitmapCount
			w.found.add(problem, "group %d: chunk %d of the %s bitmap counts %d, it has %d", g.num, i, name, c.Count(), count)
		}
	}
	w.checkTail(g, which)
}

// checkTail checks the bits past the end of the group.
func (w *worker) checkTail(g *group, which int) {
	end, want := g.inodes, ^uint64(0)
	switch which {
	case layout.GroupBlockBitmap:
		end = g.blocks
	case layout.GroupOrphans:
		want = 0
	}
	for i := int(end / 64); i < bitmapWords; i++ {
		mask := ^uint64(0)
		if i == int(end/64) {
			mask <<= end % 64
		}
		if !g.wordBad(which, i) && (g.word(w.volume, which, i)^want)&mask != 0 {
			w.found.add(Problem{Code: BitmapTail, Group: g.num, Block: g.start + uint64(which)},
				"group %d: bits of the %s bitmap behind the end of the group, from %d on, are not %d", g.num, bitmapNames[which], i*64, want&1)
			return
		}
	}
}

// claim notes that inode ino owns blocks [start, start+n), and reports
// whether nobody did before. All of them must be data blocks of one group.
func (w *worker) claim(ino, start, n uint64, what string) bool {
	g := w.groupOf(start)
	if g == nil || start < g.start+uint64(g.meta) || n > uint64(g.blocks) || start+n > g.start+uint64(g.blocks) {
		w.found.add(Problem{Code: BlockRange, Group: w.groupNum(), Ino: ino, Block: start}, "%s at blocks %d+%d is not within the data blocks of a group", what, start, n)
		w.at.broken = true
		return false
	}
	if !layoutClaim(g, uint32(start-g.start), uint32(n)) {
		w.found.add(Problem{Code: BlockShared, Group: g.num, Ino: ino, Block: start}, "%s at blocks %d+%d overlaps what is referred to already", what, start, n)
		w.at.broken = true
		return false
	}
	w.at.owned += n
	return true
}

// layoutClaim sets n bits from bit on and reports whether all were clear.
func layoutClaim(g *group, bit, n uint32) bool {
	words, free := g.claims(), true
	for end := bit + n; bit < end; {
		sh := bit % 64
		k := min(end-bit, 64-sh)
		mask := (^uint64(0) >> (64 - k)) << sh
		if atomic.OrUint64(&words[bit/64], mask)&mask != 0 {
			free = false
		}
		bit += k
	}
	return free
}

// compare is the last pass: what was found against what the group's bitmaps
// and inodes say.
func (w *worker) compare() {
	if w.next == 0 {
		w.compareBlocks(w.group)
	}
	w.compareInodes(w.group)
}

func (w *worker) compareBlocks(g *group) {
	var none [bitmapWords]uint64
	words := g.claimed.Load()
	if words == nil {
		words = &none
	}
	for i := range bitmapWords {
		valid := wordMask(i, g.blocks)
		if valid == 0 {
			break
		}
		if g.wordBad(layout.GroupBlockBitmap, i) {
			continue
		}
		want := (words[i] | wordMask(i, g.meta)) & valid
		have := g.word(w.volume, layout.GroupBlockBitmap, i) & valid
		w.sum.BlocksUsed += uint64(bits.OnesCount64(have))
		if have == want {
			continue
		}
		w.reportRuns(g, i, have&^want, BlockLeaked, "marked used, but nothing refers to them")
		w.reportRuns(g, i, want&^have, BlockFree, "in use, but marked free")
	}
}

// wordMask has those bits of word i set that are below end.
func wordMask(i int, end uint32) uint64 {
	switch first := uint32(i) * 64; {
	case end >= first+64:
		return ^uint64(0)
	case end <= first:
		return 0
	default:
		return 1<<(end-first) - 1
	}
}

// reportRuns reports the set bits of word i as runs of blocks.
func (w *worker) reportRuns(g *group, i int, word uint64, code Code, text string) {
	for word != 0 {
		lo := bits.TrailingZeros64(word)
		n := bits.TrailingZeros64(^(word >> lo))
		start := g.start + uint64(i*64+lo)
		w.found.add(Problem{Code: code, Group: g.num, Block: start}, "blocks %d+%d are %s", start, n, text)
		if lo+n >= 64 {
			return
		}
		word &^= (1<<n - 1) << lo
	}
}
