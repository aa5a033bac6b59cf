package driver

import (
	"context"
	"fmt"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// Orphan is something of ours that nobody asks for any more. It is reported
// and never removed by the driver itself.
type Orphan struct {
	Namespace string `json:"namespace"`
	Region    string `json:"region"`
	Bytes     uint64 `json:"bytes"` // of the region
	Reason    string `json:"reason"`
}

// Orphans returns namespaces that were made by this driver and have no record,
// and volumes whose creation was never finished. Volumes with a record but
// without a PersistentVolume are not known here: compare ListVolumes with the
// cluster.
func (d *Driver) Orphans(ctx context.Context) ([]Orphan, error) {
	records, err := d.records.list()
	if err != nil {
		return nil, err
	}
	namespaces, err := d.namespaces.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]*record{}
	for _, r := range records {
		for _, name := range r.namespaceNames() {
			known[name] = r
		}
	}
	var orphans []Orphan
	for _, ns := range namespaces {
		r := known[ns.Name]
		switch {
		case r == nil && (isOurID(ns.Name) || furtherPattern.MatchString(ns.Name)):
			orphans = append(orphans, Orphan{ns.Name, ns.Region, ns.Raw, d.withoutRecord(ns)})
		case r != nil && r.Phase == phaseCreating && !d.inflight.busy(r.ID):
			orphans = append(orphans, Orphan{ns.Name, ns.Region, ns.Raw, fmt.Sprintf("creation of volume %q was never finished", r.Name)})
		}
	}
	return orphans, nil
}

// withoutRecord says why a namespace of ours that has no record is kept, and what
// to do.
func (d *Driver) withoutRecord(ns ndctl.Namespace) string {
	const reason = "made by this driver, but it has no record of it"
	if ns.Mode == ndctl.DevDax {
		return reason
	}
	return reason + fmt.Sprintf(", and only NVFS can be recognised without one. "+recordLostRemedy, d.records.path(ns.Name), ns.Name)
}
