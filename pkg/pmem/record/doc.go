// Package record is persistent memory for tests: a pmem.Space of ordinary
// memory that knows what a crash may leave of it.
//
// A Space checks the discipline of its Persisters (Lint) and, between Record
// and Stop, logs each store in units of 8 bytes, each flush and fence, and the
// beginning and end of the operations that the test marks. From such a Trace
// Images makes the contents that a crash may leave, for the persistence model
// of the test's choice.
//
// # Models
//
// ADR is memory that keeps what reached it, behind caches that do not. The
// stores to a 64-byte line reach it in order, at any time: a crash leaves of
// each line any prefix of its stores, at least what was flushed and fenced.
// EADR includes the caches: a crash leaves a prefix of all stores in their
// order. MSync is a page cache: sectors of 512 bytes take the place of lines,
// and a fence writes back all pages between the first and the last that its
// Persister stored to.
//
// The words of one Copy or Zero have no order among themselves, and in a word
// that it covers in part each byte stands alone (see package pmem); the last
// call of a prefix may therefore be there in any part.
//
// # Images
//
// A Base is the content that traces and images are told as differences to, so
// that an image costs what it changes and a Space takes up one image after
// another. Spaces of one Base may be used concurrently, each by one test.
package record
