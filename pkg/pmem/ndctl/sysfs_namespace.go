package ndctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// sysNamespace is a namespace with the kernel's number for it, which is valid
// until the next change only.
type sysNamespace struct {
	Namespace
	dev string
}

// claim is the device that gives a namespace its mode.
type claim struct {
	device string // pfn0.1
	mode   Mode
}

var claimModes = map[string]Mode{"btt": Sector, "pfn": FSDax, "dax": DevDax}

// namespaces reads all namespaces; what has no size is only a place for the
// next one.
func (b ndBus) namespaces(regions []sysRegion) ([]sysNamespace, error) {
	names, err := b.list(namespaceDevice)
	if err != nil {
		return nil, err
	}
	claims, err := b.claims()
	if err != nil {
		return nil, err
	}
	var all []sysNamespace
	for _, dev := range names {
		if raw, _ := b.uint(dev, "size"); raw > 0 {
			all = append(all, b.namespace(dev, raw, claims, regions))
		}
	}
	return all, nil
}

// claims returns the enabled claims by the namespace that they claim.
func (b ndBus) claims() (map[string]claim, error) {
	devices, err := b.list(claimDevice)
	if err != nil {
		return nil, err
	}
	claims := map[string]claim{}
	for _, device := range devices {
		if dev, ok := b.text(device, "namespace"); ok && dev != "" && b.enabled(device) {
			claims[dev] = claim{device: device, mode: claimModes[device[:3]]}
		}
	}
	return claims, nil
}

func (b ndBus) namespace(dev string, raw uint64, claims map[string]claim, regions []sysRegion) sysNamespace {
	ns := sysNamespace{dev: dev, Namespace: Namespace{Raw: raw, Region: regionOf(dev), NUMANode: b.int(dev, "numa_node", -1)}}
	ns.UUID = b.uuid(dev)
	if ns.Name, _ = b.text(dev, "alt_name"); ns.Name == "" {
		ns.Name = ns.UUID
	}
	c, claimed := claims[dev]
	switch {
	case claimed && c.mode == DevDax:
		ns.Mode = DevDax
		b.findDax(&ns, c.device)
	case claimed:
		ns.Mode = c.mode
		b.findBlock(&ns, c.device)
	case b.enabled(dev):
		ns.Mode = b.unclaimedMode(dev)
		b.findBlock(&ns, dev)
	default:
		ns.Mode = b.labelledMode(dev)
		ns.Lost = fmt.Sprintf("it is disabled: ndctl enable-namespace %s, and dmesg says why if that fails", dev)
	}
	if ns.UUID == "" && claimed {
		ns.UUID = b.uuid(c.device) // label-less: only the claim has one
		ns.Name = ns.UUID
	}
	for _, r := range regions {
		if r.Name == ns.Region {
			ns.BadBytes = b.namespaceBadBytes(dev, raw, r)
		}
	}
	return ns
}

// regionOf returns region1 for namespace1.0.
func regionOf(dev string) string {
	number, _, _ := strings.Cut(strings.TrimPrefix(dev, "namespace"), ".")
	return "region" + number
}

// uuid returns the UUID of a device, "" for none. That of the namespace's label
// is there whatever state the namespace is in; ndctl list -v calls it raw_uuid.
func (b ndBus) uuid(device string) string {
	text, _ := b.text(device, "uuid")
	id, err := uuid.Parse(text)
	if err != nil || id == uuid.Nil {
		return ""
	}
	return id.String()
}

// unclaimedMode is the mode of a namespace that its own block device serves:
// raw, or fsdax with the page structures in DRAM.
func (b ndBus) unclaimedMode(dev string) Mode {
	if mode, _ := b.text(dev, "mode"); mode == "memory" {
		return FSDax
	}
	return Raw
}

// labelledMode is the mode that the label of a disabled namespace names.
func (b ndBus) labelledMode(dev string) Mode {
	switch class, _ := b.text(dev, "holder_class"); class {
	case "btt", "btt2":
		return Sector
	case "pfn":
		return FSDax
	case "dax":
		return DevDax
	}
	return Raw
}

// diskName matches what is a plain file name.
func diskName(name string) bool { return ValidName(name) == nil }

func (b ndBus) findBlock(ns *sysNamespace, device string) {
	disks := b.children(device, "block", diskName)
	if len(disks) != 1 {
		ns.Lost = fmt.Sprintf("%s has %d block devices, want one: ndctl disable-namespace and enable-namespace %s", device, len(disks), ns.dev)
		return
	}
	sectors, ok := readAttribute(filepath.Join(b.devices, device, "block", disks[0], "size"))
	var n uint64
	if _, err := fmt.Sscan(sectors, &n); !ok || err != nil || n > 1<<53 {
		ns.Lost = "the size of its block device is not readable"
		return
	}
	ns.Size = n * badblockUnit
	b.findNode(ns, disks[0], filepath.Join(b.devices, device, "block", disks[0]), unix.S_IFBLK)
}

func (b ndBus) findDax(ns *sysNamespace, device string) {
	var found []string
	for _, name := range b.children(device, "", daxDevice) {
		if size, ok := b.uint(device, filepath.Join(name, "size")); ok && size > 0 {
			found = append(found, name)
			ns.Size = size
		}
	}
	if len(found) != 1 {
		ns.Size = 0
		ns.Lost = fmt.Sprintf("it has %d dax devices, want one: daxctl destroy-device and create-device put it together", len(found))
		return
	}
	dir := filepath.Join(b.devices, device, found[0])
	if driver, err := os.Readlink(filepath.Join(dir, "driver")); err == nil && filepath.Base(driver) == "kmem" {
		ns.InUse = true
		ns.Lost = fmt.Sprintf("it is system RAM: daxctl offline-memory %s, then daxctl reconfigure-device --mode=devdax %s", found[0], found[0])
		return
	}
	b.findNode(ns, found[0], dir, unix.S_IFCHR)
}

// findNode checks that the device node is there and is the kernel's device:
// whoever opens a node that is missing could create a regular file in /dev.
func (b ndBus) findNode(ns *sysNamespace, name, dir string, kind uint32) {
	path := filepath.Join(b.dev, name)
	ns.Device = path
	number, ok := readAttribute(filepath.Join(dir, "dev"))
	var major, minor uint32
	if _, err := fmt.Sscanf(number, "%d:%d", &major, &minor); !ok || err != nil {
		ns.Lost = "the kernel does not tell the number of " + name
		return
	}
	var st unix.Stat_t
	switch err := b.lstat(path, &st); {
	case err != nil:
		ns.Lost = fmt.Sprintf("its device node %s is missing (%v): mount the host's /dev into the container", path, err)
	case st.Mode&unix.S_IFMT != kind || unix.Major(st.Rdev) != major || unix.Minor(st.Rdev) != minor:
		ns.Lost = fmt.Sprintf("%s is not the device %s of the kernel: remove it and mount the host's /dev into the container", path, strings.TrimSpace(number))
	}
}

func (b ndBus) namespaceBadBytes(dev string, raw uint64, r sysRegion) uint64 {
	start, ok := b.uint(dev, "resource")
	if !ok || start < r.start || len(r.bad) == 0 {
		return 0
	}
	return badBytes(r.bad, start-r.start, raw)
}
