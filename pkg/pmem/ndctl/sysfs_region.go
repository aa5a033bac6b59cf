package ndctl

import (
	"fmt"
	"strings"
)

// The values of a region's nstype: what kind of namespaces it has.
const (
	nsTypeIO   = 4 // one that fills it: nothing is labelled
	nsTypePMEM = 5 // as many as the labels can describe
)

// sysRegion is a region with what System needs besides what it tells others.
type sysRegion struct {
	Region
	start uint64 // physical address; 0 when unknown
	bad   []badRange
	dimms []string
}

// region reads one region.
func (b ndBus) region(name string) sysRegion {
	r := sysRegion{Region: Region{Name: name, NUMANode: b.int(name, "numa_node", -1)}}
	r.Size, _ = b.uint(name, "size")
	r.Available, _ = b.uint(name, "available_size")
	largest, known := b.uint(name, "max_available_extent")
	if !known {
		largest = r.Available // before 4.20 the kernel does not tell
	}
	if r.Align, _ = b.uint(name, "align"); r.Align == 0 {
		r.Align = DefaultAlign
	}
	r.LargestExtent = min(largest, r.Available) / r.Align * r.Align
	r.InterleaveWidth = b.int(name, "mappings", 0)
	r.PersistenceDomain = b.domain(name)
	r.Labels = b.int(name, "nstype", 0) == nsTypePMEM
	r.ReadOnly = b.int(name, "read_only", 0) != 0
	r.start, _ = b.uint(name, "resource")
	text, _ := b.text(name, "badblocks")
	r.bad = parseBadblocks(text)
	r.BadBytes = badBytes(r.bad, 0, r.Size)
	r.dimms = b.mappedDIMMs(name, r.InterleaveWidth)
	if r.Unusable = b.whyUnusable(r); r.Unusable != "" {
		r.Available, r.LargestExtent = 0, 0
	}
	return r
}

func (b ndBus) domain(name string) PersistenceDomain {
	text, _ := b.text(name, "persistence_domain")
	switch d := PersistenceDomain(text); d {
	case DomainCPUCache, DomainMemoryController:
		return d
	}
	return DomainUnknown
}

// maxMappings is more than any platform interleaves.
const maxMappings = 128

// mappedDIMMs reads the attributes mapping0, mapping1, ...: "nmem0,0,4096,0".
func (b ndBus) mappedDIMMs(name string, width int) []string {
	var dimms []string
	for i := range min(width, maxMappings) {
		text, _ := b.text(name, fmt.Sprintf("mapping%d", i))
		if dimm, _, _ := strings.Cut(text, ","); dimmDevice(dimm) {
			dimms = append(dimms, dimm)
		}
	}
	return dimms
}

// whyUnusable says why no namespace can be made in the region and what to do
// about it.
func (b ndBus) whyUnusable(r sysRegion) string {
	if kind := b.regionKind(r.Name); kind != "" && kind != "nd_pmem" {
		return "it is volatile memory (" + kind + "), nothing in it outlives a power cut"
	}
	unarmed := b.unarmed(r.dimms)
	switch {
	case r.Size == 0:
		return "its size is not readable: mount the host's /sys into the container, and run as root"
	case !b.enabled(r.Name):
		return "it is disabled: ndctl enable-region " + r.Name
	case unarmed != "":
		return fmt.Sprintf("%s is not armed, so nothing would survive a power cut and the kernel allows no writing: save the data, then repair or replace the module or its energy source", unarmed)
	case r.ReadOnly:
		return "it is read-only: echo 0 > /sys/bus/nd/devices/" + r.Name + "/read_only if its modules are healthy (ndctl list -DH)"
	case !r.Labels:
		return b.whyNoLabels(r)
	}
	return ""
}

func (b ndBus) whyNoLabels(r sysRegion) string {
	const whole = "it has no namespace labels, so that one namespace fills it; "
	for _, dimm := range r.dimms {
		if _, ok := b.uint(dimm, "available_slots"); !ok {
			return whole + dimm + " has no room for labels: it can only be used as it is, with provision=namespace after ndctl create-namespace --force --reconfig of its namespace"
		}
	}
	if len(r.dimms) == 0 {
		return whole + "it belongs to no NVDIMM that could keep labels: it can only be used as it is, with provision=namespace after ndctl create-namespace --force --reconfig of its namespace"
	}
	return whole + "nvfs-csi discover --prepare " + r.Name + " writes labels and loses what is in the region"
}

// regionKind is nd_pmem, nd_volatile or "" when the kernel does not say.
func (b ndBus) regionKind(name string) string {
	kind, _ := b.text(name, "devtype")
	if kind != "" {
		return kind
	}
	uevent, _ := b.text(name, "uevent")
	for _, line := range strings.Split(uevent, "\n") {
		if kind, found := strings.CutPrefix(line, "DEVTYPE="); found {
			return kind
		}
	}
	return ""
}

// unarmed returns a DIMM that cannot save its content at a power cut.
func (b ndBus) unarmed(dimms []string) string {
	for _, dimm := range dimms {
		for _, attribute := range []string{"flags", "nfit/flags"} {
			if flags, _ := b.text(dimm, attribute); strings.Contains(flags, "not_armed") {
				return dimm
			}
		}
	}
	return ""
}

// regions reads all regions, in order of their numbers.
func (b ndBus) regions() ([]sysRegion, error) {
	names, err := b.list(regionDevice)
	if err != nil {
		return nil, err
	}
	var all []sysRegion
	for _, name := range names {
		all = append(all, b.region(name))
	}
	return all, nil
}
