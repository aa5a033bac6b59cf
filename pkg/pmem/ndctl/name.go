package ndctl

import (
	"fmt"
	"strings"
)

// MaxNameLength is the longest name a namespace can have, in bytes: the label
// has 64 and the kernel wants a terminator.
const MaxNameLength = 63

// ValidName returns nil when name can be a namespace's name: 1 to 63 bytes of
// [A-Za-z0-9._-], without "..". Otherwise it returns an error that wraps
// ErrInvalid. A valid name is always a plain file name as well.
func ValidName(name string) error {
	switch {
	case name == "" || len(name) > MaxNameLength:
		return fmt.Errorf("%w: name %q has %d bytes, want 1 to %d", ErrInvalid, name, len(name), MaxNameLength)
	case strings.Contains(name, "..") || name == ".":
		return fmt.Errorf("%w: name %q must not be \".\" or contain \"..\"", ErrInvalid, name)
	}
	for _, c := range []byte(name) {
		if !isNameByte(c) {
			return fmt.Errorf("%w: name %q contains %q, allowed are letters, digits, '.', '_' and '-'", ErrInvalid, name, c)
		}
	}
	return nil
}

func isNameByte(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return c == '.' || c == '_' || c == '-'
}

// scratchPrefix begins the names of namespaces that exist for a measurement
// only.
const scratchPrefix = "nvfs-scratch-"

// ScratchName is the name of the namespace on which a region is measured.
func ScratchName(region string) string { return scratchPrefix + region }

// IsScratch reports whether a namespace holds nothing that anybody needs and
// will soon be gone: it must not be given to a volume.
func IsScratch(name string) bool { return strings.HasPrefix(name, scratchPrefix) }
