package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nvfs-csi/nvfs-csi/pkg/nvfs/fsck"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// CheckTime is how long checking a filesystem takes that holds many copies of
// a tree.
type CheckTime struct {
	Filesystem string  `json:"filesystem"`
	Command    string  `json:"command"`
	Threads    int     `json:"threads"` // 0: what the program chooses
	Inodes     uint64  `json:"inodes"`  // in use; those of NVFS for all
	Seconds    float64 `json:"seconds"` // median
	Min        float64 `json:"min"`
	Max        float64 `json:"max"`

	all []float64
}

// InodesPerSecond is the rate of the check.
func (c CheckTime) InodesPerSecond() float64 {
	if c.Seconds <= 0 {
		return 0
	}
	return float64(c.Inodes) / c.Seconds
}

// CheckOptions say what MeasureCheck does.
type CheckOptions struct {
	Dir         string // on a tmpfs, existing
	Size        int64  // of each filesystem, in bytes
	Filesystems []Filesystem
	Tree        Tree
	Copies      int
	Threads     []int // of NVFS's fsck
	Rounds      int
	Progress    io.Writer
}

// checkers are the programs that check without writing, before the name of the
// image. They are timed from start to end; NVFS is checked by the same code as
// `nvfs-csi fsck -n`, in this process.
var checkers = map[string][]string{
	"ext2":  {"e2fsck", "-fn"},
	"ext4":  {"e2fsck", "-fn"},
	"xfs":   {"xfs_repair", "-n", "-f"},
	"btrfs": {"btrfs", "check", "--readonly"},
}

// MeasureCheck fills a filesystem of each kind that has a checker with copies
// of a tree, unmounts them, and then checks them in turn. It leaves nothing.
func MeasureCheck(ctx context.Context, opt CheckOptions) (times []CheckTime, err error) {
	var mounted []*Mounted
	defer func() { err = errors.Join(err, UnmountAll(context.WithoutCancel(ctx), mounted)) }()
	for i, fs := range opt.Filesystems {
		if fs.Kind() != KindNVFS && checkers[fs.Name()] == nil {
			continue
		}
		fmt.Fprintf(opt.Progress, "fsck: %d copies of a tree on %s\n", opt.Copies, fs.Name())
		m, err := mountBelow(ctx, filepath.Join(opt.Dir, fmt.Sprintf("check%d", i)), opt.Size, fs)
		if err != nil {
			return nil, err
		}
		mounted = append(mounted, m)
		if err := fillForCheck(ctx, m, opt); err != nil {
			return nil, err
		}
		if fs.Kind() != KindNVFS {
			times = append(times, CheckTime{Filesystem: m.Name, Command: strings.Join(checkers[m.Name], " ")})
			continue
		}
		for _, threads := range opt.Threads {
			times = append(times, CheckTime{Filesystem: m.Name, Command: fmt.Sprintf("fsck -n --threads %d", threads), Threads: threads})
		}
	}
	if err := checkRounds(ctx, opt, mounted, times); err != nil {
		return nil, err
	}
	return times, nil
}

func fillForCheck(ctx context.Context, m *Mounted, opt CheckOptions) error {
	for i := range opt.Copies {
		if err := run(ctx, "cp", "-a", opt.Tree.Dir, filepath.Join(m.Dir, fmt.Sprintf("copy%d", i))); err != nil {
			return fmt.Errorf("fill %s: %w", m.Name, err)
		}
	}
	return m.unmountOnly(ctx)
}

func checkRounds(ctx context.Context, opt CheckOptions, mounted []*Mounted, times []CheckTime) error {
	var inodes uint64
	for round := range opt.Rounds {
		fmt.Fprintf(opt.Progress, "round %d of %d: fsck\n", round+1, opt.Rounds)
		for i := range times {
			m := mounted[slices.IndexFunc(mounted, func(m *Mounted) bool { return m.Name == times[i].Filesystem })]
			begin := time.Now()
			if times[i].Threads == 0 {
				command := checkers[m.Name]
				if err := run(ctx, command[0], append(slices.Clone(command[1:]), m.image)...); err != nil {
					return err
				}
			} else {
				var err error
				if inodes, err = checkNVFS(ctx, m.image, times[i].Threads); err != nil {
					return err
				}
			}
			times[i].all = append(times[i].all, time.Since(begin).Seconds())
		}
	}
	for i := range times {
		t := &times[i]
		t.Inodes, t.Seconds, t.Min, t.Max = inodes, median(t.all), slices.Min(t.all), slices.Max(t.all)
	}
	return nil
}

func checkNVFS(ctx context.Context, image string, threads int) (inodes uint64, err error) {
	mapping, err := pmem.Open(image, pmem.Options{Emulated: true})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, mapping.Close()) }()
	report, err := fsck.Check(ctx, mapping, fsck.Options{Threads: threads})
	if err != nil {
		return 0, err
	}
	if n := report.Total(); n != 0 {
		return 0, fmt.Errorf("fsck finds %d mistakes on %s, the first: %v", n, image, report.Problems[0])
	}
	return report.Totals.Inodes, nil
}

// WriteCheckTimes prints the table.
func WriteCheckTimes(w io.Writer, times []CheckTime) error {
	t := Table{Header: []string{"check", "command", "time", "inodes/s"}}
	for _, c := range times {
		t.Add(c.Filesystem, c.Command, FormatLatency(time.Duration(c.Seconds*float64(time.Second))), fmt.Sprintf("%.0f", c.InodesPerSecond()))
	}
	return t.Write(w)
}
