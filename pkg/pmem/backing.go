package pmem

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Kind is what a path is, as far as durability is concerned.
type Kind string

// The kinds of backing.
const (
	KindDevDax  Kind = "devdax"   // character device of the dax subsystem
	KindDaxFile Kind = "dax-file" // regular file on a DAX filesystem: MAP_SYNC succeeds
	KindBlock   Kind = "block"    // block device: its mapping is page cache
	KindFile    Kind = "file"     // regular file in the page cache
	KindTmpfs   Kind = "tmpfs"    // file on tmpfs, ramfs or hugetlbfs
	KindMemory  Kind = "memory"   // anonymous memory of this process, see NewMemory
)

// PersistenceDomain says what a power cut leaves of stores that reached it.
type PersistenceDomain string

// The values of /sys/bus/nd/devices/regionN/persistence_domain; DomainVolatile
// is ours.
const (
	DomainCPUCache         PersistenceDomain = "cpu_cache"
	DomainMemoryController PersistenceDomain = "memory_controller"
	DomainUnknown          PersistenceDomain = ""
	DomainVolatile         PersistenceDomain = "volatile"
)

// Backing describes what a path is.
type Backing struct {
	Path string `json:"path"`
	Kind Kind   `json:"kind"`
	// Size is the mappable size in bytes, a multiple of Align.
	Size uint64 `json:"size"`
	// Align is what offsets and lengths of mappings must be multiples of.
	Align uint64 `json:"align"`
	// NUMANode is -1 when it is not known.
	NUMANode int `json:"numaNode"`
	// Domain is cpu_cache only if every region under the device says so.
	Domain PersistenceDomain `json:"persistenceDomain"`
	// Volatile: nothing makes stores to it outlive a power cut.
	Volatile bool `json:"volatile"`
	// HostFlush: only a request to the hypervisor makes stores durable
	// (virtio-pmem); flush instructions stop short at the host's page cache.
	HostFlush bool `json:"hostFlush,omitempty"`
}

// ErrInUse says that another process has the backing open.
var ErrInUse = errors.New("in use by another process")

// Probe says what path is. It reads nothing of the content, and changes and
// creates nothing. A path that is missing, or is nothing that could hold a
// volume, is an error.
func Probe(path string) (Backing, error) {
	f, b, err := openBacking(path, os.O_RDONLY, systemSysfs)
	if err != nil {
		return Backing{}, err
	}
	return b, f.Close()
}

// openBacking opens path, never creating it, and says what it is.
func openBacking(path string, flags int, sys sysfs) (*os.File, Backing, error) {
	before, err := os.Stat(path)
	if err != nil {
		return nil, Backing{}, pathError(path, err)
	}
	// Opening may have effects (a FIFO blocks, a tape rewinds), so look first.
	if err := checkType(path, before, sys); err != nil {
		return nil, Backing{}, err
	}
	if before.Mode()&fs.ModeDevice != 0 && before.Mode()&fs.ModeCharDevice == 0 && flags&unix.O_ACCMODE != os.O_RDONLY {
		flags |= unix.O_EXCL // refuses a device that is mounted or claimed
	}
	f, err := os.OpenFile(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, Backing{}, openError(path, err)
	}
	b, err := describe(f, path, before, sys)
	if err != nil {
		f.Close()
		return nil, Backing{}, err
	}
	return f, b, nil
}

func pathError(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no device or file %s: %w", path, fs.ErrNotExist)
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%s is a loop of symbolic links: %w", path, unix.ELOOP)
	}
	return fmt.Errorf("look at %s: %w", path, err)
}

func openError(path string, err error) error {
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%s is mounted or claimed by another user: unmount it first (lsblk %s shows the mount): %w", path, path, ErrInUse)
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("open %s: run as root or grant access to the device: %w", path, fs.ErrPermission)
	}
	return fmt.Errorf("open %s: %w", path, errors.Unwrap(err))
}

// checkType refuses what cannot be a backing.
func checkType(path string, info fs.FileInfo, sys sysfs) error {
	mode := info.Mode()
	switch {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		return fmt.Errorf("%s is a directory: a devdax device or a file is needed: %w", path, unix.EISDIR)
	case mode&fs.ModeCharDevice != 0:
		if sys.subsystem(charDevice(info)) != "dax" {
			return fmt.Errorf("%s is a character device but not of the dax subsystem: use /dev/daxX.Y", path)
		}
		return nil
	case mode&fs.ModeDevice != 0:
		return nil
	case mode&fs.ModeNamedPipe != 0:
		return fmt.Errorf("%s is a FIFO: a devdax device or a file is needed", path)
	case mode&fs.ModeSocket != 0:
		return fmt.Errorf("%s is a socket: a devdax device or a file is needed", path)
	}
	return fmt.Errorf("%s is of an unknown type (%s): a devdax device or a file is needed", path, mode.Type())
}

// describe looks at the open file; before is what Stat saw at its path.
func describe(f *os.File, path string, before fs.FileInfo, sys sysfs) (Backing, error) {
	info, err := f.Stat()
	if err != nil {
		return Backing{}, fmt.Errorf("look at open %s: %w", path, err)
	}
	if !os.SameFile(before, info) || before.Mode().Type() != info.Mode().Type() {
		return Backing{}, fmt.Errorf("%s was exchanged while it was opened: try again", path)
	}
	b := Backing{Path: path, Align: uint64(os.Getpagesize()), NUMANode: -1}
	switch {
	case info.Mode().IsRegular():
		err = describeFile(&b, f, info, sys)
	case info.Mode()&fs.ModeCharDevice != 0:
		err = describeDevDax(&b, charDevice(info), sys)
	default:
		err = describeBlock(&b, f, blockDevice(info), sys)
	}
	if err != nil {
		return Backing{}, err
	}
	if b.Size == 0 {
		return Backing{}, fmt.Errorf("%s holds less than one page (%d bytes): give it a size first, for instance with truncate --size 1G", path, b.Align)
	}
	return b, nil
}

func describeFile(b *Backing, f *os.File, info fs.FileInfo, sys sysfs) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("statfs %s: %w", b.Path, err)
	}
	b.Kind = KindFile
	switch uint32(st.Type) {
	case unix.HUGETLBFS_MAGIC:
		b.Align = uint64(st.Bsize)
		b.Kind, b.Domain, b.Volatile = KindTmpfs, DomainVolatile, true
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		b.Kind, b.Domain, b.Volatile = KindTmpfs, DomainVolatile, true
	default:
		dev := holdingDevice(info)
		sys.describe(b, dev)
		if mapSyncWorks(f) {
			b.Kind = KindDaxFile
		} else {
			b.Domain = DomainUnknown // stores go to the page cache
		}
	}
	b.Size = uint64(info.Size()) &^ (b.Align - 1)
	return nil
}

func describeDevDax(b *Backing, dev deviceNumber, sys sysfs) error {
	b.Kind = KindDevDax
	size, err := sys.uint(dev, "size")
	if err != nil {
		return fmt.Errorf("size of %s: %w", b.Path, err)
	}
	if align, err := sys.uint(dev, "align"); err == nil && align > 0 {
		b.Align = align
	} else {
		b.Align = 2 << 20
	}
	b.Size = size &^ (b.Align - 1)
	if regions := sys.describe(b, dev); regions == 0 {
		// Memory that the dax subsystem serves without a persistent region
		// under it: a CXL expander or memory set aside by the firmware.
		b.Volatile, b.Domain = true, DomainVolatile
	}
	return nil
}

func describeBlock(b *Backing, f *os.File, dev deviceNumber, sys sysfs) error {
	b.Kind = KindBlock
	size, err := blockSize(f)
	if err != nil {
		return fmt.Errorf("size of %s: %w", b.Path, err)
	}
	b.Size = size &^ (b.Align - 1)
	sys.describe(b, dev)
	return nil
}

// mapSyncWorks asks the kernel whether the file can be mapped such that its
// metadata is durable by the time a page can be stored to.
func mapSyncWorks(f *os.File) bool {
	mem, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED_VALIDATE|unix.MAP_SYNC)
	if err != nil {
		return false
	}
	_ = unix.Munmap(mem)
	return true
}

// AllowedModes returns the modes that make a store to b durable and that this
// CPU can do, best guess first. With emulated the caller declares that b stands
// in for persistent memory and need not be durable.
func AllowedModes(b Backing, emulated bool) []Mode {
	var modes []Mode
	for _, m := range CPUModes() {
		if reason, _ := refusal(b, emulated, m); reason == "" {
			modes = append(modes, m)
		}
	}
	return modes
}

// CheckMode returns a *ModeError unless b and this CPU can honour m; Auto can
// be honoured when anything can.
func CheckMode(b Backing, emulated bool, m Mode) error {
	allowed := AllowedModes(b, emulated)
	if m == Auto && len(allowed) > 0 || slices.Contains(allowed, m) {
		return nil
	}
	e := &ModeError{Mode: m, Path: b.Path, Allowed: allowed}
	e.Reason, e.Remedy = refusal(b, emulated, m)
	if e.Reason == "" {
		e.Reason = "this CPU does not have it"
	}
	return e
}

// refusal says why b cannot honour m whatever the CPU, and what to do about
// it; an empty reason means that it can.
func refusal(b Backing, emulated bool, m Mode) (reason, remedy string) {
	const declare = "declare it emulated to use it all the same"
	switch b.Kind {
	case KindTmpfs, KindMemory:
		return "", ""
	case KindBlock:
		if m == MSync {
			return "", ""
		}
		return "the mapping of a block device is page cache, which flush instructions do not write to the device",
			"reconfigure to devdax (ndctl create-namespace --force --reconfig=NAMESPACE --mode=devdax) or use msync"
	case KindFile:
		if m == MSync || emulated {
			return "", ""
		}
		return "the file is in the page cache, which flush instructions do not write to the disk",
			"put the file on a filesystem mounted with -o dax on persistent memory, use msync, or declare it emulated"
	}
	// Memory behind the dax subsystem.
	switch {
	case m == MSync && b.Kind == KindDaxFile, emulated && m != MSync:
		return "", ""
	case m == MSync:
		return "a devdax device cannot be synced", "use a flush instruction"
	case b.HostFlush:
		return "virtio-pmem is durable only after a request to the hypervisor", "use an fsdax namespace with msync, or " + declare
	case b.Volatile:
		return "no persistent region lies under the device: it is volatile memory", declare
	case m == EADR && b.Domain != DomainCPUCache:
		return fmt.Sprintf("the persistence domain is %q, so the CPU caches are lost at a power cut", domainName(b.Domain)),
			"use a flush instruction"
	}
	return "", ""
}

func domainName(d PersistenceDomain) PersistenceDomain {
	if d == DomainUnknown {
		return "unknown"
	}
	return d
}
