package fsck

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// record puts a record with these patches into a slot.
func (im *image) record(slot int, seq uint64, patches ...layout.Patch) layout.Record {
	off := layout.SlotOffset(slot)
	r := layout.Record(im.mem[off : off+layout.SlotSize])
	r.Init()
	r.SetSeq(seq)
	pos := uint32(0)
	for _, p := range patches {
		q := r[layout.PayloadStart+pos:]
		layout.PutPatchHeader(q, p.Off, uint32(len(p.Data)))
		copy(q[layout.PatchHeader:], p.Data)
		pos += layout.PatchHeader + uint32(len(p.Data))
	}
	r.SetLength(pos)
	r.SetPatches(uint32(len(patches)))
	r.SealRecord(im.seed)
	return r
}

func (im *image) retire(slot int, seq uint64) {
	binary.LittleEndian.PutUint64(im.mem[layout.SlotOffset(slot)+layout.RecRetire:], layout.RetireWord(im.seed, seq))
}

// Records that were not retired are replayed, in the order of their numbers,
// and the volume is checked as they leave it.
func TestReplay(t *testing.T) {
	p := populate(t, true)
	p.setState(layout.StateMounted)
	off := layout.InodeOffset(p.inline.ino, testPerGroup)
	good := bytes.Clone(p.inode(p.inline.ino))
	p.inode(p.inline.ino)[50]++ // the record's own application is torn
	bad := bytes.Clone(good)
	bad[51]++
	p.record(3, 10, layout.Patch{Off: off, Data: bad})
	p.record(0, 11, layout.Patch{Off: off, Data: good[:256]}, layout.Patch{Off: off + 256, Data: good[256:]})
	p.retire(0, 7)
	p.record(1, 12, layout.Patch{Off: off, Data: make([]byte, 512)})
	p.retire(1, 12) // this one is done
	before := bytes.Clone(p.block(off / layout.BlockSize))
	r := check(t, p.mem, Options{})
	for _, x := range r.Problems {
		t.Error(x)
	}
	if r.Totals.Records != 2 || len(r.Notes) == 0 || !strings.Contains(r.Notes[0], "2 records") {
		t.Errorf("%d records, notes %q", r.Totals.Records, r.Notes)
	}
	if !bytes.Equal(before, p.block(off/layout.BlockSize)) {
		t.Error("the replay changed the volume")
	}
	p.setState(layout.StateClean)
	if r := check(t, p.mem, Options{}); r.Counts[JournalClean] != 2 || r.Total() != 2 {
		t.Errorf("clean volume with records: %v", r.Counts)
	}
}

// The record that marks the volume clean may be the last.
func TestReplayOfUnmount(t *testing.T) {
	p := populate(t, true)
	dynamic := layout.Patch{Off: layout.DynamicOffset, Data: bytes.Clone(p.mem[layout.DynamicOffset:layout.BlockSize])}
	p.record(0, 5, dynamic)
	if r := check(t, p.mem, Options{}); r.Total() != 0 || r.Totals.Records != 1 {
		t.Errorf("%v", r.Problems)
	}
	p.setState(layout.StateMounted)
	if r := check(t, p.mem, Options{}); r.Total() != 0 || r.Totals.Records != 1 {
		t.Errorf("%v", r.Problems)
	}
}

// A record may change the superblock: a growth that was interrupted.
func TestReplayOfGrowth(t *testing.T) {
	const blocks = layout.MinBlocks + 2000
	im := newImage(t, layout.MinBlocks)
	im.write()
	im.setState(layout.StateMounted)
	old := bytes.Clone(im.mem)
	big := newImage(t, blocks)
	big.write()
	big.setState(layout.StateMounted)
	var patches []layout.Patch
	group := layout.GroupStart(0) * layout.BlockSize
	for _, r := range [][2]uint64{{0, layout.StaticSize}, {group, layout.GroupDescSize}, {group + layout.BlockSize, layout.BlockSize}} {
		patches = append(patches, layout.Patch{Off: r[0], Data: bytes.Clone(big.mem[r[0] : r[0]+r[1]])})
	}
	grown := append(old, make([]byte, blocks*layout.BlockSize-len(old))...)
	copy(grown[(blocks-1)*layout.BlockSize:], big.block(blocks-1))
	for name, tear := range map[string]func(p []byte){
		"nothing applied":  func([]byte) {},
		"superblock torn":  func(p []byte) { copy(p[520:600], big.mem[520:600]) },
		"half of it":       func(p []byte) { copy(p[:layout.StaticSize], big.mem); copy(p[group:], big.mem[group:group+8]) },
		"all, not retired": func(p []byte) { copy(p[:group+2*layout.BlockSize], big.mem) },
	} {
		im.mem = bytes.Clone(grown)
		tear(im.mem)
		im.record(2, 5, patches...)
		r := check(t, im.mem, Options{})
		for _, x := range r.Problems {
			t.Errorf("%s: %v", name, x)
		}
		if r.Totals.Blocks != blocks-layout.HeaderBlocks-1 {
			t.Errorf("%s: %d blocks", name, r.Totals.Blocks)
		}
	}
}

func TestJournalProblems(t *testing.T) {
	for name, c := range map[string]struct {
		code Code
		edit func(p *populated)
	}{
		"retire word": {JournalRetire, func(p *populated) {
			p.record(0, 5, layout.Patch{Off: 0, Data: make([]byte, 8)})
			p.retire(0, 4)
			p.mem[layout.SlotOffset(0)+layout.RecRetire]++
		}},
		"retire word of an empty slot": {JournalRetire, func(p *populated) { p.mem[layout.SlotOffset(2)+layout.RecRetire]++ }},
		"equal numbers": {JournalRecord, func(p *populated) {
			intent := layout.Patch{Off: layout.SlotOffset(0) + layout.RecIntent, Data: make([]byte, 64)}
			p.record(0, 5, intent)
			p.record(1, 5, intent)
		}},
		"off the volume": {JournalRecord, func(p *populated) { p.record(0, 5, layout.Patch{Off: 1 << 62, Data: make([]byte, 8)}) }},
		"at the end of numbers": {JournalRecord, func(p *populated) {
			p.record(0, 5, layout.Patch{Off: ^uint64(0) &^ 7, Data: make([]byte, 64)})
		}},
		"across the end": {JournalRecord, func(p *populated) { p.record(0, 5, layout.Patch{Off: uint64(len(p.mem)) - 8, Data: make([]byte, 16)}) }},
		"in the header":  {JournalRecord, func(p *populated) { p.record(0, 5, layout.Patch{Off: 8192, Data: make([]byte, 8)}) }},
		"in a record":    {JournalRecord, func(p *populated) { p.record(0, 5, layout.Patch{Off: layout.SlotOffset(1), Data: make([]byte, 8)}) }},
		"beyond an intent": {JournalRecord, func(p *populated) {
			p.record(0, 5, layout.Patch{Off: layout.SlotOffset(1) + layout.RecIntent, Data: make([]byte, 72)})
		}},
		"patch count": {JournalRecord, func(p *populated) {
			r := p.record(0, 5, layout.Patch{Off: 0, Data: make([]byte, 8)})
			r.SetPatches(2)
			r.SealRecord(p.seed)
		}},
		"malformed patch": {JournalRecord, func(p *populated) {
			r := p.record(0, 5, layout.Patch{Off: 0, Data: make([]byte, 8)})
			layout.PutPatchHeader(r[layout.PayloadStart:], 0, 1<<31)
			r.SealRecord(p.seed)
		}},
	} {
		p := populate(t, true)
		p.setState(layout.StateMounted)
		c.edit(p)
		r := check(t, p.mem, Options{})
		if r.Total() != 1 || r.Counts[c.code] != 1 {
			t.Errorf("%s: %v", name, r.Problems)
		}
	}
}

// A record that was never completed means nothing.
func TestTornRecord(t *testing.T) {
	p := populate(t, true)
	p.setState(layout.StateMounted)
	r := p.record(0, 5, layout.Patch{Off: 0, Data: make([]byte, 2048)})
	r[layout.PayloadStart+100]++
	if r := check(t, p.mem, Options{}); r.Total() != 0 || r.Totals.Records != 0 {
		t.Errorf("%v", r.Problems)
	}
}

// An intent is a note, and a truncation lets blocks lie behind the end.
func TestIntents(t *testing.T) {
	p := populate(t, true)
	p.setIntent(layout.IntentTruncate, p.big.node())
	p.inode(p.big.ino).SetSize(1)
	p.sealInode(p.big.ino)
	r := check(t, p.mem, Options{})
	for _, x := range r.Problems {
		t.Error(x)
	}
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "truncation") {
		t.Errorf("notes %q", r.Notes)
	}
	p.setIntent(layout.IntentPunch, p.big.node())
	if r := check(t, p.mem, Options{}); r.Counts[ExtentEOF] == 0 {
		t.Error("a punch excuses blocks behind the end")
	}
	p.setIntent(layout.IntentNone, 0)
	if r := check(t, p.mem, Options{}); len(r.Notes) != 0 || r.Counts[ExtentEOF] == 0 {
		t.Errorf("notes %q, counts %v", r.Notes, r.Counts)
	}
}

// A lost copy of the superblock is a problem of a clean volume only.
func TestCopyLostInGrowth(t *testing.T) {
	p := populate(t, true)
	p.block(p.sb.Devices[0].Blocks - 1)[77]++
	if r := check(t, p.mem, Options{}); r.Counts[SuperblockCopy] != 1 {
		t.Errorf("clean volume: %v", r.Counts)
	}
	p.setState(layout.StateMounted)
	if r := check(t, p.mem, Options{}); r.Total() != 0 || len(r.Notes) != 1 {
		t.Errorf("mounted volume: %v, notes %q", r.Counts, r.Notes)
	}
}
