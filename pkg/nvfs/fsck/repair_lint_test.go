package fsck

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/layout"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/record"
)

// repairLinted repairs a volume. Every line that it stores to must be flushed
// once, every flush fenced, and no fence and no flush be without a cause.
func repairLinted(t *testing.T, name string, make func(t *testing.T) *populated) {
	t.Run(name, func(t *testing.T) {
		s := record.Over(make(t).mem)
		r, err := Repair(context.Background(), s, Options{Threads: 1, Now: repairTime})
		if err != nil || r.Total() != 0 {
			t.Errorf("%v, %+v", err, r)
		}
		for _, f := range s.Lint() {
			t.Error(f)
		}
	})
}

// The stores, flushes and fences of every kind of repair are in order.
func TestRepairKeepsTheDiscipline(t *testing.T) {
	for _, d := range damages {
		repairLinted(t, d.name, func(t *testing.T) *populated { return damagedImage(t, d) })
	}
	for _, x := range sharings {
		repairLinted(t, "shared: "+x.name, func(t *testing.T) *populated { return x.make(t) })
	}
	repairLinted(t, "lost directory and index", func(t *testing.T) *populated {
		p := populate(t, false)
		lost := p.mkdir(p.root(), "lost")
		for i := range 300 {
			p.image.link(lost, fmt.Sprintf("%0100d", i), p.newFile(1, unix.S_IFREG|0o600))
		}
		p.write()
		p.inode(lost.ino)[50]++
		p.node(p.wide.root)[100]++
		return p
	})
	repairLinted(t, "record with patches in one line, out of order", func(t *testing.T) *populated {
		p := populate(t, true)
		p.setState(layout.StateMounted)
		off := layout.InodeOffset(p.inline.ino, testPerGroup)
		good := bytes.Clone(p.inode(p.inline.ino))
		p.record(2, 10, layout.Patch{Off: off + 256, Data: good[256:264]}, layout.Patch{Off: off, Data: good[:8]}, layout.Patch{Off: off + 40, Data: good[40:48]})
		p.inode(p.hard.ino)[90]++
		return p
	})
}
