package nvfs

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// seal says how a staged object's checksum is made.
type seal uint8

const (
	sealWhole seal = iota // over all of the object
	sealNode              // over layout.Node.Covered
)

// staged is a private copy of a metadata object, changed at will and written
// by commit.
type staged struct {
	off      uint64 // in the volume
	location uint64 // of the checksum
	buf      []byte
	seal     seal
	fresh    bool // a newly allocated block: nothing refers to it yet
	dropped  bool // freed by the same transaction
}

// tx is the transaction of a Worker. Its zero value is an empty one; commit
// and rollback leave it empty.
type tx struct {
	w         *Worker
	objects   []staged
	slabs     [][]byte // memory of the copies
	slab, pos int
	taken     []span   // blocks taken, as takeBlocks returned them
	frees     []span   // blocks to free
	newInodes []uint64 // inodes taken
	oldInodes []uint64 // inodes to free
	orphaned  []uint64 // inodes to enter into the orphan bitmap
	adopted   []uint64 // inodes to take out of it
	reserve   uint64   // reserved blocks not yet taken
	last      bool     // tree blocks may be the volume's last blocks
	cost      int      // estimate of the record's size
	dirty     bool     // data was stored and awaits a fence
	more      bool     // further records of the same request follow
	result    layout.RequestTuple
	groups    []*group // to be locked by commit, in ascending order
	locked    int      // of these, how many are
	committed bool
	note      bool // damage is noted: even when it has made the volume read-only
}

const (
	slabSize = 128 << 10
	// costLimit is where operations that can go on in a further record stop
	// adding to this one. What an iteration adds after the check must fit in
	// the rest: the extent nodes of a path and the bits of one group.
	costLimit = layout.PayloadMax - 20<<10
)

func (t *tx) alloc(n int) []byte {
	n = (n + 7) &^ 7
	if t.slab < len(t.slabs) && t.pos+n > slabSize {
		t.slab, t.pos = t.slab+1, 0
	}
	if t.slab == len(t.slabs) {
		t.slabs = append(t.slabs, make([]byte, slabSize))
	}
	p := t.slabs[t.slab][t.pos : t.pos+n : t.pos+n]
	t.pos += n
	return p
}

func (t *tx) find(off uint64) *staged {
	for i := len(t.objects) - 1; i >= 0; i-- {
		if t.objects[i].off == off && !t.objects[i].dropped {
			return &t.objects[i]
		}
	}
	return nil
}

// stage returns the private copy of the n bytes at off, made on first use.
func (w *Worker) stage(off uint64, n int, location uint64, how seal) []byte {
	t := &w.tx
	if s := t.find(off); s != nil {
		return s.buf
	}
	buf := t.alloc(n)
	copy(buf, w.fs.mem[off:off+uint64(n)])
	t.objects = append(t.objects, staged{off: off, location: location, buf: buf, seal: how})
	return buf
}

// stageNode returns the private copy of a tree block, verified.
func (w *Worker) stageNode(block uint64, magic uint32, owner uint64) (layout.Node, error) {
	if s := w.tx.find(block << layout.BlockShift); s != nil {
		return s.buf, nil
	}
	n, err := w.fs.node(block, magic, owner)
	if err != nil {
		return nil, err
	}
	if magic != layout.ExtentMagic || n.Depth() == 1 {
		w.tx.cost += layout.BlockSize // an index node counts when it changes
	}
	return w.stage(block<<layout.BlockShift, layout.BlockSize, block, sealNode), nil
}

// peekNode returns a tree block for reading, the private copy if there is one.
func (w *Worker) peekNode(block uint64, magic uint32, owner uint64) (layout.Node, error) {
	if len(w.tx.objects) > 0 {
		if s := w.tx.find(block << layout.BlockShift); s != nil {
			return s.buf, nil
		}
	}
	return w.fs.node(block, magic, owner)
}

// node returns a verified tree block of owner. magic 0 accepts both kinds of
// directory blocks.
func (fs *FS) node(block uint64, magic uint32, owner uint64) (layout.Node, error) {
	b := fs.block(block)
	if b == nil {
		return nil, fs.damaged(false, "inode %d: tree points to block %d outside of the data area", owner, block)
	}
	n := layout.Node(b)
	if !fs.verified.has(block) {
		if !layout.Verify(fs.seed, block, n.Covered()) {
			return nil, fs.damaged(false, "inode %d: checksum of block %d is wrong", owner, block)
		}
		fs.verified.set(block)
	}
	m := n.Magic()
	ok := m == magic || magic == 0 && (m == layout.DirLeafMagic || m == layout.DirIndexMagic)
	if !ok || n.Owner() != owner {
		return nil, fs.damaged(false, "inode %d: block %d is not one of its tree blocks", owner, block)
	}
	return n, nil
}

// newNode allocates a block for a tree of owner.
func (w *Worker) newNode(magic uint32, owner uint64, depth uint16) (uint64, layout.Node, error) {
	s, err := w.takeReserved(0, 1, false, w.tx.last)
	if err != nil {
		return 0, nil, err
	}
	buf := w.tx.alloc(layout.BlockSize)
	clear(buf)
	n := layout.Node(buf)
	n.InitNode(magic, owner, depth)
	w.tx.objects = append(w.tx.objects, staged{off: s.start << layout.BlockShift, location: s.start,
		buf: buf, seal: sealNode, fresh: true})
	return s.start, n, nil
}

// takeReserved takes up to want contiguous blocks out of the transaction's
// reserve, topping the reserve up as needed.
func (w *Worker) takeReserved(goal uint64, want uint32, aligned, privileged bool) (span, error) {
	t := &w.tx
	if t.reserve < uint64(want) {
		need := uint64(want) - t.reserve
		if err := w.fs.reserveBlocks(need, privileged); err != nil {
			return span{}, err
		}
		t.reserve += need
	}
	s, err := w.takeBlocks(goal, want, aligned)
	if err != nil {
		return span{}, err
	}
	t.reserve -= s.n
	t.taken = append(t.taken, s)
	t.cost += spanCost(s)
	return s, nil
}

// reserve makes sure that n blocks can be taken. Operations that free space
// are privileged: they may use the volume's last blocks.
func (w *Worker) reserve(n uint64, privileged bool) error {
	if w.tx.reserve >= n {
		return nil
	}
	need := n - w.tx.reserve
	if err := w.fs.reserveBlocks(need, privileged); err != nil {
		return err
	}
	w.tx.reserve += need
	return nil
}

// spanCost bounds the record bytes that a change of a span's bits takes.
func spanCost(s span) int {
	return int(s.n/64+2)*8 + int(s.n/layout.ChunkBits+2)*2*(layout.PatchHeader+8)
}

// free frees blocks with the transaction.
func (w *Worker) free(start, n uint64) error {
	if !w.fs.inGroups(start, n) {
		return w.fs.damaged(false, "blocks %d+%d to be freed lie outside of a group", start, n)
	}
	t := &w.tx
	if k := len(t.frees) - 1; k >= 0 && t.frees[k].end() == start && layout.GroupOf(start) == layout.GroupOf(t.frees[k].start) {
		t.frees[k].n += n
	} else {
		t.frees = append(t.frees, span{start, n})
	}
	t.cost += spanCost(span{start, n})
	return nil
}

// freeNode frees a tree block; a private copy of it is not written.
func (w *Worker) freeNode(block uint64) error {
	if s := w.tx.find(block << layout.BlockShift); s != nil {
		s.dropped = true
	}
	w.fs.verified.drop(block)
	return w.free(block, 1)
}

// rollback gives back what the transaction took and forgets it.
func (w *Worker) rollback() {
	t := &w.tx
	if t.dirty { // stores in place that nothing will undo
		if err := w.p.Fence(); err != nil {
			_ = w.fs.damaged(true, "data could not be made durable: %v", err)
		}
	}
	t.unlockGroups()
	for _, s := range t.taken {
		g := w.fs.group(layout.GroupOf(s.start))
		g.mu.Lock()
		g.giveBack(s)
		g.mu.Unlock()
		w.fs.unreserveBlocks(s.n)
	}
	for _, ino := range t.newInodes {
		w.fs.giveBackInode(ino)
	}
	w.reset()
}

// unlockGroups releases what stageBitmaps locked.
func (t *tx) unlockGroups() {
	for ; t.locked > 0; t.locked-- {
		t.groups[t.locked-1].mu.Unlock()
	}
}

func (w *Worker) reset() {
	t := &w.tx
	if t.reserve > 0 {
		w.fs.unreserveBlocks(t.reserve)
	}
	*t = tx{w: w, objects: t.objects[:0], slabs: t.slabs, taken: t.taken[:0], frees: t.frees[:0],
		newInodes: t.newInodes[:0], oldInodes: t.oldInodes[:0], orphaned: t.orphaned[:0],
		adopted: t.adopted[:0], groups: t.groups[:0]}
}

// setIntent stages the intent of the worker, which stands in the first slot of
// its pair.
func (w *Worker) setIntent(kind uint32, node NodeID, start, end, aux uint64) {
	off := layout.SlotOffset(w.pair) + layout.RecIntent
	t := layout.Intent(w.stage(off, layout.IntentSize, layout.IntentLocation+uint64(w.pair), sealWhole))
	t.Set(kind, uint64(node), start, end, aux)
	w.tx.more = kind != layout.IntentNone
}

// commit makes the transaction happen. When it fails before the commit point
// nothing has changed; a failure after it leaves the volume read-only, to be
// finished by the next recovery.
func (w *Worker) commit() error {
	if err := w.writeFresh(); err != nil {
		w.rollback()
		return err
	}
	if err := w.stageBitmaps(); err != nil {
		w.rollback()
		return err
	}
	n := w.buildRecord()
	if n < 0 {
		w.rollback()
		return w.fs.damaged(false, "transaction exceeds a journal record")
	}
	if n > 0 {
		if err := w.carryOut(n); err != nil {
			w.rollback()
			return err
		}
	}
	w.settle()
	return nil
}

// carryOut logs the record, applies and retires it. If it does not get to the
// end, by an error or a panic, the volume is read-only before the first lock
// is released: nobody may change what the next recovery will replay.
func (w *Worker) carryOut(n int) (err error) {
	if w.fs.readOnly.Load() && !w.tx.note {
		return errReadOnly
	}
	retired := false
	defer func() {
		if !retired {
			w.stuck = true
			err = w.fs.halted("a journal record could not be carried out: %v", err)
		}
	}()
	w.tx.committed = true
	if err := w.log(n); err != nil {
		return err
	}
	if err := w.apply(n); err != nil {
		return err
	}
	retired = true
	return nil
}

// writeFresh stores the new blocks and makes them and the data durable.
func (w *Worker) writeFresh() error {
	t := &w.tx
	for i := range t.objects {
		s := &t.objects[i]
		if !s.fresh || s.dropped {
			continue
		}
		covered := layout.Node(s.buf).Covered()
		layout.Seal(w.fs.seed, s.location, covered)
		w.p.Copy(s.off, s.buf[:(len(covered)+7)&^7])
		w.fs.verified.set(s.location)
		t.dirty = true
	}
	if !t.dirty {
		return nil
	}
	t.dirty = false
	if mistakeFence {
		return nil
	}
	if err := w.p.Fence(); err != nil {
		return w.fs.damaged(true, "data could not be made durable: %v", err)
	}
	return nil
}

// stageBitmaps locks the groups that the transaction changes and stages the
// changes of their bitmaps.
func (w *Worker) stageBitmaps() error {
	t, fs := &w.tx, w.fs
	add := func(g *group) {
		if !slices.Contains(t.groups, g) {
			t.groups = append(t.groups, g)
		}
	}
	ofInode := func(ino uint64) *group { return fs.group(layout.InodeGroup(ino, fs.sb.InodesPerGroup)) }
	for _, s := range t.taken {
		add(fs.group(layout.GroupOf(s.start)))
	}
	for _, s := range t.frees {
		add(fs.group(layout.GroupOf(s.start)))
	}
	for _, l := range [...][]uint64{t.newInodes, t.oldInodes, t.orphaned, t.adopted} {
		for _, ino := range l {
			add(ofInode(ino))
		}
	}
	for i := 1; i < len(t.groups); i++ { // few: insertion sort
		for j := i; j > 0 && t.groups[j].num < t.groups[j-1].num; j-- {
			t.groups[j], t.groups[j-1] = t.groups[j-1], t.groups[j]
		}
	}
	for _, g := range t.groups {
		g.mu.Lock()
		t.locked++
		if !fs.loadGroup(g) {
			return errIO
		}
	}
	ok := true
	for _, s := range t.taken {
		ok = w.markBlocks(s, true) && ok
	}
	for _, s := range t.frees {
		ok = w.markBlocks(s, false) && ok
	}
	for _, ino := range t.newInodes {
		ok = w.markInode(inodeBitmap, ino, true) && ok
	}
	for _, ino := range t.oldInodes {
		ok = w.markInode(inodeBitmap, ino, false) && ok
	}
	for _, ino := range t.orphaned {
		ok = w.markInode(orphanBitmap, ino, true) && ok
	}
	for _, ino := range t.adopted {
		ok = w.markInode(orphanBitmap, ino, false) && ok
	}
	if !ok {
		return fs.damaged(true, "a bitmap contradicts the use of a block or inode")
	}
	return nil
}

func (w *Worker) stageChunk(g *group, b bitmap, bit uint32) layout.Chunk {
	off := g.chunkOffset(b, bit)
	return w.stage(off, layout.ChunkSize, layout.ChunkLocation(off), sealWhole)
}

// markBlocks sets or clears the bits of a span, which must have the other
// value before.
func (w *Worker) markBlocks(s span, used bool) bool {
	g := w.fs.group(layout.GroupOf(s.start))
	for bit, end := uint32(s.start-g.start), uint32(s.end()-g.start); bit < end; {
		c := w.stageChunk(g, blockBitmap, bit)
		sh := bit % 64
		n := min(end-bit, 64-sh)
		mask := (^uint64(0) >> (64 - n)) << sh
		i := int(bit % layout.ChunkBits / 64)
		v := c.Word(i)
		if used {
			if v&mask != 0 {
				return false
			}
			c.SetWord(i, v|mask)
			c.SetCount(c.Count() - n)
		} else {
			if v&mask != mask {
				return false
			}
			c.SetWord(i, v&^mask)
			c.SetCount(c.Count() + n)
		}
		bit += n
	}
	return true
}

// markInode sets or clears an inode's bit in the inode or orphan bitmap.
func (w *Worker) markInode(b bitmap, ino uint64, v bool) bool {
	g := w.fs.group(layout.InodeGroup(ino, w.fs.sb.InodesPerGroup))
	bit := layout.InodeIndex(ino, w.fs.sb.InodesPerGroup)
	c := w.stageChunk(g, b, bit)
	if c.Bit(bit%layout.ChunkBits) == v {
		return false
	}
	c.SetBit(bit%layout.ChunkBits, v)
	if v == (b == orphanBitmap) {
		c.SetCount(c.Count() + 1)
	} else {
		c.SetCount(c.Count() - 1)
	}
	return true
}

// buildRecord seals the staged objects and puts what differs from memory
// into the record. It returns the payload's length, 0 when nothing differs,
// -1 when it does not fit.
func (w *Worker) buildRecord() int {
	t := &w.tx
	for i := 1; i < len(t.objects); i++ { // by address, so that lines are flushed once
		for j := i; j > 0 && t.objects[j].off < t.objects[j-1].off; j-- {
			t.objects[j], t.objects[j-1] = t.objects[j-1], t.objects[j]
		}
	}
	pos, patches := layout.PayloadStart, uint32(0)
	for i := range t.objects {
		s := &t.objects[i]
		if s.fresh || s.dropped {
			continue
		}
		covered := s.buf
		if s.seal == sealNode {
			covered = layout.Node(s.buf).Covered()
		}
		layout.Seal(w.fs.seed, s.location, covered)
		var n uint32
		if pos, n = w.diff(s, pos); pos < 0 {
			return -1
		}
		patches += n
	}
	r := layout.Record(w.rec)
	r.Init()
	r.SetLength(uint32(pos - layout.PayloadStart))
	r.SetPatches(patches)
	if w.req.Conn != 0 {
		req := t.result
		req.Conn, req.Unique, req.Op, req.More = w.req.Conn, w.req.Unique, w.op, t.more
		r.SetRequest(req)
	}
	return pos - layout.PayloadStart
}

// diffGap is how many equal words are rather repeated than paid for with
// another patch header.
const diffGap = layout.PatchHeader / 8

// diff appends patches for the words of s that differ from memory.
func (w *Worker) diff(s *staged, pos int) (int, uint32) {
	mem := w.fs.mem[s.off : s.off+uint64(len(s.buf))]
	patches := uint32(0)
	words := len(s.buf) / 8
	const stride = 32 // words that are skipped at a time
	for i := 0; i < words; i++ {
		if i%stride == 0 && i+stride <= words && bytes.Equal(mem[8*i:8*(i+stride)], s.buf[8*i:8*(i+stride)]) {
			i += stride - 1
			continue
		}
		if binary.LittleEndian.Uint64(mem[8*i:]) == binary.LittleEndian.Uint64(s.buf[8*i:]) {
			continue
		}
		end := i + 1
		for j := end; j < words && j <= end+diffGap; j++ {
			if binary.LittleEndian.Uint64(mem[8*j:]) != binary.LittleEndian.Uint64(s.buf[8*j:]) {
				end = j + 1
			}
		}
		n := 8 * (end - i)
		if pos+layout.PatchHeader+n > layout.SlotSize {
			return -1, 0
		}
		layout.PutPatchHeader(w.rec[pos:], s.off+uint64(8*i), uint32(n))
		copy(w.rec[pos+layout.PatchHeader:], s.buf[8*i:8*end])
		pos += layout.PatchHeader + n
		patches++
		i = end
	}
	return pos, patches
}

// log stores the record; when it returns nil the transaction has happened.
func (w *Worker) log(n int) error {
	w.spareSlot()
	w.answering = w.req.Conn != 0
	r := layout.Record(w.rec)
	r.SetSeq(w.fs.seq.Add(1))
	r.SealRecord(w.fs.seed)
	w.p.Copy(w.off, w.rec[:layout.RecRetire])
	w.p.Copy(w.off+layout.PayloadStart, w.rec[layout.PayloadStart:layout.PayloadStart+n])
	return w.p.Fence()
}

// apply carries the record out and retires it.
func (w *Worker) apply(n int) error {
	if err := applyRecord(w.p, w.rec[:layout.PayloadStart+n]); err != nil {
		return err
	}
	return w.fs.retire(w.p, w.off, layout.Record(w.rec).Seq())
}

// applyRecord stores the patches of a record and fences.
func applyRecord(p interface {
	Store64(off, v uint64)
	Flush(off, n uint64)
	Fence() error
}, r layout.Record) error {
	const line = 64
	var from, to uint64 // lines that await a flush
	for pos := uint32(0); pos < r.Length(); {
		patch, next := r.PatchAt(pos)
		if next == 0 {
			return ErrJournal
		}
		first, last := patch.Off&^(line-1), (patch.Off+uint64(len(patch.Data))+line-1)&^(line-1)
		if first > to || to == 0 {
			if to > from {
				p.Flush(from, to-from)
			}
			from = first
		}
		to = max(to, last)
		for i := 0; i < len(patch.Data); i += 8 {
			p.Store64(patch.Off+uint64(i), binary.LittleEndian.Uint64(patch.Data[i:]))
		}
		pos = next
	}
	if to > from && !mistakeTail {
		p.Flush(from, to-from)
	}
	return p.Fence()
}

// retire marks the record seq in the slot at off as carried out.
func (fs *FS) retire(p interface {
	Store64(off, v uint64)
	Flush(off, n uint64)
	Fence() error
}, off, seq uint64) error {
	p.Store64(off+layout.RecRetire, layout.RetireWord(fs.seed, seq))
	p.Flush(off+layout.RecRetire, 8)
	return p.Fence()
}

// settle updates the counts in memory, releases the groups and empties the
// transaction.
func (w *Worker) settle() {
	t, fs := &w.tx, w.fs
	for _, s := range t.taken {
		g := fs.group(layout.GroupOf(s.start))
		if i := slices.Index(g.busy, s); i >= 0 {
			g.busy = slices.Delete(g.busy, i, i+1)
		}
	}
	freed := uint64(0)
	for _, s := range t.frees {
		g := fs.group(layout.GroupOf(s.start))
		g.freeBlocks += int64(s.n)
		g.blockCursor = min(g.blockCursor, uint32(s.start-g.start)) // memory in use lately is mapped and warm
		freed += s.n
	}
	perGroup := fs.sb.InodesPerGroup
	for _, ino := range t.newInodes {
		g := fs.group(layout.InodeGroup(ino, perGroup))
		if i := slices.Index(g.busyInodes, layout.InodeIndex(ino, perGroup)); i >= 0 {
			g.busyInodes = slices.Delete(g.busyInodes, i, i+1)
		}
	}
	for _, ino := range t.oldInodes {
		fs.group(layout.InodeGroup(ino, perGroup)).freeInodes++
	}
	for _, ino := range t.orphaned {
		fs.group(layout.InodeGroup(ino, perGroup)).orphans++
	}
	for _, ino := range t.adopted {
		fs.group(layout.InodeGroup(ino, perGroup)).orphans--
	}
	t.unlockGroups()
	fs.unreserveBlocks(freed)
	fs.freeInodes.Add(int64(len(t.oldInodes)))
	w.reset()
}
