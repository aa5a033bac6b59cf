package layout

import (
	"bytes"
	"errors"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"
)

func testSuperblock() *Superblock {
	blocks := uint64(3*GroupBlocks + HeaderBlocks + 500)
	const perGroup = 2048
	first := Device{UUID: [16]byte{1, 1}, Blocks: blocks, Groups: GroupsIn(blocks, perGroup)}
	second := Device{UUID: [16]byte{2, 2}, Base: 7 * GroupBlocks, Blocks: MinBlocks, FirstGroup: 7, Groups: GroupsIn(MinBlocks, perGroup)}
	return &Superblock{Compat: 1 << 40, ROCompat: 1 << 41, UUID: [16]byte{9, 8, 7}, Label: "label", VolumeID: "volume",
		Created: 1700000000, HashKey: [16]byte{5, 4, 3}, InodesPerGroup: perGroup, Slots: 17, Reserved: 99,
		Devices: []Device{first, second}, Params: []byte(`{"flushMode":"clwb"}`)}
}

func TestSuperblockRoundTrip(t *testing.T) {
	want := testSuperblock()
	p := make([]byte, StaticSize)
	if err := want.Encode(p); err != nil {
		t.Fatal(err)
	}
	got, err := DecodeSuperblock(p)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestSuperblockEveryByteIsCovered(t *testing.T) {
	p := make([]byte, StaticSize)
	if err := testSuperblock().Encode(p); err != nil {
		t.Fatal(err)
	}
	for i := range p {
		p[i] ^= 0x10
		if _, err := DecodeSuperblock(p); err == nil {
			t.Fatalf("a flip in byte %d goes unnoticed", i)
		}
		p[i] ^= 0x10
	}
}

func TestSuperblockRefusals(t *testing.T) {
	seal := func(p []byte) {
		var uuid [16]byte
		copy(uuid[:], p[sbUUID:])
		Seal(Seed(uuid), 0, p)
	}
	for name, c := range map[string]struct {
		edit func(p []byte)
		want error
	}{
		"no magic":            {func(p []byte) { p[sbMagic]++ }, ErrNotNVFS},
		"version":             {func(p []byte) { put32(p, sbVersion, 2) }, ErrVersion},
		"incompat":            {func(p []byte) { put64(p, sbIncompat, 1) }, ErrIncompat},
		"block size":          {func(p []byte) { put32(p, sbBlockSize, 8192) }, ErrNonsense},
		"no inodes":           {func(p []byte) { put32(p, sbInodes, 0) }, ErrNonsense},
		"too many inodes":     {func(p []byte) { put32(p, sbInodes, BitmapBits+1) }, ErrNonsense},
		"no slots":            {func(p []byte) { put32(p, sbSlots, 0) }, ErrNonsense},
		"too many slots":      {func(p []byte) { put32(p, sbSlots, SlotCount+1) }, ErrNonsense},
		"params":              {func(p []byte) { put16(p, sbParams, MaxParamsLen+1) }, ErrNonsense},
		"no devices":          {func(p []byte) { put32(p, sbDevices, 0) }, ErrNonsense},
		"too many devices":    {func(p []byte) { put32(p, sbDevices, MaxDevices+1) }, ErrNonsense},
		"tiny device":         {func(p []byte) { put64(p, sbDevTable+24, MinBlocks-1) }, ErrNonsense},
		"huge device":         {func(p []byte) { put64(p, sbDevTable+24, 1<<63) }, ErrNonsense},
		"groups":              {func(p []byte) { put32(p, sbDevTable+36, 9) }, ErrNonsense},
		"first device moved":  {func(p []byte) { put64(p, sbDevTable+16, GroupBlocks); put32(p, sbDevTable+32, 1) }, ErrNonsense},
		"base off the groups": {func(p []byte) { put64(p, sbDevTable+sbDevSize+16, 7*GroupBlocks+1) }, ErrNonsense},
		"devices alike":       {func(p []byte) { copy(p[sbDevTable+sbDevSize:][:16], p[sbDevTable:]) }, ErrNonsense},
		"inode numbers": {func(p []byte) {
			g := uint32(1 << 31)
			put32(p, sbDevTable+sbDevSize+32, g)
			put64(p, sbDevTable+sbDevSize+16, uint64(g)*GroupBlocks)
		}, ErrNonsense},
		"a member":        {func(p []byte) { put64(p, sbMagic, MemberMagic) }, ErrMember},
		"devices overlap": {func(p []byte) { put64(p, sbDevTable+sbDevSize+16, GroupBlocks); put32(p, sbDevTable+sbDevSize+32, 1) }, ErrNonsense},
	} {
		p := make([]byte, StaticSize)
		if err := testSuperblock().Encode(p); err != nil {
			t.Fatal(err)
		}
		c.edit(p)
		seal(p)
		if sb, err := DecodeSuperblock(p); !errors.Is(err, c.want) || sb != nil {
			t.Errorf("%s: got %v, %v, want %v and no superblock", name, sb, err, c.want)
		}
	}
	if _, err := DecodeSuperblock(make([]byte, 100)); !errors.Is(err, ErrNotNVFS) {
		t.Errorf("short buffer: %v", err)
	}
}

func TestSuperblockEncodeLimits(t *testing.T) {
	for name, edit := range map[string]func(*Superblock){
		"label":  func(s *Superblock) { s.Label = string(make([]byte, 65)) },
		"id":     func(s *Superblock) { s.VolumeID = string(make([]byte, 129)) },
		"params": func(s *Superblock) { s.Params = make([]byte, MaxParamsLen+1) },
		"none":   func(s *Superblock) { s.Devices = nil },
		"many":   func(s *Superblock) { s.Devices = make([]Device, MaxDevices+1) },
	} {
		s := testSuperblock()
		edit(s)
		if s.Encode(make([]byte, StaticSize)) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The checksum is the standard CRC-32C with the documented start value.
func TestSumIsDocumentedCRC(t *testing.T) {
	tab := crc32.MakeTable(crc32.Castagnoli)
	if got := crc32.Checksum([]byte("123456789"), tab); got != 0xe3069283 {
		t.Fatalf("CRC-32C of the check string is %#x", got)
	}
	uuid := [16]byte{1, 2, 3}
	seed := crc32.Update(0, tab, uuid[:])
	if Seed(uuid) != seed {
		t.Error("seed is not the CRC of the UUID")
	}
	const location = uint64(7)<<32 | 5
	start := uint64(seed) + 5*0x9e3779b1 + 7
	if Sum(seed, location, []byte("abc")) != crc32.Update(uint32(start), tab, []byte("abc")) {
		t.Error("location does not enter as documented")
	}
}

func TestSealBindsLocationAndVolume(t *testing.T) {
	p := bytes.Repeat([]byte{7}, 64)
	Seal(1, 10, p)
	if !Verify(1, 10, p) || Verify(1, 11, p) || Verify(2, 10, p) || Verify(1, 10+1<<32, p) {
		t.Error("a sealed object verifies in a wrong place or not in its own")
	}
}

func TestGroupGeometry(t *testing.T) {
	for _, perGroup := range []uint32{1, 7, 63, 64, 1000, 1984, 7936, BitmapBits} {
		for _, blocks := range []uint64{MinBlocks, HeaderBlocks + 1 + GroupBlocks, HeaderBlocks + 1 + GroupBlocks + 75,
			HeaderBlocks + 1 + GroupBlocks + 76, HeaderBlocks + 1 + 5*GroupBlocks + 20000} {
			n := GroupsIn(blocks, perGroup)
			end := uint64(HeaderBlocks)
			for g := range n {
				gb := GroupLen(blocks, g)
				if meta := GroupInodeTable + InodeTableBlocks(perGroup); gb > GroupBlocks || meta+1 > gb {
					t.Errorf("%d blocks, %d inodes a group: group %d has %d blocks", blocks, perGroup, g, gb)
				}
				if GroupStart(uint64(g)) != end || GroupOf(end) != uint64(g) || GroupOf(end+gb-1) != uint64(g) {
					t.Errorf("group %d is not where the one before ends", g)
				}
				end += gb
			}
			if end > blocks-1 {
				t.Errorf("%d blocks, %d inodes a group: groups end at %d", blocks, perGroup, end)
			}
		}
	}
	if GroupsIn(HeaderBlocks, 64) != 0 || GroupsIn(HeaderBlocks+1+75, 64) != 0 || GroupsIn(HeaderBlocks+1+76, 64) != 1 {
		t.Error("the smallest group has not 76 blocks")
	}
}

func TestInodeNumbers(t *testing.T) {
	const perGroup = 1000
	if InodeOffset(1, perGroup) != (GroupStart(0)+GroupInodeTable)*BlockSize {
		t.Error("inode 1 is not the first of the first table")
	}
	for _, ino := range []uint64{1, 1000, 1001, 123456} {
		g, i := InodeGroup(ino, perGroup), InodeIndex(ino, perGroup)
		if g*perGroup+uint64(i)+1 != ino {
			t.Errorf("inode %d: group %d, index %d", ino, g, i)
		}
		if want := (GroupStart(g)+GroupInodeTable)*BlockSize + uint64(i)*InodeSize; InodeOffset(ino, perGroup) != want {
			t.Errorf("inode %d is at %d, want %d", ino, InodeOffset(ino, perGroup), want)
		}
	}
}

func TestChunkBits(t *testing.T) {
	c := make(Chunk, ChunkSize)
	for _, i := range []uint32{0, 1, 63, 64, ChunkBits - 1} {
		c.SetBit(i, true)
		if !c.Bit(i) || c[8+i/8]&(1<<(i%8)) == 0 {
			t.Errorf("bit %d is not at its place", i)
		}
	}
	if c.Ones() != 5 {
		t.Errorf("%d ones", c.Ones())
	}
	c.SetBit(63, false)
	if c.Bit(63) || c.Ones() != 4 {
		t.Error("bit 63 stays")
	}
	if ChunkOffset(3, ChunkBits) != 3*BlockSize+ChunkSize || ChunkLocation(ChunkOffset(3, ChunkBits)) != 3*16+1 {
		t.Error("the second chunk is not where it belongs")
	}
}

func testRecord(seed uint32, seq uint64) Record {
	r := make(Record, SlotSize)
	r.Init()
	r.SetSeq(seq)
	PutPatchHeader(r[PayloadStart:], 4096, 8)
	PutPatchHeader(r[PayloadStart+24:], 8192, 16)
	r.SetLength(24 + 32)
	r.SetPatches(2)
	r.SealRecord(seed)
	return r
}

func TestRecordCoversHeaderTupleAndPayload(t *testing.T) {
	r := testRecord(5, 77)
	if !r.Valid(5) || r.Valid(6) {
		t.Fatal("record does not verify as it should")
	}
	for i := range PayloadStart + 56 {
		r[i] ^= 1
		inside := i < recCovered || i >= PayloadStart
		if r.Valid(5) == inside {
			t.Errorf("flip of byte %d: valid = %v", i, !inside)
		}
		r[i] ^= 1
	}
	r.SetLength(PayloadMax + 1)
	if r.Valid(5) {
		t.Error("too long a record is valid")
	}
}

func TestRecordSeqRange(t *testing.T) {
	for seq, want := range map[uint64]bool{0: false, 1: true, 1<<48 - 1: true, 1 << 48: false} {
		if got := testRecord(5, seq).Valid(5); got != want {
			t.Errorf("seq %#x: valid = %v", seq, got)
		}
	}
}

func TestPatches(t *testing.T) {
	r := testRecord(5, 1)
	p, next := r.PatchAt(0)
	if p.Off != 4096 || len(p.Data) != 8 || next != 24 {
		t.Fatalf("first patch %+v, next %d", p, next)
	}
	if p, next = r.PatchAt(next); p.Off != 8192 || len(p.Data) != 16 || next != 56 {
		t.Fatalf("second patch %+v, next %d", p, next)
	}
	for name, edit := range map[string]func(Record){
		"odd offset": func(r Record) { PutPatchHeader(r[PayloadStart:], 4097, 8) },
		"odd length": func(r Record) { PutPatchHeader(r[PayloadStart:], 4096, 9) },
		"empty":      func(r Record) { PutPatchHeader(r[PayloadStart:], 4096, 0) },
		"too long":   func(r Record) { PutPatchHeader(r[PayloadStart:], 4096, 48) },
		"enormous":   func(r Record) { PutPatchHeader(r[PayloadStart:], 4096, 1<<32-8) },
	} {
		r := testRecord(5, 1)
		edit(r)
		if _, next := r.PatchAt(0); next != 0 {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, next := r.PatchAt(56); next != 0 {
		t.Error("a patch follows the last")
	}
}

func TestRetireWord(t *testing.T) {
	r := make(Record, SlotSize)
	if seq, ok := r.Retired(5); seq != 0 || !ok {
		t.Error("a zero word does not mean none")
	}
	put64(r, RecRetire, RetireWord(5, 1234567))
	if seq, ok := r.Retired(5); seq != 1234567 || !ok {
		t.Errorf("got %d, %v", seq, ok)
	}
	for i := range 64 {
		r[RecRetire+i/8] ^= 1 << (i % 8)
		if _, ok := r.Retired(5); ok {
			t.Errorf("flip of bit %d goes unnoticed", i)
		}
		r[RecRetire+i/8] ^= 1 << (i % 8)
	}
}

func TestIntent(t *testing.T) {
	in := make(Intent, IntentSize)
	if !in.Empty() || !in.Known() {
		t.Error("zero bytes are not an empty intent")
	}
	in.Set(IntentAllocate, 1, 2, 3, 4)
	if in.Empty() || !in.Known() {
		t.Error("an intent is taken for none")
	}
	in.Set(IntentAllocate+1, 1, 2, 3, 4)
	if in.Known() {
		t.Error("an unknown kind is known")
	}
}

func TestKeys(t *testing.T) {
	key := KeyOf(1<<64 - 1)
	if key != 1<<62-8 {
		t.Errorf("key %#x", key)
	}
	for level := uint16(0); level <= MaxDirLevel; level++ {
		k := uint64(0xa5) << (KeyBits - 8*(int(level)+1))
		if KeySlot(k, level) != 0xa5 {
			t.Errorf("level %d: slot %#x", level, KeySlot(k, level))
		}
	}
}

func TestDirEntry(t *testing.T) {
	e := DirEntry(bytes.Repeat([]byte{0xff}, 64))
	e.SetName([]byte("hello"))
	if string(e.Name()) != "hello" || DirEntryLen(5) != 32 || !bytes.Equal(e[25:32], make([]byte, 7)) || e[32] != 0xff {
		t.Error("name or padding is wrong")
	}
	if DirEntryLen(1) != DirEntryMin || DirEntryLen(4) != 24 || DirEntryLen(255) != 280 {
		t.Error("entry lengths are wrong")
	}
}

func TestNodeCoveredStaysInBlock(t *testing.T) {
	for _, magic := range []uint32{ExtentMagic, DirLeafMagic, DirIndexMagic, XattrMagic, 0, 1<<32 - 1} {
		n := Node(filled(BlockSize, 0xff))
		put32(n, 4, magic)
		if len(n.Covered()) > BlockSize || len(n.Covered()) < NodeHeader {
			t.Errorf("magic %#x: %d bytes", magic, len(n.Covered()))
		}
	}
}

func TestXattrEntries(t *testing.T) {
	set := AppendXattr(nil, []byte("user.a"), []byte("1"))
	set = AppendXattr(set, []byte("user.empty"), nil)
	x := XattrEntry(set)
	if !x.Whole() || string(x.Name()) != "user.a" || string(x.Value()) != "1" {
		t.Fatal("first entry is wrong")
	}
	if x = x.Next(); !x.Whole() || string(x.Name()) != "user.empty" || len(x.Value()) != 0 {
		t.Fatal("second entry is wrong")
	}
	if x = x.Next(); len(x) != 0 || x.Whole() {
		t.Fatal("set does not end")
	}
	for n := range len(set) {
		for x := XattrEntry(set[:n]); x.Whole(); x = x.Next() {
			if len(x) > n {
				t.Fatal("entry outside the set")
			}
		}
	}
	huge := XattrEntry(filled(16, 0xff))
	if huge.Whole() {
		t.Error("an entry longer than the set is whole")
	}
}

func TestMemberRoundTrip(t *testing.T) {
	sb := testSuperblock()
	want := sb.Member(1)
	p := make([]byte, MemberSize)
	want.Encode(p)
	got, err := DecodeMember(p)
	if err != nil || *got != want {
		t.Fatalf("got %+v, %v\nwant %+v", got, err, want)
	}
	for i := range p {
		p[i] ^= 0x10
		if _, err := DecodeMember(p); err == nil {
			t.Fatalf("a flip in byte %d goes unnoticed", i)
		}
		p[i] ^= 0x10
	}
	for name, edit := range map[string]func(*Member){
		"first row":   func(m *Member) { m.Index = 0 },
		"no such row": func(m *Member) { m.Index = MaxDevices },
		"base":        func(m *Member) { m.Base++ },
		"at 0":        func(m *Member) { m.Base, m.FirstGroup = 0, 0 },
		"tiny":        func(m *Member) { m.Blocks = MinBlocks - 1 },
		"huge":        func(m *Member) { m.Blocks = 1<<40 + 1 },
		"no groups":   func(m *Member) { m.Groups = 0 },
	} {
		m := want
		edit(&m)
		m.Encode(p)
		if _, err := DecodeMember(p); !errors.Is(err, ErrMemberDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := DecodeMember(make([]byte, MemberSize)); !errors.Is(err, ErrNotMember) {
		t.Errorf("zeros: %v", err)
	}
	if _, err := DecodeMember(nil); !errors.Is(err, ErrNotMember) {
		t.Errorf("nothing: %v", err)
	}
	long := make([]byte, StaticSize)
	want.Encode(long)
	if sb, err := DecodeSuperblock(long); sb != nil || !errors.Is(err, ErrMember) || !strings.Contains(err.Error(), "device 2 of NVFS volume") {
		t.Errorf("a label taken for a superblock: %v", err)
	}
}
