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
	available, largest, err := s.d.capacity(ctx, req, params)
	if code := codeOf(err); err != nil && code != codes.ResourceExhausted && code != codes.InvalidArgument {
		return nil, err
	}
	if err != nil {
		klog.V(4).InfoS("No capacity", "parameters", req.GetParameters(), "reason", err.Error())
		available, largest = 0, 0
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: int64(min(available, math.MaxInt64)),
		MaximumVolumeSize: wrapperspb.Int64(int64(min(largest, math.MaxInt64))),
		MinimumVolumeSize: wrapperspb.Int64(minimumVolumeSize),
	}, nil
}

// capacity returns the usable bytes in all regions that the class may use and
// in the largest volume. The latter is that of one extent, never a sum.
func (d *Driver) capacity(ctx context.Context, req *csi.GetCapacityRequest, params Params) (available, largest uint64, err error) {
	if len(req.GetVolumeCapabilities()) > 0 {
		err = applyCapabilities(&params, req.GetVolumeCapabilities())
	} else {
		err = params.checkOffered()
	}
	if err != nil {
		return 0, 0, err
	}
	if t := req.GetAccessibleTopology(); t != nil && !d.inTopology(t) {
		return 0, 0, nil
	}
	regions, err := d.candidateRegions(ctx, params)
	if err != nil {
		return 0, 0, err
	}
	if params.Provision == ProvisionNamespace {
		idle, err := d.idleNamespaces(ctx, params, regions)
		for _, ns := range idle {
			available, largest = available+ns.Size, max(largest, ns.Size)
		}
		return available, largest, err
	}
	for _, r := range regions {
		available += ndctl.UsableSize(params.namespaceMode(), r.Available)
		largest = max(largest, ndctl.UsableSize(params.namespaceMode(), r.LargestExtent))
	}
	if largest < minimumVolumeSize {
		return available, 0, nil
	}
	return available, largest, nil
}
