package mkfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// Kind is what a probe found on a device.
type Kind int

// The kinds. Only Blank is safe to format without being told to.
const (
	// Foreign is anything that is not one of the others: another format, or
	// data that nobody recognises.
	Foreign Kind = iota
	// Blank means that every byte of the device was looked at, holes of files
	// aside, and is zero.
	Blank
	// NVFS is a volume whose superblock verifies.
	NVFS
	// NVFSDamaged is a volume whose superblock does not verify; when the
	// copy at the end of the device does, Found.Superblock is that copy.
	NVFSDamaged
	// NVFSMember is a further device of a volume, labelled as that at its start
	// or at its end; when a label verifies it is Found.Member.
	NVFSMember
)

func (k Kind) String() string {
	switch k {
	case Foreign:
		return "foreign"
	case Blank:
		return "blank"
	case NVFS:
		return "nvfs"
	case NVFSDamaged:
		return "nvfs-damaged"
	case NVFSMember:
		return "nvfs-member"
	}
	return "Kind(" + strconv.Itoa(int(k)) + ")"
}

// Found is the answer of a probe. The zero value is Foreign.
type Found struct {
	Kind       Kind
	What       string             // for people: "ext4", "GPT partition table", "unknown data"
	Superblock *layout.Superblock // of NVFS, and of NVFSDamaged when its copy is good
	Member     *layout.Member     // of NVFSMember, when a label is good
}

// probeWindow is what is looked at first, of each end of a device. Every
// signature that the probe knows lies within it, so that the rest is only read
// where both are zero.
const probeWindow = 8 << 20

// reservedEnd is the end of the bytes that hold nothing of an NVFS volume
// but its superblock. File data lies behind it and may look like anything.
const reservedEnd = layout.JournalBlock * layout.BlockSize

// Range is a byte range of a device.
type Range struct{ Off, Len uint64 }

// SignatureRanges lists what has to be zeroed so that no format is recognised on
// a device of size bytes, in ascending order, disjoint. What lies between them
// may still be data, and keeps the device from being Blank.
func SignatureRanges(size uint64) []Range {
	if size == 0 {
		return nil
	}
	if size <= 2*probeWindow {
		return []Range{{0, size}}
	}
	return []Range{{0, probeWindow}, {size - probeWindow, probeWindow}}
}

// Probe says what lies on the device or file at path, which may be a regular
// file, a block device or a devdax device. A read error is an error and never
// "blank". It only reads: little of what is recognised, and all of a device that
// seems blank, until ctx ends.
func Probe(ctx context.Context, path string) (Found, error) {
	f, err := os.Open(path)
	if err != nil {
		return Found{}, fmt.Errorf("probe: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Found{}, fmt.Errorf("probe %s: %w", path, err)
	}
	var found Found
	switch mode := st.Mode(); {
	case mode&os.ModeCharDevice != 0:
		found, err = probeDAX(ctx, f)
	case mode.IsRegular(), mode&os.ModeDevice != 0:
		found, err = probeFile(ctx, f)
	default:
		err = errors.New("not a regular file, block device or devdax device")
	}
	if err != nil {
		return Found{}, fmt.Errorf("probe %s: %w", path, err)
	}
	return found, nil
}

// ProbeSpace is Probe for a device that is mapped. A memory fault (poison, a
// truncated backing) is an error.
func ProbeSpace(ctx context.Context, m *pmem.Mapping) (Found, error) {
	return probeMapped(ctx, m.Bytes(), m.Size(), m.NextData)
}

func probeMapped(ctx context.Context, b []byte, size uint64, next nextData) (found Found, err error) {
	if size == 0 || size > uint64(len(b)) {
		return Found{}, fmt.Errorf("probe: device of %d bytes, %d of them mapped", size, len(b))
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			found, err = Found{}, fmt.Errorf("probe: the device cannot be read: %v", r)
		}
	}()
	n := min(size, probeWindow)
	im := &image{head: b[:n], tail: b[size-n : size], size: size}
	if found, err = im.prove(ctx, im.classify(), next, slicesOf(b)); err != nil {
		return Found{}, fmt.Errorf("probe: %w", err)
	}
	return found, nil
}

func probeFile(ctx context.Context, f *os.File) (Found, error) {
	end, err := f.Seek(0, io.SeekEnd) // block devices too; Stat gives 0 for these
	if err != nil {
		return Found{}, fmt.Errorf("find its size: %w", err)
	}
	if end == 0 {
		return Found{}, errors.New("it is empty; give it a size first")
	}
	size := uint64(end)
	n := min(size, probeWindow)
	im := &image{head: make([]byte, n), tail: make([]byte, n), size: size}
	if _, err := f.ReadAt(im.head, 0); err != nil {
		return Found{}, fmt.Errorf("read its start: %w", err)
	}
	if _, err := f.ReadAt(im.tail, end-int64(n)); err != nil {
		return Found{}, fmt.Errorf("read its end: %w", err)
	}
	next := func(off uint64) (uint64, uint64, error) { return pmem.NextData(f, off, size) }
	return im.prove(ctx, im.classify(), next, chunksOf(f))
}

// probeDAX maps a devdax device: it has no read(2).
func probeDAX(ctx context.Context, f *os.File) (Found, error) {
	size, err := daxSize(f)
	if err != nil {
		return Found{}, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return Found{}, fmt.Errorf("map it: %w", err)
	}
	found, err := probeMapped(ctx, b, uint64(size), noHoles(uint64(size)))
	return found, errors.Join(err, unix.Munmap(b))
}

// noHoles is nextData of a device of size bytes that has none.
func noHoles(size uint64) nextData {
	return func(off uint64) (start, end uint64, err error) { return off, size, nil }
}

func daxSize(f *os.File) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	dir := fmt.Sprintf("/sys/dev/char/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	if bus, err := filepath.EvalSymlinks(filepath.Join(dir, "subsystem")); err != nil || filepath.Base(bus) != "dax" {
		return 0, errors.New("character device, but not a devdax one")
	}
	text, err := os.ReadFile(filepath.Join(dir, "size"))
	if err != nil {
		return 0, err
	}
	size, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || size <= 0 {
		return 0, fmt.Errorf("size of the devdax device reads %q", text)
	}
	return size, nil
}

// image is both ends of a device.
type image struct {
	head, tail []byte // the first and last bytes, at most probeWindow
	size       uint64
	limit      uint64 // when not 0, at shows only bytes in [from, limit)
	from       uint64
}

// at is n bytes at off, or nil when the device is shorter or they lie outside
// both windows.
func (im *image) at(off, n uint64) []byte {
	if im.limit != 0 && (off < im.from || off+n > im.limit) {
		return nil
	}
	if off+n <= uint64(len(im.head)) {
		return im.head[off : off+n]
	}
	if start := im.size - uint64(len(im.tail)); off >= start && off < im.size && off+n <= im.size {
		return im.tail[off-start : off-start+n]
	}
	return nil
}

// has reports whether the bytes at off are magic.
func (im *image) has(off uint64, magic string) bool {
	return string(im.at(off, uint64(len(magic)))) == magic
}

// within is the image with only the bytes in [from, limit) visible.
func (im *image) within(from, limit uint64) *image {
	return &image{head: im.head, tail: im.tail, size: im.size, from: from, limit: limit}
}

func (im *image) classify() Found {
	sb, err := layout.DecodeSuperblock(im.at(0, min(layout.StaticSize, im.size)))
	if err == nil {
		// What was put over the unused bytes behind a good superblock counts
		// as much as what was put over the superblock itself.
		if what := im.within(layout.BlockSize, reservedEnd).signature(); what != "" {
			return Found{Kind: Foreign, What: what + " (over an NVFS volume)"}
		}
		return Found{Kind: NVFS, What: "NVFS", Superblock: sb}
	}
	if found, ok := im.member(); ok {
		return found
	}
	if errors.Is(err, layout.ErrVersion) || errors.Is(err, layout.ErrIncompat) {
		return Found{Kind: Foreign, What: "NVFS of a newer version: " + err.Error()}
	}
	if im.blank() {
		return Found{Kind: Blank, What: "blank"}
	}
	copied := im.superblockCopy()
	magic := !errors.Is(err, layout.ErrNotNVFS)
	if copied == nil && !magic {
		return Found{Kind: Foreign, What: im.foreignName()}
	}
	if what := im.within(0, reservedEnd).signature(); what != "" {
		return Found{Kind: Foreign, What: what + " (over an NVFS volume)"}
	}
	return Found{Kind: NVFSDamaged, What: "NVFS with a damaged superblock", Superblock: copied}
}

// superblockCopy is the superblock's copy in the last block, if it is good
// and this is the device it speaks of.
func (im *image) superblockCopy() *layout.Superblock {
	blocks := im.size / layout.BlockSize
	if blocks == 0 {
		return nil
	}
	p := im.at((blocks-1)*layout.BlockSize, layout.StaticSize)
	sb, err := layout.DecodeSuperblock(p)
	if err != nil || sb.Devices[0].Blocks != blocks {
		return nil
	}
	return sb
}

var zeros [64 << 10]byte

func isZero(p []byte) bool {
	for len(p) > len(zeros) {
		if !bytes.Equal(p[:len(zeros)], zeros[:]) {
			return false
		}
		p = p[len(zeros):]
	}
	return bytes.Equal(p, zeros[:len(p)])
}

func (im *image) blank() bool { return isZero(im.head) && isZero(im.tail) }

func (im *image) foreignName() string {
	if what := im.signature(); what != "" {
		return what
	}
	return "unknown data"
}

// signature is the name of the first known format whose signature is there.
func (im *image) signature() string {
	for _, s := range signatures {
		if what := s.find(im); what != "" {
			return what
		}
	}
	return ""
}
