// Package nvfs is the filesystem engine: it works in place on a mapped
// persistent-memory range, without a page or buffer cache. Every operation
// is atomic (after a crash it has happened wholly or not at all) and durable
// when it returns.
//
// # How a change is made
//
// A Worker stages copies of the metadata that it changes (tx.go), then
// commits the difference as one redo record in a journal slot that it
// owns (one is for its requests, the other for releasing deleted files, so
// that the record of a request stays until its reply was given):
//
//  1. data and freshly allocated blocks are stored; fence, if there were any
//  2. the record is stored in the slot; fence: the operation has happened
//  3. the record is applied in place; fence
//  4. the record is retired; fence
//  5. locks are released and freed blocks become allocatable
//
// Because locks are held until the record is durably retired, no two
// unretired records ever touch the same object, and recovery (recovery.go)
// may replay them in any order, any number of times.
//
// # Lock order
//
// A lock lower in this list is taken after the ones above it.
//
//	FS.renameMu         cross-directory renames of directories; FS.growMu
//	inode locks         striped by inode number (locks.go); several are taken
//	                    in ascending stripe order, all at once; further ones
//	                    only after all were released
//	lookupTable shards  leaf
//	holeTable           leaf
//	group.mu            one while searching for space; several in ascending
//	                    order of group number while committing
//	FS.healthMu         leaf
//
// Readers of a directory never hold its lock while they lock a child: the
// child is pinned by its lookup count first.
package nvfs
