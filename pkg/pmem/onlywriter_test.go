package pmem_test

import (
	"go/ast"
	"go/parser"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/nvfs-csi/nvfs-csi"

// writers are the packages that may store to a mapping, and why.
var writers = map[string]string{
	modulePath + "/pkg/pmem":        "the only writer",
	modulePath + "/pkg/pmem/record": "a Space of its own memory, which records every store",
}

// unsafeFiles may import unsafe, and why. Elsewhere nobody can make a pointer
// into a mapping that the analysis below would lose.
var unsafeFiles = map[string]string{
	"pkg/pmem/mapping.go":          "maps memory",
	"pkg/pmem/msync.go":            "stores words to the mapping",
	"pkg/pmem/numa.go":             "mbind system call",
	"pkg/pmem/persister.go":        "stores to the mapping",
	"pkg/pmem/scratch.go":          "makes persisters",
	"pkg/pmem/store_amd64.go":      "declares the assembly",
	"pkg/pmem/store_arm64.go":      "declares the assembly",
	"pkg/pmem/store_other.go":      "stands in for the assembly",
	"pkg/pmem/sysfs.go":            "ioctl system call",
	"pkg/nvfs/fsck/volume.go":      "makes its own copies of metadata without an allocation each",
	"pkg/nvfs/fusefs/dev.go":       "readv and writev of FUSE messages",
	"pkg/nvfs/fusefs/handler.go":   "wire structures in FUSE buffers",
	"pkg/nvfs/fusefs/interrupt.go": "wire structures in FUSE buffers",
	"pkg/nvfs/fusefs/listing.go":   "wire structures in FUSE buffers",
	"pkg/nvfs/fusefs/names.go":     "wire structures in FUSE buffers",
	"pkg/nvfs/fusefs/readdir.go":   "wire structures in FUSE buffers",
	"pkg/nvfs/fusefs/wire.go":      "wire structures in FUSE buffers",
	"pkg/nvfs/fusefs/resume.go":    "notifications to the kernel",

	"pkg/nvfs/fusefs/uring_executor.go": "wire structures in the memory of a ring",
	"pkg/nvfs/fusefs/uring_long.go":     "wire structures in the memory of a ring",
	"pkg/nvfs/fusefs/uring_memory.go":   "wire structures in the memory of a ring",
	"pkg/nvfs/fusefs/uring_ring.go":     "io_uring system calls and rings",
	"pkg/mountd/service.go":             "the process that waitid(2) has found",
	"pkg/mountd/title.go":               "the memory of this process's own arguments",
}

// readers are functions outside the module that only read the bytes they are
// given. Every other one counts as a writer.
var readers = map[string]bool{
	"bytes.Equal": true, "bytes.Compare": true, "bytes.HasPrefix": true, "bytes.HasSuffix": true,
	"bytes.IndexByte": true, "bytes.Index": true, "bytes.Clone": true, "bytes.Contains": true,
	"bytes.TrimRight": true, "bytes.NewReader": true, "bytes.Count": true,
	"slices.Clone": true, "slices.Equal": true, "slices.Contains": true,
	"hash/crc32.Checksum": true, "hash/crc32.Update": true, "hash/crc32.ChecksumIEEE": true,
	"(encoding/binary.littleEndian).Uint16": true, "(encoding/binary.littleEndian).Uint32": true,
	"(encoding/binary.littleEndian).Uint64": true, "(encoding/binary.bigEndian).Uint16": true,
	"(encoding/binary.bigEndian).Uint32": true, "(encoding/binary.bigEndian).Uint64": true,
	"github.com/dchest/siphash.Hash": true, "github.com/google/uuid.FromBytes": true,
	"sync/atomic.LoadUint64": true, "sync/atomic.LoadUint32": true, "sync/atomic.LoadInt64": true,
	"golang.org/x/sys/unix.Madvise": true, "golang.org/x/sys/unix.Mincore": true,
	"golang.org/x/sys/unix.Write": true, "golang.org/x/sys/unix.Writev": true, "golang.org/x/sys/unix.Pwrite": true,
	"(*os.File).Write": true, "(*os.File).WriteAt": true, "(io.Writer).Write": true,
	"(hash.Hash).Write": true, "(hash.Hash32).Write": true, "runtime.KeepAlive": true,
	"fmt.Sprintf": true, "fmt.Errorf": true, "fmt.Sprint": true, "fmt.Fprintf": true, "errors.Join": true,
}

// movers exchange the elements of a slice, which is no store to a mapping when
// these are references.
var movers = map[string]bool{
	"slices.SortFunc": true, "slices.Reverse": true, "slices.Delete": true, "slices.DeleteFunc": true,
	"slices.Insert": true, "slices.Compact": true, "slices.CompactFunc": true, "sort.Slice": true,
}

// falseFindings are functions that the analysis is wrong about, and why.
var falseFindings = map[string]string{
	modulePath + "/pkg/nvfs/mkfs.probeFile": "reads a file into buffers that it made; the same structure holds parts of a mapping elsewhere",
}

// copies are functions of the module that return a copy, in place of a part of
// the mapping, when the named argument is true. The analysis cannot know.
var copies = map[string]string{
	"(*" + modulePath + "/pkg/nvfs.Worker).child": "stage",
}

// fresh are those readers whose result shares no memory with their argument.
var fresh = map[string]bool{
	"bytes.Clone": true, "slices.Clone": true, "fmt.Errorf": true,
	"github.com/google/uuid.FromBytes": true,
}

// TestOnlyWriter proves from the source that nothing outside package pmem
// stores to a mapping. It follows Bytes() of every Space through variables,
// fields, parameters, results and callbacks, and reports where what it leads to
// is written: see byteFlow.
func TestOnlyWriter(t *testing.T) {
	module := loadModule(t)
	flow := newByteFlow(module.fset, module.space(t))
	for _, p := range module.packages {
		if writers[p.types.Path()] == "" {
			flow.add(p)
		}
	}
	for _, f := range flow.run() {
		if falseFindings[f.function] == "" {
			t.Errorf("%s: %s writes to a mapping: only package pmem may, store through a Persister", f.Position, f.function)
		}
	}
	if flow.sources == 0 {
		t.Error("no use of Bytes() was found: the analysis sees nothing")
	}
	t.Logf("%d packages, %d uses of Bytes()", len(module.packages), flow.sources)
}

// TestUnsafeFiles keeps package unsafe to the files that need it.
func TestUnsafeFiles(t *testing.T) {
	module := loadModule(t)
	for _, p := range module.packages {
		for _, file := range p.files {
			if !imports(file, "unsafe") {
				continue
			}
			name, err := filepath.Rel(module.dir, module.fset.Position(file.Pos()).Filename)
			if err != nil {
				t.Fatal(err)
			}
			if unsafeFiles[filepath.ToSlash(name)] == "" {
				t.Errorf("%s imports unsafe and is not in the list of files that may", name)
			}
		}
	}
}

// TestUnsafeFilesExist keeps the list short.
func TestUnsafeFilesExist(t *testing.T) {
	for name := range unsafeFiles {
		if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
			t.Errorf("%v: take it off the list", err)
		}
	}
}

func imports(file *ast.File, path string) bool {
	return slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
		got, err := strconv.Unquote(i.Path.Value)
		return err == nil && got == path
	})
}

// flowSample is code with known writes, each marked "want". It has the forms
// that the module's code uses.
const flowSample = `package sample

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"sort"
	"unsafe"
)

type Space interface{ Bytes() []byte; Size() int }
type memory struct{ b []byte }
func (m *memory) Bytes() []byte { return m.b }
func (m *memory) Size() int { return len(m.b) }

type header struct{ a, b uint64 }
type view struct{ node inode; other []byte; depth int }
func (v view) array() []byte { return v.node.body() }
func (v view) put(i int)     { v.array()[i] = 1 }
func (v *view) reset()       { v.depth = 0 }

type inode []byte
func (n inode) mode() uint16     { return binary.LittleEndian.Uint16(n) }
func (n inode) setMode(v uint16) { binary.LittleEndian.PutUint16(n.body(), v) }
func (n inode) body() []byte     { return n[8:] }

type fs struct {
	mem    []byte
	staged []byte
	parts  [][]byte
	visit  func([]byte)
	n      int
}

func mount(s Space) *fs { return &fs{mem: s.Bytes()} }
func (f *fs) inodeAt(i int) inode { return inode(f.mem[i : i+8]) }
func (f *fs) copyOf(i int) inode  { return slices.Clone(f.inodeAt(i)) }

func zero(b []byte)       { clear(b) }
func zeroDeep(b []byte)   { zero(b[1:]) }
func pick(a, b []byte) []byte { if len(a) > 3 { return a }; return b }
func each(b []byte, f func([]byte)) { f(b[:4]) }
func eachRead(b []byte, f func([]byte)) { f(b[:4]) }
type visitor interface{ visit([]byte) }
type zeroer struct{}
func (zeroer) visit(b []byte) { b[0] = 0 }
func generic[T ~[]byte](b T) { b[0] = 1 }
func closure(f *fs) func() []byte { return func() []byte { return f.mem } }
func two(f *fs) ([]byte, error) { return f.mem, nil }
func array(f *fs) *[8]byte { return (*[8]byte)(f.mem) }

func bad(f *fs, s Space, m *memory, r io.Reader, v visitor) {
	f.mem[0] = 1                                     // want
	s.Bytes()[1]++                                   // want
	m.Bytes()[1] += 2                                // want
	copy(f.mem[3:], "x")                             // want
	clear(f.mem)                                     // want
	_ = append(f.mem[:0], 1)                         // want
	binary.LittleEndian.PutUint64(f.mem[8:], 1)      // want
	_ = binary.LittleEndian.AppendUint16(f.mem[:0], 1) // want
	f.inodeAt(1).setMode(2)                          // want
	zeroDeep(f.mem)                                  // want
	zero(pick(nil, f.mem))                           // want
	_, _ = r.Read(f.mem)                             // want
	_, _ = io.ReadFull(r, f.mem[:9])                 // want
	slices.Sort(f.mem)                               // want
	sort.Slice(f.mem, nil)                           // want
	p := &f.mem[7]
	*p = 1                                           // want
	x := f.mem
	y := x[4:]
	y[0] = 1                                         // want
	f.parts = append(f.parts, y)
	for _, part := range f.parts {
		part[0] = 1                                  // want
	}
	each(f.mem, func(b []byte) { b[0] = 1 })         // want
	v.visit(f.mem)                                   // want
	generic(f.mem)                                   // want
	closure(f)()[0] = 1                              // want
	z, _ := two(f)
	z[0] = 1                                         // want
	array(f)[0] = 1                                  // want
	f.visit = zero
	f.visit(f.mem)                                   // want
	go zero(f.mem)                                   // want
	defer clear(f.mem)                               // want
	ch := make(chan []byte, 1)
	ch <- f.mem
	(<-ch)[0] = 1                                    // want
	byKey := map[int][]byte{}
	byKey[1] = f.mem
	byKey[1][0] = 1                                  // want
	var any any = f.mem
	any.([]byte)[0] = 1                              // want
	for i := range f.mem { f.mem[i], f.n = 0, i }    // want
	view{node: f.inodeAt(1)}.put(0)                  // want
	var w view
	w.node = f.inodeAt(2)
	w.put(1)                                         // want
	w.other[0] = 1                                   // want
	h := (*header)(unsafe.Pointer(&f.mem[64]))
	h.a = 1                                          // want
	*h = header{}                                    // want
	views := []view{{node: f.inodeAt(3)}}
	views[0].put(1)                                  // want
	holder := &view{node: f.inodeAt(4)}
	holder.node[0] = 1                               // want
	holder.put(1)                                    // want
	unsafe.Slice(unsafe.SliceData(f.mem), 3)[0] = 1  // want
	(*holder).put(2)                                 // want
	shuffle := slices.Sort[[]byte]
	shuffle(f.mem)                                   // want
}

func good(f *fs) {
	f.n = int(f.mem[0])
	f.staged = bytes.Clone(f.mem[:8])
	f.staged[0] = 1
	f.copyOf(1).setMode(3)
	_ = f.inodeAt(1).mode()
	copy(f.staged, f.mem)
	_ = append([]byte(nil), f.mem...)
	value := *array(f)
	value[0] = 1
	eachRead(f.mem, func(b []byte) { f.n += len(b) })
	zeroDeep(f.staged)
	zero(pick(f.staged, nil))
	f.parts[0] = nil
	f.mem = nil
	if bytes.Equal(f.mem, f.staged) { f.n++ }
	var buffer bytes.Buffer
	buffer.Bytes()[0] = 1
	text := []byte(string(f.mem))
	text[0] = 1
	staged := view{node: f.copyOf(1)}
	staged.put(0)
	mapped := view{node: f.inodeAt(1)}
	mapped.depth = 4
	mapped.reset()
	records := []inode{f.inodeAt(1), f.inodeAt(2)}
	slices.SortFunc(records, func(a, b inode) int { return int(a[0]) - int(b[0]) })
	records[0], records[1] = records[1], records[0]
	_ = uintptr(unsafe.Pointer(unsafe.SliceData(f.mem)))
}
`

// TestByteFlow runs the analysis on code whose writes are known.
func TestByteFlow(t *testing.T) {
	module := loadModule(t)
	file, err := parser.ParseFile(module.fset, "sample.go", flowSample, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	p, err := checkPackage(module.fset, "sample", []*ast.File{file}, module.importer)
	if err != nil {
		t.Fatal(err)
	}
	space, ok := p.types.Scope().Lookup("Space").Type().Underlying().(*types.Interface)
	if !ok {
		t.Fatal("the sample has no interface Space")
	}
	flow := newByteFlow(module.fset, space)
	flow.add(p)
	var got []int
	for _, finding := range flow.run() {
		if line := finding.Line; !slices.Contains(got, line) {
			got = append(got, line)
		}
	}
	for i, text := range strings.Split(flowSample, "\n") {
		line := i + 1
		switch want := strings.Contains(text, "// want"); {
		case want && !slices.Contains(got, line):
			t.Errorf("line %d is not reported: %s", line, text)
		case !want && slices.Contains(got, line):
			t.Errorf("line %d is reported: %s", line, text)
		}
	}
}
