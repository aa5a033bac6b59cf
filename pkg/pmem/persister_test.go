package pmem

import (
	"bytes"
	"fmt"
	"testing"
	"unsafe"
)

const (
	guardByte = 0xEE
	guard     = 192 // bytes checked before and after
)

// memoryIn returns anonymous memory in the mode.
func memoryIn(t testing.TB, mode Mode, size uint64) *Mapping {
	t.Helper()
	m, err := NewMemoryMode(size, mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// pattern is n bytes that differ from their neighbours and from the guard.
func pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// storeChecker stores at every alignment and looks at each byte around.
type storeChecker struct {
	t    *testing.T
	p    Persister
	mem  []byte
	src  []byte // the pattern, at alignment 0
	zero []byte
	want []byte // guardByte
}

func newStoreChecker(t *testing.T, m *Mapping, longest int) *storeChecker {
	c := &storeChecker{t: t, p: m.NewPersister(), mem: m.Bytes()[:m.Size()], zero: make([]byte, longest), want: make([]byte, guard)}
	raw := pattern(longest + 128)
	c.src = raw[-uintptr(unsafe.Pointer(&raw[0]))%64:]
	fill(c.mem, guardByte)
	fill(c.want, guardByte)
	return c
}

func (c *storeChecker) copy(dstAlign, srcAlign, n int) {
	src := c.src[srcAlign : srcAlign+n]
	c.p.Copy(uint64(4096+dstAlign), src)
	c.check("Copy", dstAlign, srcAlign, n, src)
}

func (c *storeChecker) zeroes(dstAlign, n int) {
	c.p.Zero(uint64(4096+dstAlign), uint64(n))
	c.check("Zero", dstAlign, 0, n, c.zero[:n])
}

func (c *storeChecker) check(op string, dstAlign, srcAlign, n int, want []byte) {
	off := 4096 + dstAlign
	switch {
	case !bytes.Equal(c.mem[off:off+n], want):
		c.t.Fatalf("%s of %d bytes to alignment %d from %d: wrong bytes", op, n, dstAlign, srcAlign)
	case !bytes.Equal(c.mem[off-guard:off], c.want):
		c.t.Fatalf("%s of %d bytes to alignment %d from %d: stored before the destination", op, n, dstAlign, srcAlign)
	case !bytes.Equal(c.mem[off+n:off+n+guard], c.want):
		c.t.Fatalf("%s of %d bytes to alignment %d from %d: stored behind the destination", op, n, dstAlign, srcAlign)
	}
	fill(c.mem[off:off+n], guardByte)
}

// TestStoreAlignment stores every length at every alignment of the destination
// in every mode of this CPU: with every alignment of the source as far as head
// and tail can interact, with one of them, in turn, beyond. With -short it leaves
// out most lengths beyond.
func TestStoreAlignment(t *testing.T) {
	const longest, crossed = 4200, 3*lineSize + 1
	step := 1
	if testing.Short() {
		step = 61
	}
	for _, mode := range CPUModes() {
		t.Run(string(mode), func(t *testing.T) {
			c := newStoreChecker(t, memoryIn(t, mode, 16<<10), longest)
			for n := 0; n <= longest; n++ {
				if n > crossed && (longest-n)%step != 0 {
					continue
				}
				for dst := 0; dst < lineSize; dst++ {
					c.zeroes(dst, n)
					if n > crossed {
						c.copy(dst, (dst*5+n)%lineSize, n)
						continue
					}
					for src := 0; src < lineSize; src++ {
						c.copy(dst, src, n)
					}
				}
			}
			if err := c.p.Fence(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestStoreLong crosses the limit of a leaf.
func TestStoreLong(t *testing.T) {
	for _, mode := range CPUModes() {
		t.Run(string(mode), func(t *testing.T) {
			const longest = 3*maxLeaf + 77
			c := newStoreChecker(t, memoryIn(t, mode, 4*maxLeaf), longest)
			for _, n := range []int{maxLeaf - 1, maxLeaf, maxLeaf + 1, 2*maxLeaf + 63, longest} {
				for _, align := range []int{0, 1, 8, 63} {
					c.copy(align, 3, n)
					c.zeroes(align, n)
				}
			}
		})
	}
}

func ExampleNewMemory() {
	m, err := NewMemory(1 << 20)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	p := m.NewPersister()
	p.Copy(100, []byte("durable after the fence"))
	if err := p.Fence(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(m.Bytes()[100:107]))
	// Output: durable
}
