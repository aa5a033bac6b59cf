//go:build qemu

package qemu

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/nvfs-csi/nvfs-csi/test/e2e/qemu/guestjob"
)

// jobBuilder makes the disk from which a guest runs its tests.
type jobBuilder struct {
	repository string // directory of the Go module
	work       string // where binaries and images are put
}

// program builds a command of the module and returns its path.
func (b *jobBuilder) program(ctx context.Context, pkg, name string, flags ...string) (string, error) {
	path := filepath.Join(b.work, name)
	return path, b.build(ctx, "build", append(flags, "-o", path, pkg)...)
}

// tests builds a package's tests as a program.
func (b *jobBuilder) tests(ctx context.Context, pkg, name string) (string, error) {
	path := filepath.Join(b.work, name)
	return path, b.build(ctx, "test", "-c", "-tags", "qemu", "-o", path, pkg)
}

func (b *jobBuilder) build(ctx context.Context, verb string, args ...string) error {
	args = append([]string{"CGO_ENABLED=0", "go", verb, "-trimpath", "-buildvcs=false", "-ldflags=-s -w"}, args...)
	return run(ctx, b.repository, "env", args...)
}

// programsImage puts programs, which all guests use, on an image. They are
// paged in as they run, so their size costs little.
func (b *jobBuilder) programsImage(ctx context.Context, programs ...string) (string, error) {
	dir, err := os.MkdirTemp(b.work, "programs-")
	if err != nil {
		return "", err
	}
	for _, program := range programs {
		if err := os.Link(program, filepath.Join(dir, filepath.Base(program))); err != nil {
			return "", err
		}
	}
	image := filepath.Join(b.work, "programs.ext4")
	return image, makeExt4(ctx, dir, image, "400M")
}

// writeJob writes what a guest shall run as a raw disk.
func writeJob(path string, job guestjob.Job) error {
	data, err := json.Marshal(job)
	if err != nil {
		return err
	}
	const sector = 512
	padding := sector - len(data)%sector
	return os.WriteFile(path, append(data, strings.Repeat("\n", padding)...), 0o644)
}
