package driver

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// nodeServer is the CSI Node service: it checks requests and turns errors into
// statuses.
type nodeServer struct {
	csi.UnimplementedNodeServer
	d *Driver
}

func (s *nodeServer) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	} {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}}})
	}
	return response, nil
}

func (s *nodeServer) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: s.d.options.NodeID, AccessibleTopology: s.d.topology()}, nil
}

// topology is the one segment in which the volumes of this node can be used.
func (d *Driver) topology() *csi.Topology {
	return &csi.Topology{Segments: map[string]string{TopologyKey: d.options.NodeID}}
}

func (s *nodeServer) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, s.d.nodeStageVolume(ctx, req)
}

func (d *Driver) nodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) error {
	if err := joinReasons(checkVolumeID(req.GetVolumeId()), checkPath("staging target path", req.GetStagingTargetPath())); err != nil {
		return err
	}
	access, err := parseCapability(req.GetVolumeCapability())
	if err != nil {
		return err
	}
	end, err := d.inflight.begin(req.GetVolumeId(), "NodeStageVolume")
	if err != nil {
		return err
	}
	defer end()
	return d.stage(ctx, stageRequest{volumeID: req.GetVolumeId(), context: req.GetVolumeContext(), block: access.block,
		staged: staged{Path: req.GetStagingTargetPath(), ReadOnly: access.readOnly, Flags: access.flags}})
}

func (s *nodeServer) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, s.d.nodeUnstageVolume(ctx, req)
}

func (d *Driver) nodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) error {
	if err := joinReasons(checkVolumeID(req.GetVolumeId()), checkPath("staging target path", req.GetStagingTargetPath())); err != nil {
		return err
	}
	end, err := d.inflight.begin(req.GetVolumeId(), "NodeUnstageVolume")
	if err != nil {
		return err
	}
	defer end()
	return d.unstage(ctx, req.GetVolumeId(), req.GetStagingTargetPath())
}

func (s *nodeServer) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, s.d.nodePublishVolume(ctx, req)
}

func (d *Driver) nodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) error {
	if err := joinReasons(checkVolumeID(req.GetVolumeId()), checkPath("target path", req.GetTargetPath())); err != nil {
		return err
	}
	access, err := parseCapability(req.GetVolumeCapability())
	if err != nil {
		return err
	}
	if req.GetStagingTargetPath() == "" {
		return failedPrecondition("staging target path is missing; the volume has to be staged first")
	}
	if err := checkPath("staging target path", req.GetStagingTargetPath()); err != nil {
		return err
	}
	if req.GetVolumeContext()[reservedPrefix+"ephemeral"] == "true" {
		return invalidArgument("inline (ephemeral) volumes are not supported; use a generic ephemeral volume")
	}
	if _, err := ParseParams(OriginContext, req.GetVolumeContext()); err != nil {
		return err
	}
	end, err := d.inflight.begin(req.GetVolumeId(), "NodePublishVolume")
	if err != nil {
		return err
	}
	defer end()
	return d.publish(ctx, publishRequest{volumeID: req.GetVolumeId(), stagingPath: req.GetStagingTargetPath(), flags: access.flags, block: access.block,
		target: published{Path: req.GetTargetPath(), ReadOnly: req.GetReadonly() || access.readOnly, Single: access.single, Pod: podOf(req.GetVolumeContext())}})
}

func (s *nodeServer) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, s.d.nodeUnpublishVolume(req)
}

func (d *Driver) nodeUnpublishVolume(req *csi.NodeUnpublishVolumeRequest) error {
	if err := joinReasons(checkVolumeID(req.GetVolumeId()), checkPath("target path", req.GetTargetPath())); err != nil {
		return err
	}
	end, err := d.inflight.begin(req.GetVolumeId(), "NodeUnpublishVolume")
	if err != nil {
		return err
	}
	defer end()
	return d.unpublish(req.GetVolumeId(), req.GetTargetPath())
}

func (s *nodeServer) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return s.d.volumeStats(ctx, req)
}

// volumeStats takes no lock: a filesystem that hangs must not keep a pod from
// being torn down.
func (d *Driver) volumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	path, err := d.mountedPath(ctx, req.GetVolumeId(), req.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if stats, isBlock := d.blockStats(ctx, req.GetVolumeId()); isBlock {
		return stats, nil
	}
	stat, err := d.mounts.stat(ctx, path)
	if hasNoServer(err) {
		return nil, failedPrecondition("the mount of volume %s at %s is dead: the process that served it has ended (%w); delete the pods that use the volume, so that it is staged again", req.GetVolumeId(), path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", req.GetVolumeId(), err)
	}
	block := int64(stat.Bsize)
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit:      csi.VolumeUsage_BYTES,
			Total:     int64(stat.Blocks) * block,
			Used:      int64(stat.Blocks-stat.Bfree) * block,
			Available: int64(stat.Bavail) * block,
		},
		{
			Unit:      csi.VolumeUsage_INODES,
			Total:     int64(stat.Files),
			Used:      int64(stat.Files - stat.Ffree),
			Available: int64(stat.Ffree),
		},
	}}, nil
}

// mountedPath checks that the volume is staged or published at the path.
func (d *Driver) mountedPath(ctx context.Context, id, path string) (string, error) {
	if path == "" {
		return "", invalidArgument("volume path is missing")
	}
	if err := checkVolumeID(id); err != nil {
		return "", err
	}
	r, err := d.peek(ctx, id)
	if err != nil {
		return "", err
	}
	if (r.Staged == nil || r.Staged.Path != path) && r.target(path) == nil {
		return "", errorf(codes.NotFound, "volume %s is not mounted at %q", id, path)
	}
	stack, err := d.mounts.at(path)
	if err != nil {
		return "", err
	}
	if len(stack) == 0 {
		return "", errorf(codes.NotFound, "volume %s is not mounted at %q any more", id, path)
	}
	return path, nil
}

func (s *nodeServer) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return s.d.nodeExpandVolume(ctx, req)
}

func (d *Driver) nodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if _, err := d.mountedPath(ctx, req.GetVolumeId(), req.GetVolumePath()); err != nil {
		return nil, err
	}
	if c := req.GetVolumeCapability(); c != nil {
		if _, err := parseCapability(c); err != nil {
			return nil, err
		}
	}
	want, err := parseSizeRange(req.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	end, err := d.inflight.begin(req.GetVolumeId(), "NodeExpandVolume")
	if err != nil {
		return nil, err
	}
	defer end()
	capacity, err := d.expand(ctx, req.GetVolumeId(), want)
	if err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: int64(capacity)}, nil
}

func (s *nodeServer) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	health, err := s.d.volumeHealth(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: health}, nil
}

func (s *nodeServer) NodeGetStorageHealth(ctx context.Context, _ *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	return &csi.NodeGetStorageHealthResponse{BackendHealth: s.d.storageHealth(ctx)}, nil
}
