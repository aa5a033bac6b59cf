//go:build qemu

package guest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem/ndctl"
)

// callTimeout bounds one call to the driver: ten times what a machine needs.
const callTimeout = time.Minute

// driver is `nvfs-csi node` on the guest's regions.
type driver struct {
	dir        string
	options    []string // further arguments of the driver
	cmd        *exec.Cmd
	exited     chan struct{}
	conn       *grpc.ClientConn
	controller csi.ControllerClient
	node       csi.NodeClient
}

func (d *driver) endpoint() string { return "unix://" + filepath.Join(d.dir, "csi.sock") }

// startDriver starts a driver with the state in stateDir; it ends with the test.
func startDriver(t *testing.T, options ...string) *driver {
	t.Helper()
	d := launchDriver(t, options...)
	d.awaitCalibration(t)
	return d
}

// launchDriver is startDriver that does not wait until the flush modes are
// measured.
func launchDriver(t *testing.T, options ...string) *driver {
	t.Helper()
	d := &driver{dir: "/run/csi", options: options}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d.start(t)
	t.Cleanup(func() {
		d.end(t, syscall.SIGTERM)
		if t.Failed() {
			t.Log(d.log())
		}
	})
	return d
}

func (d *driver) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "driver.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	args := append([]string{"node", "--v=4", "--endpoint=" + d.endpoint(), "--node-id=guest", "--state-dir=" + stateDir,
		"--kubelet-dir=" + d.dir, "--run-dir=" + filepath.Join(d.dir, "run"), "--erase-wait=45s", "--calibration-file=" + d.calibrationFile()}, d.options...)
	d.cmd = exec.Command("nvfs-csi", args...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.exited = make(chan struct{})
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait() // the status stands in ProcessState
		close(d.exited)
	}()
	d.conn, err = grpc.NewClient(d.endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	d.controller, d.node = csi.NewControllerClient(d.conn), csi.NewNodeClient(d.conn)
	if _, err := csi.NewIdentityClient(d.conn).Probe(limit(t, callTimeout), &csi.ProbeRequest{}); err != nil {
		t.Fatalf("the driver does not answer: %v\n%s", err, d.log())
	}
}

// awaitCalibration waits until the driver has measured what the flush mode auto
// stands for on both NUMA nodes; it uses a namespace for that.
func (d *driver) awaitCalibration(t *testing.T) {
	t.Helper()
	for node := range 2 {
		backing := ndctl.BackingOf(ndctl.Region{NUMANode: node, PersistenceDomain: ndctl.DomainMemoryController})
		deadline := time.Now().Add(2 * callTimeout)
		for {
			c, err := pmem.LoadCalibration(d.calibrationFile(), backing)
			if err == nil && c.Measured && c.NUMANode == node {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("NUMA node %d is not measured: %+v, %v\n%s", node, c, err, d.log())
			}
			time.Sleep(100 * time.Millisecond) // the file is all that tells
		}
	}
	// The last namespace is removed after its result is saved.
	m := ndctl.ViewSystem()
	ctx := limit(t, callTimeout)
	for {
		all, err := m.Namespaces(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(all, func(ns ndctl.Namespace) bool { return ndctl.IsScratch(ns.Name) }) {
			return
		}
	}
}

func (d *driver) calibrationFile() string { return filepath.Join(d.dir, "calibration.json") }

// end stops the driver process; volumes stay mounted.
func (d *driver) end(t *testing.T, sig syscall.Signal) {
	t.Helper()
	d.conn.Close()
	_ = d.cmd.Process.Signal(sig) // it may have ended by itself, which the exit code tells
	select {
	case <-d.exited:
	case <-time.After(callTimeout):
		t.Errorf("the driver does not end\n%s", d.log())
		_ = d.cmd.Process.Kill()
		<-d.exited
	}
}

// log is the end of what the driver, mountd and the servers of volumes have
// logged.
func (d *driver) log() string {
	names, err := filepath.Glob(filepath.Join(d.dir, "run", "log", "*.log"))
	if err != nil {
		return err.Error()
	}
	var all strings.Builder
	for _, name := range append([]string{filepath.Join(d.dir, "driver.log")}, names...) {
		log, err := os.ReadFile(name)
		if err != nil {
			log = []byte(err.Error())
		}
		fmt.Fprintf(&all, "%s:\n%s\n", filepath.Base(name), log[max(0, len(log)-16<<10):])
	}
	return all.String()
}

// volume is a volume of the driver, and where the kubelet would have it.
type volume struct {
	d          *driver
	id         string
	capacity   int64
	context    map[string]string
	capability *csi.VolumeCapability
	staging    string
	target     string
}

func filesystem(fsType string) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
}

func rawBlock() *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
}

// create makes a volume or finds it again, as the provisioner does: it asks
// until the answer is final.
func (d *driver) create(t *testing.T, name string, size int64, c *csi.VolumeCapability, parameters map[string]string) (*volume, error) {
	t.Helper()
	req := &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, Parameters: parameters,
		VolumeCapabilities: []*csi.VolumeCapability{c}}
	resp, err := d.controller.CreateVolume(limit(t, callTimeout), req)
	for status.Code(err) == codes.Aborted {
		resp, err = d.controller.CreateVolume(limit(t, callTimeout), req)
	}
	if err != nil {
		return nil, err
	}
	v := &volume{d: d, id: resp.GetVolume().GetVolumeId(), capacity: resp.GetVolume().GetCapacityBytes(), context: resp.GetVolume().GetVolumeContext(), capability: c,
		staging: filepath.Join(d.dir, "plugins", name), target: filepath.Join(d.dir, "pods", name)}
	for _, dir := range []string{v.staging, filepath.Dir(v.target)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	return v, nil
}

func (d *driver) mustCreate(t *testing.T, name string, size int64, c *csi.VolumeCapability, parameters map[string]string) *volume {
	t.Helper()
	v, err := d.create(t, name, size, c, parameters)
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	return v
}

func (v *volume) stage(ctx context.Context) error {
	_, err := v.d.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: v.capability, VolumeContext: v.context})
	return err
}

// up stages and publishes the volume, whose content is then at v.target.
func (v *volume) up(t *testing.T) {
	t.Helper()
	if err := v.stage(limit(t, callTimeout)); err != nil {
		t.Fatalf("stage: %v", err)
	}
	_, err := v.d.node.NodePublishVolume(limit(t, callTimeout), &csi.NodePublishVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: v.target,
		VolumeCapability: v.capability, VolumeContext: v.context})
	if err != nil {
		t.Fatalf("publish: %v", err)
	}
}

func (v *volume) down(t *testing.T) {
	t.Helper()
	if _, err := v.d.node.NodeUnpublishVolume(limit(t, callTimeout), &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target}); err != nil {
		t.Fatalf("unpublish: %v", err)
	}
	if _, err := v.d.node.NodeUnstageVolume(limit(t, callTimeout), &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging}); err != nil {
		t.Fatalf("unstage: %v", err)
	}
}

// delete asks until the volume is erased.
func (v *volume) delete(t *testing.T) {
	t.Helper()
	ctx := limit(t, 2*callTimeout)
	_, err := v.d.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.id})
	for status.Code(err) == codes.Aborted && ctx.Err() == nil {
		_, err = v.d.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.id})
	}
	if err != nil {
		t.Fatalf("delete: %v", err)
	}
}

// record is the driver's file about the volume.
func (v *volume) record() string { return filepath.Join(stateDir, "volumes", v.id+".json") }

// health returns the reasons of the adverse conditions of the volume.
func (v *volume) health(t *testing.T) []string {
	t.Helper()
	response, err := v.d.node.NodeGetVolumeHealth(limit(t, callTimeout), &csi.NodeGetVolumeHealthRequest{VolumeId: v.id})
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, h := range response.GetVolumeHealth().GetHealthStatuses() {
		reasons = append(reasons, h.GetReason())
	}
	return reasons
}

// storageHealth is that of the node.
func (d *driver) storageHealth(t *testing.T) []string {
	t.Helper()
	response, err := d.node.NodeGetStorageHealth(limit(t, callTimeout), &csi.NodeGetStorageHealthRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, h := range response.GetBackendHealth() {
		reasons = append(reasons, h.GetReason())
	}
	return reasons
}

func wantCode(t *testing.T, err error, want codes.Code, says string) {
	t.Helper()
	if status.Code(err) != want || !strings.Contains(err.Error(), says) {
		t.Errorf("error %v; want %s with %q", err, want, says)
	}
}
