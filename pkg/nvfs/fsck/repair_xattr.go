package fsck

import (
	"bytes"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// repairXattrs drops an attribute set that is not whole, and claims the
// blocks of an external one.
func (r *repairer) repairXattrs(g *group, index uint32, n layout.Inode) {
	ino := r.ino(g, index)
	if n.XattrInline() > 0 && n.XattrBlock() != 0 {
		r.dropXattrs(XattrSet, g, index, func(c layout.Inode) { c.SetXattrBlock(0) })
	}
	set, chain := n.XattrBody(), []uint64(nil)
	if n.XattrBlock() != 0 {
		var ok bool
		if set, chain, ok = r.claimChain(ino, n.XattrBlock()); !ok {
			r.releaseAll(chain)
			r.dropXattrs(XattrBlock, g, index, func(c layout.Inode) { c.SetXattrBlock(0) })
			set = nil
		}
	}
	if !soundSet(n, set) {
		r.releaseAll(chain)
		r.dropXattrs(XattrSet, g, index, func(c layout.Inode) {
			clear(c.XattrBody())
			c.SetXattrInline(0)
			c.SetXattrBlock(0)
		})
		set = nil
	}
	r.repairCapability(g, index, n, nameBefore(set, len(set), capabilityName))
}

func (r *repairer) releaseAll(blocks []uint64) {
	for _, b := range blocks {
		r.release(b)
	}
}

func (r *repairer) dropXattrs(code Code, g *group, index uint32, edit func(layout.Inode)) {
	edit(r.stageInode(g, index))
	r.did(Problem{Code: code, Group: g.num, Ino: r.ino(g, index)}, "its extended attributes, with its ACLs, were dropped: check who may use it")
	r.ch.commit()
}

func (r *repairer) repairCapability(g *group, index uint32, n layout.Inode, has bool) {
	if n.Flags()&flagCapability != 0 == has {
		return
	}
	c := r.stageInode(g, index)
	c.SetFlags(n.Flags() &^ flagCapability)
	if has {
		c.SetFlags(n.Flags() | flagCapability)
	}
	r.did(Problem{Code: XattrSet, Group: g.num, Ino: r.ino(g, index)}, "the flag of file capabilities was set to %v", has)
	r.ch.commit()
}

// claimChain claims the attribute blocks from block on and puts the set
// together. When it is not ok, chain is what it had claimed.
func (r *repairer) claimChain(ino, block uint64) (set []byte, chain []uint64, ok bool) {
	for index := 0; block != 0; index++ {
		if len(set) > layout.MaxXattrSet || !r.soundXattrBlock(ino, block, index) || !r.take(block, 1) {
			return nil, chain, false
		}
		chain = append(chain, block)
		n := layout.Node(r.block(block))
		set = append(set, n.Payload()[:n.Length()]...)
		block = n.Next()
	}
	return set, chain, true
}

func (r *repairer) soundXattrBlock(ino, block uint64, index int) bool {
	if r.groupOf(block) == nil {
		return false
	}
	n := layout.Node(r.block(block))
	return n.Magic() == layout.XattrMagic && n.Owner() == ino && int(n.Depth()) == index &&
		n.Length() > 0 && n.Length() <= layout.XattrPayload && layout.Verify(r.seed, block, n.Covered())
}

// xattrBlocks counts the blocks of a chain that is right.
func (r *repairer) xattrBlocks(n layout.Inode) uint64 {
	count := uint64(0)
	for b := n.XattrBlock(); b != 0; b = layout.Node(r.block(b)).Next() {
		count++
	}
	return count
}

// soundSet reports whether the set of n breaks no rule.
func soundSet(n layout.Inode, set []byte) bool {
	if len(set) > layout.MaxXattrSet {
		return false
	}
	seen := map[string]bool{}
	for x := layout.XattrEntry(set); len(x) > 0; x = x.Next() {
		if !x.Whole() || bytes.IndexByte(x.Name(), 0) >= 0 || len(x.Value()) > layout.MaxXattrLen || seen[string(x.Name())] {
			return false
		}
		seen[string(x.Name())] = true
	}
	return badACL(n, set) == nil
}
