package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/mkfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// contentTimeout bounds the look at one namespace. What has a signature is
// recognised at once; what seems blank would be read to its end.
const contentTimeout = 500 * time.Millisecond

func describeRegion(r ndctl.Region) discoveredRegion {
	d := discoveredRegion{Region: r, FlushModes: []pmem.Mode{}}
	if modes := pmem.AllowedModes(ndctl.BackingOf(r), r.Emulated); modes != nil {
		d.FlushModes = modes
	}
	var remarks []string
	if r.Unusable != "" {
		remarks = append(remarks, "unusable: "+r.Unusable)
	}
	if r.Emulated {
		remarks = append(remarks, "emulated")
	}
	if r.BadBytes > 0 {
		remarks = append(remarks, fmt.Sprintf("%d bytes cannot be read (poison): ndctl list -RM shows where, docs/persistent-memory.md what to do", r.BadBytes))
	}
	if r.Unusable == "" && r.PersistenceDomain == ndctl.DomainUnknown {
		remarks = append(remarks, "the firmware does not say what a power cut leaves: eadr is not allowed")
	}
	if r.Unusable == "" && r.LargestExtent < r.Available {
		remarks = append(remarks, "fragmented: a namespace cannot be larger than the largest extent")
	}
	d.Remark = strings.Join(remarks, "; ")
	return d
}

func describeNamespace(ctx context.Context, ns ndctl.Namespace) discoveredNamespace {
	d := discoveredNamespace{Namespace: ns}
	var remarks []string
	if ns.Lost != "" {
		remarks = append(remarks, "unusable: "+ns.Lost)
	} else {
		d.Content = contentOf(ctx, ns)
	}
	switch {
	case ns.Mode == ndctl.Raw && ns.Name == "":
		remarks = append(remarks, "it fills a region without labels, see there")
	case ns.Mode == ndctl.Raw:
		remarks = append(remarks, "raw: nothing uses this mode; ndctl create-namespace --force --reconfig of it with --mode=devdax loses its content and makes it usable with provision=namespace")
	case ns.Mode == ndctl.Sector:
		remarks = append(remarks, "sector: no DAX, for ext4, xfs and block volumes with namespaceMode=sector only")
	}
	if remark := whyNotIdle(ns, d.Content); remark != "" {
		remarks = append(remarks, remark)
	}
	if ns.BadBytes > 0 {
		remarks = append(remarks, fmt.Sprintf("%d bytes cannot be read (poison)", ns.BadBytes))
	}
	d.Remark = strings.Join(remarks, "; ")
	return d
}

// driverPrefix begins the names of what the driver has made for itself.
const driverPrefix = "nvfs-"

// whyNotIdle says why a namespace that the driver has not made is no place for a
// volume with provision=namespace, and what to do; "" when it is one, or when
// something else is said of it.
func whyNotIdle(ns ndctl.Namespace, content string) string {
	switch {
	case ns.Lost != "" || ns.Emulated || ns.Mode == ndctl.Raw || strings.HasPrefix(ns.Name, driverPrefix):
		return ""
	case ns.InUse:
		return "in use: a volume can have it once it is unmounted and blank"
	case strings.HasPrefix(content, "blank"):
		return ""
	case ns.Mode == ndctl.DevDax:
		return "not blank: a volume can have it after daxio --zero --output=" + ns.Device + " (package daxio), which loses what is on it"
	}
	return "not blank: a volume can have it after blkdiscard --zeroout " + ns.Device + ", which loses what is on it"
}

// contentOf says what is on a namespace, "" when that cannot be read.
func contentOf(ctx context.Context, ns ndctl.Namespace) string {
	ctx, cancel := context.WithTimeout(ctx, contentTimeout)
	defer cancel()
	found, err := mkfs.Probe(ctx, ns.Device)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "blank at both ends"
	case err != nil:
		return "unreadable: " + err.Error()
	case found.Kind == mkfs.NVFS && found.Superblock.VolumeID != "":
		return "NVFS volume " + found.Superblock.VolumeID
	}
	return found.What
}

// describeMachine adds the NVDIMMs, and what concerns all regions.
func (d *discovery) describeMachine(ctx context.Context, system *ndctl.System) {
	if _, err := os.Stat("/sys/bus/nd"); errors.Is(err, fs.ErrNotExist) {
		d.Problems = append(d.Problems, "the kernel knows no persistent memory: modprobe nfit nd_pmem device_dax (or virtio_pmem, cxl_pmem) if the machine has some; for emulated memory see --emulate")
		return
	}
	if len(d.Regions) == 0 {
		d.Problems = append(d.Problems, "the kernel has no persistent-memory region: the firmware has to be told to make one (ipmctl create -goal, or its menu), and the modules nfit and nd_pmem have to be loaded")
	}
	if _, err := exec.LookPath("ndctl"); err != nil {
		d.Problems = append(d.Problems, "ndctl is not installed, so that no namespace can be made: install the package ndctl")
		return
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/sys", &st); err == nil && st.Flags&unix.ST_RDONLY != 0 {
		d.Problems = append(d.Problems, "/sys is mounted read-only, so that no namespace can be made: run the container privileged, or mount the host's /sys writable")
	}
	dimms, err := system.DIMMs(ctx)
	if err != nil {
		d.Problems = append(d.Problems, "the health of the NVDIMMs is not known: "+err.Error())
		return
	}
	d.DIMMs = append(d.DIMMs, dimms...)
}

func dimmRemark(m ndctl.DIMM) string {
	var remarks []string
	if m.State != "" {
		remarks = append(remarks, m.State)
	}
	if m.FlagError != "" {
		remarks = append(remarks, m.FlagError)
	}
	if m.Dirty {
		remarks = append(remarks, "its last shutdown was dirty: what was in flight is lost")
	}
	switch m.Health {
	case "", "ok":
	default:
		remarks = append(remarks, "replace it: save the data first")
	}
	return strings.Join(remarks, "; ")
}
