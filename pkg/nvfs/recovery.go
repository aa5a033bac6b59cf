package nvfs

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// replayJournal is the first step of recovery: it carries out the records
// that were not retired. A crash at any point of recovery leaves a volume
// that it recovers just the same.
func (fs *FS) replayJournal() error {
	pending, err := fs.scanJournal()
	switch {
	case err != nil:
		return err
	case len(pending) > 0 && fs.space.ReadOnly():
		return ErrNeedsRecovery
	case fs.space.ReadOnly():
		return nil
	}
	p := fs.space.NewPersister()
	if err := fs.replay(p, pending); err != nil {
		return err
	}
	return fs.clearTorn(p)
}

// clearTorn makes sure that a record which a crash tore never becomes whole.
// The next record in its slot might store just the lines that are missing, if
// the same operation is done again, and a second crash keep no others of it;
// then what is long out of date would be replayed. Without its first word it
// cannot be.
func (fs *FS) clearTorn(p pmem.Persister) error {
	torn := false
	for slot := range int(fs.sb.Slots) {
		r := fs.slotRecord(slot)
		retired, _ := r.Retired(fs.seed)
		if r.Magic() != layout.RecordMagic || r.Valid(fs.seed) || r.Seq() <= retired {
			continue
		}
		p.Store64(layout.SlotOffset(slot), 0)
		p.Flush(layout.SlotOffset(slot), 8)
		torn = true
	}
	if !torn {
		return nil
	}
	if err := p.Fence(); err != nil {
		return fmt.Errorf("clear the records that a crash tore: %w", err)
	}
	return nil
}

// recover is the second step: it verifies the root, marks the volume mounted
// and completes the operations that were interrupted between two records.
func (fs *FS) recover() error {
	dyn := layout.Dynamic(fs.mem[layout.DynamicOffset : layout.DynamicOffset+layout.StaticSize])
	if !layout.Verify(fs.seed, layout.DynamicLocation, dyn) {
		_ = fs.damaged(false, "dynamic half of the superblock is damaged")
	} else {
		fs.recallDamage(dyn)
	}
	if n, err := fs.inodeAt(RootID); err != nil || !isDir(n) {
		return errors.New("root directory is damaged; run fsck")
	}
	intents := fs.hasIntents()
	if fs.readOnly.Load() {
		switch {
		case !intents:
			return nil
		case fs.space.ReadOnly():
			return ErrNeedsRecovery
		}
		fs.readOnly.Store(false) // what was begun is completed even so
		defer fs.readOnly.Store(true)
		return fs.completeIntents()
	}
	fs.wasClean = dyn.State() == layout.StateClean && fs.damages.Load() == 0
	if err := fs.setState(layout.StateMounted); err != nil {
		return err
	}
	if err := fs.refreshCopy(); err != nil {
		return err
	}
	return fs.completeIntents()
}

// refreshCopy writes the superblock's copy again if it differs: a crash in
// the middle of a growth can have cost it.
func (fs *FS) refreshCopy() error {
	tail := (fs.sb.Devices[0].Blocks - 1) * layout.BlockSize
	if bytes.Equal(fs.mem[tail:tail+layout.StaticSize], fs.mem[:layout.StaticSize]) {
		return nil
	}
	fs.internal.p.Copy(tail, bytes.Clone(fs.mem[:layout.StaticSize]))
	return fs.internal.p.Fence()
}

// pendingRecord is a record that was not retired.
type pendingRecord struct {
	slot int
	seq  uint64
}

func (fs *FS) slotRecord(slot int) layout.Record {
	off := layout.SlotOffset(slot)
	return fs.mem[off : off+layout.SlotSize]
}

// scanJournal reads all slots, whatever the number of CPUs was: it finds the
// highest sequence number and the records to be replayed, in order.
func (fs *FS) scanJournal() ([]pendingRecord, error) {
	var pending []pendingRecord
	for slot := range int(fs.sb.Slots) {
		r := fs.slotRecord(slot)
		retired, ok := r.Retired(fs.seed)
		if !ok {
			return nil, fmt.Errorf("%w: retire word of slot %d", ErrJournal, slot)
		}
		fs.seq.Store(max(fs.seq.Load(), retired))
		if r.HoldsAnswers(fs.seed) {
			fs.seq.Store(max(fs.seq.Load(), r.Seq()))
		}
		if !r.Valid(fs.seed) {
			continue // empty, or torn before its commit point
		}
		fs.seq.Store(max(fs.seq.Load(), r.Seq()))
		if r.Seq() > retired {
			pending = append(pending, pendingRecord{slot, r.Seq()})
		}
	}
	slices.SortFunc(pending, func(a, b pendingRecord) int { return cmp.Compare(a.seq, b.seq) })
	return pending, nil
}

// hasIntents reports whether an operation was interrupted between two of its
// records.
func (fs *FS) hasIntents() bool {
	for slot := range int(fs.sb.Slots) {
		if t := fs.intent(slot); !t.Empty() && t.Kind() != layout.IntentNone {
			return true
		}
	}
	return false
}

func (fs *FS) intent(slot int) layout.Intent {
	off := layout.SlotOffset(slot) + layout.RecIntent
	return fs.mem[off : off+layout.IntentSize]
}

// replay carries pending records out. All patches are checked before the
// first is stored.
func (fs *FS) replay(p pmem.Persister, pending []pendingRecord) error {
	for _, p := range pending {
		if err := fs.checkPatches(fs.slotRecord(p.slot)); err != nil {
			return fmt.Errorf("%w: slot %d: %w", ErrJournal, p.slot, err)
		}
	}
	for _, rec := range pending {
		if err := applyRecord(p, fs.slotRecord(rec.slot)); err != nil {
			return fmt.Errorf("replay journal slot %d: %w", rec.slot, err)
		}
		if err := fs.retire(p, layout.SlotOffset(rec.slot), rec.seq); err != nil {
			return fmt.Errorf("retire journal slot %d: %w", rec.slot, err)
		}
	}
	return nil
}

func (fs *FS) checkPatches(r layout.Record) error {
	for pos := uint32(0); pos < r.Length(); {
		patch, next := r.PatchAt(pos)
		if next == 0 {
			return fmt.Errorf("patch at %d is malformed", pos)
		}
		if !fs.inDevice(patch.Off, uint64(len(patch.Data))) {
			return fmt.Errorf("patch of %d bytes at %d is outside of the volume", len(patch.Data), patch.Off)
		}
		pos = next
	}
	return nil
}

// inDevice reports whether n bytes at off lie in one device of the table.
func (fs *FS) inDevice(off, n uint64) bool {
	for _, d := range fs.sb.Devices {
		start, size := d.Base<<layout.BlockShift, d.Blocks<<layout.BlockShift
		if off >= start && off-start < size && n <= size-(off-start) {
			return true
		}
	}
	return false
}

// completeIntents finishes the operations that were interrupted between two
// of their records.
func (fs *FS) completeIntents() error {
	for slot := range int(fs.sb.Slots) {
		t := fs.intent(slot)
		if t.Empty() {
			continue
		}
		if !layout.Verify(fs.seed, layout.IntentLocation+uint64(slot), t) || !t.Known() {
			return fmt.Errorf("%w: intent of slot %d", ErrJournal, slot)
		}
		if t.Kind() == layout.IntentNone {
			continue
		}
		if err := fs.completeIntent(slot, t); err != nil {
			return fmt.Errorf("complete the operation of slot %d: %w", slot, err)
		}
	}
	return nil
}

// completeIntent repeats the operation, with the mount's own slot, and then
// withdraws the intent. Repeating is harmless: each kind describes a result.
func (fs *FS) completeIntent(slot int, t layout.Intent) error {
	w := fs.internal
	id := NodeID(t.Node())
	kind, start, end, aux := t.Kind(), t.Start(), t.End(), t.Aux()
	w.Begin(&Request{})
	defer w.End()
	w.now = fs.clock()
	w.lock(id.Ino())
	err := w.repeat(id, kind, start, end, aux)
	w.rollback()
	w.unlock()
	if err != nil {
		return err
	}
	c := layout.Intent(w.stage(layout.SlotOffset(slot)+layout.RecIntent, layout.IntentSize, layout.IntentLocation+uint64(slot), sealWhole))
	c.Set(layout.IntentNone, 0, 0, 0, 0)
	return w.commit()
}

func (w *Worker) repeat(id NodeID, kind uint32, start, end, aux uint64) error {
	n, err := w.stageInode(id)
	if err != nil {
		if err == errStale {
			return nil // the file is gone
		}
		return err
	}
	if n.Format() != layout.FormatExtents {
		return nil
	}
	if start > end && kind != layout.IntentTruncate || end > maxFileSize || aux > maxFileSize {
		return w.fs.damaged(true, "inode %d: the operation to be completed cannot be", id.Ino())
	}
	switch kind {
	case layout.IntentTruncate:
		step := func(n layout.Inode) (bool, error) { return w.truncateStep(id.Ino(), n, start) }
		done, err := step(n)
		if err != nil {
			return err
		}
		return w.chain(id, intent{kind: kind, start: start}, done, step)
	case layout.IntentPunch:
		return w.punch(id, n, start, end)
	case layout.IntentZero:
		return w.zeroRange(id, n, start, end, aux)
	case layout.IntentAllocate:
		return w.preallocate(id, n, start, end, aux)
	}
	return nil
}
