package crashtest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// shapeCase is an operation of a row of the table in docs/format.md, section
// 14.2: the last of ops on volume base, and the shape that it has.
type shapeCase struct{ row, base, ops, shape string }

var shapeCases = []shapeCase{
	{"create, mknod", "tree", "create /new", "rat"},
	{"create, mknod", "tree", "create /empty/new", "drat"},
	{"create, mknod", "wide", "create /leaf/" + longName(100), "drat"},
	{"create, mknod", "tree", "mknod /new char", "rat"},
	{"mkdir", "tree", "mkdir /dir/new", "rat"},
	{"mkdir", "wide", "mkdir /leaf/" + longName(100), "drat"},
	{"symlink", "tree", "symlink /new 6", "rat"},
	{"symlink", "tree", "symlink /new 3000", "drat"},
	{"link", "tree", "link /page /dir/new", "rat"},
	{"link", "tree", "tmpfile /; linkheld /new", "rat"},
	{"link", "wide", "link /some /leaf/" + longName(100), "drat"},
	{"tmpfile", "tree", "tmpfile /dir", "rat"},
	{"unlink, other names left", "tree", "unlink /odd", "rat"},
	{"unlink, last name", "tree", "hold /page; unlink /page", "rat"},
	{"unlink, last name", "tree", "unlink /page", "ratrat"},
	{"unlink, last name", "tree", "unlink /dir/sub/deep", "ratrat"},
	{"rmdir", "tree", "rmdir /other/vacant", "ratrat"},
	{"rmdir", "tree", "hold /empty; rmdir /empty", "rat"},
	{"rename, new name", "tree", "rename /small /new", "rat"},
	{"rename, new name", "tree", "rename /dir/sub /other/new", "rat"},
	{"rename, new name", "tree", "rename /none /empty/new", "drat"},
	{"rename, over a name", "tree", "rename /small /page", "ratrat"},
	{"rename, over a name", "tree", "rename /dir/sub /other/vacant", "ratrat"},
	{"rename, over a name", "tree", "rename /small /dir/hard", "rat"},
	{"rename, exchange", "tree", "rename /dir/sub /other/c exchange", "rat"},
	{"rename, whiteout", "tree", "rename /dir/a /new whiteout", "rat"},
	{"rename, whiteout", "wide", "rename /some /leaf/" + longName(100) + " whiteout", "drat"},
	{"setattr without size", "tree", "setattr /suid mode=700 uid=5", "rat"},
	{"truncate up", "tree", "truncate /odd 20000", "drat"},
	{"truncate up", "tree", "truncate /page 20000", "rat"},
	{"truncate up", "tree", "truncate /small 20000", "drat"},
	{"truncate down, freeing fits in one record", "tree", "truncate /odd 5000", "rat"},
	{"truncate down, freeing fits in one record", "tree", "truncate /small 5", "rat"},
	{"truncate down, larger", "fragments", "truncate /a 0", "ratratrat"},
	{"write, inline", "tree", "write /small 50 200", "rat"},
	{"write, inline to extent", "tree", "write /inline 330 5000", "drat"},
	{"write, inline to extent", "tree", "write /inline 9000 100", "drat"},
	{"write, append or into a hole", "tree", "write /odd 10000 7001", "drat"},
	{"write, append or into a hole", "tree", "write /holes 4196 50", "drat"},
	{"write, append or into a hole", "tree", "write /odd 30003 77", "drat"},
	{"write, overwrite in place", "tree", "write /plain 3 8000", "drat"},
	{"write, into unwritten blocks", "tree", "write /unw 5017 9000", "drat"},
	{"write of more than 512 KiB", "tree", "write /none 0 600000", "dratdrat"},
	{"fallocate, allocate (with or without KEEP_SIZE)", "tree", "fallocate /odd alloc 0 30000", "drat"},
	{"fallocate, allocate (with or without KEEP_SIZE)", "tree", "fallocate /page keep 0 30000", "rat"},
	{"fallocate, punch", "tree", "fallocate /plain punch 101 8000", "drat"},
	{"fallocate, punch", "tree", "fallocate /plain punch 0 4096", "rat"},
	{"fallocate, punch", "fragments", "fallocate /a punch 0 10000000", "ratratrat"},
	{"fallocate, zero range", "tree", "fallocate /plain zero 100 12001", "drat"},
	{"fallocate, zero range", "tree", "fallocate /plain zerokeep 4096 4096", "rat"},
	{"setxattr, removexattr", "tree", "setxattr /none user.new 30", "rat"},
	{"setxattr, removexattr", "tree", "setxattr /small user.new 9000", "drat"},
	{"setxattr, removexattr", "tree", "rmxattr /page user.x", "rat"},
	{"release of an orphan", "tree", "hold /page; unlink /page; release", "rat"},
	{"release of an orphan", "fragments", "hold /a; unlink /a; release", "ratratrat"},
	{"growth", "growing", "grow", "drat"},
	{"growth", "growing-group", "grow", "ddrat"},
	{"growth onto a further device", "second-device", "growonto", "dddddrat"},
}

// row is a row of the table: its Fences column, and the kinds of patches that
// it names.
type row struct {
	fences *regexp.Regexp
	kinds  map[string]bool
}

var kindToken = regexp.MustCompile(`\b(I|IB|OB|BB|DL|DX|XN)\b`)

// orderTable parses the table of section 14.2.
func orderTable(t *testing.T) map[string]row {
	t.Helper()
	doc, err := os.ReadFile("../../../docs/format.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(doc), "### 14.2 ")
	if !ok {
		t.Fatal("docs/format.md has no section 14.2")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	rows := map[string]row{}
	var last string
	for line := range strings.SplitSeq(section, "\n") {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if !strings.HasPrefix(line, "| ") || len(cells) != 5 || strings.Contains(line, "Operation |") {
			continue
		}
		name, text := strings.TrimSpace(cells[0]), strings.Join(cells[2:], " ")
		re, err := regexp.Compile("^(" + strings.Trim(strings.TrimSpace(cells[1]), "`") + ")$")
		if err != nil {
			t.Fatalf("row %q: %v", name, err)
		}
		r := row{re, map[string]bool{}}
		for _, k := range kindToken.FindAllString(text, -1) {
			r.kinds[k] = true
		}
		for like, of := range map[string]string{"as above": last, "as create": "create, mknod", "as rename": "rename, new name", "release follows": "release of an orphan", "release of the orphan follows": "release of an orphan"} {
			if strings.Contains(text, like) {
				r.kinds["like "+of] = true
			}
		}
		r.kinds["superblock"] = strings.Contains(text, "superblock") || strings.Contains(text, "static half")
		r.kinds["group"] = strings.Contains(text, "descriptor")
		r.kinds["intent"] = strings.Contains(text, "Intent")
		rows[name] = r
		last = name
	}
	return rows
}

func allows(rows map[string]row, name, kind string) bool {
	for k, ok := range rows[name].kinds {
		if of, like := strings.CutPrefix(k, "like "); ok && (k == kind || like && allows(rows, of, kind)) {
			return true
		}
	}
	return false
}

// patchKind names what a patch at off changes, as the table does.
func patchKind(mem []byte, off uint64) string {
	block := off / layout.BlockSize
	if block == 0 {
		return "superblock"
	}
	if block < layout.HeaderBlocks {
		return "intent"
	}
	sb, err := layout.DecodeSuperblock(mem[:layout.StaticSize])
	if err != nil {
		return "?"
	}
	in := block - layout.GroupStart(layout.GroupOf(block))
	switch {
	case in < layout.GroupInodeTable:
		return [...]string{"group", "BB", "IB", "OB"}[in]
	case in < layout.GroupInodeTable+layout.InodeTableBlocks(sb.InodesPerGroup):
		return "I"
	}
	switch layout.Node(mem[block*layout.BlockSize:]).Magic() {
	case layout.DirLeafMagic:
		return "DL"
	case layout.DirIndexMagic:
		return "DX"
	case layout.ExtentMagic:
		return "XN"
	}
	return "?"
}

// patched lists the kinds of what the records of an operation changed.
func patched(mem []byte, events []record.Event) map[string]bool {
	kinds := map[string]bool{}
	recorded := false
	for _, e := range events {
		if e.Kind != record.Store {
			continue
		}
		switch k := kindOf(e.Off); {
		case k == 'r':
			recorded = true
		case k == 't':
			recorded = false
		case recorded:
			kinds[patchKind(mem, e.Off)] = true
		}
	}
	return kinds
}

// TestOrderOfStores compares what the engine does with docs/format.md, section
// 14.2: the fences of each operation, and what its records change.
func TestOrderOfStores(t *testing.T) {
	rows := orderTable(t)
	seen := map[string]bool{"mount, unmount, damage met for the first time": true} // TestOrderOfMount
	p := quick(record.ADR)
	runners := map[string]*runner{}
	for _, c := range shapeCases {
		seen[c.row] = true
		r := runners[c.base]
		if r == nil {
			var err error
			if r, err = newRunner(&p, Bases[c.base]); err != nil {
				t.Fatal(err)
			}
			runners[c.base] = r
		}
		row, ok := rows[c.row]
		if !ok {
			t.Errorf("the table has no row %q", c.row)
			continue
		}
		h, trace, err := r.record(Case{Base: c.base, Ops: Ops(c.ops)})
		if err != nil {
			t.Errorf("%s: %v", c.ops, err)
			continue
		}
		have := h.steps[len(h.steps)-1].shape
		if have != c.shape {
			t.Errorf("%s: shape %q, want %q", c.ops, have, c.shape)
		}
		if !row.fences.MatchString(have) {
			t.Errorf("%s: shape %q does not fit row %q of the table: %v", c.ops, have, c.row, row.fences)
		}
		list := operations(trace.Events())
		for k := range patched(r.space.Bytes(), list[len(list)-1]) {
			if !allows(rows, c.row, k) {
				t.Errorf("%s: a record changes %s, which row %q of the table does not name", c.ops, k, c.row)
			}
		}
	}
	for name := range rows {
		if !seen[name] {
			t.Errorf("row %q of the table has no case here", name)
		}
	}
}

// TestOrderOfMount does the same for mount and unmount of a clean volume.
func TestOrderOfMount(t *testing.T) {
	rows := orderTable(t)
	b := Bases["tree"]
	if err := b.prepare(); err != nil {
		t.Fatal(err)
	}
	space := b.content.NewSpace()
	var c clock
	space.Record()
	v, err := mount(space, c.now, 0, newBuffers())
	if err != nil {
		t.Fatal(err)
	}
	mounted := space.Stop()
	space.Record()
	if err := v.unmount(); err != nil {
		t.Fatal(err)
	}
	for what, trace := range map[string]*record.Trace{"mount": mounted, "unmount": space.Stop()} {
		shape := Shape(trace.Events())
		if !rows["mount, unmount, damage met for the first time"].fences.MatchString(shape) {
			t.Errorf("%s: shape %q does not fit the table", what, shape)
		}
		for k := range patched(space.Bytes(), trace.Events()) {
			if !allows(rows, "mount, unmount, damage met for the first time", k) {
				t.Errorf("%s: a record changes %s, which the table does not name", what, k)
			}
		}
	}
}
