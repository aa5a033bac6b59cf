package pmem

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sysfs is the mount point of the kernel's device tree.
type sysfs string

const systemSysfs sysfs = "/sys"

// deviceNumber identifies a device below /sys/dev.
type deviceNumber struct {
	class        string // "char" or "block"
	major, minor uint32
}

func charDevice(info fs.FileInfo) deviceNumber {
	return newDeviceNumber("char", uint64(info.Sys().(*syscall.Stat_t).Rdev))
}

func blockDevice(info fs.FileInfo) deviceNumber {
	return newDeviceNumber("block", uint64(info.Sys().(*syscall.Stat_t).Rdev))
}

// holdingDevice is the block device of the filesystem that holds a file.
func holdingDevice(info fs.FileInfo) deviceNumber {
	return newDeviceNumber("block", uint64(info.Sys().(*syscall.Stat_t).Dev))
}

func newDeviceNumber(class string, dev uint64) deviceNumber {
	return deviceNumber{class, unix.Major(dev), unix.Minor(dev)}
}

// dir is the device's directory with its symbolic links resolved, "" when the
// kernel shows none.
func (s sysfs) dir(dev deviceNumber) string {
	link := filepath.Join(string(s), "dev", dev.class, fmt.Sprintf("%d:%d", dev.major, dev.minor))
	dir, err := filepath.EvalSymlinks(link)
	if err != nil {
		return ""
	}
	return dir
}

// subsystem is the name of the device's bus or class.
func (s sysfs) subsystem(dev deviceNumber) string {
	target, err := os.Readlink(filepath.Join(s.dir(dev), "subsystem"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

func (s sysfs) uint(dev deviceNumber, attribute string) (uint64, error) {
	text, err := os.ReadFile(filepath.Join(s.dir(dev), attribute))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 0, 64)
}

// describe fills in what sysfs knows of the memory under dev and returns how
// many persistent regions there are.
func (s sysfs) describe(b *Backing, dev deviceNumber) int {
	found := survey{domains: map[string]PersistenceDomain{}, node: -1, seen: map[string]bool{}}
	found.visit(s.root(), s.dir(dev))
	b.NUMANode = found.node
	b.HostFlush = found.virtio && len(found.domains) > 0
	b.Domain = found.domain()
	return len(found.domains)
}

// root is the mount point with its symbolic links resolved, as dir returns it.
func (s sysfs) root() string {
	if root, err := filepath.EvalSymlinks(string(s)); err == nil {
		return root
	}
	return string(s)
}

// survey collects what lies under a device.
type survey struct {
	domains map[string]PersistenceDomain // by the region's directory
	node    int
	virtio  bool
	seen    map[string]bool
}

// isNumbered reports whether the last element of path is kind and a number.
func isNumbered(path, kind string) bool {
	number, found := strings.CutPrefix(filepath.Base(path), kind)
	return found && number != "" && strings.Trim(number, "0123456789") == ""
}

// visit climbs from dir to the root, and does the same for the devices that a
// stacked block device is made of.
func (v *survey) visit(root, dir string) {
	if dir == "" || v.seen[dir] {
		return
	}
	v.seen[dir] = true
	node := -1
	for d := dir; len(d) > len(root); d = filepath.Dir(d) {
		if isRegion(d) {
			v.domains[d] = readDomain(d)
		}
		if isNumbered(d, "virtio") {
			v.virtio = true
		}
		if node < 0 {
			node = readNode(d)
		}
		v.visitParts(root, d)
	}
	if v.node < 0 {
		v.node = node
	}
}

// isRegion reports whether dir is that of a persistent region.
func isRegion(dir string) bool {
	return isNumbered(dir, "region") && isNumbered(filepath.Dir(dir), "ndbus")
}

// readDomain reads a region's domain; a virtio-pmem region has no such file.
func readDomain(dir string) PersistenceDomain {
	domain, err := os.ReadFile(filepath.Join(dir, "persistence_domain"))
	if err != nil {
		return DomainUnknown
	}
	return PersistenceDomain(strings.TrimSpace(string(domain)))
}

func (v *survey) visitParts(root, dir string) {
	parts, err := os.ReadDir(filepath.Join(dir, "slaves"))
	if err != nil {
		return
	}
	for _, part := range parts {
		if target, err := filepath.EvalSymlinks(filepath.Join(dir, "slaves", part.Name())); err == nil {
			v.visit(root, target)
		}
	}
}

// domain is the weakest of all regions; what the kernel does not know counts
// as unknown.
func (v *survey) domain() PersistenceDomain {
	weakest := DomainUnknown
	first := true
	for _, d := range v.domains {
		if d != DomainCPUCache && d != DomainMemoryController {
			return DomainUnknown
		}
		if first || d == DomainMemoryController {
			weakest = d
		}
		first = false
	}
	return weakest
}

func readNode(dir string) int {
	text, err := os.ReadFile(filepath.Join(dir, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return node
}

// blockSize is the size of an open block device in bytes.
func blockSize(f *os.File) (uint64, error) {
	var size uint64
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return 0, errno
	}
	return size, nil
}
