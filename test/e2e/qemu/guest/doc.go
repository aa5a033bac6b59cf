// Package guest holds the tests that run inside a QEMU guest with NVDIMMs; see
// package qemu, which starts them. On another machine they would destroy what
// is on its persistent memory, so they are built with the tag "qemu" only and
// refuse to run where no guest's init started them.
package guest
