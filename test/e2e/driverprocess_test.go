package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// nodeDriver is `nvfs-csi node` as a process of its own, on two emulated
// regions.
type nodeDriver struct {
	dir     string
	regions []string // of --emulate
	cmd     *exec.Cmd
	exited  chan struct{}

	conn       *grpc.ClientConn
	controller csi.ControllerClient
	node       csi.NodeClient
}

func (d *nodeDriver) endpoint() string { return "unix://" + filepath.Join(d.dir, "csi.sock") }
func (d *nodeDriver) runDir() string   { return filepath.Join(d.dir, "run") }

// newDriver starts a driver on regions of common alignment that ends with the
// test.
func newDriver(t *testing.T) *nodeDriver {
	t.Helper()
	return newAlignedDriver(t, "16Mi")
}

func newAlignedDriver(t *testing.T, align string) *nodeDriver {
	t.Helper()
	d := &nodeDriver{dir: memoryDir(t)}
	for numa := range 2 {
		dir := filepath.Join(d.dir, fmt.Sprintf("region%d", numa))
		d.regions = append(d.regions, fmt.Sprintf("dir=%s,numa=%d,size=2Gi,align=%s", dir, numa, align))
	}
	d.start(t)
	t.Cleanup(func() { d.stop(t, syscall.SIGTERM) })
	return d
}

func (d *nodeDriver) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "driver.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	d.cmd = exec.Command(binary, "node", "--v=4", "--endpoint="+d.endpoint(), "--node-id=node-1",
		"--state-dir="+filepath.Join(d.dir, "state"), "--kubelet-dir="+filepath.Join(d.dir, "kubelet"), "--run-dir="+d.runDir(),
		"--calibration-file="+filepath.Join(d.dir, "calibration.json"))
	for _, r := range d.regions {
		d.cmd.Args = append(d.cmd.Args, "--emulate="+r)
	}
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.exited = make(chan struct{})
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait() // the status stands in ProcessState
		close(d.exited)
	}()
	d.conn, err = grpc.NewClient(d.endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
			BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 500 * time.Millisecond}}))
	if err != nil {
		t.Fatal(err)
	}
	d.controller, d.node = csi.NewControllerClient(d.conn), csi.NewNodeClient(d.conn)
	if _, err := csi.NewIdentityClient(d.conn).Probe(callContext(t), &csi.ProbeRequest{}); err != nil {
		t.Fatalf("the driver does not answer: %v\n%s", err, d.log(t))
	}
}

// stop ends the driver process; volumes stay mounted.
func (d *nodeDriver) stop(t *testing.T, sig syscall.Signal) {
	t.Helper()
	d.conn.Close()
	if err := d.cmd.Process.Signal(sig); err != nil && !d.hasExited() {
		t.Errorf("stop the driver: %v", err)
	}
	select {
	case <-d.exited:
	case <-time.After(settleTimeout):
		t.Errorf("the driver has not ended after %s\n%s", settleTimeout, d.log(t))
		d.cmd.Process.Kill()
		<-d.exited
	}
	if sig == syscall.SIGTERM && d.cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("the driver ended with %s\n%s", d.cmd.ProcessState, d.log(t))
	}
	if t.Failed() {
		t.Log(d.log(t))
	}
}

func (d *nodeDriver) hasExited() bool {
	select {
	case <-d.exited:
		return true
	default:
		return false
	}
}

func (d *nodeDriver) log(t *testing.T) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(d.dir, "driver.log"))
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-16<<10):])
}

func callContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	t.Cleanup(cancel)
	return ctx
}

// csiVolume is a volume of the driver and where the kubelet would have it.
type csiVolume struct {
	d       *nodeDriver
	id      string
	context map[string]string
	staging string
	target  string
}

func mountCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

// createVolume makes a volume that is deleted at the end of the test.
func (d *nodeDriver) createVolume(t *testing.T, name string, size int64, parameters map[string]string) *csiVolume {
	t.Helper()
	resp, err := d.controller.CreateVolume(callContext(t), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, Parameters: parameters,
		VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
	})
	if err != nil {
		t.Fatal(err)
	}
	v := &csiVolume{
		d: d, id: resp.GetVolume().GetVolumeId(), context: resp.GetVolume().GetVolumeContext(),
		staging: filepath.Join(d.dir, "kubelet/plugins/kubernetes.io/csi/csi.nvfs.dev", name, "globalmount"),
		target:  filepath.Join(d.dir, "kubelet/pods", name, "volumes/kubernetes.io~csi/pv/mount"),
	}
	for _, dir := range []string{v.staging, filepath.Dir(v.target)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, err := range []error{v.unpublish(t), v.unstage(t), v.delete(t)} {
			if err != nil {
				t.Errorf("take down volume %s: %v", name, err)
			}
		}
	})
	return v
}

func (v *csiVolume) stage(t *testing.T) error {
	t.Helper()
	_, err := v.d.node.NodeStageVolume(callContext(t), &csi.NodeStageVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, VolumeCapability: mountCapability(), VolumeContext: v.context,
	})
	return err
}

func (v *csiVolume) publish(t *testing.T) error {
	t.Helper()
	_, err := v.d.node.NodePublishVolume(callContext(t), &csi.NodePublishVolumeRequest{
		VolumeId: v.id, StagingTargetPath: v.staging, TargetPath: v.target, VolumeCapability: mountCapability(), VolumeContext: v.context,
	})
	return err
}

func (v *csiVolume) unpublish(t *testing.T) error {
	t.Helper()
	_, err := v.d.node.NodeUnpublishVolume(callContext(t), &csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: v.target})
	return err
}

func (v *csiVolume) unstage(t *testing.T) error {
	t.Helper()
	_, err := v.d.node.NodeUnstageVolume(callContext(t), &csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: v.staging})
	return err
}

// delete asks until the volume is erased.
func (v *csiVolume) delete(t *testing.T) error {
	t.Helper()
	var err error
	eventually(t, "volume "+v.id+" is deleted", func() bool {
		_, err = v.d.controller.DeleteVolume(callContext(t), &csi.DeleteVolumeRequest{VolumeId: v.id})
		return status.Code(err) != codes.Aborted
	})
	return err
}

// up stages and publishes.
func (v *csiVolume) up(t *testing.T) {
	t.Helper()
	if err := v.stage(t); err != nil {
		t.Fatalf("stage: %v", err)
	}
	if err := v.publish(t); err != nil {
		t.Fatalf("publish: %v", err)
	}
}

// server is the process that serves the staged volume.
func (v *csiVolume) server(t *testing.T) int {
	t.Helper()
	pids := serversOf(t, v.id)
	if len(pids) != 1 {
		t.Fatalf("%d processes serve %s, want 1: %v", len(pids), v.id, pids)
	}
	return pids[0]
}

func (v *csiVolume) write(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(v.target, "f"), []byte(payload), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (v *csiVolume) wantContent(t *testing.T) {
	t.Helper()
	if got, err := os.ReadFile(filepath.Join(v.target, "f")); err != nil || string(got) != payload {
		t.Errorf("read %q, %v; want %q", got, err, payload)
	}
}
