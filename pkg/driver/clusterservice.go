package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
)

// clusterService is what the resizer of the cluster talks to. It says that
// volumes grow on their nodes, without any call here, and so makes the resizer
// pass each growth on to the kubelet. It provisions nothing.
type clusterService struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
}

// ServeCluster serves the CSI socket of the controller process at endpoint
// (unix:///PATH) until ctx ends.
func ServeCluster(ctx context.Context, endpoint, version string) error {
	options := Options{Endpoint: endpoint, Version: version}
	path, err := options.socketPath()
	if err != nil {
		return err
	}
	listener, err := listen(path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, &identityServer{d: &Driver{options: options}})
	csi.RegisterControllerServer(server, &clusterService{})
	csi.RegisterNodeServer(server, &clusterService{})
	klog.InfoS("Serving CSI for the resizer", "driver", Name, "socket", path)
	return serveUntil(ctx, server, listener)
}

// ControllerGetCapabilities offers nothing: a volume is made and removed by
// the driver of its node.
func (*clusterService) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{}, nil
}

// NodeGetCapabilities says that nodes expand volumes.
func (*clusterService) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{
		Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_EXPAND_VOLUME}},
	}}}, nil
}
