package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStressOneFile does random operations on one file, by read and write, by
// direct I/O and through a mapping, and compares with an image in memory.
func TestStressOneFile(t *testing.T) {
	eachMode(t, 256<<20, func(t *testing.T, v testVolume, mount func()) {
		s := newFileStress(t, v.path("f"), seed(t))
		ops := scale(4000, 2_000_000)
		for i := range ops {
			s.do(i)
			if t.Failed() {
				t.Fatalf("the last operations:\n%s", strings.Join(s.log, "\n"))
			}
		}
		s.close()
		v.unmount(t)
		v.check(t)
		mount()
		s.compareAll("after a remount")
	})
}

// maxStressFile is small enough for operations to meet each other.
const maxStressFile = 640 << 10

// fileStress is a file with the image that it should have.
type fileStress struct {
	t      *testing.T
	name   string
	r      *rand.Rand
	image  []byte
	f      *os.File
	direct *os.File
	other  *os.File // what copy_file_range copies through
	mem    []byte
	buf    []byte
	log    []string
}

func newFileStress(t *testing.T, name string, seed uint64) *fileStress {
	t.Helper()
	s := &fileStress{t: t, name: name, r: rand.New(rand.NewPCG(seed, 1)), buf: aligned(make([]byte, maxStressFile))}
	s.open(os.O_CREATE)
	t.Cleanup(s.close)
	return s
}

func (s *fileStress) open(flags int) {
	var err error
	if s.f, err = os.OpenFile(s.name, os.O_RDWR|flags, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if s.direct, err = os.OpenFile(s.name, os.O_RDWR|unix.O_DIRECT, 0); err != nil {
		s.t.Fatal(err)
	}
	if s.other, err = os.OpenFile(s.name+"-other", os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if s.mem, err = unix.Mmap(int(s.f.Fd()), 0, maxStressFile, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		s.t.Fatal(err)
	}
}

func (s *fileStress) close() {
	if s.mem == nil {
		return
	}
	if err := unix.Munmap(s.mem); err != nil {
		s.t.Error(err)
	}
	s.mem = nil
	s.f.Close()
	s.direct.Close()
	s.other.Close()
}

// place is a random range with a tendency to the edges of blocks and of the
// file. It may be empty, and end behind the file.
func (s *fileStress) place() (off, n int) {
	off = s.r.IntN(maxStressFile)
	switch s.r.IntN(4) {
	case 0:
		off &^= 4095
	case 1:
		off = min(len(s.image), maxStressFile-1)
	case 2:
		off = s.r.IntN(len(s.image) + 1)
	}
	n = 1 + s.r.IntN([]int{16, 5000, 70000, 200000}[s.r.IntN(4)])
	if s.r.IntN(4) == 0 {
		n = (n + 4095) &^ 4095
	}
	off = min(off, maxStressFile-1)
	return off, min(n, maxStressFile-off)
}

// inside is a random range within the file; n is 0 when the file is empty.
func (s *fileStress) inside() (off, n int) {
	off, n = s.place()
	off = min(off, len(s.image))
	return off, min(n, len(s.image)-off)
}

func (s *fileStress) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
	if len(s.log) > 30 {
		s.log = slices.Delete(s.log, 0, 10)
	}
}

// must fails the test for an error of a system call.
func (s *fileStress) must(err error) {
	if err != nil {
		s.t.Errorf("%s: %v", s.log[len(s.log)-1], err)
	}
}

// store is what an operation does to the image.
func (s *fileStress) store(off int, data []byte) {
	if len(data) == 0 {
		return
	}
	s.grow(off + len(data))
	copy(s.image[off:], data)
}

func (s *fileStress) grow(size int) {
	if size > len(s.image) {
		s.image = append(s.image, make([]byte, size-len(s.image))...)
	}
}

func (s *fileStress) random(n int) []byte {
	b := s.buf[:n]
	v := s.r.Uint64()
	for i := range b {
		b[i] = byte(v>>(i%8*8)) + byte(i>>3)
	}
	return b
}

// do is one operation. A fault of the mapping, which stands for an error, fails
// the test.
func (s *fileStress) do(i int) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			s.t.Errorf("%s: %v", s.log[len(s.log)-1], v)
		}
	}()
	switch op := s.r.IntN(100); {
	case op < 20:
		s.write()
	case op < 25:
		s.writeDirect()
	case op < 40:
		s.read()
	case op < 45:
		s.readDirect()
	case op < 57:
		s.storeMapped()
	case op < 67:
		s.loadMapped()
	case op < 75:
		s.truncate()
	case op < 85:
		s.fallocate()
	case op < 90:
		s.copyRange()
	case op < 92:
		s.seekData()
	case op < 95:
		s.sync()
	case op < 97:
		s.reopen()
	case op < 98:
		s.note("%d: forget the pages", i)
		s.must(unix.Fadvise(int(s.f.Fd()), 0, 0, unix.FADV_DONTNEED))
	case op < 99:
		s.append()
	default:
		s.compareAll(fmt.Sprintf("operation %d", i))
	}
}

func (s *fileStress) write() {
	off, n := s.place()
	s.note("write %d+%d", off, n)
	_, err := s.f.WriteAt(s.random(n), int64(off))
	s.must(err)
	s.store(off, s.buf[:n])
}

func (s *fileStress) append() {
	n := min(1+s.r.IntN(10000), maxStressFile-len(s.image))
	s.note("append %d at %d", n, len(s.image))
	_, err := unix.Pwritev2(int(s.f.Fd()), [][]byte{s.random(n)}, 0, unix.RWF_APPEND)
	s.must(err)
	s.store(len(s.image), s.buf[:n])
}

func (s *fileStress) writeDirect() {
	off, n := s.place()
	off, n = off&^4095, max(n&^4095, 4096)
	n = min(n, maxStressFile-off)
	s.note("direct write %d+%d", off, n)
	_, err := s.direct.WriteAt(s.random(n), int64(off))
	s.must(err)
	s.store(off, s.buf[:n])
}

// compare wants what was read at off.
func (s *fileStress) compare(off int, got []byte) {
	want := s.image[min(off, len(s.image)):min(off+len(got), len(s.image))]
	if bytes.Equal(got, want) {
		return
	}
	if len(got) != len(want) {
		s.t.Errorf("%s: %d bytes, want %d", s.log[len(s.log)-1], len(got), len(want))
		return
	}
	bad := 0
	for got[bad] == want[bad] {
		bad++
	}
	s.t.Errorf("%s: byte %d is %#x, want %#x", s.log[len(s.log)-1], off+bad, got[bad], want[bad])
}

func (s *fileStress) read() {
	off, n := s.place()
	s.note("read %d+%d", off, n)
	n, err := unix.Pread(int(s.f.Fd()), s.buf[:n], int64(off))
	s.must(err)
	if off < len(s.image) || n != 0 {
		s.compare(off, s.buf[:max(n, 0)])
	}
}

func (s *fileStress) readDirect() {
	off, n := s.place()
	off, n = off&^4095, (n+4095)&^4095
	n = min(n, maxStressFile-off)
	s.note("direct read %d+%d", off, n)
	n, err := unix.Pread(int(s.direct.Fd()), s.buf[:n], int64(off))
	s.must(err)
	if off < len(s.image) || n != 0 {
		s.compare(off, s.buf[:max(n, 0)])
	}
}

func (s *fileStress) storeMapped() {
	off, n := s.inside()
	s.note("store %d+%d", off, n)
	copy(s.mem[off:off+n], s.random(n))
	s.store(off, s.buf[:n])
}

func (s *fileStress) loadMapped() {
	off, n := s.inside()
	s.note("load %d+%d", off, n)
	s.compare(off, s.mem[off:off+n])
}

func (s *fileStress) truncate() {
	size, _ := s.place()
	s.note("truncate %d to %d", len(s.image), size)
	s.must(s.f.Truncate(int64(size)))
	s.grow(size)
	s.image = s.image[:size]
	clear(s.image[size:cap(s.image)])
}

func (s *fileStress) fallocate() {
	off, n := s.place()
	modes := []uint32{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE,
		unix.FALLOC_FL_ZERO_RANGE, unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE}
	mode := modes[s.r.IntN(len(modes))]
	s.note("fallocate %#x %d+%d", mode, off, n)
	s.must(unix.Fallocate(int(s.f.Fd()), mode, int64(off), int64(n)))
	if mode&unix.FALLOC_FL_KEEP_SIZE == 0 {
		s.grow(off + n)
	}
	if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) != 0 && off < len(s.image) {
		clear(s.image[off:min(off+n, len(s.image))])
	}
}

// copyRange copies inside the file, if the ranges allow, or by way of another.
func (s *fileStress) copyRange() {
	from, n := s.inside()
	to, _ := s.place()
	n = min(n, maxStressFile-to)
	s.note("copy %d+%d to %d", from, n, to)
	data := slices.Clone(s.image[from : from+n])
	if from+n <= to || to+n <= from {
		s.must(copyFileRange(s.f, from, s.f, to, n))
	} else {
		s.must(copyFileRange(s.f, from, s.other, 0, n))
		s.must(copyFileRange(s.other, 0, s.f, to, n))
	}
	s.store(to, data)
}

func copyFileRange(in *os.File, from int, out *os.File, to, n int) error {
	src, dst := int64(from), int64(to)
	for n > 0 {
		done, err := unix.CopyFileRange(int(in.Fd()), &src, int(out.Fd()), &dst, n, 0)
		if err != nil {
			return err
		}
		if done == 0 {
			return fmt.Errorf("%d bytes left", n)
		}
		n -= done
	}
	return nil
}

// seekData wants everything outside of what SEEK_DATA finds to be zero.
func (s *fileStress) seekData() {
	s.note("seek for data in %d", len(s.image))
	for pos := int64(0); pos < int64(len(s.image)); {
		data, err := unix.Seek(int(s.f.Fd()), pos, unix.SEEK_DATA)
		if err == unix.ENXIO {
			data, err = int64(len(s.image)), nil
		}
		s.must(err)
		if err != nil || data < pos || data > int64(len(s.image)) {
			s.t.Errorf("SEEK_DATA from %d finds %d, %v", pos, data, err)
			return
		}
		if i := slices.IndexFunc(s.image[pos:data], func(b byte) bool { return b != 0 }); i >= 0 {
			s.t.Errorf("byte %d is not zero and lies in a hole from %d to %d", int(pos)+i, pos, data)
			return
		}
		if data == int64(len(s.image)) {
			return
		}
		if pos, err = unix.Seek(int(s.f.Fd()), data, unix.SEEK_HOLE); err != nil || pos <= data {
			s.t.Errorf("SEEK_HOLE from %d finds %d, %v", data, pos, err)
			return
		}
	}
}

func (s *fileStress) sync() {
	if s.r.IntN(2) == 0 {
		s.note("msync")
		s.must(unix.Msync(s.mem, unix.MS_SYNC))
		return
	}
	s.note("fsync")
	s.must(s.f.Sync())
}

func (s *fileStress) reopen() {
	s.note("reopen")
	s.close()
	s.open(0)
}

// compareAll compares size and content.
func (s *fileStress) compareAll(when string) {
	s.note("compare all, %s", when)
	got, err := os.ReadFile(s.name)
	s.must(err)
	if info, err := os.Stat(s.name); err != nil || info.Size() != int64(len(s.image)) {
		s.t.Errorf("%s: %s has size %v, want %d; %v", when, filepath.Base(s.name), info, len(s.image), err)
	}
	s.compare(0, got)
}
