package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// deleteRetry is how often DeleteVolume is asked again while the volume is
// being erased; external-provisioner does the same, more slowly.
const deleteRetry = 100 * time.Millisecond

// volume walks one volume through the calls that Kubernetes makes.
type volume struct {
	identity   csi.IdentityClient
	controller csi.ControllerClient
	node       csi.NodeClient
	layout     layout
	parameters map[string]string

	created   *csi.Volume
	staged    bool
	published bool
}

func newVolume(conn *grpc.ClientConn, l layout, parameters map[string]string) *volume {
	return &volume{
		identity:   csi.NewIdentityClient(conn),
		controller: csi.NewControllerClient(conn),
		node:       csi.NewNodeClient(conn),
		layout:     l,
		parameters: parameters,
	}
}

func (v *volume) id() string { return v.created.GetVolumeId() }

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "nvfs"}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func (v *volume) create(ctx context.Context, size int64) error {
	info, err := v.node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return err
	}
	resp, err := v.controller.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name:               volumeName,
		CapacityRange:      &csi.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csi.VolumeCapability{capability()},
		Parameters:         v.parameters,
		AccessibilityRequirements: &csi.TopologyRequirement{
			Requisite: []*csi.Topology{info.GetAccessibleTopology()},
			Preferred: []*csi.Topology{info.GetAccessibleTopology()},
		},
	})
	if err != nil {
		return err
	}
	v.created = resp.GetVolume()
	return nil
}

func (v *volume) stage(ctx context.Context) error {
	if err := os.MkdirAll(v.layout.staging(), 0o700); err != nil {
		return err
	}
	v.staged = true // even a failed call may have got half way
	_, err := v.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId:          v.id(),
		StagingTargetPath: v.layout.staging(),
		VolumeCapability:  capability(),
		VolumeContext:     v.created.GetVolumeContext(),
	})
	return err
}

func (v *volume) publish(ctx context.Context) error {
	// The kubelet makes the parent, the driver the target itself.
	if err := os.MkdirAll(filepath.Dir(v.layout.target()), 0o700); err != nil {
		return err
	}
	v.published = true
	_, err := v.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId:          v.id(),
		StagingTargetPath: v.layout.staging(),
		TargetPath:        v.layout.target(),
		VolumeCapability:  capability(),
		VolumeContext:     v.created.GetVolumeContext(),
	})
	return err
}

func (v *volume) unpublish(ctx context.Context) error {
	if !v.published {
		return nil
	}
	_, err := v.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id(), TargetPath: v.layout.target()})
	v.published = err != nil
	return err
}

func (v *volume) unstage(ctx context.Context) error {
	if !v.staged {
		return nil
	}
	_, err := v.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id(), StagingTargetPath: v.layout.staging()})
	v.staged = err != nil
	return err
}

// delete repeats the call while the driver is erasing the volume.
func (v *volume) delete(ctx context.Context) error {
	if v.created == nil {
		return nil
	}
	tick := time.NewTicker(deleteRetry)
	defer tick.Stop()
	for {
		_, err := v.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.id()})
		if err == nil {
			v.created = nil
			return nil
		}
		if status.Code(err) != codes.Aborted {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w while waiting for: %w", ctx.Err(), err)
		}
	}
}

// available is what CreateVolume could still give out, in bytes.
func (v *volume) available(ctx context.Context) (int64, error) {
	resp, err := v.controller.GetCapacity(ctx, &csi.GetCapacityRequest{Parameters: v.parameters})
	if err != nil {
		return 0, err
	}
	return resp.GetAvailableCapacity(), nil
}

// usage is what the pod's statistics would show, in bytes.
func (v *volume) usage(ctx context.Context) (used, total int64, err error) {
	resp, err := v.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{
		VolumeId: v.id(), VolumePath: v.layout.target(), StagingTargetPath: v.layout.staging(),
	})
	if err != nil {
		return 0, 0, err
	}
	for _, u := range resp.GetUsage() {
		if u.GetUnit() == csi.VolumeUsage_BYTES {
			return u.GetUsed(), u.GetTotal(), nil
		}
	}
	return 0, 0, fmt.Errorf("NodeGetVolumeStats gave no figure in bytes")
}
