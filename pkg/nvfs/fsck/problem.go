package fsck

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
)

// Code names the invariant that a problem breaks; docs/format.md lists them.
type Code string

// The codes, in the order of the document.
const (
	Superblock        Code = "superblock"
	SuperblockCopy    Code = "superblock-copy"
	SuperblockDynamic Code = "superblock-dynamic"
	ErrorFlag         Code = "error-flag"
	Geometry          Code = "geometry"
	JournalRecord     Code = "journal-record"
	JournalRetire     Code = "journal-retire"
	JournalClean      Code = "journal-clean"
	Intent            Code = "intent"
	GroupDescriptor   Code = "group-descriptor"
	BitmapChecksum    Code = "bitmap-checksum"
	BitmapCount       Code = "bitmap-count"
	BitmapTail        Code = "bitmap-tail"
	BlockLeaked       Code = "block-leaked"
	BlockFree         Code = "block-free"
	BlockShared       Code = "block-shared"
	BlockRange        Code = "block-range"
	InodeChecksum     Code = "inode-checksum"
	InodeMode         Code = "inode-mode"
	InodeFormat       Code = "inode-format"
	InodeSize         Code = "inode-size"
	InodeBlocks       Code = "inode-blocks"
	InodeTime         Code = "inode-time"
	InodeNlink        Code = "inode-nlink"
	InodeUnreachable  Code = "inode-unreachable"
	Orphan            Code = "orphan"
	Root              Code = "root"
	ExtentOrder       Code = "extent-order"
	ExtentEOF         Code = "extent-eof"
	ExtentFlags       Code = "extent-flags"
	ExtentNode        Code = "extent-node"
	DirBlock          Code = "dir-block"
	DirTree           Code = "dir-tree"
	DirEntries        Code = "dir-entries"
	DirName           Code = "dir-name"
	DirKey            Code = "dir-key"
	DirDuplicate      Code = "dir-duplicate"
	DirCount          Code = "dir-count"
	DirDangling       Code = "dir-dangling"
	DirType           Code = "dir-type"
	DirParent         Code = "dir-parent"
	DirNamedTwice     Code = "dir-named-twice"
	DirLoop           Code = "dir-loop"
	XattrSet          Code = "xattr-set"
	XattrBlock        Code = "xattr-block"
	Unreadable        Code = "unreadable"
	DeviceLabel       Code = "device-label"
)

// codes is every Code, in order.
var codes = []Code{
	Superblock, SuperblockCopy, SuperblockDynamic, ErrorFlag, Geometry, JournalRecord, JournalRetire, JournalClean, Intent,
	GroupDescriptor, BitmapChecksum, BitmapCount, BitmapTail, BlockLeaked, BlockFree, BlockShared, BlockRange,
	InodeChecksum, InodeMode, InodeFormat, InodeSize, InodeBlocks, InodeTime, InodeNlink, InodeUnreachable, Orphan, Root,
	ExtentOrder, ExtentEOF, ExtentFlags, ExtentNode,
	DirBlock, DirTree, DirEntries, DirName, DirKey, DirDuplicate, DirCount, DirDangling, DirType, DirParent, DirNamedTwice, DirLoop,
	XattrSet, XattrBlock, Unreadable, DeviceLabel,
}

// Problem is a broken invariant. Ino and Block are 0 where they do not apply.
type Problem struct {
	Code  Code   `json:"code"`
	Group uint64 `json:"group"`
	Ino   uint64 `json:"ino,omitempty"`
	Block uint64 `json:"block,omitempty"`
	Path  string `json:"path,omitempty"` // of Ino, when it could be found cheaply
	Text  string `json:"text"`
}

func (p Problem) String() string {
	s := string(p.Code) + ": "
	if p.Ino != 0 {
		s += fmt.Sprintf("inode %d: ", p.Ino)
	}
	if p.Path != "" {
		s += fmt.Sprintf("%q: ", p.Path)
	}
	return s + p.Text
}

// findings collects problems and notes. Its methods may be called from
// several goroutines.
type findings struct {
	mu       sync.Mutex
	max      int
	share    uint64 // of one code
	counts   map[Code]uint64
	problems []Problem
	notes    []string
}

func newFindings(max int) *findings {
	return &findings{max: max, share: uint64(max/8) + 1, counts: map[Code]uint64{}}
}

// add counts p and keeps it unless there are enough. format and args make
// its text, only when it is kept.
func (f *findings) add(p Problem, format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[p.Code]++
	if len(f.problems) >= f.max || f.counts[p.Code] > f.share {
		return
	}
	p.Text = fmt.Sprintf(format, args...)
	f.problems = append(f.problems, p)
}

const maxNotes = 100

func (f *findings) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.notes) < maxNotes {
		f.notes = append(f.notes, fmt.Sprintf(format, args...))
	}
}

func (f *findings) sort() {
	slices.SortStableFunc(f.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(slices.Index(codes, a.Code), slices.Index(codes, b.Code)),
			cmp.Compare(a.Group, b.Group), cmp.Compare(a.Ino, b.Ino), cmp.Compare(a.Block, b.Block), cmp.Compare(a.Text, b.Text))
	})
}

func (f *findings) fill(r *Report) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sort()
	r.Problems = f.problems
	if r.Problems == nil {
		r.Problems = []Problem{}
	}
	r.Counts, r.Notes = f.counts, f.notes
	if left := r.Total() - uint64(len(r.Problems)); left > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d more problems are counted but not described", left))
	}
}
