package record

import (
	"math/bits"
	"slices"
)

// Model says which stores a crash may lose.
type Model uint8

// The models; the package comment describes them.
const (
	ADR Model = iota
	EADR
	MSync
)

func (m Model) String() string { return [...]string{"adr", "eadr", "msync"}[m] }

// cellSize is the unit within which stores become durable in order.
func (m Model) cellSize() uint64 {
	if m == MSync {
		return 512
	}
	return lineSize
}

// cell is a line or sector with stores that may not be durable.
type cell struct {
	first uint64 // number of the first unit, counted over all the cell ever had
	units []unit
}

// end is the number of the next unit.
func (c *cell) end() uint64 { return c.first + uint64(len(c.units)) }

// machine follows a trace and knows what is durable at each point of it.
type machine struct {
	model   Model
	base    *Base
	durable []unit            // in an order that respects that within a cell
	value   map[uint64]uint64 // words that differ from the base, durable
	hash    uint64            // of value
	cells   map[uint64]*cell
	order   []uint64 // cells with units that are not durable, by the first of them
	writers map[int32]*writer
	ops     []Progress // of the workers; replaced, not changed
	epoch   int        // how often ops was replaced
}

// Progress is how many operations a worker has begun and ended.
type Progress struct{ Begun, Ended int }

// writer is what a machine knows of a Persister.
type writer struct {
	flushed     map[uint64]uint64 // cells flushed since the last fence, up to which unit
	first, last uint64            // pages stored to since the last fence
	stored      bool
}

func newMachine(t *Trace, m Model) *machine {
	k := &machine{model: m, base: t.base, value: map[uint64]uint64{}, cells: map[uint64]*cell{}, writers: map[int32]*writer{}}
	for _, u := range t.before {
		k.settle(u)
	}
	return k
}

// settle makes a store durable.
func (k *machine) settle(u unit) {
	old := k.word(u.off)
	now := u.over(old)
	k.hash ^= k.mix(u.off, old) ^ k.mix(u.off, now)
	k.value[u.off] = now
	k.durable = append(k.durable, u)
}

// word is the durable content of a word.
func (k *machine) word(off uint64) uint64 {
	if v, ok := k.value[off]; ok {
		return v
	}
	return k.base.word(off)
}

// mix is the share of a word in a hash; none if it is as in the base.
func (k *machine) mix(off, v uint64) uint64 { return mix(k.base, off, v) }

func mix(b *Base, off, v uint64) uint64 {
	if v == b.word(off) {
		return 0
	}
	hi, lo := bits.Mul64(off^0x9e3779b97f4a7c15, v^0xd6e8feb86659fd93)
	hi2, lo2 := bits.Mul64(hi^lo^off*0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53^v<<1)
	return hi2 ^ lo2
}

func (k *machine) writer(num int32) *writer {
	w := k.writers[num]
	if w == nil {
		w = &writer{flushed: map[uint64]uint64{}}
		k.writers[num] = w
	}
	return w
}

// step takes the next event.
func (k *machine) step(e *Event) {
	switch e.Kind {
	case OpBegin:
		k.progress(e.Persister).Begun++
	case OpEnd:
		k.progress(e.Persister).Ended++
	case Store:
		k.store(e)
	case Flush:
		if k.model == ADR {
			w := k.writer(e.Persister)
			for line := e.Off / lineSize; line <= (e.Off+e.Len-1)/lineSize; line++ {
				if c := k.cells[line]; c != nil {
					w.flushed[line] = c.end()
				}
			}
		}
	case Fence:
		k.fence(k.writer(e.Persister))
	}
}

// progress returns the counts of a worker, to be changed.
func (k *machine) progress(worker int32) *Progress {
	ops := make([]Progress, max(len(k.ops), int(worker)+1))
	copy(ops, k.ops)
	k.ops = ops
	k.epoch++
	return &ops[worker]
}

func (k *machine) store(e *Event) {
	u := unit{off: e.Off, val: e.Val, mask: e.Mask, call: e.Call}
	if k.model == EADR {
		k.settle(u)
		return
	}
	id := e.Off / k.model.cellSize()
	c := k.cells[id]
	if c == nil {
		c = &cell{}
		k.cells[id] = c
	}
	if len(c.units) == 0 {
		k.order = append(k.order, id)
	}
	c.units = append(c.units, u)
	w := k.writer(e.Persister)
	if k.model == MSync {
		page := e.Off / pageSize
		if !w.stored {
			w.first, w.last, w.stored = page, page, true
		}
		w.first, w.last = min(w.first, page), max(w.last, page)
	} else if e.Flushed {
		w.flushed[id] = c.end()
	}
}

// fence makes durable what the Persister flushed.
func (k *machine) fence(w *writer) {
	settled := func(id uint64) bool {
		c := k.cells[id]
		upto := w.flushed[id]
		if k.model == MSync {
			upto = 0
			if page := id * 512 / pageSize; w.stored && page >= w.first && page <= w.last {
				upto = c.end()
			}
		}
		for ; c.first < upto; c.first++ {
			k.settle(c.units[0])
			c.units = c.units[1:]
		}
		return len(c.units) == 0
	}
	k.order = slices.DeleteFunc(k.order, settled)
	clear(w.flushed)
	w.stored = false
}
