package pmem

import (
	"fmt"
	"testing"
)

// BenchmarkPersist is a copy to the next free place and a fence, by mode and
// size. It must not allocate.
func BenchmarkPersist(b *testing.B) {
	const area = 64 << 20
	for _, mode := range CPUModes() {
		m := memoryIn(b, mode, area)
		fill(m.Bytes()[:area], 1)
		for _, size := range []int{64, 256, 1 << 10, 4 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("%s/%d", mode, size), func(b *testing.B) {
				p, src := m.NewPersister(), pattern(size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				off := uint64(0)
				for b.Loop() {
					p.Copy(off, src)
					if err := p.Fence(); err != nil {
						b.Fatal(err)
					}
					off = (off + uint64(size)) % area
				}
			})
		}
	}
}

// BenchmarkStoreWord is a word, its flush and a fence: what a commit costs.
func BenchmarkStoreWord(b *testing.B) {
	const area = 1 << 20
	for _, mode := range CPUModes() {
		m := memoryIn(b, mode, area)
		b.Run(string(mode), func(b *testing.B) {
			p := m.NewPersister()
			b.ReportAllocs()
			off := uint64(0)
			for b.Loop() {
				p.Store64(off, 7)
				p.Flush(off, 8)
				if err := p.Fence(); err != nil {
					b.Fatal(err)
				}
				off = (off + 64) % area
			}
		})
	}
}
