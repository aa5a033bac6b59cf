package fsck

import (
	"encoding/binary"
	"math/bits"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// repairJournal makes retire words and intents valid and carries out the
// records that are to be replayed. It is the first step: records of the
// repair's own follow in the journal.
func (r *repairer) repairJournal() {
	r.ch.seq = r.lastSeq()
	for i := range int(r.sb.Slots) {
		r.repairRetireWord(i)
	}
	for _, rec := range r.unretired() {
		slot := r.slotOf(rec)
		if r.ch.err == nil && r.patchesFit(rec) {
			r.ch.err = r.ch.apply(rec)
		} else {
			r.did(Problem{Code: JournalRecord, Block: slot / blockSize}, "record %d is malformed; it was retired without being replayed", rec.Seq())
		}
		if r.ch.err == nil {
			r.ch.err = r.ch.retire(slot, rec.Seq())
		}
	}
	for i := range int(r.sb.Slots) {
		r.repairIntent(i)
	}
}

// slotOf is the byte offset of the slot that rec lies in.
func (r *repairer) slotOf(rec layout.Record) uint64 {
	for i := range int(r.sb.Slots) {
		if &r.slotBytes(i)[0] == &rec[0] {
			return layout.SlotOffset(i)
		}
	}
	panic("a record of no slot")
}

// lastSeq is the highest sequence number that the journal knows.
func (r *repairer) lastSeq() uint64 {
	last := uint64(0)
	for i := range int(r.sb.Slots) {
		rec := layout.Record(r.slotBytes(i))
		if seq, ok := rec.Retired(r.seed); ok {
			last = max(last, seq)
		}
		if rec.Valid(r.seed) {
			last = max(last, rec.Seq())
		}
	}
	return last
}

// repairRetireWord decides whether the record of a slot with a damaged retire
// word is to be replayed: yes when it is the last one of the volume, because
// nothing can have changed its objects since then; not when the word is but a
// byte away from the one that retires it.
func (r *repairer) repairRetireWord(i int) {
	rec, slot := layout.Record(r.slotBytes(i)), layout.SlotOffset(i)
	if _, ok := rec.Retired(r.seed); ok || r.ch.err != nil {
		return
	}
	word, seq := binary.LittleEndian.Uint64(rec[layout.RecRetire:]), r.ch.seq
	verdict := "no record stands in it"
	if rec.Valid(r.seed) {
		seq = rec.Seq()
		verdict = "its record counts as carried out"
		if !oneByte(word^layout.RetireWord(r.seed, seq)) && seq == r.ch.seq {
			seq--
			verdict = "its record is replayed"
		}
	}
	if seq == 0 {
		r.ch.p.Store64(slot+layout.RecRetire, 0)
		r.ch.p.Flush(slot+layout.RecRetire, 8)
		r.ch.err = r.ch.fence()
	} else {
		r.ch.err = r.ch.retire(slot, seq)
	}
	r.did(Problem{Code: JournalRetire, Block: slot / blockSize}, "slot %d: the retire word was set anew; %s", i, verdict)
}

// oneByte reports whether all bits of v lie in one byte.
func oneByte(v uint64) bool {
	return v == 0 || bits.TrailingZeros64(v)/8 == (63-bits.LeadingZeros64(v))/8
}

// repairIntent withdraws an intent that does not verify.
func (r *repairer) repairIntent(i int) {
	t := r.intent(i)
	switch {
	case t.Empty():
	case !layout.Verify(r.seed, layout.IntentLocation+uint64(i), t), !t.Known():
		r.clearIntent(i, "it is damaged")
	case t.Kind() == layout.IntentTruncate:
		r.truncating[t.Node()&(1<<36-1)] = true
	}
}

func (r *repairer) intent(i int) layout.Intent {
	return layout.Intent(r.slotBytes(i)[layout.RecIntent:][:layout.IntentSize])
}

// withdrawIntents withdraws the intents of inodes that are not in use any
// more.
func (r *repairer) withdrawIntents() {
	for i := range int(r.sb.Slots) {
		t := r.intent(i)
		if t.Empty() || t.Kind() == layout.IntentNone {
			continue
		}
		if n := r.inode(t.Node() & (1<<36 - 1)); n == nil || n.Generation() != uint32(t.Node()>>36) {
			r.clearIntent(i, "its inode is not in use")
		}
	}
}

func (r *repairer) clearIntent(i int, why string) {
	slot := layout.SlotOffset(i)
	t := layout.Intent(r.ch.stage(slot+layout.RecIntent, layout.IntentSize, layout.IntentLocation+uint64(i), false))
	t.Set(layout.IntentNone, 0, 0, 0, 0)
	r.did(Problem{Code: Intent, Block: slot / blockSize}, "slot %d: the intent was withdrawn: %s", i, why)
	r.ch.commit()
}
