// Package qemu boots guests with NVDIMMs and runs Go test binaries in them.
//
// A guest has two NUMA nodes with an NVDIMM each, whose content is a file on
// the host, so that a test can look at it and boot a second machine on it. The
// kernel, a root image and an initramfs are made of Debian packages and kept in
// the user's cache directory, under a hash of the recipe. Modules of the kernel's
// nfit_test, which makes up NVDIMMs with errors, are built for that kernel. KVM is
// used where a guest really comes up under it, else QEMU translates (TCG): then
// memcpy takes 35 times as long and fork with exec 25 times, so tests in a guest
// check behaviour, never speed.
//
// The tests of this package and of package guest carry the build tag "qemu":
// make e2e-qemu runs them all, make e2e-qemu-smoke the shortest one.
package qemu
