package layout

// An answer table stands in one of the first two journal slots in the place of
// a record. It keeps what records said of requests that may still be sent
// again, so that the slots of these records can be used while the connection
// is taken over. Header, checksum and request tuple (of which Conn alone is
// used) are those of a record; the magic differs, Patches is the number of
// answers, and the payload consists of them.
const (
	AnswersMagic = 0x4e41564e // "NVAN"
	AnswerSize   = 48
	MaxAnswers   = PayloadMax / AnswerSize
)

// Answer is a row of an answer table: of which request (RequestTuple, without
// Conn) and the sequence number of the record that said so.
type Answer struct {
	RequestTuple
	Seq uint64
}

// InitAnswers clears the header and sets the magic, for n answers.
func (r Record) InitAnswers(n int) {
	r.Init()
	put32(r, 4, AnswersMagic)
	r.SetLength(uint32(n * AnswerSize))
	r.SetPatches(uint32(n))
}

// HoldsAnswers reports whether the slot holds a whole answer table.
func (r Record) HoldsAnswers(seed uint32) bool {
	return r.Magic() == AnswersMagic && r.Seq() != 0 && r.Seq() <= retireSeq &&
		r.Length() <= PayloadMax && r.Length() == r.Patches()*AnswerSize && le32(r, 0) == r.sum(seed)
}

// Answer decodes row i of an answer table.
func (r Record) Answer(i int) Answer {
	p := r[PayloadStart+i*AnswerSize:]
	a := Answer{Seq: le64(p, 40)}
	a.Unique, a.Ino, a.Result = le64(p, 0), le64(p, 8), le64(p, 16)
	a.Op, a.Errno, a.More = le32(p, 24), le32(p, 28), p[32] != 0
	return a
}

// SetAnswer encodes row i.
func (r Record) SetAnswer(i int, a Answer) {
	p := r[PayloadStart+i*AnswerSize:][:AnswerSize]
	clear(p)
	put64(p, 0, a.Unique)
	put64(p, 8, a.Ino)
	put64(p, 16, a.Result)
	put32(p, 24, a.Op)
	put32(p, 28, a.Errno)
	if a.More {
		p[32] = 1
	}
	put64(p, 40, a.Seq)
}
