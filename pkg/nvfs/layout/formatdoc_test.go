package layout

import (
	"bufio"
	"encoding/binary"
	"errors"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

const formatDoc = "../../../docs/format.md"

// docTable is a table of docs/format.md that follows a marker comment.
type docTable struct {
	marker string // such as "structure Inode 512"
	rows   [][]string
}

func docTables(t *testing.T) []docTable {
	t.Helper()
	f, err := os.Open(formatDoc)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var tables []docTable
	marker := ""
	for s := bufio.NewScanner(f); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		switch {
		case strings.HasPrefix(line, "<!--"):
			marker = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(line, "<!--"), "-->"))
			tables = append(tables, docTable{marker: marker})
		case marker != "" && strings.HasPrefix(line, "|"):
			var row []string
			for _, c := range strings.Split(strings.Trim(line, "|"), "|") {
				row = append(row, strings.Trim(strings.TrimSpace(c), "`"))
			}
			last := &tables[len(tables)-1]
			last.rows = append(last.rows, row)
		case strings.HasPrefix(line, "#"):
			marker = ""
		case line == "" && marker != "" && len(tables[len(tables)-1].rows) > 0:
			marker = ""
		}
	}
	for i := range tables {
		if len(tables[i].rows) < 3 {
			t.Fatalf("%s: no table follows the marker %q", formatDoc, tables[i].marker)
		}
		tables[i].rows = tables[i].rows[2:] // heading and rule
	}
	return tables
}

type docField struct {
	off, size int
	name      string
}

type docStruct struct {
	size   int
	fields []docField
}

func docStructs(t *testing.T) map[string]docStruct {
	t.Helper()
	m := map[string]docStruct{}
	for _, tab := range docTables(t) {
		w := strings.Fields(tab.marker)
		if w[0] != "structure" {
			continue
		}
		s := docStruct{size: atoi(t, w[2])}
		for _, r := range tab.rows {
			s.fields = append(s.fields, docField{atoi(t, r[0]), atoi(t, r[1]), r[2]})
		}
		if _, twice := m[w[1]]; twice {
			t.Fatalf("structure %s is documented twice", w[1])
		}
		m[w[1]] = s
	}
	return m
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (s docStruct) field(t *testing.T, name string) docField {
	t.Helper()
	for _, f := range s.fields {
		if f.name == name {
			return f
		}
	}
	t.Fatalf("no field %s is documented", name)
	return docField{}
}

// Every byte of every documented structure belongs to exactly one row.
func TestFormatDocRowsTileStructures(t *testing.T) {
	for name, s := range docStructs(t) {
		next := 0
		for _, f := range s.fields {
			if f.off != next {
				t.Errorf("%s: field %s is at %d, the one before ends at %d", name, f.name, f.off, next)
			}
			next = f.off + f.size
		}
		if next != s.size {
			t.Errorf("%s: rows end at %d, structure at %d", name, next, s.size)
		}
	}
}

// Every constant of the package that is exported is documented with its
// value, and nothing else is.
func TestFormatDocConstants(t *testing.T) {
	code := packageConstants(t)
	var rows [][]string
	for _, tab := range docTables(t) {
		if tab.marker == "constants" {
			rows = tab.rows
		}
	}
	seen := map[string]bool{}
	for _, r := range rows {
		want, ok := code[r[0]]
		if !ok {
			t.Errorf("documented constant %s does not exist", r[0])
			continue
		}
		seen[r[0]] = true
		got := constant.MakeFromLiteral(r[1], token.INT, 0)
		if !constant.Compare(got, token.EQL, want) {
			t.Errorf("constant %s: documented %s, in code %s", r[0], got, want)
		}
	}
	for name := range code {
		if !seen[name] {
			t.Errorf("constant %s is not documented", name)
		}
	}
}

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not needed") }

func packageConstants(t *testing.T) map[string]constant.Value {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	// Constants depend on no import, so errors about those do not matter.
	conf := types.Config{Importer: noImports{}, Error: func(error) {}}
	pkg, _ := conf.Check("layout", fset, parsed, nil)
	m := map[string]constant.Value{}
	for _, name := range pkg.Scope().Names() {
		c, ok := pkg.Scope().Lookup(name).(*types.Const)
		if ok && c.Exported() && c.Val().Kind() == constant.Int {
			m[name] = c.Val()
		}
	}
	return m
}

// accessors are the types whose getters and setters stand for fields.
var accessors = map[string]struct {
	of    func([]byte) any
	other []string // niladic methods that are no fields
}{
	"Inode":     {func(p []byte) any { return Inode(p) }, []string{"BodyRoom", "RootExtents"}},
	"Node":      {func(p []byte) any { return Node(p) }, nil},
	"GroupDesc": {func(p []byte) any { return GroupDesc(p) }, nil},
	"Chunk":     {func(p []byte) any { return Chunk(p) }, []string{"Ones"}},
	"Dynamic":   {func(p []byte) any { return Dynamic(p) }, nil},
	"DirEntry":  {func(p []byte) any { return DirEntry(p) }, nil},
	"Record":    {func(p []byte) any { return Record(p) }, nil},
	"Intent":    {func(p []byte) any { return Intent(p) }, nil},
}

// docAlias are fields that have no row of their own: they lie at the start
// of another.
var docAlias = map[string]string{"Inode.DirRoot": "Body"}

func isUint(t reflect.Type) bool { return t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64 }

func putN(p []byte, n int, v uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	copy(p[:n], b[:])
}

const pattern = 0x8182838485868788

func truncated(size int) uint64 { return pattern & (1<<(8*size) - 1) }

// Each getter reads the documented bytes and no others, each setter writes
// them and no others.
func TestFormatDocAccessors(t *testing.T) {
	docs := docStructs(t)
	for name, acc := range accessors {
		doc, ok := docs[name]
		if !ok {
			t.Errorf("structure %s is not documented", name)
			continue
		}
		typ := reflect.TypeOf(acc.of(nil))
		for i := range typ.NumMethod() {
			m := typ.Method(i)
			switch {
			case m.Type.NumIn() == 1 && m.Type.NumOut() == 1 && isUint(m.Type.Out(0)):
				if !contains(acc.other, m.Name) {
					checkGetter(t, name, doc, acc.of, m)
				}
			case strings.HasPrefix(m.Name, "Set") && m.Type.NumIn() == 2 && m.Type.NumOut() == 0 && isUint(m.Type.In(1)):
				checkSetter(t, name, doc, acc.of, m)
			}
		}
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func docFieldOf(t *testing.T, typ string, doc docStruct, name string, size int) docField {
	t.Helper()
	if alias, ok := docAlias[typ+"."+name]; ok {
		f := doc.field(t, alias)
		return docField{f.off, size, name}
	}
	f := doc.field(t, name)
	if f.size != size {
		t.Errorf("%s.%s: documented with %d bytes, accessor has %d", typ, name, f.size, size)
	}
	return f
}

func checkGetter(t *testing.T, typ string, doc docStruct, of func([]byte) any, m reflect.Method) {
	t.Helper()
	size := int(m.Type.Out(0).Size())
	f := docFieldOf(t, typ, doc, m.Name, size)
	for _, fill := range []byte{0, 0xff} {
		p := filled(max(doc.size, BlockSize), fill)
		putN(p[f.off:], size, pattern)
		out := reflect.ValueOf(of(p)).Method(m.Index).Call(nil)[0]
		if got := asUint(out) & (1<<(8*size) - 1); got != truncated(size) {
			t.Errorf("%s.%s does not read offset %d (got %#x)", typ, m.Name, f.off, got)
		}
	}
}

func checkSetter(t *testing.T, typ string, doc docStruct, of func([]byte) any, m reflect.Method) {
	t.Helper()
	arg := m.Type.In(1)
	size := int(arg.Size())
	name := strings.TrimPrefix(m.Name, "Set")
	f := docFieldOf(t, typ, doc, name, size)
	for _, fill := range []byte{0, 0xff} {
		p := filled(max(doc.size, BlockSize), fill)
		v := reflect.New(arg).Elem()
		if arg.Kind() >= reflect.Int && arg.Kind() <= reflect.Int64 {
			x := truncated(size)
			v.SetInt(int64(x<<(64-8*size)) >> (64 - 8*size))
		} else {
			v.SetUint(truncated(size))
		}
		reflect.ValueOf(of(p)).Method(m.Index).Call([]reflect.Value{v})
		want := filled(len(p), fill)
		putN(want[f.off:], size, pattern)
		if string(p) != string(want) {
			t.Errorf("%s.%s does not write the bytes %d to %d and only these", typ, m.Name, f.off, f.off+size)
		}
	}
}

func filled(n int, b byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = b
	}
	return p
}

func asUint(v reflect.Value) uint64 {
	if v.CanInt() {
		return uint64(v.Int())
	}
	return v.Uint()
}

func TestFormatDocInodeTimes(t *testing.T) {
	doc := docStructs(t)["Inode"]
	for name, set := range map[string]func(Inode, int64, uint32){
		"Atime": Inode.SetAtime, "Mtime": Inode.SetMtime, "Ctime": Inode.SetCtime, "Btime": Inode.SetBtime,
	} {
		p := make(Inode, InodeSize)
		set(p, -5, 999999999)
		if got := int64(le64(p, doc.field(t, name+"Sec").off)); got != -5 {
			t.Errorf("%s: seconds are not at the documented place (got %d)", name, got)
		}
		if got := le32(p, doc.field(t, name+"Nsec").off); got != 999999999 {
			t.Errorf("%s: nanoseconds are not at the documented place (got %d)", name, got)
		}
	}
}

func TestFormatDocExtent(t *testing.T) {
	doc := docStructs(t)["Extent"]
	p := make([]byte, 2*ExtentSize)
	PutExtent(p, 1, Extent{Logical: 1 << 40, Physical: 2 << 40, Len: 3 << 20, Flags: 4 << 20})
	e := p[ExtentSize:]
	if doc.size != ExtentSize || le64(e, doc.field(t, "Logical").off) != 1<<40 || le64(e, doc.field(t, "Physical").off) != 2<<40 ||
		le32(e, doc.field(t, "Len").off) != 3<<20 || le32(e, doc.field(t, "Flags").off) != 4<<20 {
		t.Error("extent fields are not at the documented places")
	}
}

func TestFormatDocSuperblock(t *testing.T) {
	docs := docStructs(t)
	sb := testSuperblock()
	p := make([]byte, StaticSize)
	if err := sb.Encode(p); err != nil {
		t.Fatal(err)
	}
	doc := docs["Superblock"]
	want := map[string]uint64{
		"Magic": Magic, "Version": Version, "BlockSize": BlockSize, "Compat": sb.Compat, "ROCompat": sb.ROCompat,
		"Incompat": sb.Incompat, "Created": uint64(sb.Created), "GroupBlocks": GroupBlocks,
		"InodesPerGroup": uint64(sb.InodesPerGroup), "InodeSize": InodeSize, "Slots": uint64(sb.Slots), "SlotSize": SlotSize,
		"DeviceCount": uint64(len(sb.Devices)), "Reserved": sb.Reserved, "JournalBlock": JournalBlock,
		"ParamsLength": uint64(len(sb.Params)),
	}
	for name, v := range want {
		checkNumber(t, "Superblock", p, doc.field(t, name), v)
	}
	for name, v := range map[string][]byte{"UUID": sb.UUID[:], "Label": []byte(sb.Label), "VolumeID": []byte(sb.VolumeID),
		"HashKey": sb.HashKey[:], "Params": sb.Params} {
		f := doc.field(t, name)
		if got := p[f.off : f.off+f.size]; string(got[:len(v)]) != string(v) {
			t.Errorf("superblock field %s is not at offset %d", name, f.off)
		}
	}
	rows := doc.field(t, "Devices")
	row := docs["Device"]
	if rows.size != MaxDevices*row.size {
		t.Errorf("device table of %d bytes does not hold %d rows of %d", rows.size, MaxDevices, row.size)
	}
	for i, d := range sb.Devices {
		r := p[rows.off+i*row.size:]
		for name, v := range map[string]uint64{"Base": d.Base, "Blocks": d.Blocks, "FirstGroup": uint64(d.FirstGroup), "Groups": uint64(d.Groups)} {
			checkNumber(t, "Device", r, row.field(t, name), v)
		}
		if f := row.field(t, "UUID"); string(r[f.off:f.off+f.size]) != string(d.UUID[:]) {
			t.Errorf("UUID of device %d is not at its place", i)
		}
	}
	checkNotDocumented(t, p, doc)
}

func TestFormatDocMember(t *testing.T) {
	sb := testSuperblock()
	m := sb.Member(1)
	p := filled(MemberSize, 0xff)
	m.Encode(p)
	doc := docStructs(t)["Member"]
	for name, v := range map[string]uint64{"Magic": MemberMagic, "Version": Version, "Index": 1, "Base": m.Base, "Blocks": m.Blocks,
		"FirstGroup": uint64(m.FirstGroup), "Groups": uint64(m.Groups)} {
		checkNumber(t, "Member", p, doc.field(t, name), v)
	}
	for name, v := range map[string][]byte{"Volume": m.Volume[:], "UUID": m.UUID[:], "VolumeID": []byte(m.VolumeID)} {
		f := doc.field(t, name)
		if got := p[f.off : f.off+f.size]; string(got[:len(v)]) != string(v) {
			t.Errorf("field %s of the label is not at offset %d", name, f.off)
		}
	}
	if doc.size != MemberSize || !Verify(sb.Seed(), m.Base, p) {
		t.Error("size or checksum of the label is not as documented")
	}
	checkNotDocumented(t, p, doc)
}

func checkNumber(t *testing.T, typ string, p []byte, f docField, want uint64) {
	t.Helper()
	var b [8]byte
	copy(b[:], p[f.off:f.off+f.size])
	if got := binary.LittleEndian.Uint64(b[:]); got != want {
		t.Errorf("%s.%s at %d: %#x, want %#x", typ, f.name, f.off, got, want)
	}
}

// checkNotDocumented checks that the bytes shown as "-" are zero.
func checkNotDocumented(t *testing.T, p []byte, doc docStruct) {
	t.Helper()
	for _, f := range doc.fields {
		if f.name != "-" {
			continue
		}
		for i := f.off; i < f.off+f.size; i++ {
			if p[i] != 0 {
				t.Errorf("byte %d is used but not documented", i)
			}
		}
	}
}

func TestFormatDocRequestTuple(t *testing.T) {
	doc := docStructs(t)["Record"]
	r := make(Record, PayloadStart)
	r.Init()
	want := RequestTuple{Conn: 1, Unique: 2, Ino: 3, Result: 4, Op: 5, Errno: 6, More: true}
	r.SetRequest(want)
	for name, v := range map[string]uint64{"Magic": RecordMagic, "Conn": 1, "Unique": 2, "Node": 3, "Result": 4, "Op": 5, "Errno": 6, "More": 1} {
		checkNumber(t, "Record", r, doc.field(t, name), v)
	}
	checkNotDocumented(t, r, doc)
	if doc.field(t, "Retire").off != RecRetire || doc.field(t, "Intent").off != RecIntent || doc.field(t, "Conn").off != RecRequest {
		t.Error("parts of the slot are not at the documented places")
	}
	if got := r.Request(); got != want {
		t.Errorf("request tuple reads back as %+v", got)
	}
}

func TestFormatDocAnswer(t *testing.T) {
	doc := docStructs(t)["Answer"]
	if doc.size != AnswerSize {
		t.Errorf("an answer of %d bytes is documented, of %d in code", doc.size, AnswerSize)
	}
	r := Record(filled(SlotSize, 0xff))
	r.InitAnswers(2)
	r.SetSeq(9)
	want := Answer{Seq: 7}
	want.Unique, want.Ino, want.Result, want.Op, want.Errno, want.More = 2, 3, 4, 5, 6, true
	r.SetAnswer(0, Answer{})
	r.SetAnswer(1, want)
	row := r[PayloadStart+AnswerSize:]
	for name, v := range map[string]uint64{"Unique": 2, "Node": 3, "Result": 4, "Op": 5, "Errno": 6, "More": 1, "Seq": 7} {
		checkNumber(t, "Answer", row, doc.field(t, name), v)
	}
	checkNotDocumented(t, row, doc)
	if got := r.Answer(1); got != want {
		t.Errorf("an answer reads back as %+v", got)
	}
	r.SealRecord(1)
	if !r.HoldsAnswers(1) || r.Valid(1) || r.HoldsAnswers(2) {
		t.Error("an answer table must verify with its own seed, and be no record")
	}
	row[0]++
	if r.HoldsAnswers(1) {
		t.Error("a damaged answer table verifies")
	}
}

func TestFormatDocPatchAndIntent(t *testing.T) {
	docs := docStructs(t)
	p := filled(PatchHeader, 0xff)
	PutPatchHeader(p, 1<<40, 24)
	checkNumber(t, "Patch", p, docs["Patch"].field(t, "Off"), 1<<40)
	checkNumber(t, "Patch", p, docs["Patch"].field(t, "Len"), 24)
	checkNotDocumented(t, p, docs["Patch"])
	in := Intent(filled(IntentSize, 0xff))
	in.Set(IntentZero, 2<<40, 3<<40, 4<<40, 5<<40)
	for name, v := range map[string]uint64{"Kind": IntentZero, "Node": 2 << 40, "Start": 3 << 40, "End": 4 << 40, "Aux": 5 << 40} {
		checkNumber(t, "Intent", in, docs["Intent"].field(t, name), v)
	}
	checkNotDocumented(t, in, docs["Intent"])
}

func TestFormatDocSmallEntries(t *testing.T) {
	docs := docStructs(t)
	x := AppendXattr(nil, []byte("user.a"), []byte("value"))
	checkNumber(t, "XattrEntry", x, docs["XattrEntry"].field(t, "ValueLen"), 5)
	checkNumber(t, "XattrEntry", x, docs["XattrEntry"].field(t, "NameLen"), 6)
	checkNotDocumented(t, x, docs["XattrEntry"])
	if docs["XattrEntry"].size != XattrHeader || docs["DirEntry"].size != DirEntryHeader || docs["Patch"].size != PatchHeader {
		t.Error("a header has not the documented size")
	}
	e := DirEntry(make([]byte, 64))
	e.SetName([]byte("name"))
	checkNumber(t, "DirEntry", e, docs["DirEntry"].field(t, "NameLen"), 4)
	if string(e[docs["DirEntry"].size:][:4]) != "name" {
		t.Error("the name does not follow the header")
	}
	d := GroupDesc(make([]byte, GroupDescSize))
	d.Init(1, 2, 3)
	for name, v := range map[string]uint64{"Magic": GroupMagic, "Group": 1, "Blocks": 2, "Inodes": 3} {
		checkNumber(t, "GroupDesc", d, docs["GroupDesc"].field(t, name), v)
	}
}
