//go:build qemu

package qemu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// unpackPackages downloads the guest's packages with all dependencies, whatever
// the host has installed, and unpacks them into root.
func unpackPackages(ctx context.Context, work, root string) error {
	archives := filepath.Join(work, "archives")
	nothing := filepath.Join(work, "nothing-installed")
	if err := os.MkdirAll(filepath.Join(archives, "partial"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(nothing, nil, 0o644); err != nil {
		return err
	}
	if err := run(ctx, "", "apt-get", "-qq", "update"); err != nil {
		return err
	}
	args := append([]string{"-qq", "-y", "--no-install-recommends", "--download-only",
		"-o", "Dir::State::status=" + nothing, "-o", "Dir::Cache::archives=" + archives, "-o", "APT::Sandbox::User=root",
		"-o", "Debug::NoLocking=1", "install"}, guestPackages...)
	if err := run(ctx, "", "apt-get", args...); err != nil {
		return err
	}
	if err := downloadKernel(ctx, archives); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for _, file := range files {
		if !skipped(file) {
			g.Go(func() error { return run(ctx, "", "dpkg-deb", "-x", file, root) })
		}
	}
	return g.Wait()
}

// downloadKernel fetches the kernel alone: what it depends on is there to
// install it.
func downloadKernel(ctx context.Context, dir string) error {
	out, err := output(ctx, "", "apt-cache", "depends", "--important", kernelPackage)
	if err != nil {
		return err
	}
	kernel := dependencyOf(out)
	if kernel == "" {
		return fmt.Errorf("package %s is not known here: the guest's kernel comes from Debian's repositories", kernelPackage)
	}
	return run(ctx, dir, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", kernel)
}
