package deviceplugin

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// patience bounds a wait for something that has to happen; no test is decided by
// how long it takes.
const patience = time.Minute

// offer is what a kubelet was told of one resource.
type offer struct {
	resource string
	devices  []*api.Device
}

// kubelet is as much of a kubelet as concerns device plugins: it accepts
// registrations on a socket, calls the plugin back and follows its list.
type kubelet struct {
	api.UnimplementedRegistrationServer
	t      *testing.T
	dir    string
	offers chan offer

	server *grpc.Server
	ctx    context.Context // of the calls to plugins
	cancel context.CancelFunc
	calls  sync.WaitGroup

	mu     sync.Mutex
	refuse error // the next registration
}

// startKubelet starts one in a directory, as a kubelet does: everything that is in
// it is removed before.
func startKubelet(t *testing.T, dir string) *kubelet {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return listenKubelet(t, dir)
}

// listenKubelet starts one that has removed nothing but its own socket.
func listenKubelet(t *testing.T, dir string) *kubelet {
	t.Helper()
	k := &kubelet{t: t, dir: dir, offers: make(chan offer, 100), server: grpc.NewServer()}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	socket := filepath.Join(dir, "kubelet.sock")
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	api.RegisterRegistrationServer(k.server, k)
	k.calls.Go(func() { _ = k.server.Serve(listener) })
	t.Cleanup(k.stop)
	return k
}

func (k *kubelet) stop() {
	k.cancel()
	k.server.Stop()
	k.calls.Wait()
}

// Register implements the registration service.
func (k *kubelet) Register(_ context.Context, req *api.RegisterRequest) (*api.Empty, error) {
	k.mu.Lock()
	refuse := k.refuse
	k.refuse = nil
	k.mu.Unlock()
	if refuse != nil {
		return nil, refuse
	}
	if req.GetVersion() != "v1beta1" || filepath.Base(req.GetEndpoint()) != req.GetEndpoint() {
		return nil, status.Errorf(codes.InvalidArgument, "registration %v", req)
	}
	k.calls.Go(func() { k.follow(req.GetEndpoint(), req.GetResourceName()) })
	return &api.Empty{}, nil
}

// dial connects to the socket of a plugin.
func (k *kubelet) dial(endpoint string) (api.DevicePluginClient, func()) {
	conn, err := grpc.NewClient("unix://"+filepath.Join(k.dir, endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		k.t.Error(err)
		return nil, func() {}
	}
	return api.NewDevicePluginClient(conn), func() { _ = conn.Close() }
}

func (k *kubelet) follow(endpoint, resource string) {
	client, done := k.dial(endpoint)
	defer done()
	stream, err := client.ListAndWatch(k.ctx, &api.Empty{})
	if err != nil {
		return
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return
		}
		select {
		case k.offers <- offer{resource, list.GetDevices()}:
		case <-k.ctx.Done():
			return
		}
	}
}

// await returns the next list of a resource. Others are dropped.
func (k *kubelet) await(resource string) []*api.Device {
	k.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case o := <-k.offers:
			if o.resource == resource {
				return o.devices
			}
		case <-deadline:
			k.t.Fatalf("the kubelet was told nothing of %s", resource)
		}
	}
}

// awaitHealth waits until all tokens of a resource have that health.
func (k *kubelet) awaitHealth(resource, health string) {
	k.t.Helper()
	for {
		devices := k.await(resource)
		if len(devices) != Tokens {
			k.t.Fatalf("%s has %d devices", resource, len(devices))
		}
		if devices[0].GetHealth() == health && devices[Tokens-1].GetHealth() == health {
			return
		}
	}
}
