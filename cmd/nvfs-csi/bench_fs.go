package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nvfs-csi/nvfs-csi/pkg/bench"
	"github.com/nvfs-csi/nvfs-csi/pkg/mountd"
)

// benchFSOptions are the flags of `bench fs`.
type benchFSOptions struct {
	json, html  string
	memory      string
	size        sizeFlag
	rounds      int
	filesystems []string
	tree        string
	noTree      bool
	smallPages  bool
	only        []string
	quick       bool
	targets     bool
	params      bench.Params
}

const quickRounds = 1

func newBenchFSCommand() *cobra.Command {
	opt := benchFSOptions{size: 768 << 20, params: bench.DefaultParams()}
	cmd := &cobra.Command{
		Use:   "fs [flags]",
		Short: "Compare NVFS with ext4, ext2, xfs, btrfs, tmpfs and the floor of FUSE",
		Long: "fs runs the same workloads on NVFS in each flush and cache mode, on filesystems of\n" +
			"the kernel on loop devices over the same memory, on tmpfs, and on a null FUSE\n" +
			"filesystem, which is the floor for NVFS. All are mounted at once and measured in\n" +
			"turn; the figures are medians. Workloads of one client run with client and serving\n" +
			"process on one CPU, and unpinned, which on an idle machine shows what waking another\n" +
			"CPU costs. Every filesystem takes its --size of memory; the workloads are scaled by\n" +
			"flags, and a run takes about a quarter of an hour (--targets: 6 minutes, --quick: 2).\n" +
			"Groups for --only: " + strings.Join(bench.Groups, ", ") + ".",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return opt.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opt.json, "json", "", "also write the report to this file")
	flags.StringVar(&opt.html, "html", "", "also write it as a page with plots to this file")
	flags.StringVar(&opt.memory, "memory", "/dev/shm", "directory on a tmpfs that all filesystems lie in")
	flags.Var(&opt.size, "size", "size of each filesystem")
	flags.IntVar(&opt.rounds, "rounds", 3, "how often each workload is measured on each filesystem; some take long and are measured once or twice")
	flags.StringSliceVar(&opt.filesystems, "filesystems", nil,
		"what to measure: FLUSH/CACHE or FLUSH/CACHE/TRANSPORT for NVFS, such as nt/through/uring, and ext4, ext2, xfs, btrfs, tmpfs, tmpfs-huge, null, null-uring (default: all)")
	flags.StringVar(&opt.tree, "tree", "", "tree to copy and search (default: the Go source tree)")
	flags.BoolVar(&opt.noTree, "no-tree", false, "copy no tree, and compile nothing")
	flags.BoolVar(&opt.smallPages, "small-pages", false, "emulate with 4 KiB pages instead of 2 MiB, which a devdax device has")
	flags.StringSliceVar(&opt.only, "only", nil, "measure only these groups, and workloads whose name contains one of these words")
	flags.BoolVar(&opt.quick, "quick", false, "small parameters, few filesystems, one round")
	flags.BoolVar(&opt.targets, "targets", false, "only what the table of targets needs")
	addBenchParams(flags, &opt.params)
	return cmd
}

func (o *benchFSOptions) run(cmd *cobra.Command) error {
	if os.Getuid() != 0 {
		return errors.New("bench fs mounts filesystems: run it as root")
	}
	o.applyQuick(cmd.Flags())
	report, err := o.measure(cmd.Context(), cmd.ErrOrStderr())
	if report == nil {
		return err
	}
	return errors.Join(err, report.Write(cmd.OutOrStdout()), writeTo(o.json, report.WriteJSON), writeTo(o.html, report.WriteHTML))
}

// measure may return a report and an error: that of workloads that failed.
func (o *benchFSOptions) measure(ctx context.Context, progress io.Writer) (report *bench.Report, err error) {
	exe, err := mountd.ServingProgram()
	if err != nil {
		return nil, err
	}
	choice, err := o.choose(ctx, exe)
	if err != nil {
		return nil, err
	}
	for _, why := range choice.leftOut {
		fmt.Fprintf(progress, "LEFT OUT: %s\n", why)
	}
	err = o.stage(ctx, progress, &o.params, func(sources string) error {
		report, err = o.compare(ctx, choice, sources, progress)
		return err
	})
	if report == nil || ctx.Err() != nil || !o.wants(bench.GroupMount) {
		return report, err
	}
	fmt.Fprintln(progress, "mount, by volume size")
	var mountErr error
	report.Mounts, mountErr = o.mountTimes(ctx, exe)
	return report, errors.Join(err, mountErr)
}

// mountTimes measures on memory with 4 KiB pages: what a large volume has at
// its groups' beginnings would take 2 MiB for each of them otherwise.
func (o *benchFSOptions) mountTimes(ctx context.Context, exe string) (times []bench.MountTime, err error) {
	available, err := bench.AvailableMemory()
	if err != nil {
		return nil, err
	}
	memory, err := bench.NewMemory(o.memory, "nvfs-bench-mount-", available, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	return bench.MeasureMount(ctx, exe, memory.Dir, bench.MountSizes, o.rounds)
}

// treeMemory bounds the copies of the source tree and the results of the
// compiler.
const treeMemory = 2 << 30

// stage makes sources in memory for as long as f runs. They have 4 KiB pages:
// a small file must not take 2 MiB.
func (o *benchFSOptions) stage(ctx context.Context, progress io.Writer, p *bench.Params, f func(dir string) error) (err error) {
	some := bench.Params{Trees: &bench.Trees{}, Compile: &bench.CompileJob{}}
	if o.noTree || !o.wants(bench.GroupCheck) && !o.needs(some) {
		return f("")
	}
	memory, err := bench.NewMemory(o.memory, "nvfs-bench-source-", treeMemory, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	fmt.Fprintln(progress, "copy the source tree to memory")
	dir, err := o.sourceTree(ctx)
	if err != nil {
		return err
	}
	if p.Trees, err = bench.StageTrees(ctx, dir, filepath.Join(memory.Dir, "tree")); err != nil {
		return err
	}
	if o.needs(bench.Params{Compile: &bench.CompileJob{}}) {
		objects := filepath.Join(memory.Dir, "objects")
		if err := os.Mkdir(objects, 0o700); err != nil {
			return err
		}
		if p.Compile, err = bench.NewCompileJob(ctx, objects); err != nil {
			return err
		}
	}
	return f(memory.Dir)
}

// needs tells whether a workload is chosen that needs what p has.
func (o *benchFSOptions) needs(p bench.Params) bool {
	return len(o.workloads(p)) > len(o.workloads(bench.Params{}))
}

// quickTree is the part of the Go source tree that --quick copies.
const quickTree = "src/cmd/compile"

func (o *benchFSOptions) sourceTree(ctx context.Context) (string, error) {
	if o.tree != "" {
		return o.tree, nil
	}
	tree, err := bench.SourceTree(ctx)
	if err != nil {
		return "", err
	}
	if o.quick {
		return filepath.Join(tree.Dir, quickTree), nil
	}
	return tree.Dir, nil
}

// compare measures on memory of its own.
func (o *benchFSOptions) compare(ctx context.Context, choice benchChoice, sources string, progress io.Writer) (report *bench.Report, err error) {
	limit := int64(o.size) * int64(len(choice.all)+1)
	available, err := bench.AvailableMemory()
	if err != nil {
		return nil, err
	}
	if limit > available {
		return nil, fmt.Errorf("%d filesystems of %s need more memory than the %s that are available: choose fewer with --filesystems, --targets or --quick, or a smaller --size",
			len(choice.all), bench.FormatSize(int64(o.size)), bench.FormatSize(available))
	}
	memory, err := bench.NewMemory(o.memory, "nvfs-bench-", limit, !o.smallPages)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	comparison, failed := bench.Compare(ctx, bench.CompareOptions{
		Memory: memory, Size: int64(o.size), Rounds: o.rounds, Filesystems: choice.all, Variants: choice.variants,
		Workloads: o.workloads(o.params), Progress: progress,
	})
	if comparison == nil || ctx.Err() != nil {
		return nil, failed
	}
	comparison.LeftOut = choice.leftOut
	report = &bench.Report{Comparison: comparison}
	if sources != "" && o.wants(bench.GroupCheck) {
		if report.Checks, err = o.check(ctx, memory, choice, progress); err != nil {
			return report, errors.Join(failed, err)
		}
	}
	return report, failed
}

// check measures the checkers of the first NVFS and of the kernel's filesystems.
func (o *benchFSOptions) check(ctx context.Context, memory *bench.Memory, choice benchChoice, progress io.Writer) ([]bench.CheckTime, error) {
	var checked []bench.Filesystem
	nvfs := false
	for _, fs := range choice.all {
		if first := fs.Kind() == bench.KindNVFS && !nvfs; first || fs.Kind() == bench.KindKernel {
			checked = append(checked, fs)
			nvfs = nvfs || first
		}
	}
	threads := []int{1}
	for n := 2; n <= runtime.NumCPU(); n *= 2 {
		threads = append(threads, n)
	}
	return bench.MeasureCheck(ctx, bench.CheckOptions{
		Dir: memory.Dir, Size: int64(o.size), Filesystems: checked, Tree: o.params.Trees.Small, Copies: o.params.CheckCopies,
		Threads: threads, Rounds: max(o.rounds, 3), Progress: progress,
	})
}

func (o *benchFSOptions) workloads(p bench.Params) []bench.Workload {
	return slices.DeleteFunc(bench.Workloads(p), func(w bench.Workload) bool {
		return !w.Selected(o.only) || o.targets && !w.Target
	})
}

// wants tells whether a group is measured that has no workload.
func (o *benchFSOptions) wants(group string) bool {
	return len(o.only) == 0 || slices.Contains(o.only, group)
}

func writeTo(name string, write func(io.Writer) error) (err error) {
	if name == "" {
		return nil
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return write(f)
}
