package ndctltest

import (
	"context"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// Renamed gives the regions of a manager the names that Conformance uses.
// Names maps those to the manager's own.
type Renamed struct {
	ndctl.Manager
	Names map[string]string
}

// Regions implements ndctl.Manager.
func (m Renamed) Regions(ctx context.Context) ([]ndctl.Region, error) {
	regions, err := m.Manager.Regions(ctx)
	for i := range regions {
		regions[i].Name = m.back(regions[i].Name)
	}
	return regions, err
}

// Namespaces implements ndctl.Manager.
func (m Renamed) Namespaces(ctx context.Context) ([]ndctl.Namespace, error) {
	all, err := m.Manager.Namespaces(ctx)
	for i := range all {
		all[i].Region = m.back(all[i].Region)
	}
	return all, err
}

// Namespace implements ndctl.Manager.
func (m Renamed) Namespace(ctx context.Context, name string) (ndctl.Namespace, error) {
	ns, err := m.Manager.Namespace(ctx, name)
	ns.Region = m.back(ns.Region)
	return ns, err
}

// Create implements ndctl.Manager.
func (m Renamed) Create(ctx context.Context, req ndctl.CreateRequest) (ndctl.Namespace, error) {
	if own, ok := m.Names[req.Region]; ok {
		req.Region = own
	}
	ns, err := m.Manager.Create(ctx, req)
	ns.Region = m.back(ns.Region)
	return ns, err
}

func (m Renamed) back(own string) string {
	for name, region := range m.Names {
		if region == own {
			return name
		}
	}
	return own
}
