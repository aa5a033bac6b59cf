//go:build qemu

package qemu

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/qemu/guestjob"
)

// The ways to run a guest.
const (
	kvm = "kvm" // on the CPU
	tcg = "tcg" // translated
)

// kvmTimeout is ten times what a guest needs that really runs under KVM.
const kvmTimeout = 20 * time.Second

func acceleratorArguments(accelerator string) []string {
	if accelerator == kvm {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
}

// chooseAccelerator boots a guest that does nothing under KVM. That /dev/kvm
// exists says little: nested in some virtual machines a guest never comes up.
func chooseAccelerator(ctx context.Context, m machine, dir string) string {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return tcg
	}
	m.accelerator, m.timeout = kvm, kvmTimeout
	if code, err := m.boot(ctx, dir, guestjob.Job{}, io.Discard); err != nil || code != 0 {
		return tcg
	}
	return kvm
}
