package fsck

import (
	"sync"
	"sync/atomic"
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
