// Package bench measures filesystems side by side: NVFS in its modes, the
// kernel's filesystems on a loop device over the same memory, tmpfs, and a
// FUSE filesystem without any work behind it, which is the floor for NVFS.
//
// All numbers are taken in one run on one machine, interleaved, and given as
// medians; on emulated memory only their ratios mean anything.
package bench
