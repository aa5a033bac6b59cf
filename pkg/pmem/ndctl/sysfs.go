package ndctl

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ndBus reads what the kernel tells of NVDIMMs, regions and namespaces.
// Attributes that are missing or unreadable are common (each kind of region
// has its own) and read as absent.
type ndBus struct {
	devices string // /sys/bus/nd/devices
	block   string // /sys/class/block
	dev     string // /dev
	lstat   func(path string, st *unix.Stat_t) error
}

var systemBus = ndBus{devices: "/sys/bus/nd/devices", block: "/sys/class/block", dev: "/dev", lstat: unix.Lstat}

// namePattern says whether a name is that of one kind of device.
type namePattern func(name string) bool

// The names of the devices on the bus.
var (
	regionDevice    = numbered("region", 1)
	namespaceDevice = numbered("namespace", 2)
	claimDevice     = oneOf(numbered("btt", 2), numbered("pfn", 2), numbered("dax", 2))
	dimmDevice      = numbered("nmem", 1)
	daxDevice       = numbered("dax", 2)
)

// numbered matches a prefix that is followed by that many decimal numbers with
// dots between them.
func numbered(prefix string, numbers int) namePattern {
	return func(name string) bool {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			return false
		}
		fields := strings.Split(rest, ".")
		return len(fields) == numbers && !slices.ContainsFunc(fields, func(f string) bool {
			return f == "" || strings.Trim(f, "0123456789") != ""
		})
	}
}

func oneOf(patterns ...namePattern) namePattern {
	return func(name string) bool {
		return slices.ContainsFunc(patterns, func(p namePattern) bool { return p(name) })
	}
}

// maxAttribute is the longest attribute that is read; the kernel's are a page
// at most.
const maxAttribute = 64 << 10

// list returns the devices whose names match, sorted. A machine without an
// NVDIMM bus has none.
func (b ndBus) list(pattern namePattern) ([]string, error) {
	entries, err := os.ReadDir(b.devices)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if pattern(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
	return names, nil
}

// text returns an attribute of a device without surrounding space.
func (b ndBus) text(device, attribute string) (string, bool) {
	return readAttribute(filepath.Join(b.devices, device, attribute))
}

func readAttribute(path string) (string, bool) {
	data, err := os.ReadFile(path)
	if err != nil || len(data) > maxAttribute {
		return "", false
	}
	return strings.TrimSpace(strings.Trim(string(data), "\x00")), true
}

// uint returns a number, decimal or with 0x; false when there is none.
func (b ndBus) uint(device, attribute string) (uint64, bool) {
	text, ok := b.text(device, attribute)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 0, 64)
	return n, err == nil
}

func (b ndBus) int(device, attribute string, missing int) int {
	text, ok := b.text(device, attribute)
	if !ok {
		return missing
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return missing
	}
	return int(n)
}

// enabled reports whether a driver serves the device.
func (b ndBus) enabled(device string) bool {
	_, err := os.Lstat(filepath.Join(b.devices, device, "driver"))
	return err == nil
}

// children returns the names in a directory of a device that match.
func (b ndBus) children(device, dir string, pattern namePattern) []string {
	entries, err := os.ReadDir(filepath.Join(b.devices, device, dir))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if pattern(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

// badRange is a range of bytes that cannot be read.
type badRange struct{ offset, length uint64 }

const badblockUnit = 512

// parseBadblocks reads a badblocks attribute: a line "first count" for each
// range, in units of 512 bytes. Lines that make no sense are left out.
func parseBadblocks(text string) []badRange {
	var bad []badRange
	for _, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		first, err1 := strconv.ParseUint(fields[0], 10, 64)
		count, err2 := strconv.ParseUint(fields[1], 10, 64)
		const limit = 1 << 53 // times 512 stays below 1<<62
		if err1 != nil || err2 != nil || count == 0 || first >= limit || count >= limit {
			continue
		}
		bad = append(bad, badRange{first * badblockUnit, count * badblockUnit})
	}
	return bad
}

// badBytes returns how many bad bytes lie within [offset, offset+length).
func badBytes(bad []badRange, offset, length uint64) uint64 {
	total := uint64(0)
	for _, r := range bad {
		from, to := max(r.offset, offset), min(r.offset+r.length, max(offset, offset+length))
		if from < to {
			total = min(total+to-from, length) // ranges may overlap
		}
	}
	return total
}
