package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
)

// Tokens is how many containers of one node can ask for a NUMA node at the same
// time: more than a kubelet runs.
const Tokens = 1000

// registerTimeout bounds an announcement; the kubelet calls back meanwhile.
const registerTimeout = 10 * time.Second

// fileIdentity tells one file of a name from another one of that name.
type fileIdentity struct {
	dev, ino uint64
	made     unix.Timespec
}

// identify returns the identity of a file; the zero value when there is none.
func identify(path string) fileIdentity {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return fileIdentity{}
	}
	return fileIdentity{dev: uint64(st.Dev), ino: st.Ino, made: st.Mtim}
}

// resource is the extended resource of one NUMA node. Its server may be called at
// any time; everything else is for the goroutine of Run.
type resource struct {
	api.UnimplementedDevicePluginServer
	name   string
	socket string
	hint   *api.TopologyInfo

	mu      sync.Mutex
	healthy bool
	changed chan struct{} // closed when healthy changes

	server     *grpc.Server
	served     chan error
	own        fileIdentity // of the socket that is served
	registered fileIdentity // of the kubelet's socket on which the resource was announced
}

func newResource(dir string, node int, near []int, healthy bool) *resource {
	name := driver.NUMAResource(node)
	r := &resource{name: name, healthy: healthy, changed: make(chan struct{}),
		socket: filepath.Join(dir, strings.ReplaceAll(name, "/", "-")+".sock")}
	if len(near) > 0 {
		r.hint = &api.TopologyInfo{}
	}
	for _, n := range near {
		r.hint.Nodes = append(r.hint.Nodes, &api.NUMANode{ID: int64(n)})
	}
	return r
}

// setHealthy tells the kubelet, if it is something new.
func (r *resource) setHealthy(healthy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if healthy == r.healthy {
		return
	}
	klog.InfoS("The health of a resource has changed", "resource", r.name, "healthy", healthy)
	r.healthy = healthy
	close(r.changed)
	r.changed = make(chan struct{})
}

// devices returns the tokens as they are now, and a channel that is closed when
// that changes.
func (r *resource) devices() ([]*api.Device, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	health := api.Healthy
	if !r.healthy {
		health = api.Unhealthy
	}
	devices := make([]*api.Device, Tokens)
	for i := range devices {
		devices[i] = &api.Device{ID: strconv.Itoa(i), Health: health, Topology: r.hint}
	}
	return devices, r.changed
}

// GetDevicePluginOptions implements the kubelet's device plugin API.
func (r *resource) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch implements the kubelet's device plugin API.
func (r *resource) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		devices, changed := r.devices()
		if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Allocate implements the kubelet's device plugin API. A container gets nothing but
// the place where it runs.
func (r *resource) Allocate(_ context.Context, req *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range req.GetContainerRequests() {
		for _, id := range container.GetDevicesIds() {
			if n, err := strconv.Atoi(id); err != nil || n < 0 || n >= Tokens {
				return nil, status.Errorf(codes.InvalidArgument, "%s has no device %q", r.name, id)
			}
		}
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{})
	}
	return response, nil
}

// keep makes sure that the socket is served and that the kubelet which runs now
// knows of it. No kubelet is no error: it will come.
func (r *resource) keep(ctx context.Context, kubeletSocket string) error {
	if r.server == nil || identify(r.socket) != r.own {
		r.stop()
		if err := r.start(); err != nil {
			return err
		}
	}
	kubelet := identify(kubeletSocket)
	if kubelet == r.registered || kubelet == (fileIdentity{}) {
		return nil
	}
	if err := r.register(ctx, kubeletSocket); err != nil {
		return fmt.Errorf("announce %s to the kubelet: %w", r.name, err)
	}
	r.registered = kubelet
	klog.InfoS("The kubelet has accepted a resource", "resource", r.name)
	return nil
}

func (r *resource) start() error {
	if err := os.Remove(r.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("socket of %s: %w", r.name, err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("socket of %s: %w", r.name, err)
	}
	// By then the file of that name may be another one.
	listener.SetUnlinkOnClose(false)
	r.own, r.registered = identify(r.socket), fileIdentity{}
	r.server, r.served = grpc.NewServer(), make(chan error, 1)
	api.RegisterDevicePluginServer(r.server, r)
	go func(server *grpc.Server, served chan error) { served <- server.Serve(listener) }(r.server, r.served)
	return nil
}

// stop ends the server and the streams of the kubelet.
func (r *resource) stop() {
	if r.server == nil {
		return
	}
	r.server.Stop()
	if err := <-r.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		klog.ErrorS(err, "The server of a resource has failed", "resource", r.name)
	}
	r.server = nil
}

// remove ends the server and takes its socket away.
func (r *resource) remove() {
	r.stop()
	if identify(r.socket) == r.own {
		_ = os.Remove(r.socket) // a kubelet that starts would do it
	}
}

func (r *resource) register(ctx context.Context, kubeletSocket string) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+kubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: filepath.Base(r.socket), ResourceName: r.name, Options: &api.DevicePluginOptions{}})
	return err
}
