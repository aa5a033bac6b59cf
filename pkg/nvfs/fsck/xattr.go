package fsck

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// checkXattrs checks the attribute set of n, inline or external.
func (w *worker) checkXattrs(n layout.Inode) {
	inline, block := n.XattrInline(), n.XattrBlock()
	if inline == 0 && block == 0 && n.Flags()&flagCapability == 0 {
		return // as nearly all inodes
	}
	if inline > 0 && block != 0 {
		w.problem(XattrSet, "it has attributes both inline and in block %d", block)
	}
	set := n.XattrBody()
	if block != 0 {
		if set = w.gatherSet(block); set == nil {
			return
		}
	}
	if !w.checkSet(set) {
		return
	}
	w.checkCapability(n, set)
	if name := badACL(n, set); name != nil {
		w.problem(XattrSet, "attribute %q is no ACL, or not one of such a file", name)
	}
}

var (
	aclAccess  = []byte("system.posix_acl_access")
	aclDefault = []byte("system.posix_acl_default")
)

// badACL returns the name of an ACL in a whole set that n may not have.
func badACL(n layout.Inode, set []byte) []byte {
	for x := layout.XattrEntry(set); len(x) > 0; x = x.Next() {
		isDefault := bytes.Equal(x.Name(), aclDefault)
		if !isDefault && !bytes.Equal(x.Name(), aclAccess) {
			continue
		}
		if !nvfs.ValidACL(x.Value()) || isDefault && n.Mode()&unix.S_IFMT != unix.S_IFDIR {
			return x.Name()
		}
	}
	return nil
}

// flagCapability is the bit of the inode's flags that says that the set has
// the attribute capabilityName.
const flagCapability = 1

var capabilityName = []byte("security.capability")

func (w *worker) checkCapability(n layout.Inode, set []byte) {
	if marked := n.Flags()&flagCapability != 0; marked != nameBefore(set, len(set), capabilityName) {
		w.problem(XattrSet, "whether it has file capabilities is flagged as %v, which is wrong", marked)
	}
}

// gatherSet puts the set in the chain from block on together; nil when the
// chain is broken. The result is good until the next call. A chain that
// loops ends at the block that is claimed twice.
func (w *worker) gatherSet(block uint64) []byte {
	w.set = w.set[:0]
	for index := 0; block != 0; index++ {
		if len(w.set) > layout.MaxXattrSet || w.cancelled() {
			w.broken(XattrSet, block, "its attributes exceed %d bytes", layout.MaxXattrSet)
			return nil
		}
		if !w.claim(w.at.ino, block, 1, "an attribute block") {
			return nil
		}
		n := layout.Node(w.block(block))
		switch {
		case !layout.Verify(w.seed, block, n.Covered()):
			w.broken(XattrBlock, block, "the checksum of attribute block %d is wrong", block)
			return nil
		case n.Magic() != layout.XattrMagic, n.Owner() != w.at.ino, int(n.Depth()) != index, n.Length() == 0, n.Length() > layout.XattrPayload:
			w.broken(XattrBlock, block, "attribute block %d has magic %#x, owner %d, index %d (of %d), %d bytes",
				block, n.Magic(), n.Owner(), n.Depth(), index, n.Length())
			return nil
		}
		w.set = append(w.set, n.Payload()[:n.Length()]...)
		block = n.Next()
	}
	return w.set
}

// fewNames is how many names are compared with each other before a map is
// worth its cost.
const fewNames = 32

// checkSet checks the entries of a set and reports whether they are whole.
func (w *worker) checkSet(set []byte) bool {
	if len(set) > layout.MaxXattrSet {
		w.problem(XattrSet, "its attributes have %d bytes", len(set))
		return false
	}
	var many map[string]bool
	count := 0
	for x := layout.XattrEntry(set); len(x) > 0; x = x.Next() {
		if !x.Whole() {
			w.problem(XattrSet, "the attribute %d bytes before the end of the set is malformed", len(x))
			return false
		}
		if bytes.IndexByte(x.Name(), 0) >= 0 || len(x.Value()) > layout.MaxXattrLen {
			w.problem(XattrSet, "attribute %q has an illegal name or %d bytes", x.Name(), len(x.Value()))
		}
		if count == fewNames {
			many = namesBefore(set, len(set)-len(x))
		}
		if many != nil && many[string(x.Name())] || many == nil && nameBefore(set, len(set)-len(x), x.Name()) {
			w.problem(XattrSet, "attribute %q is there twice", x.Name())
		}
		if many != nil {
			many[string(x.Name())] = true
		}
		count++
	}
	return true
}

// nameBefore reports whether the set has name before byte end.
func nameBefore(set []byte, end int, name []byte) bool {
	for x := layout.XattrEntry(set); len(set)-len(x) < end; x = x.Next() {
		if bytes.Equal(x.Name(), name) {
			return true
		}
	}
	return false
}

// namesBefore is the names that the set has before byte end.
func namesBefore(set []byte, end int) map[string]bool {
	m := map[string]bool{}
	for x := layout.XattrEntry(set); len(set)-len(x) < end; x = x.Next() {
		m[string(x.Name())] = true
	}
	return m
}
