// Package pmem maps persistent memory, or a file that stands in for it, and is
// the only code that stores to the mapping.
//
// A Backing says what a path is: a devdax device, a file on a DAX filesystem, a
// block device, an ordinary file, or volatile memory (tmpfs). The backing, the
// CPU and the platform's persistence domain decide which flush modes make a
// store durable; every other mode is refused with a ModeError that says what
// can be had. A Mode names how stores are made durable, a Strategy is the pair
// of modes in use: one for small persists and one, from a threshold on, for
// bulk copies. Calibrate measures which pair is best on a backing.
//
// Open gives a Mapping, which is a Space: readers use Bytes, and each writing
// goroutine takes a Persister of its own. Stores are done by assembly leaf
// functions, because neither the width nor the kind (cached or non-temporal) of
// the stores of Go's copy is defined. A leaf handles at most 64 KiB, so that it
// never delays a stop of the world for long.
//
// # Tearing
//
// After a crash, each aligned 8-byte word that one Store64, Copy or Zero covers
// as a whole is either old or new. In a word that a Copy or Zero covers in part
// each byte is either old or new. Nothing is promised about the order in which
// words become durable before the Fence returns.
//
// # Faults
//
// Memory that is poisoned, or cut off because the backing file was truncated,
// raises SIGBUS. A goroutine that called debug.SetPanicOnFault(true) sees it as
// a panic (runtime.Error with an Addr method) that it can recover from, whether
// the access was made by Go code or by a Persister.
package pmem
