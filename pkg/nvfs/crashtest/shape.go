package crashtest

import (
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// Shape is the order of an operation's stores as its fences divide them, a
// letter for each fence: d for direct stores, r for a record, a for its patches,
// t for the word that retires it (docs/format.md, section 14.1).
func Shape(events []record.Event) string {
	var shape []byte
	pending := map[int32]byte{} // of each Persister, what it stored since its last fence
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case record.Store:
			pending[e.Persister] = stronger(pending[e.Persister], kindOf(e.Off))
		case record.Fence:
			k := pending[e.Persister]
			if k == 'd' && len(shape) > 0 && shape[len(shape)-1] == 'r' {
				k = 'a'
			}
			shape = append(shape, k)
			delete(pending, e.Persister)
		}
	}
	return string(shape)
}

// kindOf is what a store to off belongs to; direct stores and patches, which
// go to the same places, are both d.
func kindOf(off uint64) byte {
	const end = layout.HeaderBlocks * layout.BlockSize
	if off < layout.SlotOffset(0) || off >= end {
		return 'd'
	}
	switch in := (off - layout.SlotOffset(0)) % layout.SlotSize; {
	case in == layout.RecRetire:
		return 't'
	case in < layout.RecRetire || in >= layout.PayloadStart:
		return 'r'
	}
	return 'd' // an intent, which is patched
}

// stronger keeps the sign of a mistake: a record that shares a fence with its
// patches or with data is shown as the later step.
func stronger(a, b byte) byte {
	const order = "drat"
	for i := len(order) - 1; i >= 0; i-- {
		if a == order[i] || b == order[i] {
			return order[i]
		}
	}
	return b
}

// operations are the events of each operation of a trace of one worker.
func operations(events []record.Event) [][]record.Event {
	var list [][]record.Event
	begin := 0
	for i := range events {
		switch events[i].Kind {
		case record.OpBegin:
			begin = i + 1
		case record.OpEnd:
			list = append(list, events[begin:i])
		}
	}
	return list
}
