package ndctl

import "github.com/nvfs-csi/nvfs-csi/pkg/pmem"

// BackingOf describes what a devdax namespace of the region would be, so that
// flush modes can be judged before there is one.
func BackingOf(r Region) pmem.Backing {
	b := pmem.Backing{Path: "region " + r.Name, Kind: pmem.KindDevDax, NUMANode: r.NUMANode, Domain: pmem.PersistenceDomain(r.PersistenceDomain)}
	if r.Emulated {
		b.Kind, b.Volatile = pmem.KindTmpfs, true
	}
	return b
}
