//go:build qemu

package qemu

import (
	"context"
	"os"
	"path/filepath"
)

// unneeded in the root image; most of its size otherwise.
var unneeded = []string{"boot", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/i18n", "usr/share/info", "usr/lib/udev/hwdb.d",
	"usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/gconv"}

// unneededModules are whole trees of drivers that no guest has the device for.
var unneededModules = []string{"drivers/gpu", "drivers/media", "drivers/net/ethernet", "drivers/infiniband", "drivers/usb", "sound", "net/mac80211", "net/wireless"}

// makeRootImage makes an ext4 image of the directory root.
func makeRootImage(ctx context.Context, root, image string) error {
	modules, err := filepath.Glob(filepath.Join(root, "lib/modules/*/kernel"))
	if err != nil {
		return err
	}
	var remove []string
	for _, dir := range unneeded {
		remove = append(remove, filepath.Join(root, dir))
	}
	for _, kernel := range modules {
		for _, dir := range unneededModules {
			remove = append(remove, filepath.Join(kernel, dir))
		}
	}
	for _, dir := range remove {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	// This hook unlocks encrypted DIMMs; here it only prints errors.
	hooks, err := filepath.Glob(filepath.Join(root, "*/modprobe.d/nvdimm-security.conf"))
	if err != nil {
		return err
	}
	more, err := filepath.Glob(filepath.Join(root, "usr/lib/modprobe.d/nvdimm-security.conf"))
	if err != nil {
		return err
	}
	for _, hook := range append(hooks, more...) {
		if err := os.Remove(hook); err != nil {
			return err
		}
	}
	for _, dir := range []string{"proc", "sys", "dev", "run", "tmp", "job", "mnt", "var/lib", "root", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/bash\n", "etc/group": "root:x:0:\n"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return makeExt4(ctx, root, image, "1G")
}

// makeExt4 makes an image without a journal: it is read, or thrown away.
func makeExt4(ctx context.Context, dir, image, size string) error {
	return run(ctx, "", "mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", dir, image, size)
}
