package fsck

import (
	"cmp"
	"slices"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// checkJournal replays the unretired records into the overlay.
func (w *worker) checkJournal() error {
	c := w.checker
	d := layout.Dynamic(c.mem[layout.DynamicOffset:][:layout.StaticSize])
	c.clean = layout.Verify(c.seed, layout.DynamicLocation, d) && d.State() == layout.StateClean
	records := c.unretired()
	if c.clean {
		c.checkCleanJournal(records)
	}
	for i, r := range records {
		if i > 0 && records[i-1].Seq() == r.Seq() {
			c.found.add(Problem{Code: JournalRecord, Block: layout.JournalBlock}, "two records have sequence number %d", r.Seq())
		}
		if !c.patchesFit(r) {
			continue
		}
		c.replay(r)
		c.records++
	}
	if c.records > 0 {
		c.found.note("%d records of the journal were replayed in memory; the next mount does it on the medium", c.records)
	}
	return nil
}

// checkCleanJournal checks that a volume that is marked clean has no record to
// be replayed. The one that marks it so is applied before it is retired.
func (c *checker) checkCleanJournal(records []layout.Record) {
	for _, r := range records {
		if !onlyDynamic(r) {
			c.found.add(Problem{Code: JournalClean, Block: layout.JournalBlock}, "the volume is marked clean, but record %d is not retired", r.Seq())
		}
	}
}

// onlyDynamic reports whether r changes nothing but the dynamic half of the
// superblock.
func onlyDynamic(r layout.Record) bool {
	for pos := uint32(0); pos < r.Length(); {
		p, next := r.PatchAt(pos)
		if next == 0 || p.Off < layout.DynamicOffset || p.Off >= blockSize {
			return false
		}
		pos = next
	}
	return true
}

// slotBytes is the journal slot i as it is on the medium.
func (c *checker) slotBytes(i int) []byte {
	off := layout.SlotOffset(i)
	return c.mem[off : off+layout.SlotSize]
}

// unretired returns the records to be replayed, in order.
func (c *checker) unretired() []layout.Record {
	var list []layout.Record
	for i := range int(c.sb.Slots) {
		r := layout.Record(c.slotBytes(i))
		retired, ok := r.Retired(c.seed)
		if !ok {
			c.found.add(Problem{Code: JournalRetire, Block: layout.SlotOffset(i) / blockSize},
				"slot %d: the retire word is damaged, so it is unknown whether its record has to be replayed", i)
			continue
		}
		if r.Valid(c.seed) && retired < r.Seq() {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b layout.Record) int { return cmp.Compare(a.Seq(), b.Seq()) })
	return list
}

// patchesFit reports whether all patches of r may be applied, and as a
// problem when not.
func (c *checker) patchesFit(r layout.Record) bool {
	n, pos := uint32(0), uint32(0)
	for pos < r.Length() {
		p, next := r.PatchAt(pos)
		if next == 0 {
			c.found.add(Problem{Code: JournalRecord, Block: layout.JournalBlock}, "record %d: the patch at %d is malformed", r.Seq(), pos)
			return false
		}
		if !c.patchAllowed(p) {
			c.found.add(Problem{Code: JournalRecord, Block: layout.JournalBlock}, "record %d: a patch changes bytes %d+%d, which no record may",
				r.Seq(), p.Off, len(p.Data))
			return false
		}
		pos = next
		n++
	}
	if n != r.Patches() {
		c.found.add(Problem{Code: JournalRecord, Block: layout.JournalBlock}, "record %d: it has %d patches, its header says %d", r.Seq(), n, r.Patches())
		return false
	}
	return true
}

func (c *checker) patchAllowed(p layout.Patch) bool {
	if p.Off >= uint64(len(c.mem)) {
		return false
	}
	first, last := p.Off/blockSize, (p.Off+uint64(len(p.Data))-1)/blockSize
	if !c.inDevice(first, last+1) {
		return false
	}
	switch {
	case last == 0:
		return true
	case first >= layout.JournalBlock && first < layout.HeaderBlocks:
		slot := (p.Off - layout.JournalBlock*blockSize) % layout.SlotSize
		return slot >= layout.RecIntent && slot+uint64(len(p.Data)) <= layout.RecIntent+layout.IntentSize
	case first == c.sb.Devices[0].Blocks-1, first == last && c.isLabel(first):
		return true
	}
	g := c.groupOf(first)
	return g != nil && last < g.start+uint64(g.blocks)
}

// replay applies the patches of r to the overlay.
func (c *checker) replay(r layout.Record) {
	if c.overlay == nil {
		c.overlay = map[uint64][]byte{}
	}
	for pos := uint32(0); pos < r.Length(); {
		p, next := r.PatchAt(pos)
		for off, data := p.Off, p.Data; len(data) > 0; {
			b := off / blockSize
			page, ok := c.overlay[b]
			if !ok {
				page = append([]byte(nil), c.mem[b*blockSize:(b+1)*blockSize]...)
				c.overlay[b] = page
			}
			n := copy(page[off%blockSize:], data)
			data, off = data[n:], off+uint64(n)
		}
		pos = next
	}
}

// checkIntents looks at the intent of each slot, after the replay.
func (w *worker) checkIntents() error {
	c := w.checker
	c.truncating = map[uint64]bool{}
	for i := range int(c.sb.Slots) {
		block := layout.SlotOffset(i) / blockSize
		t := layout.Intent(c.block(block)[layout.RecIntent:][:layout.IntentSize])
		if t.Empty() {
			continue
		}
		p := Problem{Code: Intent, Block: block}
		if !layout.Verify(c.seed, layout.IntentLocation+uint64(i), t) {
			c.found.add(p, "slot %d: the checksum of the intent is wrong", i)
			continue
		}
		if t.Kind() == layout.IntentNone {
			continue
		}
		if c.clean {
			c.found.add(Problem{Code: JournalClean, Block: block}, "slot %d: the volume is marked clean, but an intent stands", i)
		}
		c.checkIntent(p, i, t)
	}
	return nil
}

var intentNames = [...]string{layout.IntentTruncate: "truncation", layout.IntentPunch: "hole punching",
	layout.IntentZero: "zeroing", layout.IntentAllocate: "allocation"}

func (c *checker) checkIntent(p Problem, slot int, t layout.Intent) {
	ino, gen := t.Node()&(1<<36-1), uint32(t.Node()>>36)
	p.Ino = ino
	if !t.Known() {
		c.found.add(p, "slot %d: kind %d of the intent is unknown", slot, t.Kind())
		return
	}
	n := c.inode(ino)
	if n == nil || n.Generation() != gen {
		c.found.add(p, "slot %d: the intent names inode %d of generation %d, which is not in use", slot, ino, gen)
		return
	}
	if t.Kind() == layout.IntentTruncate {
		c.truncating[ino] = true
	}
	c.found.note("slot %d: a %s of inode %d is unfinished; the next mount completes it", slot, intentNames[t.Kind()], ino)
}
