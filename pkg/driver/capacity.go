package driver

import (
	"context"
	"math"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/klog/v2"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// GetCapacity says how much a class can get on this node: what CreateVolume
// with the same parameters would do. A class that the node cannot serve gets
// 0, so that the scheduler looks elsewhere; one that nobody can parse is
// an error.
func (s *controllerServer) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	params, err := ParseParams(OriginClass, req.GetParameters())
	if err != nil {
		return nil, err
	}
	can, err := s.d.capacity(ctx, req, params)
	if code := codeOf(err); err != nil && code != codes.ResourceExhausted && code != codes.InvalidArgument {
		return nil, err
	}
	if err != nil {
		klog.V(4).InfoS("No capacity", "parameters", req.GetParameters(), "reason", err.Error())
		can = capacity{smallest: minimumVolumeSize}
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: int64(min(can.available, math.MaxInt64)),
		MaximumVolumeSize: wrapperspb.Int64(int64(min(can.largest, math.MaxInt64))),
		MinimumVolumeSize: wrapperspb.Int64(int64(min(can.smallest, math.MaxInt64))),
	}, nil
}

// capacity is what a class can get, in usable bytes.
type capacity struct {
	available uint64 // in all regions that the class may use
	largest   uint64 // volume; that of one extent, never a sum
	smallest  uint64 // volume, after rounding
}

func (d *Driver) capacity(ctx context.Context, req *csi.GetCapacityRequest, params Params) (capacity, error) {
	none := capacity{smallest: minimumVolumeSize}
	var err error
	if len(req.GetVolumeCapabilities()) > 0 {
		err = applyCapabilities(&params, req.GetVolumeCapabilities())
	} else {
		err = params.checkOffered()
	}
	if err != nil {
		return none, err
	}
	if t := req.GetAccessibleTopology(); t != nil && !d.inTopology(t) {
		return none, nil
	}
	regions, err := d.candidateRegions(ctx, params)
	if err != nil {
		return none, err
	}
	if params.Provision == ProvisionNamespace {
		idle, err := d.idleNamespaces(ctx, params, regions)
		return capacityOfNamespaces(idle), err
	}
	return capacityOfRegions(params.namespaceMode(), regions), nil
}

// capacityOfNamespaces is that of existing namespaces, smallest first.
func capacityOfNamespaces(idle []ndctl.Namespace) capacity {
	can := capacity{smallest: minimumVolumeSize}
	for _, ns := range idle {
		can.available, can.largest = can.available+ns.Size, ns.Size
	}
	if len(idle) > 0 {
		can.smallest = max(idle[0].Size, minimumVolumeSize)
	}
	return can
}

func capacityOfRegions(mode ndctl.Mode, regions []ndctl.Region) capacity {
	can := capacity{smallest: smallestVolume(mode, regions)}
	for _, r := range regions {
		can.available += ndctl.UsableSize(mode, r.Available)
		can.largest = max(can.largest, ndctl.UsableSize(mode, r.LargestExtent))
	}
	if can.largest < minimumVolumeSize {
		can.largest = 0
	}
	return can
}
