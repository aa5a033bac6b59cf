package layout

// A journal slot holds one redo record. Its checksum covers the header, the
// request that the record answers, and the payload; the retire word and the
// intent stand outside and are written on their own.
const (
	recHeader    = 64
	RecRequest   = 64
	RecRetire    = 128
	RecIntent    = 192
	IntentSize   = 64
	PatchHeader  = 16
	recCovered   = 128
	retireSeq    = 1<<48 - 1
	retireChkBit = 48
)

// Record is a journal slot of SlotSize bytes (or at least its first
// PayloadStart bytes, for the accessors of the header). Location of the
// checksum: the sequence number.
type Record []byte

// The header. Seq grows over all slots of a volume and is never 0.
func (r Record) Magic() uint32       { return le32(r, 4) }
func (r Record) Seq() uint64         { return le64(r, 8) }
func (r Record) Length() uint32      { return le32(r, 16) } // payload bytes
func (r Record) Patches() uint32     { return le32(r, 20) }
func (r Record) SetSeq(v uint64)     { put64(r, 8, v) }
func (r Record) SetLength(v uint32)  { put32(r, 16, v) }
func (r Record) SetPatches(v uint32) { put32(r, 20, v) }

// Init clears header and request and sets the magic.
func (r Record) Init() {
	clear(r[:recCovered])
	put32(r, 4, RecordMagic)
}

// RequestTuple says which request a record answers, and how.
type RequestTuple struct {
	Conn   uint64
	Unique uint64
	Ino    uint64 // NodeID of the object made or changed
	Result uint64 // bytes written; 0 for most
	Op     uint32
	Errno  uint32 // not 0: the operation failed after a part of it was done
	More   bool   // further records of the same request follow
}

// Request decodes the tuple.
func (r Record) Request() RequestTuple {
	p := r[RecRequest:]
	return RequestTuple{Conn: le64(p, 0), Unique: le64(p, 8), Ino: le64(p, 16), Result: le64(p, 24),
		Op: le32(p, 32), More: p[36] != 0, Errno: le32(p, 40)}
}

// SetRequest encodes the tuple.
func (r Record) SetRequest(t RequestTuple) {
	p := r[RecRequest:]
	put64(p, 0, t.Conn)
	put64(p, 8, t.Unique)
	put64(p, 16, t.Ino)
	put64(p, 24, t.Result)
	put32(p, 32, t.Op)
	p[36] = 0
	if t.More {
		p[36] = 1
	}
	put32(p, 40, t.Errno)
}

func (r Record) sum(seed uint32) uint32 {
	s := Sum(seed, r.Seq(), r[4:recCovered])
	return Sum(s, 0, r[PayloadStart:PayloadStart+int(r.Length())])
}

// SealRecord writes the checksum.
func (r Record) SealRecord(seed uint32) { put32(r, 0, r.sum(seed)) }

// Valid reports whether the slot holds a whole record.
func (r Record) Valid(seed uint32) bool {
	return r.Magic() == RecordMagic && r.Seq() != 0 && r.Seq() <= retireSeq &&
		r.Length() <= PayloadMax && le32(r, 0) == r.sum(seed)
}

// RetireWord is the word that retires the record of that sequence number: the
// number with a check in its high 16 bits, since a damaged word that passed
// for "not retired" would replay history.
func RetireWord(seed uint32, seq uint64) uint64 {
	mixed := (seq ^ uint64(seed)<<16) * 0x9e3779b97f4a7c15 // Fibonacci hashing: the high bits depend on all of seq
	return seq&retireSeq | mixed>>retireChkBit<<retireChkBit
}

// Retired is the sequence number of the last retired record in the slot; ok
// is false when the word is damaged. A zero word means none.
func (r Record) Retired(seed uint32) (seq uint64, ok bool) {
	w := le64(r, RecRetire)
	if w == 0 {
		return 0, true
	}
	seq = w & retireSeq
	return seq, w == RetireWord(seed, seq)
}

// Patch is one change of a record: the volume's bytes at Off become Data.
type Patch struct {
	Off  uint64
	Data []byte // a multiple of 8 bytes, Off too
}

// PatchAt decodes the patch at position pos of the payload; next is the
// position after it, or 0 when the payload is malformed.
func (r Record) PatchAt(pos uint32) (p Patch, next uint32) {
	payload := r[PayloadStart : PayloadStart+int(r.Length())]
	if int(pos)+PatchHeader > len(payload) {
		return Patch{}, 0
	}
	off, n := le64(payload, int(pos)), le32(payload, int(pos)+8)
	end := uint64(pos) + PatchHeader + uint64(n)
	if off%8 != 0 || n%8 != 0 || n == 0 || end > uint64(len(payload)) {
		return Patch{}, 0
	}
	return Patch{Off: off, Data: payload[pos+PatchHeader : end]}, uint32(end)
}

// PutPatchHeader encodes the header of a patch.
func PutPatchHeader(p []byte, off uint64, n uint32) {
	put64(p, 0, off)
	put32(p, 8, n)
	put32(p, 12, 0)
}

// Kinds of intents. An intent stands for the rest of an operation that takes
// more than one record; recovery completes it.
const (
	IntentNone      = 0
	IntentTruncate  = 1 // free what lies at and after block Start of Node
	IntentPunch     = 2 // free and zero bytes Start to End
	IntentZero      = 3 // make bytes Start to End read as zeros, allocated; then size Aux if larger
	IntentAllocate  = 4 // allocate bytes Start to End; then size Aux if larger
	maxKnownIntents = IntentAllocate
)

// Intent is the intent of a slot, IntentSize bytes at RecIntent. Location:
// IntentLocation + slot.
type Intent []byte

// IntentLocation is the base of the checksum locations of intents.
const IntentLocation = 1 << 62

// The fields of an intent.
func (t Intent) Kind() uint32  { return le32(t, 4) }
func (t Intent) Node() uint64  { return le64(t, 8) }
func (t Intent) Start() uint64 { return le64(t, 16) }
func (t Intent) End() uint64   { return le64(t, 24) }
func (t Intent) Aux() uint64   { return le64(t, 32) }

// Set writes all fields but the checksum.
func (t Intent) Set(kind uint32, node, start, end, aux uint64) {
	clear(t[:IntentSize])
	put32(t, 4, kind)
	put64(t, 8, node)
	put64(t, 16, start)
	put64(t, 24, end)
	put64(t, 32, aux)
}

// Empty reports whether no intent was ever written.
func (t Intent) Empty() bool {
	for i := 0; i < IntentSize; i += 8 {
		if le64(t, i) != 0 {
			return false
		}
	}
	return true
}

// Known reports whether the kind is one of this version.
func (t Intent) Known() bool { return t.Kind() <= maxKnownIntents }
