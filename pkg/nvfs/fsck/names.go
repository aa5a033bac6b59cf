package fsck

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// nameCounter counts the names of each inode: a byte an inode, in its group,
// and a map for those with more than a byte holds.
type nameCounter struct {
	mu   sync.Mutex
	more map[uint64]uint64
}

const nameMax = 0xff

// countName adds a name to inode index of g, which has number ino.
func (c *checker) countName(g *group, index uint32, ino uint64) {
	words := lazily(&g.names, (g.inodes+3)/4)
	p, sh := &words[index/4], index%4*8
	for {
		old := atomic.LoadUint32(p)
		if old>>sh&nameMax == nameMax {
			break
		}
		if len(c.workers) < 2 {
			*p = old + 1<<sh // nobody else counts
			return
		}
		if atomic.CompareAndSwapUint32(p, old, old+1<<sh) {
			return
		}
	}
	c.names.mu.Lock()
	defer c.names.mu.Unlock()
	if c.names.more == nil {
		c.names.more = map[uint64]uint64{}
	}
	c.names.more[ino]++
}

// nameCount is the number of names counted.
func (c *checker) nameCount(g *group, index uint32, ino uint64) uint64 {
	words := g.names.Load()
	if words == nil {
		return 0
	}
	n := uint64((*words)[index/4] >> (index % 4 * 8) & nameMax)
	if n == nameMax {
		c.names.mu.Lock()
		defer c.names.mu.Unlock()
		n += c.names.more[ino]
	}
	return n
}

// note keeps the type of an inode, as directory entries have it; 0 means that
// it must be looked up.
func (g *group) note(index uint32, n layout.Inode) {
	if mode := n.Mode(); mode>>16 == 0 {
		lazily(&g.kinds, g.inodes)[index] = uint8(mode >> 12)
	}
}

// expectNames keeps how many names an inode should have. nameMax means that
// this must be looked at more closely: many names, or a directory.
func (g *group) expectNames(index uint32, n layout.Inode) {
	e := uint8(min(n.Nlink(), nameMax))
	if n.Mode()&unix.S_IFMT == unix.S_IFDIR {
		e = nameMax
	}
	lazily(&g.expected, (g.inodes+3)&^3)[index] = e
}

// kind is the type of an inode that is in use, 0 when it is not known.
func (g *group) kind(index uint32) uint8 {
	if p := g.kinds.Load(); p != nil {
		return (*p)[index]
	}
	return 0
}

// asExpected reports whether the inodes 4*i to 4*i+3 have as many names as
// they should have; if not, or if it is not so simple, they must be looked at.
func (g *group) asExpected(i uint32) bool {
	names, expected := uint32(0), uint32(0)
	if p := g.names.Load(); p != nil {
		names = (*p)[i]
	}
	if p := g.expected.Load(); p != nil {
		expected = binary.LittleEndian.Uint32((*p)[4*i:])
	}
	const low, high = 0x01010101, 0x80808080
	inverse := ^expected // a byte of zeros is nameMax
	return names == expected && (inverse-low)&^inverse&high == 0
}
