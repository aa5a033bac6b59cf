package driver_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nvfs-csi/nvfs-csi/pkg/driver"
	"github.com/nvfs-csi/nvfs-csi/pkg/driver/drivertest"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl/fake"
)

const gib = 1 << 30

// node is a node of a cluster with fakes below a driver that is called through
// its socket. Restarting the driver keeps the fakes and the state directory.
type node struct {
	t       *testing.T
	options driver.Options
	ns      *fake.Manager
	mounts  *drivertest.Mounts
	nvfs    *drivertest.NVFS
	volumes *drivertest.Volumes
	manager ndctl.Manager // ns when nil
	// annotation is the node's, nil without an API server.
	annotation func() string

	driver     *driver.Driver
	controller csi.ControllerClient
	node       csi.NodeClient
	conn       *grpc.ClientConn
	cancel     context.CancelFunc
	served     chan error
}

// newNode starts a driver over two regions: small on NUMA node 0 and large on
// NUMA node 1.
func newNode(t *testing.T) *node {
	t.Helper()
	n := prepareNode(t,
		ndctl.Region{Name: "r0", NUMANode: 0, Size: gib, Emulated: true},
		ndctl.Region{Name: "r1", NUMANode: 1, Size: 4 * gib, Emulated: true})
	n.start()
	return n
}

func prepareNode(t *testing.T, regions ...ndctl.Region) *node {
	t.Helper()
	mounts := drivertest.NewMounts()
	n := &node{t: t, options: testOptions(shmDir(t)), ns: fake.New(regions...), mounts: mounts,
		nvfs: drivertest.NewNVFS(mounts), volumes: drivertest.NewVolumes()}
	t.Cleanup(func() {
		if n.cancel != nil {
			n.stop()
		}
	})
	return n
}

func (n *node) deps() driver.Deps {
	manager := n.manager
	if manager == nil {
		manager = n.ns
	}
	return driver.Deps{Namespaces: manager, NVFS: n.nvfs, Volumes: n.volumes, Mount: n.mounts, Statfs: n.mounts.Statfs, Ping: n.mounts.Ping,
		FlushAnnotation: n.annotation,
		CheckFlush: func(mode string, _ ndctl.Region) error {
			if mode == "movdir64b" {
				return status.Error(codes.Internal, "flush mode movdir64b cannot be used; possible: nt, clwb")
			}
			return nil
		}}
}

func (n *node) start() {
	n.t.Helper()
	d, err := driver.New(n.options, n.deps())
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.driver, n.cancel, n.served = d, cancel, make(chan error, 1)
	go func() { n.served <- d.Run(ctx) }()
	n.conn, err = grpc.NewClient(n.options.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	n.controller, n.node = csi.NewControllerClient(n.conn), csi.NewNodeClient(n.conn)
	_, err = csi.NewIdentityClient(n.conn).Probe(n.t.Context(), &csi.ProbeRequest{}, grpc.WaitForReady(true))
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) stop() {
	n.t.Helper()
	n.cancel()
	if err := <-n.served; err != nil {
		n.t.Errorf("driver: %v", err)
	}
	if err := n.conn.Close(); err != nil {
		n.t.Error(err)
	}
	n.cancel = nil
}

func (n *node) restart() {
	n.t.Helper()
	n.stop()
	n.start()
}

// path returns a path that the kubelet could use. Its parent exists.
func (n *node) path(name string) string {
	dir := filepath.Join(n.options.KubeletDir, "pods")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

func (n *node) recordPath(id string) string {
	return filepath.Join(n.options.StateDir, "volumes", id+".json")
}

func mountCapability(mode csi.VolumeCapability_AccessMode_Mode, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: flags}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
	}
}

var multiWriter = mountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER)

func createRequest(name string, size int64, params ...string) *csi.CreateVolumeRequest {
	req := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{multiWriter},
		CapacityRange: &csi.CapacityRange{RequiredBytes: size}, Parameters: map[string]string{}}
	for i := 0; i < len(params); i += 2 {
		req.Parameters[params[i]] = params[i+1]
	}
	return req
}

func (n *node) create(name string, size int64, params ...string) (*csi.Volume, error) {
	response, err := n.controller.CreateVolume(n.t.Context(), createRequest(name, size, params...))
	return response.GetVolume(), err
}

func (n *node) mustCreate(name string, params ...string) string {
	n.t.Helper()
	volume, err := n.create(name, 62*mib, params...)
	if err != nil {
		n.t.Fatalf("create %s: %v", name, err)
	}
	return volume.VolumeId
}

func (n *node) delete(id string) error {
	_, err := n.controller.DeleteVolume(n.t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

func (n *node) stage(id string) error { return n.stageWith(id, multiWriter, nil) }

func (n *node) stageWith(id string, capability *csi.VolumeCapability, context map[string]string) error {
	_, err := n.node.NodeStageVolume(n.t.Context(), &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: n.path("staging-" + id),
		VolumeCapability: capability, VolumeContext: context})
	return err
}

func (n *node) unstage(id string) error {
	_, err := n.node.NodeUnstageVolume(n.t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: n.path("staging-" + id)})
	return err
}

func (n *node) publish(id, target string) error {
	return n.publishWith(id, target, multiWriter, false)
}

func (n *node) publishWith(id, target string, capability *csi.VolumeCapability, readOnly bool) error {
	_, err := n.node.NodePublishVolume(n.t.Context(), &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: n.path("staging-" + id),
		TargetPath: n.path(target), VolumeCapability: capability, Readonly: readOnly})
	return err
}

func (n *node) unpublish(id, target string) error {
	_, err := n.node.NodeUnpublishVolume(n.t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: n.path(target)})
	return err
}

// mounted returns a volume that is created, staged and published at "pod".
func (n *node) mounted(name string) string {
	n.t.Helper()
	id := n.mustCreate(name)
	n.ok(n.stage(id))
	n.ok(n.publish(id, "pod"))
	return id
}

func (n *node) ok(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) wantCode(err error, code codes.Code, says ...string) {
	n.t.Helper()
	if status.Code(err) != code {
		n.t.Errorf("got %v, want %s", err, code)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			n.t.Errorf("error %q does not say %q", err, s)
		}
	}
}

// wantNothing makes sure that no namespace and no record is left.
func (n *node) wantNothing() {
	n.t.Helper()
	if list, err := n.ns.Namespaces(context.Background()); err != nil || len(list) != 0 {
		n.t.Errorf("namespaces are left: %v, %v", list, err)
	}
	if files, err := filepath.Glob(n.recordPath("*")); err != nil || len(files) != 0 {
		n.t.Errorf("records are left: %v, %v", files, err)
	}
}

func (n *node) wantMounts(path string, count int) {
	n.t.Helper()
	if got, top := n.mounts.At(n.path(path)); got != count {
		n.t.Errorf("%d mounts at %s (%v), want %d", got, path, top, count)
	}
}
