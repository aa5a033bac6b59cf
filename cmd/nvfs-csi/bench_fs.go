package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
	"github.com/nvfs-csi/nvfs-csi/pkg/pmem"
)

// fsReport is what `bench fs --json` writes.
type fsReport struct {
	*bench.Comparison
	Mounts []bench.MountTime `json:"mounts"`
}

// benchFSOptions are the flags of `bench fs`.
type benchFSOptions struct {
	json        string
	memory      string
	size        sizeFlag
	rounds      int
	runtime     time.Duration
	filesystems []string
	noTree      bool
	smallPages  bool
	only        string
}

func newBenchFSCommand() *cobra.Command {
	opt := benchFSOptions{size: 768 << 20}
	cmd := &cobra.Command{
		Use:   "fs [flags]",
		Short: "Compare NVFS with ext4, xfs, tmpfs and the floor of FUSE",
		Long: "fs runs the same workloads on NVFS in each flush and cache mode, on ext4 and xfs on\n" +
			"a loop device over the same memory, on tmpfs, and on a null FUSE filesystem, which\n" +
			"is the floor for NVFS. All are mounted at once and measured in turn; the figures are\n" +
			"medians. Each workload runs with client and serving process on one CPU, and\n" +
			"unpinned, which on an idle machine shows what waking another CPU costs.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return opt.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opt.json, "json", "", "also write the report to this file")
	flags.StringVar(&opt.memory, "memory", "/dev/shm", "directory on a tmpfs that all filesystems lie in")
	flags.Var(&opt.size, "size", "size of each filesystem")
	flags.IntVar(&opt.rounds, "rounds", 3, "how often each workload is measured on each filesystem")
	flags.DurationVar(&opt.runtime, "runtime", 2*time.Second, "length of each random fio job")
	flags.StringSliceVar(&opt.filesystems, "filesystems", nil,
		"what to measure: FLUSH/CACHE or FLUSH/CACHE/TRANSPORT for NVFS, such as nt/through/uring, and ext4, xfs, tmpfs, tmpfs-huge, null, null-uring (default: all)")
	flags.BoolVar(&opt.noTree, "no-tree", false, "do not copy the Go source tree")
	flags.BoolVar(&opt.smallPages, "small-pages", false, "emulate with 4 KiB pages instead of 2 MiB, which a devdax device has")
	flags.StringVar(&opt.only, "only", "", "measure only workloads whose name contains this")
	return cmd
}

func (o *benchFSOptions) run(cmd *cobra.Command) (err error) {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	if os.Getuid() != 0 {
		return errors.New("bench fs mounts filesystems: run it as root")
	}
	exe, err := mountd.ServingProgram()
	if err != nil {
		return err
	}
	filesystems, err := o.chosen(exe)
	if err != nil {
		return err
	}
	var tree bench.Tree
	if !o.noTree {
		if tree, err = bench.SourceTree(ctx); err != nil {
			return err
		}
	}
	limit := int64(o.size) * int64(len(filesystems)+1)
	available, err := bench.AvailableMemory()
	if err != nil {
		return err
	}
	if limit > available {
		return fmt.Errorf("%d filesystems of %s need more memory than the %s that are available: choose fewer with --filesystems or a smaller --size",
			len(filesystems), bench.FormatSize(int64(o.size)), bench.FormatSize(available))
	}
	memory, err := bench.NewMemory(o.memory, "nvfs-bench-", limit, !o.smallPages)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	comparison, err := bench.Compare(ctx, bench.CompareOptions{
		Memory: memory, Size: int64(o.size), Rounds: o.rounds, Filesystems: filesystems,
		Workloads: o.workloads(tree), Progress: cmd.ErrOrStderr(),
	})
	if err != nil {
		return err
	}
	if err := comparison.Write(out); err != nil {
		return err
	}
	mounts, err := bench.MeasureMount(ctx, exe, memory.Dir, bench.MountSizes, o.rounds)
	if err != nil {
		return err
	}
	fmt.Fprintln(out)
	if err := bench.WriteMountTimes(out, mounts); err != nil {
		return err
	}
	return o.writeJSON(fsReport{comparison, mounts})
}

func (o *benchFSOptions) workloads(tree bench.Tree) []bench.Workload {
	return slices.DeleteFunc(bench.Workloads(tree, o.runtime), func(w bench.Workload) bool {
		return !strings.Contains(w.Name, o.only)
	})
}

// chosen are the filesystems by name; all when none is named.
func (o *benchFSOptions) chosen(exe string) ([]bench.Filesystem, error) {
	var all []bench.Filesystem
	names := o.filesystems
	if len(names) == 0 {
		names = defaultFilesystems()
	}
	for _, name := range names {
		switch name {
		case "ext4", "xfs":
			all = append(all, bench.LoopFS{Type: name})
		case "tmpfs":
			all = append(all, bench.TmpFS{})
		case "tmpfs-huge":
			all = append(all, bench.TmpFS{Huge: true})
		case "null":
			all = append(all, bench.NullFUSE{Exe: exe})
		case "null-uring":
			all = append(all, bench.NullFUSE{Exe: exe, Transport: "uring"})
		default:
			flush, cache, ok := strings.Cut(name, "/")
			cache, transport, _ := strings.Cut(cache, "/")
			if _, err := pmem.ParseMode(flush); !ok || err != nil {
				return nil, fmt.Errorf("--filesystems %s: known are FLUSH/CACHE, FLUSH/CACHE/TRANSPORT, ext4, xfs, tmpfs, tmpfs-huge, null and null-uring", name)
			}
			all = append(all, bench.NVFS{Exe: exe, Flush: flush, Cache: cache, Transport: transport})
		}
	}
	return all, nil
}

// defaultFilesystems are the fastest flush mode in each cache mode, also with
// the faster transport, every other flush mode in the default cache mode, and
// the peers.
func defaultFilesystems() []string {
	names := []string{"auto/through", "auto/direct", "auto/writeback", "auto/through/uring", "auto/direct/uring"}
	for _, mode := range pmem.CPUModes() {
		names = append(names, string(mode)+"/through")
	}
	return append(names, "null", "null-uring", "ext4", "xfs", "tmpfs", "tmpfs-huge")
}

func (o *benchFSOptions) writeJSON(r fsReport) error {
	if o.json == "" {
		return nil
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(data, '\n'), 0o644)
}
