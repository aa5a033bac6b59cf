package fsck

import (
	"sync"
	"sync/atomic"
)

// partInodes is how many inodes of a table one thread takes at a time. It is
// a multiple of 64, so that threads share no word of a group's maps.
const partInodes = 1024

// partDirs is how many directories one thread takes at a time.
const partDirs = 16

// part is a share of a pass: inodes [from, to) of a group, or with no group
// elements of a list.
type part struct {
	group    *group
	from, to uint32
}

// wholeGroups is a part for each group.
func (c *checker) wholeGroups() []part {
	list := make([]part, len(c.groups))
	for i := range c.groups {
		g := &c.groups[i]
		list[i] = part{g, 0, g.inodes}
	}
	return list
}

// inodeRanges cuts the inode tables into parts.
func (c *checker) inodeRanges() []part {
	var list []part
	for i := range c.groups {
		g := &c.groups[i]
		for from := uint32(0); from < g.inodes; from += partInodes {
			list = append(list, part{g, from, min(from+partInodes, g.inodes)})
		}
	}
	return list
}

// cut cuts a list of n elements into parts of size.
func cut(n, size int) []part {
	var list []part
	for from := 0; from < n; from += size {
		list = append(list, part{nil, uint32(from), uint32(min(from+size, n))})
	}
	return list
}

// parallel has the workers do the parts of a pass.
func (c *checker) parallel(parts []part, pass func(*worker)) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	for i := range min(len(c.workers), len(parts)) {
		w := c.workers[i]
		wg.Go(func() {
			for !c.stop.Load() {
				i := next.Add(1) - 1
				if i >= int64(len(parts)) {
					return
				}
				if err := w.run(parts[i], pass); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					c.stop.Store(true)
				}
			}
		})
	}
	wg.Wait()
	if first == nil && c.stop.Load() {
		first = errStopped
	}
	return first
}

// worker is one thread of a check.
type worker struct {
	*checker
	sum   Totals
	group *group // at work on, nil outside of passes over groups
	part  part
	next  uint32 // index in the part's group or list that is at work on

	at        inodeWalk
	set       []byte   // attribute set that is put together
	path      []uint64 // of directories to the root
	dirsFound []directory
	large     []*directory // walked but for their subtrees
	later     []subtree    // these
	split     *directory   // large, at work on
}

// run does a part of a pass, anew behind each place that cannot be read.
func (w *worker) run(p part, pass func(*worker)) error {
	w.part, w.group, w.next, w.at = p, p.group, p.from, inodeWalk{}
	for {
		fault := guard(func() { pass(w) })
		if fault == nil {
			return nil
		}
		if err := w.faulted(fault); err != nil {
			return err
		}
		w.at = inodeWalk{}
		w.next++
		if w.next >= w.part.to {
			return nil
		}
	}
}

// cancelled reports whether the check is to end; it is asked for each block
// of a tree.
func (w *worker) cancelled() bool { return w.stop.Load() }

// groupNum is the number of the group at work on.
func (w *worker) groupNum() uint64 {
	if w.group == nil {
		return 0
	}
	return w.group.num
}
