package nvfs

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
)

// A page of a hole that the kernel holds in its page cache may have been
// stored to through a shared mapping, and the kernel does not write it out
// before it asks for data or holes: a program that copies what SEEK_DATA finds
// would lose it. No such page is there that was not read from here, so the
// parts of holes that were read count as data, until the kernel forgets the
// inode, and with it all of its pages.

const (
	// maxHoleSpans is how many parts of one file are told apart. When there
	// are more, those next to each other become one.
	maxHoleSpans = 32
	// maxHoleFiles bounds the table. From when it overflows on, every hole is
	// data.
	maxHoleFiles = 16 << 10
)

// holeTable remembers which parts of holes were read, by inode number. Its
// methods may be called concurrently; its lock is a leaf.
type holeTable struct {
	mu    sync.Mutex
	files map[uint64][]byteSpan
	full  bool // there was no room for a file
	// tracked is len(files), for those who only ask whether there are any.
	tracked atomic.Int64
}

// byteSpan is bytes [from, to) of a file.
type byteSpan struct{ from, to uint64 }

// add notes that bytes [from, to) of inode ino, which are a hole, were read.
func (t *holeTable) add(ino, from, to uint64) {
	from, to = bytesOf(blockOf(from)), bytesOf(blocksTo(to))
	t.mu.Lock()
	defer t.mu.Unlock()
	list, known := t.files[ino]
	if !known && len(t.files) >= maxHoleFiles {
		t.full = true
		return
	}
	// first..last are the spans that touch the new one.
	first, _ := slices.BinarySearchFunc(list, from, func(s byteSpan, v uint64) int { return cmp.Compare(s.to, v) })
	last := first
	for last < len(list) && list[last].from <= to {
		last++
	}
	if last > first {
		if list[first].from <= from && list[first].to >= to {
			return
		}
		from, to = min(from, list[first].from), max(to, list[last-1].to)
	}
	list = slices.Replace(list, first, last, byteSpan{from, to})
	if len(list) > maxHoleSpans {
		list = joinNearest(list)
	}
	if t.files == nil {
		t.files = map[uint64][]byteSpan{}
	}
	t.files[ino] = list
	t.tracked.Store(int64(len(t.files)))
}

// joinNearest makes one span of the two with the least between them.
func joinNearest(list []byteSpan) []byteSpan {
	best := 1
	for i := 2; i < len(list); i++ {
		if list[i].from-list[i-1].to < list[best].from-list[best-1].to {
			best = i
		}
	}
	list[best-1].to = list[best].to
	return slices.Delete(list, best, best+1)
}

// forget drops what is known of an inode, which nobody reads any more. It costs
// nothing while no hole has been read.
func (t *holeTable) forget(ino uint64) {
	if t.tracked.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.files, ino)
	t.tracked.Store(int64(len(t.files)))
}

// next returns the first byte at or after pos, and before end, of a hole that
// counts as data, if data is set, else the first that does not; end when there
// is none.
func (t *holeTable) next(ino, pos, end uint64, data bool) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.full {
		if data {
			return pos
		}
		return end
	}
	for _, s := range t.files[ino] {
		if s.to <= pos {
			continue
		}
		if data {
			return min(max(pos, s.from), end)
		}
		if s.from > pos {
			break
		}
		pos = s.to
	}
	if data {
		return end
	}
	return min(pos, end)
}

// TrackHoles makes the worker count the parts of holes that it reads as data:
// its caller caches what it reads, and may change it there without a word.
func (w *Worker) TrackHoles() { w.trackHoles = true }

// readHole notes that bytes [from, to) of a file, which are a hole, were read.
func (w *Worker) readHole(ino uint64, n layout.Inode, from, to uint64) {
	if w.trackHoles && isRegular(n) {
		w.fs.holes.add(ino, from, to)
	}
}

// seekHole finds data (or no data) in the hole [pos, end) of a file.
func (w *Worker) seekHole(ino, pos, end uint64, data bool) uint64 {
	if w.trackHoles {
		return w.fs.holes.next(ino, pos, end, data)
	}
	if data {
		return end
	}
	return pos
}
