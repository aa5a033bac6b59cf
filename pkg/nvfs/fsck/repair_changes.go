package fsck

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// changes is a set of changes to metadata that happens as a whole or not at
// all: it is committed as a redo record in journal slot 0, as the engine
// commits its own. An interrupted commit is completed by whoever looks at the
// volume next.
type changes struct {
	p       pmem.Persister
	mem     []byte
	seed    uint32
	seq     uint64 // of the last record of the volume
	objects []change
	rec     []byte
	direct  bool  // blocks were stored directly since the last fence
	err     error // sticky: nothing is stored any more
}

// change is a private copy of an object.
type change struct {
	off, location uint64
	buf           []byte
	node          bool // sealed over layout.Node.Covered
}

// stage returns the private copy of the n bytes at off, made on first use.
func (c *changes) stage(off uint64, n int, location uint64, node bool) []byte {
	for i := range c.objects {
		if c.objects[i].off == off {
			return c.objects[i].buf
		}
	}
	buf := append([]byte(nil), c.mem[off:off+uint64(n)]...)
	c.objects = append(c.objects, change{off, location, buf, node})
	return buf
}

func (c *changes) stageNode(block uint64) layout.Node {
	return c.stage(block*blockSize, blockSize, block, true)
}

func (c *changes) stageChunk(bitmap uint64, bit uint32) layout.Chunk {
	off := layout.ChunkOffset(bitmap, bit)
	return c.stage(off, layout.ChunkSize, layout.ChunkLocation(off), false)
}

var errRecordFull = errors.New("a step of the repair does not fit into a journal record")

// commit makes what is staged happen, sealed. After an error nothing is
// stored any more.
func (c *changes) commit() {
	defer func() { c.objects = c.objects[:0] }()
	if c.err != nil || len(c.objects) == 0 {
		return
	}
	n, patches := c.build()
	switch {
	case n < 0:
		c.err = errRecordFull
	case n > 0:
		c.err = c.write(n, patches)
	}
}

// build puts the words that differ from memory into the record. It returns
// the payload's length, -1 when it does not fit.
func (c *changes) build() (int, uint32) {
	// By address, so that apply flushes each line once.
	slices.SortFunc(c.objects, func(a, b change) int { return cmp.Compare(a.off, b.off) })
	pos, patches := layout.PayloadStart, uint32(0)
	for _, o := range c.objects {
		covered := o.buf
		if o.node {
			covered = layout.Node(o.buf).Covered()
		}
		layout.Seal(c.seed, o.location, covered)
		for i := 0; i < len(o.buf); {
			end := c.differing(o, i)
			if end == i {
				i += 8
				continue
			}
			if pos+layout.PatchHeader+end-i > layout.SlotSize {
				return -1, 0
			}
			layout.PutPatchHeader(c.rec[pos:], o.off+uint64(i), uint32(end-i))
			pos += layout.PatchHeader
			pos += copy(c.rec[pos:], o.buf[i:end])
			patches++
			i = end
		}
	}
	return pos - layout.PayloadStart, patches
}

// differing is the end of the run of words from i on that differ from memory.
// A gap of two equal words is cheaper than a further header.
func (c *changes) differing(o change, i int) int {
	end, mem := i, c.mem[o.off:]
	for j := i; j < len(o.buf) && j <= end+layout.PatchHeader; j += 8 {
		if binary.LittleEndian.Uint64(mem[j:]) != binary.LittleEndian.Uint64(o.buf[j:]) {
			end = j + 8
		} else if end == i {
			return i
		}
	}
	return end
}

// write commits the record, applies and retires it.
func (c *changes) write(n int, patches uint32) error {
	r := layout.Record(c.rec)
	r.Init()
	r.SetLength(uint32(n))
	r.SetPatches(patches)
	c.seq++
	r.SetSeq(c.seq)
	r.SealRecord(c.seed)
	slot := layout.SlotOffset(0)
	c.p.Copy(slot, c.rec[:layout.RecRetire])
	c.p.Copy(slot+layout.PayloadStart, c.rec[layout.PayloadStart:layout.PayloadStart+n])
	if err := c.fence(); err != nil {
		return err
	}
	if err := c.apply(r); err != nil {
		return err
	}
	return c.retire(slot, c.seq)
}

// apply stores the patches of a record. Doing it again is harmless. Patches in
// the same line or in neighbouring ones are flushed together.
func (c *changes) apply(r layout.Record) error {
	const line = 64
	var from, to uint64 // lines that await a flush
	for pos := uint32(0); pos < r.Length(); {
		p, next := r.PatchAt(pos)
		first, end := p.Off&^(line-1), (p.Off+uint64(len(p.Data))+line-1)&^(line-1)
		if first > to || first < from {
			c.flush(from, to)
			from, to = first, first
		}
		to = max(to, end)
		for i := 0; i < len(p.Data); i += 8 {
			c.p.Store64(p.Off+uint64(i), binary.LittleEndian.Uint64(p.Data[i:]))
		}
		pos = next
	}
	if to == 0 {
		return nil
	}
	c.flush(from, to)
	return c.fence()
}

func (c *changes) flush(from, to uint64) {
	if to > from {
		c.p.Flush(from, to-from)
	}
}

// retire marks the record of that number as carried out.
func (c *changes) retire(slot, seq uint64) error {
	c.p.Store64(slot+layout.RecRetire, layout.RetireWord(c.seed, seq))
	c.p.Flush(slot+layout.RecRetire, 8)
	return c.fence()
}

// fresh stores a block that nothing refers to yet, sealed. It is durable
// after settle.
func (c *changes) fresh(block uint64, n layout.Node) {
	layout.Seal(c.seed, block, n.Covered())
	c.copy(block*blockSize, n)
}

// copy stores what nothing refers to yet. It is durable after settle.
func (c *changes) copy(off uint64, p []byte) {
	if c.err == nil {
		c.p.Copy(off, p)
		c.direct = true
	}
}

// settle makes what was stored directly durable. The fence of a record that
// was written since then has done it already.
func (c *changes) settle() {
	if c.err == nil && c.direct {
		c.err = c.fence()
	}
}

func (c *changes) fence() error {
	c.direct = false
	if err := c.p.Fence(); err != nil {
		return fmt.Errorf("changes could not be made durable: %w", err)
	}
	return nil
}
