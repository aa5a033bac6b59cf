// Package demo shows the main job from end to end: it starts the CSI driver on
// emulated persistent memory and takes one volume through the calls that
// Kubernetes would make, with real programs at work on it in between.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

const (
	nodeName    = "demo-node"
	volumeName  = "demo"
	regionCount = 2
	regionSize  = 2 << 30
	volumeSize  = 1 << 30
	peerType    = "ext4"

	// needMemory is what may be allocated at the same time: the volume and
	// its peer, each with the largest workload in it.
	needMemory = 2 << 30

	stepCount      = 10
	cleanupTimeout = 60 * time.Second
)

// Options of Run.
type Options struct {
	Out       io.Writer
	Memory    string // an existing directory, below which the memory is mounted
	FlushMode string // StorageClass parameter flushMode
}

// Run tells the whole story on opt.Out. Whatever happens, also when ctx is
// cancelled, it takes down what it set up; an error says what is left if it
// could not.
func Run(ctx context.Context, opt Options) (err error) {
	exe, err := checkHost()
	if err != nil {
		return err
	}
	memory, err := bench.NewMemory(opt.Memory, "nvfs-demo-", regionCount*regionSize+volumeSize, true)
	if err != nil {
		return err
	}
	d := &demo{console: console{out: opt.Out, total: stepCount}, memory: memory, layout: layout{memory.Dir}, exe: exe, flushMode: opt.FlushMode}
	defer func() {
		if err != nil {
			fmt.Fprintf(opt.Out, "\n%scleaning up\n", indent)
		}
		err = errors.Join(err, d.cleanUp(context.WithoutCancel(ctx)))
	}()
	begin := time.Now()
	fmt.Fprint(opt.Out, "nvfs-csi demo: a volume of persistent memory, from CreateVolume to DeleteVolume.\n"+
		"The persistent memory is EMULATED by DRAM (tmpfs): everything below is real\n"+
		"except that it would not survive a power cut. Compare the ratios, not the figures.\n")
	if err := d.story(ctx); err != nil {
		if d.driver != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w\n%s", err, d.driver.logTail())
		}
		return err
	}
	fmt.Fprintf(opt.Out, "\nDone in %.0f s.\n", time.Since(begin).Seconds())
	return nil
}

// checkHost refuses a host on which the demo would fail half way.
func checkHost() (exe string, err error) {
	if os.Getuid() != 0 {
		return "", errors.New("the demo mounts filesystems: run it as root")
	}
	for tool, pkg := range map[string]string{"fio": "fio", "mkfs.ext4": "e2fsprogs", "mount": "mount", "diff": "diffutils", "go": "golang"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("the demo runs %s, which is not installed: apt-get install %s", tool, pkg)
		}
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return "", fmt.Errorf("the demo mounts over FUSE: %w (modprobe fuse)", err)
	}
	available, err := bench.AvailableMemory()
	if err != nil {
		return "", err
	}
	if available < needMemory {
		return "", fmt.Errorf("%s of memory are available, the demo needs %s", bench.FormatSize(available), bench.FormatSize(needMemory))
	}
	return os.Executable()
}

type demo struct {
	console
	memory    *bench.Memory
	layout    layout
	exe       string
	flushMode string

	driver *driverProcess
	volume *volume
	peer   *bench.Mounted
	fresh  int64 // capacity before the volume was created
}

func (d *demo) story(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		d.showRegions, d.startDriver, d.createVolume, d.stageVolume, d.publishVolume,
		d.useFiles, d.measure, d.takeDown, d.deleteVolume, d.showNothingLeft,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) showRegions(context.Context) error {
	d.begin("Emulated persistent memory: %d regions, one per NUMA node", regionCount)
	for numa := range regionCount {
		d.say("region%d  NUMA node %d  %s  in %s", numa, numa, bench.FormatSize(regionSize), d.layout.region(numa))
	}
	return nil
}

func (d *demo) startDriver(ctx context.Context) error {
	d.begin("Start the CSI driver (nvfs-csi node)")
	err := d.doing("start and Probe", func() (err error) {
		d.driver, err = startDriver(ctx, d.exe, d.layout)
		return err
	})
	if err != nil {
		return err
	}
	d.say("process %d, gRPC on %s", d.driver.cmd.Process.Pid, d.layout.socket())
	if err := d.doing("calibrate flush modes per NUMA node", func() error { return d.driver.calibrated(ctx, d.layout) }); err != nil {
		return err
	}
	d.volume = newVolume(d.driver.conn, d.layout, map[string]string{"flushMode": d.flushMode})
	d.fresh, err = d.volume.available(ctx)
	if err != nil {
		return err
	}
	d.say("GetCapacity: %s available", bench.FormatSize(d.fresh))
	return nil
}

func (d *demo) createVolume(ctx context.Context) error {
	d.begin("CreateVolume: %s, StorageClass parameter flushMode=%s", bench.FormatSize(volumeSize), d.flushMode)
	err := d.doing("carve a namespace", func() error { return d.volume.create(ctx, volumeSize) })
	if err != nil {
		return err
	}
	d.say("volume %s, %s", d.volume.id(), bench.FormatSize(d.volume.created.GetCapacityBytes()))
	return nil
}

func (d *demo) stageVolume(ctx context.Context) error {
	d.begin("NodeStageVolume: format as NVFS, start the serving process, mount over FUSE")
	if err := d.doing("mkfs and mount", func() error { return d.volume.stage(ctx) }); err != nil {
		return err
	}
	status, err := d.status(ctx)
	if err != nil {
		return err
	}
	d.say("process %d serves %s (ps shows the path)", status.PID, status.Path)
	d.say("NUMA node %d, flush mode in force: %s", d.numaNode(), status.Flush)
	d.say("cache mode %s: every write is durable when it returns", status.Cache)
	return nil
}

func (d *demo) publishVolume(ctx context.Context) error {
	d.begin("NodePublishVolume: bind mount where the pod's container finds it")
	if err := d.doing("publish", func() error { return d.volume.publish(ctx) }); err != nil {
		return err
	}
	used, total, err := d.volume.usage(ctx)
	if err != nil {
		return err
	}
	d.say("NodeGetVolumeStats: %s of %s used", bench.FormatSize(used), bench.FormatSize(total))
	return nil
}

func (d *demo) useFiles(ctx context.Context) error {
	d.begin("Real files: copy the Go source tree into the volume and compare")
	return copyTree(ctx, &d.console, d.layout.target())
}

func (d *demo) measure(ctx context.Context) error {
	d.begin("fio on the volume, and the same fio on %s over a loop device on the same memory", peerType)
	if err := os.Mkdir(d.layout.peer(), 0o700); err != nil {
		return err
	}
	var err error
	if d.peer, err = (bench.LoopFS{Type: peerType}).Mount(ctx, d.layout.peer(), volumeSize); err != nil {
		return err
	}
	rows, err := runWorkloads(ctx, &d.console, d.layout.target(), d.peer.Dir)
	if err != nil {
		return err
	}
	if err := d.peer.Unmount(ctx); err != nil {
		return err
	}
	d.say("every verified block read back as it was written")
	status, err := d.status(ctx)
	if err != nil {
		return err
	}
	flush, _, _ := strings.Cut(status.Flush, " (") // without the reason
	fmt.Fprintln(d.out)
	table := comparisonTable(volumeName, fmt.Sprint(d.numaNode()), flush, peerType, rows)
	if err := table.Write(d.out); err != nil {
		return err
	}
	d.say("Emulated memory; mean latencies; processes run wherever the scheduler puts them.")
	return nil
}

func (d *demo) takeDown(ctx context.Context) error {
	d.begin("NodeUnpublishVolume and NodeUnstageVolume, then check the filesystem")
	if err := d.doing("unpublish", func() error { return d.volume.unpublish(ctx) }); err != nil {
		return err
	}
	if err := d.doing("unstage", func() error { return d.volume.unstage(ctx) }); err != nil {
		return err
	}
	return d.doing("nvfs-csi fsck -n", func() error {
		args := []string{"fsck", "-n", d.namespaceFile()}
		out, err := exec.CommandContext(ctx, d.exe, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

func (d *demo) deleteVolume(ctx context.Context) error {
	d.begin("DeleteVolume: erase the memory and free it")
	if err := d.doing("delete", func() error { return d.volume.delete(ctx) }); err != nil {
		return err
	}
	now, err := d.volume.available(ctx)
	if err != nil {
		return err
	}
	if now != d.fresh {
		return fmt.Errorf("GetCapacity: %d bytes available after the volume was deleted, %d before it was created", now, d.fresh)
	}
	d.say("GetCapacity: %s available, as before", bench.FormatSize(now))
	return nil
}

func (d *demo) showNothingLeft(context.Context) error {
	d.begin("What is left after the driver has stopped")
	d.driver.stop()
	d.driver = nil
	left, err := findLeftovers(d.layout)
	if err != nil {
		return err
	}
	for _, l := range []struct {
		what  string
		found []string
	}{
		{"mounts", left.mounts}, {"processes", left.processes},
		{"loop devices", left.loops}, {"files of the volume", left.files},
	} {
		d.say("%-20s %d", l.what, len(l.found))
		for _, f := range l.found {
			d.say("    %s", f)
		}
	}
	if !left.none() {
		return errors.New("the volume was not taken down completely")
	}
	return nil
}

// cleanUp takes down, in order, whatever is still up: through the driver
// first, and what that leaves by force.
func (d *demo) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	var errs []error
	if d.peer != nil {
		errs = append(errs, d.peer.Unmount(ctx))
	}
	if d.driver != nil {
		if d.volume != nil {
			errs = append(errs, d.volume.unpublish(ctx), d.volume.unstage(ctx), d.volume.delete(ctx))
		}
		d.driver.stop()
	}
	return errors.Join(append(errs, forceDown(d.layout.root), d.memory.Close())...)
}

// status asks the process that serves the volume.
func (d *demo) status(ctx context.Context) (mountd.Status, error) {
	return mountd.NewLauncher(mountd.LauncherOptions{StateDir: d.layout.run()}).Status(ctx, d.volume.id())
}

// numaNode is where the volume's memory is, by where its namespace lies; -1
// when there is none.
func (d *demo) numaNode() int {
	for numa := range regionCount {
		if _, err := os.Stat(d.namespaceIn(numa)); err == nil {
			return numa
		}
	}
	return -1
}

// namespaceFile is the emulated device of the volume.
func (d *demo) namespaceFile() string { return d.namespaceIn(d.numaNode()) }

func (d *demo) namespaceIn(numa int) string {
	return filepath.Join(d.layout.region(numa), d.volume.id()+".pmem")
}
