//go:build qemu

package qemu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// initModules find the root image; the others are loaded from it.
var (
	initModules  = []string{"virtio_pci", "virtio_blk", "ext4"}
	pmemModules  = []string{"nfit", "nd_pmem", "nd_btt", "device_dax", "dax_pmem"}
	otherModules = []string{"xfs", "fuse", "loop"}
	guestModules = append(slices.Clone(pmemModules), otherModules...)
)

// moduleOrder is the file that names the modules in the order of insertion.
const moduleOrder = "order"

// pickModules copies the modules for the initramfs to dir and indexes all of
// the root image.
func pickModules(ctx context.Context, root, version, dir string) error {
	if err := run(ctx, "", "depmod", "-b", root, version); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	var order []string
	for _, module := range initModules {
		out, err := output(ctx, "", "modprobe", "-d", root, "-S", version, "--show-depends", module)
		if err != nil {
			return err
		}
		for _, line := range strings.Split(out, "\n") {
			file, found := strings.CutPrefix(line, "insmod ")
			if file = strings.TrimSpace(file); found && !slices.Contains(order, file) {
				order = append(order, file)
			}
		}
	}
	var names strings.Builder
	for _, file := range order {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), data, 0o644); err != nil {
			return err
		}
		fmt.Fprintln(&names, filepath.Base(file))
	}
	return os.WriteFile(filepath.Join(dir, moduleOrder), []byte(names.String()), 0o644)
}
