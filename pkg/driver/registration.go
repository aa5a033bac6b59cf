package driver

import (
	"context"
	"path/filepath"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registrationVersion is the CSI version that the kubelet is told. It accepts
// any 1.x and asks for capabilities later.
const registrationVersion = "1.0.0"

// registrationServer announces the driver to the kubelet, which finds the
// socket by itself, also after its own restart.
type registrationServer struct {
	registerapi.UnimplementedRegistrationServer
	d *Driver
}

// registrationSocket is where the kubelet looks for plugins.
func (d *Driver) registrationSocket() string {
	return filepath.Join(d.options.KubeletDir, "plugins_registry", Name+"-reg.sock")
}

func (d *Driver) serveRegistration(ctx context.Context) error {
	listener, err := listen(d.registrationSocket())
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, &registrationServer{d: d})
	return serveUntil(ctx, server, listener)
}

// GetInfo implements the kubelet's Registration service.
func (s *registrationServer) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	endpoint := s.d.options.KubeletEndpoint
	if endpoint == "" {
		var err error
		if endpoint, err = s.d.options.socketPath(); err != nil {
			return nil, err
		}
	}
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: Name, Endpoint: endpoint, SupportedVersions: []string{registrationVersion}}, nil
}

// NotifyRegistrationStatus implements the kubelet's Registration service.
func (s *registrationServer) NotifyRegistrationStatus(_ context.Context, status *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	s.d.metrics.setRegistered(status.GetPluginRegistered())
	if status.GetPluginRegistered() {
		klog.InfoS("The kubelet has registered the driver", "driver", Name)
	} else {
		klog.ErrorS(nil, "The kubelet refused the driver and tries again by itself", "driver", Name, "reason", status.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
