//go:build qemu

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// images are the files that every guest boots from.
type images struct {
	kernel  string // uncompressed, so that QEMU starts it without firmware
	root    string // ext4
	modules string // directory of kernel modules for the initramfs, and their order
	// nfitTest lists the modules that a guest loads which has made-up NVDIMMs.
	nfitTest string
}

func imagesIn(dir string) images {
	return images{kernel: filepath.Join(dir, "vmlinux"), root: filepath.Join(dir, "root.ext4"), modules: filepath.Join(dir, "modules"),
		nfitTest: filepath.Join(dir, "nfit-test-order")}
}

// cachedImages returns the images of the recipe, made now if the cache has
// none. Of several processes that make them at once one wins.
func cachedImages(ctx context.Context) (images, error) {
	hash, err := recipeHash()
	if err != nil {
		return images{}, err
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return images{}, err
	}
	base = filepath.Join(base, "nvfs-csi", "qemu")
	dir := filepath.Join(base, hash)
	if _, err := os.Stat(dir); err == nil {
		return imagesIn(dir), nil
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return images{}, err
	}
	work, err := os.MkdirTemp(base, "making-")
	if err != nil {
		return images{}, err
	}
	defer os.RemoveAll(work)
	if err := makeImages(ctx, work); err != nil {
		return images{}, fmt.Errorf("images of the guest: %w", err)
	}
	err = os.Rename(filepath.Join(work, "images"), dir)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return images{}, err
	}
	return imagesIn(dir), nil
}

// makeImages leaves the images in work/images.
func makeImages(ctx context.Context, work string) error {
	out, root := filepath.Join(work, "images"), filepath.Join(work, "root")
	for _, dir := range []string{out, root} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	img := imagesIn(out)
	if err := unpackPackages(ctx, work, root); err != nil {
		return err
	}
	version, err := kernelVersion(root)
	if err != nil {
		return err
	}
	if err := extractKernel(ctx, filepath.Join(root, "boot", "vmlinuz-"+version), img.kernel); err != nil {
		return err
	}
	if err := pickModules(ctx, root, version, img.modules); err != nil {
		return err
	}
	if err := makeNFITTest(ctx, work, root, version, img.nfitTest); err != nil {
		return err
	}
	return makeRootImage(ctx, root, img.root)
}
