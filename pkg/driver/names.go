package driver

import (
	"crypto/sha256"
	"encoding/base32"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// A volume ID is "nvfs-", what can be kept of the volume's name, and a hash of
// the name: the same name gives the same ID on every call and on every node,
// and the ID is a valid namespace name.
const (
	idPrefix     = "nvfs-"
	idHashLength = 26 // base32 of 128 bits
	idNameLength = ndctl.MaxNameLength - len(idPrefix) - 1 - idHashLength
	maxCSIString = 128 // the general size limit of the CSI specification
)

var (
	idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
	idPattern  = regexp.MustCompile(`^nvfs-[A-Za-z0-9-]*-[a-z2-7]{26}$`)
)

// volumeIDFor derives the ID of a volume from its name.
func volumeIDFor(name string) string {
	sum := sha256.Sum256([]byte(name))
	readable := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		}
		return '-'
	}, name)
	if len(readable) > idNameLength {
		readable = readable[:idNameLength]
	}
	return idPrefix + readable + "-" + idEncoding.EncodeToString(sum[:16])
}

// isOurID reports whether a namespace of that name was made by this driver.
func isOurID(id string) bool {
	return len(id) <= ndctl.MaxNameLength && idPattern.MatchString(id)
}

// checkVolumeName accepts what the CSI specification calls a name, except
// what could be meant as a path.
func checkVolumeName(name string) error {
	switch {
	case name == "":
		return invalidArgument("volume name is missing")
	case len(name) > maxCSIString:
		return invalidArgument("volume name has %d bytes, at most %d are allowed", len(name), maxCSIString)
	case strings.Contains(name, "..") || strings.Contains(name, "/"):
		return invalidArgument("volume name %q must not contain \"..\" or \"/\"", name)
	case strings.ContainsFunc(name, isBanned):
		return invalidArgument("volume name %q must not contain control characters", name)
	}
	return nil
}

// isBanned reports whether the CSI specification excludes a character from
// strings: every control character but tab, line feed and carriage return.
func isBanned(r rune) bool {
	return unicode.IsControl(r) && r != '\t' && r != '\n' && r != '\r'
}

// checkVolumeID accepts every ID that can be the name of a namespace, and so
// the name of a file.
func checkVolumeID(id string) error {
	if id == "" {
		return invalidArgument("volume ID is missing")
	}
	if err := ndctl.ValidName(id); err != nil {
		return invalidArgument("volume ID: %w", err)
	}
	return nil
}

// checkPath accepts absolute paths that mean the same however they are read.
func checkPath(what, path string) error {
	switch {
	case path == "":
		return invalidArgument("%s is missing", what)
	case !filepath.IsAbs(path):
		return invalidArgument("%s %q must be an absolute path", what, path)
	}
	for _, element := range strings.Split(path, "/") {
		if element == ".." {
			return invalidArgument("%s %q must not contain \"..\"", what, path)
		}
	}
	return nil
}
