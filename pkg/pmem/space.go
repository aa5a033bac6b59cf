package pmem

// Space is a persistent-memory address range that a filesystem lives on. It
// is read through Bytes and written only through a Persister.
//
// The range returned by Bytes may be longer than Size: address space is
// reserved so that the backing can grow, or a further device can be attached,
// without moving what is mapped already. Touching bytes that no device backs
// is a fault; the caller keeps within the devices it knows.
type Space interface {
	// Bytes is the mapped range. It must be treated as read-only: a store
	// that does not go through a Persister is neither flushed nor recorded.
	Bytes() []byte
	// Size is the length in bytes of the first device.
	Size() uint64
	// ReadOnly reports whether the mapping rejects stores.
	ReadOnly() bool
	// NewPersister returns a writer for the sole use of one goroutine at a
	// time.
	NewPersister() Persister
}

// Persister stores to a Space and makes the stores durable. Offsets are byte
// offsets into Space.Bytes. A Persister is used by one goroutine at a time;
// different Persisters may be used concurrently on disjoint bytes.
//
// A goroutine may migrate to another CPU between a store and the fence: the
// scheduler's locked instructions drain the old CPU's write-combining buffers
// and order its flushes, so the fence on the new CPU still covers them.
type Persister interface {
	// Store64 stores one aligned 8-byte word; it cannot be torn. It is
	// durable after Flush of its line and Fence.
	Store64(off uint64, v uint64)
	// Copy stores src at off. It is durable after Fence, unaligned head and
	// tail included; the caller must not Flush it.
	Copy(off uint64, src []byte)
	// Zero stores n zero bytes at off, with the durability of Copy.
	Zero(off, n uint64)
	// Flush starts write-back of every cache line that overlaps [off, off+n).
	Flush(off, n uint64)
	// Fence returns once everything that this Persister stored and flushed
	// before is durable. An error (msync mode only) means that durability is
	// unknown.
	Fence() error
}
