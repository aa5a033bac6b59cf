package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

const (
	driverStartTimeout = 20 * time.Second
	driverStopTimeout  = 20 * time.Second
	calibrationTimeout = 30 * time.Second
	calibrationPoll    = 50 * time.Millisecond
	logTailBytes       = 4 << 10
)

// driverProcess is `nvfs-csi node` as a child, and a connection to its socket.
type driverProcess struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{} // closed once the process is reaped
	conn   *grpc.ClientConn
}

// startDriver starts the driver on emulated regions and waits until it
// answers Probe.
func startDriver(ctx context.Context, exe string, l layout) (*driverProcess, error) {
	log, err := os.Create(l.log())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := []string{"node", "--v=2", "--endpoint=unix://" + l.socket(), "--node-id=" + nodeName,
		"--state-dir=" + l.state(), "--run-dir=" + l.run(), "--kubelet-dir=" + l.kubelet(),
		"--calibration-file=" + l.calibration()}
	for _, r := range l.regions() {
		args = append(args, "--emulate="+r)
	}
	cmd := exec.Command(exe, args...)
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own: Ctrl-C must reach this process alone, which then
	// takes the volume down through the driver.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the driver: %w", err)
	}
	d := &driverProcess{cmd: cmd, log: l.log(), exited: make(chan struct{})}
	go func() {
		defer close(d.exited)
		_ = cmd.Wait() // the exit status stands in cmd.ProcessState
	}()
	if err := d.connect(ctx, l.socket()); err != nil {
		err = fmt.Errorf("%w\n%s", err, d.logTail())
		d.stop()
		return nil, err
	}
	return d, nil
}

func (d *driverProcess) connect(ctx context.Context, socket string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, driverStartTimeout)
	defer cancel()
	go func() {
		select {
		case <-d.exited:
			cancel()
		case <-ctx.Done():
		}
	}()
	d.conn, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		// The socket appears within milliseconds; the default is to look again
		// after a second.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
			BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 500 * time.Millisecond}}))
	if err != nil {
		return fmt.Errorf("connect to the driver: %w", err)
	}
	if _, err := csi.NewIdentityClient(d.conn).Probe(ctx, &csi.ProbeRequest{}); err != nil {
		return fmt.Errorf("the driver does not answer: %w", err)
	}
	return nil
}

// calibrated waits until the driver has measured what flush mode auto stands
// for in every region, or not for longer than calibrationTimeout.
func (d *driverProcess) calibrated(ctx context.Context, l layout) error {
	ctx, cancel := context.WithTimeout(ctx, calibrationTimeout)
	defer cancel()
	tick := time.NewTicker(calibrationPoll)
	defer tick.Stop()
	for numa := range regionCount {
		for {
			c, err := pmem.LoadCalibration(l.calibration(), pmem.Backing{Kind: pmem.KindTmpfs, NUMANode: numa})
			if err == nil && c.NUMANode == numa {
				break
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			select {
			case <-tick.C:
			case <-d.exited:
				return errors.New("the driver has ended")
			case <-ctx.Done():
				return fmt.Errorf("wait for the calibration of region%d: %w", numa, ctx.Err())
			}
		}
	}
	return nil
}

// stop ends the driver: politely, then by force.
func (d *driverProcess) stop() {
	if d.conn != nil {
		d.conn.Close()
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended
	select {
	case <-d.exited:
	case <-time.After(driverStopTimeout):
		_ = d.cmd.Process.Kill()
		<-d.exited
	}
}

// logTail is the end of the driver's log, for an error message.
func (d *driverProcess) logTail() string {
	log, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	if len(log) > logTailBytes {
		log = log[len(log)-logTailBytes:]
	}
	return "log of the driver:\n" + string(bytes.TrimSpace(log))
}

// layout is where everything of one run lies: below one directory on a tmpfs,
// so that what is left can be seen.
type layout struct{ root string }

func (l layout) socket() string      { return filepath.Join(l.root, "csi.sock") }
func (l layout) log() string         { return filepath.Join(l.root, "driver.log") }
func (l layout) state() string       { return filepath.Join(l.root, "state") }
func (l layout) run() string         { return filepath.Join(l.root, "run") }
func (l layout) kubelet() string     { return filepath.Join(l.root, "kubelet") }
func (l layout) calibration() string { return filepath.Join(l.root, "calibration.json") }
func (l layout) peer() string        { return filepath.Join(l.root, "peer") }
func (l layout) region(numa int) string {
	return filepath.Join(l.root, fmt.Sprintf("region%d", numa))
}

func (l layout) regions() []string {
	var all []string
	for numa := range regionCount {
		all = append(all, fmt.Sprintf("dir=%s,numa=%d,size=%d", l.region(numa), numa, regionSize))
	}
	return all
}

// staging and target are where the kubelet would have them.
func (l layout) staging() string {
	return filepath.Join(l.kubelet(), "plugins/kubernetes.io/csi/csi.nvfs.dev/demo/globalmount")
}
func (l layout) target() string {
	return filepath.Join(l.kubelet(), "pods/demo/volumes/kubernetes.io~csi/demo/mount")
}
