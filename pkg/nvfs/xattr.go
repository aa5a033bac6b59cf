package nvfs

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// maxInlineXattr is the most that attributes take of an inode: what is left
// still holds an extent root of three entries.
const maxInlineXattr = layout.InodeBodySize - 3*layout.ExtentSize

var (
	capabilityName = []byte("security.capability")
	aclAccessName  = []byte("system.posix_acl_access")
	aclDefaultName = []byte("system.posix_acl_default")
)

// xattrSet returns the attribute set of n; it is valid until the worker reads
// another external set.
func (w *Worker) xattrSet(ino uint64, n layout.Inode) (layout.XattrEntry, error) {
	set := layout.XattrEntry(n.XattrBody())
	if n.XattrBlock() != 0 {
		w.xset = w.xset[:0]
		index := uint16(0)
		for block := n.XattrBlock(); block != 0; index++ {
			b, err := w.peekNode(block, layout.XattrMagic, ino)
			if err != nil {
				return nil, err
			}
			if b.Depth() != index || b.Length() > layout.XattrPayload || len(w.xset)+int(b.Length()) > layout.MaxXattrSet {
				return nil, w.fs.damaged(false, "inode %d: attribute block %d is damaged", ino, block)
			}
			w.xset = append(w.xset, b.Payload()[:b.Length()]...)
			block = b.Next()
		}
		set = w.xset
	}
	for x := set; len(x) > 0; x = x.Next() {
		if !x.Whole() || bytes.IndexByte(x.Name(), 0) >= 0 {
			return nil, w.fs.damaged(false, "inode %d: attributes are damaged", ino)
		}
	}
	return set, nil
}

func findXattr(set layout.XattrEntry, name []byte) ([]byte, bool) {
	for ; len(set) > 0; set = set.Next() {
		if bytes.Equal(set.Name(), name) {
			return set.Value(), true
		}
	}
	return nil, false
}

// GetXattr copies the value of an attribute into dst and returns its length;
// with an empty dst only the length.
func (w *Worker) GetXattr(id NodeID, name, dst []byte) (int, error) {
	w.rlock(id.Ino())
	defer w.unlock()
	n, err := w.fs.inodeAt(id)
	if err != nil {
		return 0, err
	}
	if n.XattrInline() == 0 && n.XattrBlock() == 0 {
		return 0, errNoData
	}
	set, err := w.xattrSet(id.Ino(), n)
	if err != nil {
		return 0, err
	}
	v, ok := findXattr(set, name)
	switch {
	case !ok:
		return 0, errNoData
	case len(dst) == 0:
		return len(v), nil
	case len(dst) < len(v):
		return 0, errRange
	}
	return copy(dst, v), nil
}

// ListXattr copies the names, each with a NUL behind it, into dst and returns
// their length; with an empty dst only the length.
func (w *Worker) ListXattr(id NodeID, dst []byte) (int, error) {
	w.rlock(id.Ino())
	defer w.unlock()
	n, err := w.fs.inodeAt(id)
	if err != nil {
		return 0, err
	}
	set, err := w.xattrSet(id.Ino(), n)
	if err != nil {
		return 0, err
	}
	total := 0
	for x := set; len(x) > 0; x = x.Next() {
		if len(dst) > 0 {
			if total+len(x.Name())+1 > len(dst) {
				return 0, errRange
			}
			copy(dst[total:], x.Name())
			dst[total+len(x.Name())] = 0
		}
		total += len(x.Name()) + 1
	}
	return total, nil
}

// checkNamespace accepts names of the kinds that are stored: those of the
// namespaces user, trusted and security, and the two ACLs.
func checkNamespace(name []byte) error {
	if isACL(name) {
		return nil
	}
	for _, prefix := range [...]string{"user.", "trusted.", "security."} {
		switch {
		case len(name) < len(prefix) || string(name[:len(prefix)]) != prefix:
		case len(name) == len(prefix):
			return errInvalid
		default:
			return nil
		}
	}
	return errNotSup
}

// isACL reports whether name is that of an ACL.
func isACL(name []byte) bool {
	return bytes.Equal(name, aclAccessName) || bytes.Equal(name, aclDefaultName)
}

// SetXattr sets an attribute; flags are XattrCreate, XattrReplace and
// ACLKillSGID.
func (w *Worker) SetXattr(id NodeID, name, value []byte, flags uint32) error {
	switch {
	case len(name) == 0 || len(name) > layout.NameMax:
		return errRange
	case len(value) > layout.MaxXattrLen:
		return errXattrTooBig
	}
	if err := checkNamespace(name); err != nil {
		return err
	}
	return w.changeXattr(opSetXattr, id, func(n layout.Inode) error { return w.setXattr(id, n, name, value, flags) })
}

// RemoveXattr removes an attribute. An ACL need not exist for that.
func (w *Worker) RemoveXattr(id NodeID, name []byte) error {
	if isACL(name) {
		if _, err := w.GetXattr(id, name, nil); err == errNoData {
			return nil
		}
	}
	return w.changeXattr(opRemoveXattr, id, func(n layout.Inode) error {
		return w.replaceXattr(id.Ino(), n, name, nil, XattrReplace)
	})
}

// changeXattr runs change on the staged inode under its lock and commits.
func (w *Worker) changeXattr(op uint32, id NodeID, change func(n layout.Inode) error) error {
	if done, err := w.start(op); done {
		return err
	}
	w.lock(id.Ino())
	defer w.unlock()
	n, err := w.stageInode(id)
	if err == nil {
		if err = change(n); err == nil {
			w.touch(n)
			w.tx.result = layout.RequestTuple{Ino: uint64(id)}
			err = w.commit()
		}
	}
	if err != nil {
		w.rollback()
	}
	return err
}

func (w *Worker) setXattr(id NodeID, n layout.Inode, name, value []byte, flags uint32) error {
	if value == nil {
		value = []byte{}
	}
	if isACL(name) {
		return w.setACL(id.Ino(), n, name, value, flags)
	}
	return w.replaceXattr(id.Ino(), n, name, value, flags)
}

// replaceXattr stages an attribute set in which name has value, or is
// missing when value is nil.
func (w *Worker) replaceXattr(ino uint64, n layout.Inode, name, value []byte, flags uint32) error {
	set, err := w.xattrSet(ino, n)
	if err != nil {
		return err
	}
	_, exists := findXattr(set, name)
	switch {
	case exists && flags&XattrCreate != 0:
		return errExist
	case !exists && flags&XattrReplace != 0:
		return errNoData
	}
	w.xnew = w.xnew[:0]
	for x := set; len(x) > 0; x = x.Next() {
		if !bytes.Equal(x.Name(), name) {
			w.xnew = layout.AppendXattr(w.xnew, x.Name(), x.Value())
		}
	}
	if value != nil {
		w.xnew = layout.AppendXattr(w.xnew, name, value)
	}
	if len(w.xnew) > layout.MaxXattrSet {
		return errNoSpace
	}
	if bytes.Equal(name, capabilityName) {
		n.SetFlags(n.Flags() &^ flagCapability)
		if value != nil {
			n.SetFlags(n.Flags() | flagCapability)
		}
	}
	shrinks := len(w.xnew) <= len(set)
	if err := w.dropXattrs(ino, n); err != nil {
		return err
	}
	return w.storeXattrs(ino, n, w.xnew, shrinks)
}

// dropXattrs stages the removal of the whole set.
func (w *Worker) dropXattrs(ino uint64, n layout.Inode) error {
	clear(n.XattrBody())
	n.SetXattrInline(0)
	block := n.XattrBlock()
	n.SetXattrBlock(0)
	for i := 0; block != 0; i++ {
		b, err := w.peekNode(block, layout.XattrMagic, ino)
		if err != nil {
			return err
		}
		if i > layout.MaxXattrSet/layout.XattrPayload+1 {
			return w.fs.damaged(false, "inode %d: attribute blocks form a cycle", ino)
		}
		next := b.Next()
		if err := w.freeNode(block); err != nil {
			return err
		}
		n.SetBlocks(n.Blocks() - 1)
		block = next
	}
	return nil
}

// bodyUsed is how much of the body data takes.
func bodyUsed(n layout.Inode) int {
	switch n.Format() {
	case layout.FormatInline:
		return int(n.Size())
	case layout.FormatExtents:
		return int(n.ExtentCount()) * layout.ExtentSize
	case layout.FormatDir:
		return 8
	}
	return 0
}

// storeXattrs stages a set for an inode that has none: inline where it fits.
// A set that replaces a larger one may use the volume's last blocks.
func (w *Worker) storeXattrs(ino uint64, n layout.Inode, set []byte, privileged bool) error {
	if len(set) == 0 {
		return nil
	}
	if len(set) <= maxInlineXattr && len(set) <= layout.InodeBodySize-bodyUsed(n) {
		n.SetXattrInline(uint16(len(set)))
		copy(n.XattrBody(), set)
		return nil
	}
	blocks := (len(set) + layout.XattrPayload - 1) / layout.XattrPayload
	if err := w.reserve(w.tx.reserve+uint64(blocks), privileged); err != nil {
		return err
	}
	var next uint64
	for i := blocks - 1; i >= 0; i-- { // from the end, so that each knows the next
		block, b, err := w.newNode(layout.XattrMagic, ino, uint16(i))
		if err != nil {
			return err
		}
		part := set[i*layout.XattrPayload : min(len(set), (i+1)*layout.XattrPayload)]
		copy(b.Payload(), part)
		b.SetLength(uint32(len(part)))
		b.SetNext(next)
		next = block
	}
	n.SetXattrBlock(next)
	n.SetBlocks(n.Blocks() + uint64(blocks))
	return nil
}

// stripCapability removes security.capability, which no longer describes a
// file whose content or owner changes.
func (w *Worker) stripCapability(n layout.Inode) error {
	if n.Flags()&flagCapability == 0 {
		return nil
	}
	w.stripped = true
	ino := w.inoOfStaged(n)
	return w.replaceXattr(ino, n, capabilityName, nil, 0)
}

// inoOfStaged is the number of a staged inode.
func (w *Worker) inoOfStaged(n layout.Inode) uint64 {
	for i := range w.tx.objects {
		if s := &w.tx.objects[i]; len(s.buf) == layout.InodeSize && &s.buf[0] == &n[0] {
			return s.location
		}
	}
	return 0
}

// ACLs. The kernel checks them (default_permissions); the engine keeps mode
// and mask in step and lets new inodes inherit the default ACL.

const (
	aclVersion  = 2
	aclUserObj  = 0x01
	aclGroupObj = 0x04
	aclMask     = 0x10
	aclOther    = 0x20
	aclHeader   = 4
	aclEntry    = 8
)

func aclEntries(acl []byte) int { return (len(acl) - aclHeader) / aclEntry }
func aclTag(acl []byte, i int) uint16 {
	o := aclHeader + i*aclEntry
	return uint16(acl[o]) | uint16(acl[o+1])<<8
}
func aclPerm(acl []byte, i int) uint32       { return uint32(acl[aclHeader+i*aclEntry+2]) & 7 }
func setACLPerm(acl []byte, i int, v uint32) { acl[aclHeader+i*aclEntry+2] = byte(v & 7) }

// ValidACL reports whether acl is the value of an ACL attribute, in the form
// of the kernel: version 2 and whole entries.
func ValidACL(acl []byte) bool {
	return len(acl) >= aclHeader && (len(acl)-aclHeader)%aclEntry == 0 && acl[0] == aclVersion &&
		acl[1] == 0 && acl[2] == 0 && acl[3] == 0
}

// aclMode is the mode that an access ACL stands for; extended says that it
// says more than a mode can.
func aclMode(acl []byte) (mode uint32, extended bool) {
	group, mask := uint32(0), int32(-1)
	for i := range aclEntries(acl) {
		p := aclPerm(acl, i)
		switch aclTag(acl, i) {
		case aclUserObj:
			mode |= p << 6
		case aclGroupObj:
			group = p
		case aclMask:
			mask = int32(p)
			extended = true
		case aclOther:
			mode |= p
		default:
			extended = true
		}
	}
	if mask >= 0 {
		group = uint32(mask)
	}
	return mode | group<<3, extended
}

// chmodEntries gives an access ACL the permission bits of mode.
func chmodEntries(acl []byte, mode uint32) {
	group := -1
	for i := range aclEntries(acl) {
		switch aclTag(acl, i) {
		case aclUserObj:
			setACLPerm(acl, i, mode>>6)
		case aclGroupObj:
			if group < 0 {
				group = i
			}
		case aclMask:
			group = i
		case aclOther:
			setACLPerm(acl, i, mode)
		}
	}
	if group >= 0 {
		setACLPerm(acl, group, mode>>3)
	}
}

// setACL stores an ACL. An access ACL sets the mode, and is not stored when
// the mode says it all.
func (w *Worker) setACL(ino uint64, n layout.Inode, name, acl []byte, flags uint32) error {
	if n.Mode()&unix.S_IFMT == unix.S_IFLNK {
		return errNotSup
	}
	if len(acl) != 0 && !ValidACL(acl) {
		return errInvalid
	}
	if bytes.Equal(name, aclDefaultName) {
		if !isDir(n) {
			return unix.EACCES
		}
		if len(acl) == 0 {
			return w.replaceXattr(ino, n, name, nil, 0)
		}
		return w.replaceXattr(ino, n, name, acl, flags&(XattrCreate|XattrReplace))
	}
	if len(acl) == 0 {
		return w.replaceXattr(ino, n, name, nil, 0)
	}
	mode, extended := aclMode(acl)
	n.SetMode(n.Mode()&^0777 | mode)
	if flags&ACLKillSGID != 0 {
		n.SetMode(n.Mode() &^ unix.S_ISGID)
	}
	if !extended {
		return w.replaceXattr(ino, n, name, nil, 0)
	}
	return w.replaceXattr(ino, n, name, acl, flags&(XattrCreate|XattrReplace))
}

// chmodACL brings the access ACL in step with a mode that was set.
func (w *Worker) chmodACL(id NodeID, n layout.Inode) error {
	if n.XattrInline() == 0 && n.XattrBlock() == 0 {
		return nil
	}
	set, err := w.xattrSet(id.Ino(), n)
	if err != nil {
		return err
	}
	v, ok := findXattr(set, aclAccessName)
	if !ok || !ValidACL(v) {
		return nil
	}
	acl := append([]byte(nil), v...)
	chmodEntries(acl, n.Mode())
	return w.replaceXattr(id.Ino(), n, aclAccessName, acl, 0)
}

// inheritACL sets the mode of a new inode: by the parent's default ACL,
// which it also inherits, or by the umask.
func (w *Worker) inheritACL(parent uint64, p, n layout.Inode, umask uint32) error {
	if n.Mode()&unix.S_IFMT == unix.S_IFLNK {
		return nil
	}
	if p.XattrInline() == 0 && p.XattrBlock() == 0 {
		n.SetMode(n.Mode() &^ (umask & 0777))
		return nil
	}
	set, err := w.xattrSet(parent, p)
	if err != nil {
		return err
	}
	v, ok := findXattr(set, aclDefaultName)
	if !ok || !ValidACL(v) {
		n.SetMode(n.Mode() &^ (umask & 0777))
		return nil
	}
	def := append([]byte(nil), v...)
	acl := append([]byte(nil), v...)
	limit, extended := aclMode(acl)
	mode := n.Mode() & 0777 & limit
	n.SetMode(n.Mode()&^0777 | mode)
	chmodEntries(acl, mode)
	var own []byte
	if extended {
		own = layout.AppendXattr(own, aclAccessName, acl)
	}
	if isDir(n) {
		own = layout.AppendXattr(own, aclDefaultName, def)
	}
	return w.storeXattrs(w.inoOfStaged(n), n, own, false)
}
