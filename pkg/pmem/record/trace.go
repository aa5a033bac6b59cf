package record

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"runtime"
)

// Kind is the kind of an event.
type Kind uint8

// The kinds.
const (
	Store Kind = iota
	Flush
	Fence
	OpBegin
	OpEnd
)

func (k Kind) String() string {
	return [...]string{"store", "flush", "fence", "begin", "end"}[k]
}

const wholeWord = 0xff

// Event is one entry of a trace.
type Event struct {
	Kind      Kind
	Mask      uint8  // of a Store: the bytes of the word that it covers
	Flushed   bool   // of a Store: durable at the next fence without a Flush
	Persister int32  // of OpBegin and OpEnd: the worker
	Call      uint32 // of a Store: units of the same Copy or Zero have the same
	Off       uint64 // of a Store: the word, a multiple of 8
	Len       uint64 // of a Flush: bytes
	Val       uint64 // of a Store: the word's content after it
	PC        uintptr
}

// Where is the source line that the event comes from.
func (e Event) Where() string { return where(e.PC) }

func where(pc uintptr) string {
	if pc == 0 {
		return "?"
	}
	f, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
}

// Trace is what was stored, flushed and fenced between Record and Stop.
type Trace struct {
	base   *Base
	size   uint64
	before []unit // what differed from the base at its beginning
	events []Event
	calls  uint32
}

// Events are the events in their order.
func (t *Trace) Events() []Event { return t.events }

// unit is a store to one word.
type unit struct {
	off  uint64
	val  uint64
	mask uint8
	call uint32
}

// expand is mask with each bit as a byte.
var expand = func() (table [256]uint64) {
	for m := range table {
		for i := range wordSize {
			if m>>i&1 == 1 {
				table[m] |= 0xff << (8 * i)
			}
		}
	}
	return table
}()

// over is what a word of content v is after the store.
func (u *unit) over(v uint64) uint64 {
	m := expand[u.mask]
	return v&^m | u.val&m
}

func (u *unit) store(mem []byte) {
	if u.mask == wholeWord {
		binary.LittleEndian.PutUint64(mem[u.off:], u.val)
		return
	}
	binary.LittleEndian.PutUint64(mem[u.off:], u.over(binary.LittleEndian.Uint64(mem[u.off:])))
}
