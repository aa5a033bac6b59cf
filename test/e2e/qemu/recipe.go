//go:build qemu

package qemu

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// recipeVersion changes when the code that follows the recipe does.
const recipeVersion = "6"

// kernelPackage depends on the newest kernel of the distribution for virtual
// machines. It starts in a third of the time of the generic one.
const kernelPackage = "linux-image-cloud-amd64"

// guestPackages is what the root image is made of, with all they depend on.
var guestPackages = []string{"ndctl", "daxctl", "kmod", "e2fsprogs", "xfsprogs", "fio", "fuse3", "util-linux", "mount", "bash", "coreutils"}

// skippedPackages are dependencies that no program we run needs.
var skippedPackages = []string{"perl", "libperl", "python", "libpython", "debconf", "adduser", "passwd", "usrmerge", "dpkg", "media-types",
	"init-system-helpers", "libfile-", "libnumber-", "libtext-", "libsemanage", "dmsetup", "libpam", "logsave", "sensible-utils"}

func skipped(packageFile string) bool {
	for _, prefix := range skippedPackages {
		if strings.HasPrefix(filepath.Base(packageFile), prefix) {
			return true
		}
	}
	return false
}

// recipeHash names the images that this recipe makes on this distribution.
func recipeHash() (string, error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("which distribution is this: %w", err)
	}
	h := sha256.New()
	fmt.Fprintln(h, recipeVersion, kernelPackage, guestPackages, skippedPackages, guestModules, initModules, nfitTestSource, nfitTestModules)
	h.Write(release)
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}
