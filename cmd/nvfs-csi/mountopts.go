package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

// mountOptions sets what a -o option means in the description of a mount. A
// nil function takes the option as a flag of mount(2).
var mountOptions = map[string]func(spec *mountd.Spec, value string) error{
	"flush":       func(s *mountd.Spec, v string) error { s.Flush = v; return nil },
	"cache":       func(s *mountd.Spec, v string) error { s.Cache = v; return nil },
	"transport":   func(s *mountd.Spec, v string) error { s.Transport = v; return nil },
	"device":      func(s *mountd.Spec, v string) error { s.Devices = append(s.Devices, v); return nil },
	"numa":        setNUMANode,
	"emulated":    func(s *mountd.Spec, _ string) error { s.Emulated = true; return nil },
	"ro":          func(s *mountd.Spec, _ string) error { s.ReadOnly = true; return nil },
	"rw":          func(s *mountd.Spec, _ string) error { s.ReadOnly = false; return nil },
	"allow_other": func(s *mountd.Spec, _ string) error { s.AllowOther = true; return nil },
	// What mount(8) means by it is what NVFS does without.
	"defaults": func(*mountd.Spec, string) error { return nil },
	"nosuid":   nil, "suid": nil, "nodev": nil, "dev": nil, "noexec": nil, "exec": nil,
	"noatime": nil, "nodiratime": nil, "relatime": nil, "nosymfollow": nil,
	"sync": nil, "async": nil, "dirsync": nil,
	"atime": refuseAccessTimes, "strictatime": refuseAccessTimes, "lazytime": refuseAccessTimes,
}

func refuseAccessTimes(*mountd.Spec, string) error {
	return errors.New("access times are not kept; leave it out, or say noatime")
}

// fstabOptions tell mount(8), the init system or an administrator's programs
// something and the filesystem nothing. mount(8) keeps most of them to itself;
// others do not.
var fstabOptions = []string{"_netdev", "nofail", "auto", "noauto", "user", "nouser", "users", "owner", "noowner", "group", "nogroup", "comment"}

// isFstabOption reports whether the filesystem is not concerned.
func isFstabOption(key string) bool {
	return slices.Contains(fstabOptions, key) || strings.HasPrefix(key, "x-") || strings.HasPrefix(key, "X-")
}

func setNUMANode(s *mountd.Spec, value string) error {
	node, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return fmt.Errorf("%q is not the number of a NUMA node", value)
	}
	if _, err := os.Stat(fmt.Sprintf("/sys/devices/system/node/node%d", node)); err != nil {
		return fmt.Errorf("this machine has no NUMA node %d", node)
	}
	s.NUMANode = int(node)
	return nil
}

// optionsWithValue need "=VALUE"; the others must not have one.
var optionsWithValue = []string{"flush", "cache", "transport", "numa", "device"}

// applyMountOptions applies the comma-separated options of one or several -o
// to spec; a later one wins.
func applyMountOptions(spec *mountd.Spec, options []string) error {
	for _, opt := range strings.Split(strings.Join(options, ","), ",") {
		if opt == "" {
			continue
		}
		key, value, hasValue := strings.Cut(opt, "=")
		apply, known := mountOptions[key]
		switch needsValue := slices.Contains(optionsWithValue, key); {
		case isFstabOption(key):
		case !known:
			return fmt.Errorf("unknown mount option %q; known are %s", opt, knownMountOptions())
		case needsValue && value == "":
			return fmt.Errorf("mount option %s needs a value, as in %s=VALUE", key, key)
		case !needsValue && hasValue:
			return fmt.Errorf("mount option %s takes no value, but got %q", key, value)
		case apply == nil:
			spec.MountFlags = append(spec.MountFlags, key)
		default:
			if err := apply(spec, value); err != nil {
				return fmt.Errorf("mount option %s: %w", opt, err)
			}
		}
	}
	return nil
}

func knownMountOptions() string {
	var names []string
	for name := range mountOptions {
		if slices.Contains(optionsWithValue, name) {
			name += "=..."
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// mountHelperArgs turns the command line that mount(8) gives to mount.nvfs
// into that of the subcommand: it drops the options that concern mount(8)
// itself, and the one-letter flags that would mean something else.
func mountHelperArgs(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-t" || arg == "-N":
			i++ // and its value
		case len(arg) > 1 && arg[0] == '-' && strings.Trim(arg[1:], "sfnv") == "":
		default:
			out = append(out, arg)
		}
	}
	return out
}
