package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// MountTime is how long a volume of one size takes to mount: medians.
type MountTime struct {
	Size int64 `json:"size"` // bytes
	// Engine is mapping the device and making the volume usable.
	Engine time.Duration `json:"engine"`
	// Total is until the filesystem answers over FUSE, on a node that has
	// mounted before: keeper and mountd run.
	Total time.Duration `json:"total"`
	// RSSAnon is the memory of the idle serving process in bytes.
	RSSAnon int64 `json:"rssAnon"`
}

// MountSizes are the sizes that are measured; files are sparse.
var MountSizes = []int64{64 << 20, 1 << 30, 64 << 30, 2 << 40}

// MeasureMount makes volumes of each size in dir, an existing directory, one
// after the other, and mounts each several times. It leaves no volume.
func MeasureMount(ctx context.Context, exe, dir string, sizes []int64, rounds int) (all []MountTime, err error) {
	n := mountNode{exe: exe, dir: dir, launcher: mountd.NewLauncher(mountd.LauncherOptions{Executable: exe, StateDir: filepath.Join(dir, "run")})}
	// While one volume is mounted, keeper and mountd stay.
	resident, err := n.newVolume(ctx, "resident", MountSizes[0])
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resident.remove()) }()
	if err := n.launcher.Mount(ctx, resident.spec()); err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, n.launcher.Unmount(context.WithoutCancel(ctx), resident.name, resident.mnt))
	}()
	for _, size := range sizes {
		t, err := n.measure(ctx, size, rounds)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", FormatSize(size), err)
		}
		all = append(all, t)
	}
	return all, nil
}

// mountPause lets mountd have its spare process ready again, as it has on a
// node, where one mount does not follow the other at once.
const mountPause = 200 * time.Millisecond

// mountNode is where volumes are mounted.
type mountNode struct {
	exe, dir string
	launcher *mountd.Launcher
}

// mountVolume is a volume of such a node, on a sparse file.
type mountVolume struct{ name, image, mnt string }

func (n *mountNode) newVolume(ctx context.Context, name string, size int64) (v *mountVolume, err error) {
	v = &mountVolume{name: name, image: filepath.Join(n.dir, name), mnt: filepath.Join(n.dir, name+".mnt")}
	if err := createSparse(v.image, size); err != nil {
		return nil, err
	}
	if err := run(ctx, n.exe, "mkfs", v.image); err != nil {
		return nil, errors.Join(err, os.Remove(v.image))
	}
	if err := os.Mkdir(v.mnt, 0o700); err != nil {
		return nil, errors.Join(err, os.Remove(v.image))
	}
	return v, nil
}

func (v *mountVolume) remove() error { return errors.Join(os.Remove(v.image), os.Remove(v.mnt)) }

func (v *mountVolume) spec() mountd.Spec {
	return mountd.Spec{VolumeID: v.name, Path: v.image, Mountpoint: v.mnt, Flush: "auto", Cache: "through", Transport: "dev",
		Emulated: true, NUMANode: -1}
}

func (n *mountNode) measure(ctx context.Context, size int64, rounds int) (t MountTime, err error) {
	v, err := n.newVolume(ctx, "measured", size)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, v.remove()) }()
	t.Size = size
	var engine, total []float64
	for range rounds {
		d, err := mountEngine(v.image)
		if err != nil {
			return t, err
		}
		engine = append(engine, float64(d))
		time.Sleep(mountPause)
		if d, t.RSSAnon, err = n.mount(ctx, v); err != nil {
			return t, err
		}
		total = append(total, float64(d))
	}
	t.Engine, t.Total = time.Duration(median(engine)), time.Duration(median(total))
	return t, nil
}

func mountEngine(image string) (time.Duration, error) {
	begin := time.Now()
	mapping, err := pmem.Open(image, pmem.Options{Emulated: true})
	if err != nil {
		return 0, err
	}
	fs, err := nvfs.Mount(mapping, nvfs.Options{})
	took := time.Since(begin)
	if err == nil {
		err = fs.Unmount()
	}
	return took, errors.Join(err, mapping.Close())
}

func (n *mountNode) mount(ctx context.Context, v *mountVolume) (took time.Duration, rss int64, err error) {
	begin := time.Now()
	if err := n.launcher.Mount(ctx, v.spec()); err != nil {
		return 0, 0, err
	}
	took = time.Since(begin)
	defer func() {
		err = errors.Join(err, n.launcher.Unmount(context.WithoutCancel(ctx), v.name, v.mnt))
	}()
	status, err := n.launcher.Status(ctx, v.name)
	if err != nil {
		return 0, 0, err
	}
	rss, err = RSSAnon(status.PID)
	return took, rss, err
}

// WriteMountTimes prints the table.
func WriteMountTimes(w io.Writer, times []MountTime) error {
	t := Table{Header: []string{"mount by volume size", "engine", "until it answers", "RssAnon idle"}}
	for _, m := range times {
		t.Add(FormatSize(m.Size), FormatLatency(m.Engine), FormatLatency(m.Total), FormatSize(m.RSSAnon))
	}
	return t.Write(w)
}
