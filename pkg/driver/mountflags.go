package driver

import (
	"maps"
	"slices"
	"strings"
)

// mountFlags are the mount options that a StorageClass or PersistentVolume may
// give. True: the option belongs to each mount and has to be repeated for bind
// mounts; false: it belongs to the filesystem.
var mountFlags = map[string]bool{
	"rw": true, "ro": true,
	"nosuid": true, "nodev": true, "noexec": true, "nosymfollow": true,
	"suid": true, "dev": true, "exec": true,
	"noatime": true, "nodiratime": true, "relatime": true,
	"sync": false, "dirsync": false, "async": false,
}

// parseMountFlags splits and checks mount options. "ro" and "rw" are taken
// out; the last one counts.
func parseMountFlags(options []string) (flags []string, readOnly bool, err error) {
	for _, option := range options {
		for _, flag := range strings.Split(option, ",") {
			if _, known := mountFlags[flag]; !known {
				return nil, false, invalidArgument("mount option %q is not allowed; allowed are %s. How the filesystem works is set by StorageClass parameters, not mount options",
					flag, strings.Join(slices.Sorted(maps.Keys(mountFlags)), ", "))
			}
			switch flag {
			case "ro", "rw":
				readOnly = flag == "ro"
			default:
				if !slices.Contains(flags, flag) {
					flags = append(flags, flag)
				}
			}
		}
	}
	return flags, readOnly, nil
}

// bindOptions returns the options of a bind mount with these flags.
func bindOptions(flags []string, readOnly bool) []string {
	options := []string{"bind"}
	for _, flag := range flags {
		if mountFlags[flag] {
			options = append(options, flag)
		}
	}
	if readOnly {
		options = append(options, "ro")
	}
	return options
}
