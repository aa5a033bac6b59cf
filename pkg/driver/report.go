package driver

import (
	"context"
	"errors"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// ReportPath is where a node serves its Report over HTTP.
const ReportPath = "/status"

// reportTimeout bounds the reading of regions for a report.
const reportTimeout = 10 * time.Second

// Report is what a node tells the controller of the cluster: what it could
// offer and what it holds. It has no secrets and no paths.
type Report struct {
	Node    string         `json:"node"`
	Version string         `json:"version"`
	Regions []RegionReport `json:"regions"`
	Volumes []VolumeReport `json:"volumes"`
	Orphans []Orphan       `json:"orphans"`
}

// RegionReport describes one region. Sizes are bytes of the region, of which a
// volume can use a little less.
type RegionReport struct {
	Name          string   `json:"name"`
	NUMANode      int      `json:"numaNode"`
	Size          uint64   `json:"size"`
	Available     uint64   `json:"available"`
	LargestExtent uint64   `json:"largestExtent"`
	FlushModes    []string `json:"flushModes"` // that volumes in it can have
	Emulated      bool     `json:"emulated,omitempty"`
	Unusable      string   `json:"unusable,omitempty"` // why, if it is
}

// VolumeReport describes one volume of the node.
type VolumeReport struct {
	ID    string `json:"id"`
	Name  string `json:"name"`  // as it was given to CreateVolume
	Phase string `json:"phase"` // creating, ready or deleting
	Bytes uint64 `json:"bytes"`
	// Unserved is why no process serves the volume although it is mounted; "" is
	// as it should be.
	Unserved string `json:"unserved,omitempty"`
	// NUMANode is where its memory is; nil when that is not known. NUMAChosen: the
	// class demands it.
	NUMANode   *int        `json:"numaNode,omitempty"`
	NUMAChosen bool        `json:"numaChosen,omitempty"`
	Pods       []PodReport `json:"pods,omitempty"` // that use it
}

// Report describes the node as it is now.
func (d *Driver) Report(ctx context.Context) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	report := Report{Node: d.options.NodeID, Version: d.options.Version, Regions: []RegionReport{}, Volumes: []VolumeReport{}, Orphans: []Orphan{}}
	regions, regionErr := d.namespaces.Regions(ctx)
	for _, r := range regions {
		report.Regions = append(report.Regions, d.reportRegion(r))
	}
	records, recordErr := d.records.list()
	places := d.localities(ctx)
	for _, r := range records {
		report.Volumes = append(report.Volumes, VolumeReport{ID: r.ID, Name: r.Name, Phase: string(r.Phase), Bytes: r.Capacity, Unserved: d.servers.whyUnserved(r.ID),
			NUMANode: r.NUMANode, NUMAChosen: r.numaChosen(), Pods: places.reports(r)})
	}
	orphans, orphanErr := d.Orphans(ctx)
	report.Orphans = append(report.Orphans, orphans...)
	return report, errors.Join(regionErr, recordErr, orphanErr)
}

func (d *Driver) reportRegion(r ndctl.Region) RegionReport {
	report := RegionReport{Name: r.Name, NUMANode: r.NUMANode, Size: r.Size, Available: r.Available,
		LargestExtent: r.LargestExtent, FlushModes: []string{}, Emulated: r.Emulated, Unusable: r.Unusable}
	for _, mode := range pmem.AllModes() {
		if d.checkFlush(string(mode), r) == nil {
			report.FlushModes = append(report.FlushModes, string(mode))
		}
	}
	return report
}
