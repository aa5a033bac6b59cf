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
	// Total is until the filesystem answers over FUSE, the start of the
	// serving process included.
	Total time.Duration `json:"total"`
	// RSSAnon is the memory of the idle serving process in bytes.
	RSSAnon int64 `json:"rssAnon"`
}

// MountSizes are the sizes that are measured; files are sparse.
var MountSizes = []int64{64 << 20, 1 << 30, 64 << 30, 2 << 40}

// MeasureMount makes volumes of each size in dir, an existing directory, one
// after the other, and mounts each several times. It leaves no volume.
func MeasureMount(ctx context.Context, exe, dir string, sizes []int64, rounds int) ([]MountTime, error) {
	var all []MountTime
	for _, size := range sizes {
		t, err := measureMount(ctx, exe, dir, size, rounds)
		if err != nil {
			return nil, fmt.Errorf("mount %s: %w", FormatSize(size), err)
		}
		all = append(all, t)
	}
	return all, nil
}

func measureMount(ctx context.Context, exe, dir string, size int64, rounds int) (t MountTime, err error) {
	image, mnt := filepath.Join(dir, "pmem"), filepath.Join(dir, "mnt")
	if err := createSparse(image, size); err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, os.Remove(image)) }()
	if err := run(ctx, exe, "mkfs", image); err != nil {
		return t, err
	}
	if err := os.Mkdir(mnt, 0o700); err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, os.Remove(mnt)) }()

	t.Size = size
	var engine, total []float64
	for range rounds {
		d, err := mountEngine(image)
		if err != nil {
			return t, err
		}
		engine = append(engine, float64(d))
		if d, t.RSSAnon, err = mountWhole(ctx, exe, dir, image, mnt); err != nil {
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

func mountWhole(ctx context.Context, exe, dir, image, mnt string) (took time.Duration, rss int64, err error) {
	launcher := mountd.NewLauncher(mountd.LauncherOptions{Executable: exe, StateDir: filepath.Join(dir, "run")})
	spec := mountd.Spec{VolumeID: "bench", Path: image, Mountpoint: mnt, Flush: "auto", Cache: "through", Transport: "auto",
		Emulated: true, NUMANode: -1}
	begin := time.Now()
	if err := launcher.Mount(ctx, spec); err != nil {
		return 0, 0, err
	}
	took = time.Since(begin)
	defer func() {
		err = errors.Join(err, launcher.Unmount(context.WithoutCancel(ctx), spec.VolumeID, mnt))
	}()
	status, err := launcher.Status(ctx, spec.VolumeID)
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
